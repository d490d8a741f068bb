"""The files through which the orchestrator and the supervisors of a job's nodes communicate.

::

    job folder
        order.json       by the orchestrator: what to run (NodeOrder)
        go, stop         by the orchestrator: empty files, which the supervisors turn into input of their agents
        rendezvous.json  by node 0: the address of its agent
        shared/          by the ranks of all nodes
        node-N/
            config.json     by the orchestrator: the agent's configuration, which the agent removes
            placed.json     by the supervisor: written at its start (Placed), and touched as a heartbeat
            stream          by the supervisor: the agent's records
            supervisor.log  by the supervisor: its output, if it is inside a launcher's allocation
            results/        by the agent
            exit.json       by the supervisor, last of all: how the agent ended (AgentExit)
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ORDER, GO, STOP, RENDEZVOUS, SHARED = "order.json", "go", "stop", "rendezvous.json", "shared"
CONFIG, PLACED, STREAM, RESULTS, EXIT = "config.json", "placed.json", "stream", "results", "exit.json"
LOG = "supervisor.log"

HEARTBEAT: Final = 2.5
"""Seconds between two heartbeats of a node's supervisor: a cluster may give up a node whose job still runs."""

_RESERVED: Final = 4096
"""Bytes that are reserved for each of the small files that a node writes, so that it can report a full disk."""


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """What every node of a job runs."""

    python: str
    code: str  # the folder that the suite's paths are relative to
    # The agent's container, as ``RUNTIME:IMAGE``; empty for none, or if the supervisor is in it as well.
    container: str = ""
    options: Sequence[str] = ()  # of this job, for ``docker run``


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A node's supervisor has started."""

    at: float  # in seconds since the epoch
    host: str


@dataclass(frozen=True, kw_only=True)
class AgentExit:
    """How the agent of a node ended."""

    status: int | None  # its exit status, negative for a signal; None if it was never started
    signals: tuple[str, ...] = ()  # the signals that the supervisor received, in order
    memory_kills: int = 0  # the number of processes that the out-of-memory killer ended during this job
    output: str = ""  # why the agent was not started
    storage_error: str = ""  # of the shared file system, as in "No space left on device, for 3 s"


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically; only this user may read it."""
    draft = _draft(path)
    with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    draft.replace(path)


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def reserve(path: Path) -> None:
    """Reserve space for a small file, so that :func:`write_in_reserved_space` works on a full disk."""
    _draft(path).write_bytes(b" " * _RESERVED)


def write_in_reserved_space(path: Path, content: object) -> None:
    """Write a dataclass atomically as JSON, padded with blanks."""
    descriptor = os.open(_draft(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)  # truncating would free it
    try:
        os.write(descriptor, json.dumps(asdict(content)).encode().ljust(_RESERVED))  # type: ignore[call-overload]
    finally:
        os.close(descriptor)
    _draft(path).replace(path)


def is_there(path: Path) -> bool:
    """Whether a file exists; False if the file system reports an error."""
    with suppress(OSError):
        path.stat()
        return True
    return False


def is_gone(folder: Path) -> bool:
    """Whether a folder has certainly been removed; False if the file system reports another error."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
