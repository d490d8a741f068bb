"""The files by which a node's supervisor and the orchestrator tell each other of a job.

::

    job folder
        order.json      the orchestrator: what to run (NodeOrder)
        go, hang-up     the orchestrator: empty files, in the place of the agent's standard input
        meeting.json    node 0: where its agent listens
        shared/         the ranks of all nodes
        node-N/
            config.json     the orchestrator: the agent's configuration, which the agent removes
            placed.json     the supervisor: it has begun (Placed), and at its last change it lived
            stream          the supervisor: the agent's records
            supervisor.log  the supervisor: what it prints, where its parent sends it there
            results/        the agent
            exit.json       the supervisor, last of all: how the agent ended (AgentExit)
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ORDER, GO, HANG_UP, MEETING, SHARED = "order.json", "go", "hang-up", "meeting.json", "shared"
CONFIG, PLACED, STREAM, RESULTS, EXIT = "config.json", "placed.json", "stream", "results", "exit.json"
LOG = "supervisor.log"

BEAT: Final = 2.5
"""Seconds between two signs of life of a node's supervisor: a cluster may give up a node whose job goes on."""

_ROOM: Final = 4096
"""Bytes that are reserved for each of the small files that a node writes: it tells of a disk that is full in one."""


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """What every node of a job runs."""

    python: str
    code: str  # the folder that the suite's paths are relative to
    # What the agent runs in, as ``RUNTIME:IMAGE``; empty for nothing, or if this process is in it as well.
    container: str = ""
    options: Sequence[str] = ()  # of this job, for the command that starts a container of Docker


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A node's supervisor has begun."""

    at: float  # when, in seconds since the epoch
    host: str


@dataclass(frozen=True, kw_only=True)
class AgentExit:
    """How the agent of a node ended."""

    status: int | None  # its exit status, negative for a signal; None if it was never started
    signals: tuple[str, ...] = ()  # the signals by which the cluster told this node to end, in their order
    memory_kills: int = 0  # how many processes the out-of-memory killer ended, in this job's time
    output: str = ""  # why the agent was not started
    trouble: str = ""  # what was wrong with the shared file system, as in "No space left on device, for 3 s"


def write_whole(path: Path, text: str) -> None:
    """Write a file that no other process ever reads in part; only this user may read it."""
    draft = _draft(path)
    with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    draft.replace(path)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def reserve(path: Path) -> None:
    """Have room for a small file, which :func:`write_reserved` can then write to a disk that is full."""
    _draft(path).write_bytes(b" " * _ROOM)


def write_reserved(path: Path, told: object) -> None:
    """Write a dataclass as :func:`write_whole` does; blanks follow, which JSON allows."""
    descriptor = os.open(_draft(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)  # as it is: its room stays
    try:
        os.write(descriptor, json.dumps(asdict(told)).encode().ljust(_ROOM))  # type: ignore[call-overload]
    finally:
        os.close(descriptor)
    _draft(path).replace(path)


def is_there(path: Path) -> bool:
    """Whether a file is seen; a file system that does not answer well shows none for now."""
    with suppress(OSError):
        path.stat()
        return True
    return False


def is_gone(folder: Path) -> bool:
    """Whether a folder has been removed, and is not just out of sight: nothing could be reported any more."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
