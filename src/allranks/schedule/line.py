"""The line in which runs on one host wait for GPUs: who came first goes first, however many it needs.

Without it, a run that needs all GPUs at once would wait for as long as others take single ones as they come free. Who
waits has a ticket: a file in the host's folder of locks, named by the moment, locked (flock(2)) for as long as its
owner lives, and touched by it whenever it looks again. Nobody takes a GPU that somebody before them in the line
waits for. A waiter holds no GPU, so two of them never wait for each other; one that is dead has no lock any more, and
one that is stopped does not touch its ticket: neither holds anybody up.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.engine.ownership import is_at, lock_folder

_PREFIX: Final = "line-"

PATIENCE: Final = 5.0
"""Seconds for which a ticket counts that its owner does not touch: twenty looks of a run that waits."""


@dataclass(frozen=True, eq=False)
class Ticket:
    """A place in the line, for as long as the process lives, or until it leaves.

    Attributes:
        path: The ticket's file; names are in the order of the line.
        descriptor: The lock.
    """

    path: Path
    descriptor: int

    def touch(self) -> None:
        """Say that its owner still waits."""
        _touch(self.descriptor)

    def leave(self) -> None:
        """Give the place up."""
        with suppress(OSError):
            self.path.unlink()
        os.close(self.descriptor)


def stand_in_line(gpus: Sequence[str]) -> Ticket:
    """Take a place at the end of the line.

    Args:
        gpus: Those of which some are waited for.

    Raises:
        OSError: The folder of locks cannot be written.
    """
    while True:
        path = lock_folder() / f"{_PREFIX}{time.monotonic_ns():020}-{os.getpid()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.fchmod(descriptor, 0o666)
        ticket = Ticket(path, descriptor)
        # Somebody may have found it before it was locked, and taken it for a dead one's.
        if _locks(descriptor, fcntl.LOCK_EX) and is_at(path, descriptor):
            _touch(descriptor)
            os.write(descriptor, json.dumps({"gpus": list(gpus)}).encode())
            _touch(descriptor)
            return ticket
        ticket.leave()


def claimed(ticket: Ticket | None = None) -> frozenset[str]:
    """The GPUs that somebody waits for who is before us in the line.

    Args:
        ticket: Our own place; None where we have none, and everybody is before us.
    """
    folder = lock_folder()
    # In one call: an interrupt in the middle of a walk would leave the folder open.
    names = (name for name in os.listdir(folder) if name.startswith(_PREFIX))  # noqa: PTH208
    before = (name for name in names if ticket is None or name < ticket.path.name)
    return frozenset(gpu for name in before for gpu in _wanted(folder / name))


def _wanted(path: Path) -> Iterator[str]:
    """The GPUs that the owner of a ticket waits for; none where it is dead or stopped."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # it has just left
    try:
        if _locks(descriptor, fcntl.LOCK_SH):
            with suppress(OSError):  # another user's
                path.unlink()
        elif time.monotonic_ns() - os.fstat(descriptor).st_mtime_ns < PATIENCE * 1e9:
            yield from _read(descriptor)
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Iterator[str]:
    with suppress(ValueError, LookupError, TypeError):  # it is being written
        yield from map(str, json.loads(os.pread(descriptor, 1 << 16, 0))["gpus"])


def _locks(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _touch(descriptor: int) -> None:
    # The host's clock may be set while somebody waits; this one is the same for all its processes, and never is.
    now = time.monotonic_ns()
    os.utime(descriptor, ns=(now, now))
