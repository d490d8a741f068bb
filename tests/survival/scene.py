"""A run that an incident disturbs, and the definition of incidents."""

import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import docker
from cluster import Cluster
from world import HostDaemon

from allranks.agent.linux import variables_of
from allranks.ownership import RUN_LABEL, RUN_VARIABLE

BOTH: Final = ("process", "docker")
ON_CLUSTERS: Final = ("slurm",)
ALL: Final = (*BOTH, *ON_CLUSTERS)
IN_CONTAINERS: Final = ("docker",)

LAST_RESORT: Final = 240.0
"""Seconds after which a run hangs."""

INFRASTRUCTURE: Final = 4
NOTHING_RAN: Final = 5
INTERRUPTED: Final = 130


@dataclass(kw_only=True)
class Scene:
    """A run and its environment.

    Attributes:
        process: ``allranks run``.
        results: The folder of all runs, a disk of its own.
        daemon: None for a run without containers.
        cluster: None for a run on this host.
        drawn: The random number generator of this run.
        output: Returns the output of the run so far.
        notes: Details of the incident, for the report.
        wrong: Problems that the incident has found.
    """

    run_id: str
    engine: str
    process: subprocess.Popen[bytes]
    repository: Path
    results: Path
    environment: dict[str, str]
    daemon: HostDaemon | None
    cluster: Cluster | None
    drawn: random.Random
    output: Callable[[], str]
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.process.poll() is not None

    def allranks(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Another command of allranks beside the run."""
        command = [sys.executable, "-m", "allranks", *arguments]
        environment = {**self.environment, **variables}
        try:
            return subprocess.run(
                command, cwd=self.repository, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
        except subprocess.TimeoutExpired as error:
            self.wrong.append(f"no end after 300 s: {shlex.join(command[2:])}: {error.stdout!r}")
            return subprocess.CompletedProcess(command, -9, "", "")

    def containers(self, client: docker.DockerClient) -> list[dict[str, object]]:
        """The run's containers."""
        found: list[dict[str, object]] = client.api.containers(
            all=True, filters={"label": f"{RUN_LABEL}={self.run_id}"}
        )
        return found

    def networks(self, client: docker.DockerClient) -> list[dict[str, object]]:
        """The run's networks."""
        found: list[dict[str, object]] = client.api.networks(filters={"label": f"{RUN_LABEL}={self.run_id}"})
        return found

    def agents(self) -> list[int]:
        """The run's agents on this host: each leads a session."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        mine = f"{RUN_VARIABLE}={self.run_id}"
        with suppress(ProcessLookupError):
            if self.cluster is not None:  # only command lines say there whose they are
                return [pid for pid in pids if self._is_agent_on_node(pid) and os.getsid(pid) == pid]
            return [pid for pid in pids if mine in variables_of(pid) and os.getsid(pid) == pid]
        return []

    def _is_agent_on_node(self, pid: int) -> bool:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            return self.run_id in command and "agent/__main__.py" in command
        return False

    def whenever(self, find: Callable[[], list[object]]) -> object | None:
        """One of what there is, from now on, as soon as there is some; None where the run ends before."""
        while not self.is_over:
            if found := find():
                return self.drawn.choice(found)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
        return None


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One way for things to go wrong.

    Attributes:
        strike: Does it; True if the run met with it.
        codes: What the run may end with, once it has met with it.
        mend: Undoes what stays.
        engines: Where there is such a thing.
        needs_own_daemon: Whether others would notice.
        is_clean: Whether nothing may be left although nobody has cleaned up.
        is_harmless: Whether all tests must come to what they always do.
        says: A run that ends with exit code 4 must print one of these.
        eats: Whether a test of the run is to eat all memory.
        is_written: Whether what the run has told of a test can be written down.
        seconds: How much longer than an undisturbed run it may take.
        spoils: Whether tests may fail for it, if their job is then an error.
        kills_ranks: Whether it may hit a rank in the place of its agent, where both are processes.
    """

    name: str
    strike: Callable[[Scene], bool]
    codes: tuple[int, ...]
    mend: Callable[[Scene], None] = lambda _: None
    engines: tuple[str, ...] = ALL
    needs_own_daemon: bool = False
    is_clean: bool = True
    is_harmless: bool = False
    says: tuple[str, ...] = ()
    eats: bool = False
    is_written: bool = True
    seconds: float = 25.0
    spoils: bool = False
    kills_ranks: bool = False
