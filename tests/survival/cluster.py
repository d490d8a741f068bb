"""A SLURM cluster in a world of its own, and a spool on a small disk."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from world import mount_disk, unmount

from allranks.ownership import is_held

_SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "slurm-cluster"
_NAMESPACES: Final = Path("/run/netns")
_SETTLING: Final = 90.0
"""Seconds for SLURM to notice which jobs have ended: nodes tell a controller again that was away."""

_SPOOL_MIB: Final = 64


@dataclass(frozen=True)
class Cluster:
    """Three isolated nodes.

    Attributes:
        folder: Where all of it is.
        spool: The jobs' folders, a disk of its own.
    """

    folder: Path
    spool: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which SLURM's commands find it, and `allranks clean` the spool."""
        own = {"SLURM_CONF": str(self.folder / "slurm.conf"), "SLURM_CLUSTER_DIR": str(self.folder)}
        return {**own, "XDG_CONFIG_HOME": str(self._config)}

    @property
    def _config(self) -> Path:
        return self.folder.with_name("config")

    def write_settings(self) -> None:
        """Write the user's own settings."""
        (self._config / "allranks").mkdir(parents=True)
        (self._config / "allranks" / "slurm.toml").write_text(f"spool = {json.dumps(str(self.spool))}\n")

    def script(self, *arguments: str) -> None:
        """Run scripts/slurm-cluster."""
        command = ["bash", str(_SCRIPT), *arguments]
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr

    def slurm(self, *command: str) -> str:
        """The answer of a command of SLURM's."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60).stdout

    def nodes_in_use(self) -> list[str]:
        """The nodes that have a job of anybody's."""
        return self.slurm("sinfo", "--noheader", "-N", "--partition=main", "--states=alloc,mix", "--format=%n").split()

    def heal(self) -> None:
        """Have all nodes again, and a controller that knows it."""
        self.script("ctl-start")
        for node in ("1", "2", "3"):
            self.script("node-start", node)
            self.script("slurmd-start", node)
        # SLURM drains a node whose slurmd ended with a job, until somebody says that it is well.
        for node in self.slurm(
            "sinfo", "--noheader", "-N", "--partition=main", "--states=drain", "--format=%n"
        ).split():
            self.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.script("start")

    def left(self, known: frozenset[int | Path]) -> Iterator[str]:
        """What is left of jobs: in the queue, in the spool, and on nodes."""
        deadline = time.monotonic() + _SETTLING
        while (queued := self.slurm("squeue", "--noheader", "--format=%j").split()) and time.monotonic() < deadline:
            time.sleep(1.0)
        yield from (f"left: job {line}" for line in queued)
        yield from (f"left: {path}" for path in self.spool.glob("allranks-*"))
        for path in Path("/tmp").glob("allranks-node-*/.lock"):
            # A dead one is removed by the next job on its node.
            if path.parent not in known and str(self.spool) in path.read_text() and is_held(path):
                yield f"left: {path.parent}"
        names = Counter(self.slurm("squeue", "--noheader", "--states=all", "--format=%j").split())
        yield from (f"submitted {count} times: {name}" for name, count in names.items() if count > 1)


@contextmanager
def own_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster as long as the context lasts; its nodes see the disks that are mounted before it."""
    mount_disk(_NAMESPACES, 1)
    cluster = Cluster(folder / "cluster", folder / "spool")
    mount_disk(cluster.spool, _SPOOL_MIB)
    cluster.folder.mkdir()
    cluster.write_settings()
    cluster.script("start")
    try:
        yield cluster
    finally:
        cluster.script("stop")
        unmount(cluster.spool)
