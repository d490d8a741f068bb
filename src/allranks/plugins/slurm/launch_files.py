"""The files by which all processes of one launcher become one run, in a folder that they share.

::

    .inside-LAUNCH
        process-R.json  process R: who it is (Member); it touches the file while it lives, and removes it in the end
        session.json    process 0: whom it has seen, the jobs that have nodes, and at last the exit code (Session)
        package/        process 0: the parts of allranks that agents need
        JOB/            process 0: the folder of a job on several nodes (see allranks.plugins.slurm.agent.node_files)

A folder of an earlier launch of the same name may still be there. Process 0 empties it, and the others accept only a
session that has their own nonce. The jobs are in one file because a client of NFS sees a replaced file at once, and a
new name in a folder up to 30 seconds later.
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

BEAT: Final = 2.0
"""Seconds between two signs of life of a process."""

LOOK_AGAIN: Final = 0.25
"""Seconds between two looks at the files of others."""

SHARE: Final = "Name a folder that all nodes of the launcher share: --results DIR."

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of the launcher."""

    rank: int
    nonce: str  # distinguishes it from the process of this rank in another launch
    local_rank: int | None = None  # its number on its node; None if the launcher does not report it
    host: str  # the name of its node, for people
    place: str  # identifies the node and its namespaces: all processes on one node have the same


@dataclass(frozen=True, kw_only=True)
class LaunchedJob:
    """A job on several nodes."""

    name: str  # that of its folder
    nodes: int
    ranks: tuple[int, ...] = ()  # the processes on whose nodes it runs, the leading one first; empty while it waits
    python: str
    package: str  # a folder that all nodes share: it holds the package ``allranks`` and nothing else
    variables: tuple[str, ...] = ()  # NAME=VALUE; its PYTHONPATH comes before that of its nodes
    gpus: tuple[str, ...] = ()  # the ids of the GPUs that were leased for it on the leading node
    gpu_count: int = 0  # how many it uses on all nodes


@dataclass(frozen=True, kw_only=True)
class Session:
    """What process 0 tells all others."""

    nonces: tuple[str, ...]  # of the processes that it has seen, by rank
    jobs: tuple[LaunchedJob, ...] = ()  # those that have nodes
    exit_code: int | None = None  # that of the run; None until it ends


def path_of(folder: Path, rank: int) -> Path:
    """The file of a process."""
    return folder / f"process-{rank}.json"


def write(path: Path, value: Member | Session) -> None:
    """Write one of these files, and create its folder if there is none.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(to_object(value)))


def read_file(path: Path, kind: type[T]) -> T | None:
    """The content of one of these files; None if it is missing, or of another version."""
    try:
        return from_object(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecordError):
        return None


def unusable(folder: Path, error: OSError) -> EngineError:
    """The error of a folder that cannot be written."""
    msg = f"The processes of the launcher cannot meet in {folder}."
    return EngineError(msg, why=f"{error.strerror or error}.", remedy=SHARE)


def refuse_living(path: Path) -> None:
    """Refuse to replace a living process of another launch of this name; a dead one does not touch its file.

    Raises:
        EngineError: It lives.
    """
    before = last_change(path)
    deadline = time.monotonic() + 2.5 * BEAT
    while before is not None and time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN)
        if last_change(path) not in {before, None}:
            msg = f"Another launch of this name is running in {path.parent}."
            raise EngineError(msg, why="Two launches cannot share it.", remedy="Name other results: --results DIR.")


class Pulse:
    """Whether another process lives.

    It counts this process's own looks, and compares no clocks: after a pause of all processes, as on a laptop that
    slept, each of them has its whole limit to beat again.

    Args:
        path: The file that the other process touches.
        limit: Seconds without a change after which it counts as lost.
    """

    def __init__(self, path: Path, limit: float) -> None:
        self._path = path
        self._limit = limit
        self._seen = last_change(path)
        self._silent = 0.0

    def is_lost(self) -> bool:
        """Look at its file, once in :data:`LOOK_AGAIN` seconds; True if it has been silent for too long."""
        before, self._seen = self._seen, last_change(self._path)
        self._silent = self._silent + LOOK_AGAIN if self._seen == before else 0.0
        return self._silent > self._limit
