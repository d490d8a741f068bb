"""The files by which all processes of one launcher become one run, in a folder that they share.

::

    .inside-LAUNCH
        process-R.json  process R: who it is, and a growing number as long as it lives (Member)
        session.json    process 0: whom it has seen, the jobs and their nodes, and at last the exit code (Session)
        package/        process 0: the parts of allranks that agents need
        JOB/            process 0: the folder of a job on several nodes (see allranks.agent.node_files)

A folder of an earlier launch of the same name may still be there: process 0 empties it, and the others take no session
for theirs that does not have their own nonce.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from allranks.agent.node_files import write_whole
from allranks.errors import EngineError
from allranks.protocol.typed_json import RecordError, build, told

SESSION: Final = "session.json"
PACKAGE: Final = "package"

BEAT: Final = 2.0
"""Seconds between two signs of life of a process; each is a small file."""

LOOK_AGAIN: Final = 0.25
"""Seconds between two looks at the files of others."""

_LONGEST_STEP: Final = 1.0
"""Seconds that count between two looks: more is time in which this process was stopped, perhaps with all others."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A process of the launcher."""

    rank: int
    nonce: str  # sets it apart from the process of this rank in another launch
    local_rank: int | None = None  # its number on its node; None if the launcher does not say it
    host: str  # the name of its node, for people
    place: str  # the node and its name spaces: two processes on one node have one
    beat: int = 0  # grows while it lives
    has_left: bool = False  # it takes part no longer


@dataclass(frozen=True, kw_only=True)
class PlacedJob:
    """A job, and the ranks of the processes on whose nodes it runs, the leading one first."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Session:
    """What process 0 says to all others."""

    nonces: tuple[str, ...]  # the processes that it has seen, by rank
    nodes: tuple[int, ...]  # the ranks of those that were elected, one for each node
    beat: int = 0  # grows while process 0 lives
    jobs: tuple[PlacedJob, ...] = ()  # the jobs that have nodes. One that is no longer here is to end.
    exit_code: int | None = None  # how the run has ended; None until then


def path_of(folder: Path, rank: int) -> Path:
    """The file of a process."""
    return folder / f"process-{rank}.json"


def write(path: Path, value: Member | Session) -> None:
    """Write one of these files, whose folder is made if it is not there.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(told(value)))


def read_file(path: Path, kind: type[T]) -> T | None:
    """The content of one of these files; None if it is not there, or is of another version."""
    try:
        return build(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecordError):
        return None


def refuse_living(path: Path, kind: type[Member | Session]) -> None:
    """Refuse to take the place of a process of another launch of this name that lives; a dead one's beat stands still.

    Raises:
        EngineError: It lives.
    """
    before = read_file(path, kind)
    if before is None or (before.has_left if isinstance(before, Member) else before.exit_code is not None):
        return
    deadline = time.monotonic() + 2.5 * BEAT
    while time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN)
        now = read_file(path, kind)
        if now is not None and now.beat > before.beat:
            msg = f"Another launch of this name is running in {path.parent}."
            raise EngineError(msg, why="Two of them cannot share it.", remedy="Name other results: --results DIR.")


class Pulse:
    """Whether another process lives, by a number that grows.

    Args:
        limit: Seconds without a change after which it counts as dead.
        now: The time of the first look.
    """

    def __init__(self, limit: float, now: float) -> None:
        self._limit = limit
        self._looked = now
        self._silent = 0.0
        self._beat = -1

    def is_lost(self, beat: int | None, now: float) -> bool:
        """Take its number as read now, None if there was none to read; true if it has been silent for too long."""
        self._silent += min(now - self._looked, _LONGEST_STEP)
        self._looked = now
        if beat is not None and beat != self._beat:
            self._beat, self._silent = beat, 0.0
        return self._silent > self._limit
