"""The kernel features that allranks needs, and a check that this kernel has them.

A run checks before it starts, and so does each agent, which may run on another kernel. Without the check, a job
would fail midway if a feature is missing.
"""

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from allranks.agent import channel, linux

REMEDY: Final = (
    "Use Linux 5.4 or newer, or a gVisor release from May 2026 or later. If you already do, check whether a sandbox "
    "(seccomp) blocks the system call."
)

_PROC: Final = Path("/proc")

_LOCK: Final = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
"""A lock on the first byte of a file: ``struct flock`` of 64-bit Linux (type, whence, start, length, pid)."""


@dataclass(frozen=True)
class Feature:
    """A kernel feature."""

    name: str
    use: str  # what allranks needs it for, as in "to list children"
    # Uses it once, without a lasting effect; raises an OSError or a ValueError if it is missing.
    probe: Callable[[], object]
    fallback: str = ""  # what allranks does without it; empty if it is required


@dataclass(frozen=True)
class Kernel:
    """The features of this kernel."""

    name: str  # the kernel and its release, as in "Linux 6.1.0"
    found: tuple[Feature, ...]
    missing: tuple[Feature, ...]

    @property
    def refusal(self) -> str:
        """A sentence with the reason why allranks cannot run on it; empty if it can."""
        required = [f"{feature.name} ({feature.use})" for feature in self.missing if not feature.fallback]
        return f"This kernel ({self.name}) lacks {', '.join(required)}." if required else ""

    @property
    def summary(self) -> str:
        """The whole result in one line."""
        found = f"{self.name} has {', '.join(feature.name for feature in self.found) or 'none of the features'}"
        missing = "; ".join(
            f"{feature.name} is missing: {feature.fallback or f'allranks needs it {feature.use}'}"
            for feature in self.missing
        )
        return f"{found}; {missing}" if missing else found


def check(proc: Path = _PROC) -> Kernel:
    """Check this kernel, which takes about 1 ms."""
    features = {feature: _works(feature) for feature in _features(proc)}
    system = os.uname()
    return Kernel(
        name=f"{system.sysname} {system.release}",
        found=tuple(feature for feature, works in features.items() if works),
        missing=tuple(feature for feature, works in features.items() if not works),
    )


def _works(feature: Feature) -> bool:
    try:
        feature.probe()
    except (OSError, ValueError):
        return False
    return True


def _features(proc: Path) -> Iterator[Feature]:
    own = proc / "self"
    yield Feature("pidfd", "to wait for the end of a process", _pidfd)
    yield Feature("SO_PASSCRED", "to identify the sender of a message", _passed_credentials)
    yield Feature("memfd", "to share memory with a rank", _memfd)
    yield Feature("child subreaper", "to find what a test leaves behind", linux.adopts_orphans)
    yield Feature("parent death signal", "to end ranks with their agent", linux.death_signal)
    yield Feature("dumpable flag", "to hide the agent from tests", linux.is_hidden)
    yield Feature("timerfd", "to enforce time limits", _timer)
    yield Feature("F_OFD_SETLK", "to prevent two processes from running the same job", _lock)
    yield Feature("/proc/PID/stat", "to find the processes of a test", partial(_stat, own))
    yield Feature("/proc/PID/environ", "to find the processes of a dead run", partial(_read, own / "environ"))
    yield Feature(
        "/proc/PID/task/TID/children",
        "to list children",
        partial(_children, own),
        "allranks searches all processes instead",
    )
    yield Feature(
        "signal sets of /proc/PID/status",
        "to request stacks from child processes of ranks",
        partial(_signal_sets, own),
        "hang reports do not show the stacks of child processes of ranks",
    )
    yield Feature(
        "/proc/PID/wchan",
        "to show what a process waits for in the kernel",
        partial(_read, own / "wchan"),
        "hang reports do not show what a process waits for in the kernel",
    )


def _pidfd() -> None:
    descriptor = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(descriptor, 0)  # noqa: TID251 - its error is the result of the check
    finally:
        os.close(descriptor)


def _passed_credentials() -> None:
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sender.send(b".")
        _, pid = channel.receive(receiver, 1)
    _expect(pid == os.getpid())


def _memfd() -> None:
    os.close(os.memfd_create("allranks-probe"))


def _timer() -> None:
    linux.Timer(1.0).close()


def _lock() -> None:
    descriptor = os.memfd_create("allranks-probe")  # a network file system may lack locks that the kernel has
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK)
    finally:
        os.close(descriptor)


def _stat(own: Path) -> None:
    fields = (own / "stat").read_bytes().rpartition(b")")[2].split()
    _expect(len(fields) > linux.STARTED and fields[linux.STARTED].isdigit())
    _expect([int(field) for field in fields[1:4]] == [os.getppid(), os.getpgrp(), os.getsid(0)])


def _children(own: Path) -> None:
    _expect(any((own / "task").glob("*/children")))


def _signal_sets(own: Path) -> None:
    status = (own / "status").read_bytes()
    _expect(all(name in status for name in (b"\nSigPnd:", b"\nShdPnd:", b"\nSigBlk:", b"\nSigCgt:")))


def _read(path: Path) -> None:
    path.read_bytes()


def _expect(holds: bool) -> None:
    if not holds:
        msg = "unexpected data from the kernel"
        raise ValueError(msg)
