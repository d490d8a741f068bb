"""The engine ``slurm``: a cluster's queue, and Python environments that its nodes share."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from allranks.engines.gpus import Inventory
from allranks.engines.kind import Finding, JobEnvironment, MakeEnvironment, Progress, examine_remains
from allranks.engines.package import copied_package
from allranks.engines.process_environments import environment_of
from allranks.engines.slurm import SlurmEngine
from allranks.engines.slurm_container import PYTHON
from allranks.errors import EngineError
from allranks.matrix.model import Image, Matrix, Slurm
from allranks.matrix.slurm_settings import with_user_file
from allranks.user_cache import cache_folder

_COMMANDS: Final = ("sbatch", "squeue", "scancel", "srun")
_NO_COMMANDS: Final = "there is no {} here"
_PING: Final = 30.0
"""Seconds for the controller's answer."""

_UNBOUNDED: Final = 1_000_000
"""Cores, and MiB times a thousand: more than any run asks for, since SLURM divides its nodes itself."""


class SlurmKind:
    """See :class:`allranks.engines.kind.EngineKind`."""

    name = "slurm"

    def why_not(self) -> str:
        """See :meth:`allranks.engines.kind.EngineKind.why_not`."""
        lacking = [command for command in _COMMANDS if shutil.which(command) is None]
        return _NO_COMMANDS.format(lacking[0]) if lacking else ""

    def connect(self) -> "ConnectedCluster":
        """See :meth:`allranks.engines.kind.EngineKind.connect`; the controller need not answer at this moment."""
        if why_not := self.why_not():
            msg = "This host is not part of a SLURM cluster."
            raise EngineError(msg, why=f"{why_not.capitalize()}.", remedy="Run it on a host that can submit jobs.")
        return ConnectedCluster(with_user_file(Slurm()))

    def examine(self, _inventory: Inventory) -> Iterator[Finding]:
        """See :meth:`allranks.engines.kind.EngineKind.examine`: nothing where there is no SLURM."""
        if self.why_not():
            return
        connected = self.connect()
        yield _controller()
        yield _spool(connected.spool)
        yield from examine_remains(connected.cleaner())


KIND = SlurmKind()


@dataclass(frozen=True)
class ConnectedCluster:
    """See :class:`allranks.engines.kind.ConnectedEngine`."""

    settings: Slurm
    name = "slurm"
    answer = ""
    image_daemon = None

    def most_jobs(self, matrix: Matrix | None = None) -> int:
        """See :meth:`allranks.engines.kind.ConnectedEngine.most_jobs`."""
        return self.settings.jobs if matrix is None else with_user_file(matrix.slurm).jobs

    @property
    def spool(self) -> Path:
        """The folder of the jobs."""
        return spool_of(self.settings)

    def capacity(self) -> tuple[int, int]:
        """See :meth:`allranks.engines.kind.ConnectedEngine.capacity`."""
        return _UNBOUNDED, _UNBOUNDED * 1000

    def cleaner(self) -> SlurmEngine:
        """See :meth:`allranks.engines.kind.ConnectedEngine.cleaner`."""
        return SlurmEngine(self.settings, self.spool, self.spool)

    def engine_for(
        self, matrix: Matrix, progress: Progress, _uses: ExitStack | None
    ) -> tuple[SlurmEngine, MakeEnvironment]:
        """See :meth:`allranks.engines.kind.ConnectedEngine.engine_for`."""
        settings = with_user_file(matrix.slurm)
        spool = spool_of(settings)
        make: MakeEnvironment = partial(environment_of, root=matrix.root, process=matrix.process, progress=progress)
        if settings.container:
            make = partial(in_container, container=settings.container)
        return SlurmEngine(settings, spool, copied_package(spool / "package")), make


def in_container(_image: Image, *, container: str) -> JobEnvironment:
    """The environment of all cells where ``[slurm] container`` names one: its own interpreter, and nothing is made."""
    return JobEnvironment(image=container, python=PYTHON)


def spool_of(settings: Slurm) -> Path:
    """The folder of the jobs: the one of the settings, or one in the user's cache."""
    return Path(os.path.expandvars(settings.spool)).expanduser() if settings.spool else cache_folder() / "slurm"


def _controller() -> Finding:
    try:
        ping = ("scontrol", "ping")
        done = subprocess.run(ping, capture_output=True, text=True, timeout=_PING, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("SLURM", f"its controller does not answer ({error})", "See scontrol ping.")
    is_up = "UP" in done.stdout
    text = "its controller answers" if is_up else "its controller does not answer; jobs that run go on"
    return Finding("SLURM", text, "" if is_up else "Ask the administrators of the cluster.")


def _spool(folder: Path) -> Finding:
    present = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(present).free >> 30
    if not os.access(present, os.W_OK):
        return Finding("spool", f"{folder} cannot be written", "Name another folder: [slurm] spool.")
    return Finding("spool", f"{free} GiB are free in {folder}, which all nodes must see", "")
