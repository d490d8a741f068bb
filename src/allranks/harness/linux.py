"""The few Linux calls that Python does not wrap."""

import ctypes
import os
import selectors
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PR_SET_PTRACER = 0x59616D61
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def allow_tracing(pid: int) -> None:
    """Let a process and its descendants attach a debugger to this one (prctl(2), PR_SET_PTRACER).

    Where the kernel's Yama restricts that to ancestors, py-spy, a child of the agent, could not look at a rank.
    """
    # A kernel without Yama knows no such option, and needs none.
    with suppress(OSError):
        _prctl(_PR_SET_PTRACER, pid)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt orphans in this block, and after it only where this process did before."""
    adopted = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(adopted))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, adopted.value)


def gather_into_huge_pages() -> None:
    """Move this process's own memory into huge pages (madvise(2), MADV_COLLAPSE, Linux 6.1), as far as there are some.

    A fork copies one entry for each page, and its end takes one off each: of a process that has imported torch that is
    most of what a fork costs. A kernel without it changes nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for start, end in _own_memory():
        first, last = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if first < last:
            # What cannot be gathered stays as it is.
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Start and end address of each writable mapping of this process that is neither a file's nor shared."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if permissions.startswith("rw") and permissions.endswith("p") and inode == "0" and name[:1] in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)


def hide_from_others() -> None:
    """Have the kernel keep this process's memory, descriptors and environment from others of its user (prctl(2)).

    Of this user's processes none can trace it then, nor open what is below its ``/proc/pid`` (PR_SET_DUMPABLE).
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def reap(pid: int, patience: float) -> int | None:
    """The exit status of a child that has ended, negative for a signal; None where somebody else has it.

    Args:
        pid: The child's.
        patience: Seconds; a process that traces it is told first, and may never pass it on.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def signal_name(number: int) -> str:
    """The name of a signal, ``SIGKILL``; a number without one as ``signal 40``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def processes() -> Iterator[int]:
    """The process ids that ``/proc`` has."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def children() -> frozenset[int]:
    """The process ids of this process's children, adopted and dead ones included.

    Read from ``/proc/self/task/*/children``, or where the kernel is built without it from ``/proc/*/stat``.
    """
    if not _has_children():
        return frozenset()
    with suppress(OSError):
        lists = [file.read_text(encoding="ascii") for file in Path("/proc/self/task").glob("*/children")]
        if lists:
            return frozenset(int(pid) for pids in lists for pid in pids.split())
    own = os.getpid()
    return frozenset(pid for pid in processes() if _parent(pid) == own)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _parent(pid: int) -> int | None:
    stat = _stat(pid)
    return int(stat[1]) if stat else None


def _stat(pid: int) -> list[bytes]:
    """State, parent, process group, session and so on (proc(5), ``/proc/pid/stat``); empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The command name, in parentheses, may itself hold spaces and parentheses.
    return stat.rpartition(b")")[2].split()


def members(group: int) -> set[int]:
    """The process ids of a process group."""
    return {pid for pid in processes() if (stat := _stat(pid)) and int(stat[2]) == group}


def session_of(pid: int) -> int | None:
    """The process id of the leader of a process's session, a dead process included; None for one that is reaped."""
    stat = _stat(pid)
    return int(stat[3]) if stat else None


def variables_of(pid: int) -> list[str]:
    """The environment that a process's program was started with, as ``NAME=value``; none where it cannot be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(variable) for variable in data.split(b"\0")]


def state_of(pid: int) -> str:
    """The state of a process (proc(5)): ``T`` for stopped by a signal, ``t`` by a tracer; empty when it is gone."""
    return b"".join(_stat(pid)[:1]).decode()


@dataclass(frozen=True, kw_only=True)
class LivingProcess:
    """A living process.

    Attributes:
        session: Process id of its session's leader.
        command: Its command line, or its name in brackets where it has none.
    """

    session: int
    command: str


_EXITING = 0x4  # PF_EXITING of the kernel


def is_coming(pid: int, number: int) -> bool:
    """Whether a process has been sent a signal that it does not block, and has not got it yet."""
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
        return bool(pending & ~int(status["SigBlk"], 16) & 1 << (number - 1))
    except (OSError, ValueError, KeyError):
        return False


def describe(pid: int) -> LivingProcess | None:
    """What a process is; None for one that is dead, or about to be."""
    stat = _stat(pid)
    if not stat or stat[0] in (b"Z", b"X") or int(stat[6]) & _EXITING:
        return None
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return LivingProcess(session=int(stat[3]), command=arguments.decode("utf-8", "replace") or f"[{name}]")


def killed_for_memory() -> int:
    """How many processes of this process's cgroup the kernel has killed for want of memory; 0 where it does not say.

    Read from ``memory.events`` of cgroup v2, or ``memory.oom_control`` of v1. In a container the cgroup may be mounted
    as the root, while ``/proc/self/cgroup`` has its path on the host.
    """
    return max(map(_oom_kills, _memory_files()), default=0)


def _memory_files() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            folders += [root / relative / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            folders += [root / "memory" / relative / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return folders


def _oom_kills(file: Path) -> int:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def is_readable(descriptor: int, timeout: float | None) -> bool:
    """Wait until a descriptor is readable; False when `timeout` (seconds; None for ever) came first."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(timeout))


_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """Readable every so many seconds (timerfd_create(2), which Python wraps from 3.13 on).

    Args:
        seconds: From one time to the next.

    Raises:
        OSError: The system has no descriptor left.
    """

    def __init__(self, seconds: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
        whole, fraction = divmod(seconds, 1)
        every = _Timespec(int(whole), int(fraction * 1e9))
        _checked(libc.timerfd_settime(self._descriptor, 0, ctypes.byref(_Itimerspec(every, every)), None))

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def has_gone_off(self) -> bool:
        """Whether it has since the last call; it will again."""
        try:
            return bool(os.read(self._descriptor, 8))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
