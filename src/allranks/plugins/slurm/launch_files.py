"""The files through which the processes of one launcher coordinate a run, in a shared folder.

::

    .inside-LAUNCH
        process-R.json  by process R: its identity (Member); touched as a heartbeat, and removed when the process ends
        session.json    by process 0: the processes it has seen, the running jobs, finally the exit code (Session)
        package/        by process 0: the parts of allranks that agents need
        JOB/            by process 0: the folder of a job on several nodes (allranks.plugins.slurm.agent.node_files)

If an earlier launch left a folder of the same name, process 0 empties it, and the others accept only a session that has
their own nonce. All jobs are in one file because an NFS client sees a replaced file at once, but a new name in a folder
up to 30 seconds later.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from allranks.errors import EngineError
from allranks.plugins.slurm.agent.node_files import write_whole
from allranks.plugins.slurm.shared_folder_job import last_change
from allranks.protocol.typed_json import RecordError, from_object, to_object

SESSION: Final = "session.json"
PACKAGE: Final = "package"

HEARTBEAT: Final = 2.0
"""Seconds between two heartbeats of a process."""

POLL_INTERVAL: Final = 0.25
"""Seconds between two looks at the files of other processes."""

SHARE_REMEDY: Final = "Name a folder that all nodes of the launcher share: --results DIR."

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of the launcher."""

    rank: int
    nonce: str  # distinguishes it from the process of this rank in another launch
    local_rank: int | None = None  # None if the launcher does not report it
    host: str  # the name of its node, for people
    node_id: str  # identifies the node and its namespaces


@dataclass(frozen=True, kw_only=True)
class LaunchedJob:
    """A job on several nodes."""

    name: str  # also the name of its folder
    nodes: int
    ranks: tuple[int, ...] = ()  # the processes on whose nodes it runs, the lead node's first; empty while it waits
    python: str
    package: str  # a folder that all nodes share: it holds the package ``allranks`` and nothing else
    variables: tuple[str, ...] = ()  # NAME=VALUE; its PYTHONPATH comes before that of its nodes
    gpus: tuple[str, ...] = ()  # the ids of its leased GPUs on the lead node
    gpu_count: int = 0  # the number of its GPUs on all nodes


@dataclass(frozen=True, kw_only=True)
class Session:
    """The state that process 0 publishes."""

    nonces: tuple[str, ...]  # of the processes that it has seen, by rank
    jobs: tuple[LaunchedJob, ...] = ()  # only jobs that have nodes
    exit_code: int | None = None  # None until the run ends


def member_path(folder: Path, rank: int) -> Path:
    """The file of a process."""
    return folder / f"process-{rank}.json"


def write(path: Path, value: Member | Session) -> None:
    """Write one of these files, and create its folder if necessary."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(to_object(value)))


def read_file(path: Path, kind: type[T]) -> T | None:
    """The content of one of these files; None if it is missing, or of another version."""
    try:
        return from_object(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecordError):
        return None


def unusable_folder(folder: Path, error: OSError) -> EngineError:
    """The error for a folder that cannot be written."""
    msg = f"The processes of the launcher cannot use {folder} to find each other."
    return EngineError(msg, why=f"{error.strerror or error}.", remedy=SHARE_REMEDY)


def reject_running_launch(path: Path) -> None:
    """Reject a folder in which another running launch of this name touches `path`, the file of one of its processes.

    Raises:
        EngineError: Another launch uses it.
    """
    before = last_change(path)
    deadline = time.monotonic() + 2.5 * HEARTBEAT
    while before is not None and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
        if last_change(path) not in {before, None}:
            msg = f"Another launch of this name is running in {path.parent}."
            why = "Two launches cannot share it."
            raise EngineError(msg, why=why, remedy="Name another results folder: --results DIR.")


class HeartbeatMonitor:
    """Detects whether another process is alive.

    It counts its own looks instead of comparing clocks, so that a pause of all processes, as on a suspended laptop,
    does not count as silence.

    Args:
        path: The file that the other process touches.
        limit: Seconds without a heartbeat after which it counts as lost.
    """

    def __init__(self, path: Path, limit: float) -> None:
        self._path = path
        self._limit = limit
        self._seen = last_change(path)
        self._silent = 0.0

    def is_lost(self) -> bool:
        """Look at its file, every :data:`POLL_INTERVAL` seconds; True if it has been silent for too long."""
        before, self._seen = self._seen, last_change(self._path)
        self._silent = self._silent + POLL_INTERVAL if self._seen == before else 0.0
        return self._silent > self._limit
