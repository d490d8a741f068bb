"""The few Linux calls that Python does not wrap."""

import ctypes
import os
import selectors
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> frozenset[int]:
    """The process ids of this process's children, adopted and dead ones included.

    Read from ``/proc/*/stat``, because ``/proc/self/task/*/children`` is a kernel build option.
    """
    if not _has_children():
        return frozenset()
    own = os.getpid()
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return frozenset(pid for pid in pids if _parent(pid) == own)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name, in parentheses, may itself hold spaces and parentheses.
    return int(stat.rpartition(b")")[2].split()[1])


def is_readable(descriptor: int, timeout: float | None) -> bool:
    """Wait until a descriptor is readable; False when `timeout` (seconds; None for ever) came first."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout))
