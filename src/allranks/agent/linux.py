"""Linux system calls, and files in ``/proc``, that Python does not wrap."""

import ctypes
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from allranks.agent import clock

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PR_SET_PTRACER = 0x59616D61
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20


def signal_process(pid: int, number: int) -> bool:
    """Send a signal to a process; False if it has ended or belongs to another user (as set-user-ID programs do)."""
    return _was_sent(lambda: os.kill(pid, number))


def signal_group(leader: int, number: int) -> bool:
    """Send a signal to a process group; False if it reached none of its processes."""
    return _was_sent(lambda: os.killpg(leader, number))


def signal_pidfd(pidfd: int, number: int) -> bool:
    """Send a signal to the process of a descriptor; False as for :func:`signal_process`."""
    return _was_sent(lambda: signal.pidfd_send_signal(pidfd, number))


def _was_sent(send: Callable[[], object]) -> bool:
    try:
        send()
    except OSError:
        return False
    return True


_TGKILL = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine)


_SIGNAL_WAITS = {"x86_64": {34, 128, 130}, "aarch64": {133, 137}}.get(os.uname().machine)
"""The numbers of rt_sigtimedwait, rt_sigsuspend and, if there is one, pause."""

_PPOLL = {"x86_64": 271, "aarch64": 73}.get(os.uname().machine)
"""The number of ppoll, which replaces pause if it has no descriptors."""


def may_wait_for_signal(pid: int) -> bool:
    """Whether a process's main thread may be in a system call that any signal ends (proc(5), ``/proc/pid/syscall``)."""
    try:
        call, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:  # the kernel does not say
        return True
    if call in ("running", "-1"):
        return False
    number = int(call)
    polls_nothing = number == _PPOLL and int(arguments[1], 16) == 0
    return _SIGNAL_WAITS is None or number in _SIGNAL_WAITS or polls_nothing


def signal_thread(pid: int, number: int) -> bool:
    """Send a signal to the main thread of a process (tgkill(2)); False if that is impossible or the signal is blocked.

    The kernel may deliver a signal for the whole process to another thread while the main thread handles a signal.
    """
    if _TGKILL is None or _signals(pid, "SigBlk") & 1 << (number - 1):
        return False
    return bool(ctypes.CDLL(None).syscall(_TGKILL, pid, pid, number) == 0)


def _prctl(option: int, argument: int = 0) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return _checked(libc.prctl(option, ctypes.c_ulong(argument), 0, 0, 0))


def _prctl_value(option: int) -> int:
    """The value that prctl(2) writes to the address in its argument."""
    value = ctypes.c_int()
    _prctl(option, ctypes.addressof(value))
    return value.value


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def death_signal() -> int:
    """The signal set by :func:`die_with_parent`; 0 for none."""
    return _prctl_value(_PR_GET_PDEATHSIG)


def allow_tracing(pid: int) -> None:
    """Let a process and its descendants attach a debugger to this one (prctl(2), PR_SET_PTRACER).

    Yama may restrict tracing to ancestors; py-spy, a child of the agent, could then not attach to a rank.
    """
    # A kernel without Yama has no such option and does not need it.
    with suppress(OSError):
        _prctl(_PR_SET_PTRACER, pid)


def offer_to_memory_killer() -> None:
    """Make the out-of-memory killer choose this process before its supervisors (proc(5))."""
    # With 333, the kernel adds a third of all memory to the memory of this process, and of each of its descendants.
    with suppress(OSError, ValueError):
        file = Path("/proc/self/oom_score_adj")
        file.write_text(str(min(1000, int(file.read_text()) + 333)))


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def adopts_orphans() -> bool:
    """Whether :func:`adopt_orphans` is in effect."""
    return bool(_prctl_value(_PR_GET_CHILD_SUBREAPER))


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt orphans within this block; restore the previous setting after it."""
    adopted = adopts_orphans()
    adopt_orphans()
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, adopted)


def gather_into_huge_pages() -> None:
    """Move this process's private memory into huge pages, if available (madvise(2), MADV_COLLAPSE, Linux 6.1).

    A fork copies one table entry per page, and releases the copies when it exits: most of the cost of a fork, once
    torch is imported. On a kernel without MADV_COLLAPSE, nothing changes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for start, end in _own_memory():
        first, last = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if first < last:
            # If this fails, the memory stays in small pages.
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Start and end address of each private, writable mapping of this process without a file."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if permissions.startswith("rw") and permissions.endswith("p") and inode == "0" and name[:1] in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)


def hide_from_others() -> None:
    """Hide the memory, descriptors and environment of this process from other processes of its user.

    They can then neither trace it nor open files in its ``/proc/pid`` (prctl(2), PR_SET_DUMPABLE).
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def is_hidden() -> bool:
    """Whether :func:`hide_from_others` is in effect."""
    return _prctl(_PR_GET_DUMPABLE) == 0


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def call_in_fork(work: Callable[[], bytes]) -> tuple[int, int]:
    """Call a function in a fork; return its process id, and a pipe with the result (empty if the function fails)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        with suppress(BaseException):
            os.close(reader)
            die_with_parent()
            write_all(writer, work())
            status = 0
        # A regular exit would run the parent's exit handlers, and could hang on a faulty device.
        os._exit(status)
    os.close(writer)
    return pid, reader


def reap(pid: int, timeout: float) -> int | None:
    """The exit status of a child that has ended, negative for a signal; None if another process took the status.

    A tracer of the child gets the status first and may keep it, so this waits for at most `timeout` seconds.
    """
    deadline = clock.monotonic() + timeout
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except OSError:
            return None
        if found:
            return os.waitstatus_to_exitcode(status)
        if clock.monotonic() > deadline:
            return None
        clock.sleep(0.005)


def signal_name(number: int) -> str:
    """The name of a signal, such as ``SIGKILL``, or ``signal 40`` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def processes() -> Iterator[int]:
    """The process ids in ``/proc``."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def children() -> frozenset[int]:
    """The process ids of this process's children, including adopted ones and zombies.

    Read from ``/proc/self/task/*/children``, or from ``/proc/*/stat`` on kernels without that file.
    """
    if not _has_children():
        return frozenset()
    with suppress(OSError):
        lists = [file.read_text(encoding="ascii") for file in Path("/proc/self/task").glob("*/children")]
        if lists:
            return frozenset(int(pid) for pids in lists for pid in pids.split())
    own = os.getpid()
    return frozenset(pid for pid in processes() if parent_of(pid) == own)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def parent_of(pid: int) -> int:
    """The process id of a process's parent; 0 if the process is gone."""
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


STARTED = 19
"""Index of the start time in ``/proc/pid/stat`` after the name (proc(5): field 22)."""


def began(pid: int) -> int:
    """The start time of a process in clock ticks since the boot; 0 if it is gone."""
    return int(stat[STARTED]) if (stat := _stat(pid)) else 0


def age(pid: int) -> float:
    """Seconds since a process started; 0 if it is gone."""
    ticks = began(pid)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def _stat(pid: int) -> list[bytes]:
    """The fields of ``/proc/pid/stat`` after the name: state, parent, … (proc(5)); empty if the process is gone."""
    stat = _content(Path(f"/proc/{pid}/stat")) or b""
    # The name, in parentheses, may itself contain spaces and parentheses.
    return stat.rpartition(b")")[2].split()


def members(group: int) -> set[int]:
    """The process ids of a process group."""
    return {pid for pid in processes() if (stat := _stat(pid)) and int(stat[2]) == group}


def descendants(pid: int) -> list[int]:
    """The living descendants of a process, level by level, oldest first."""
    by_parent: dict[int, list[int]] = {}
    for process in processes():
        stat = _stat(process)
        if stat and stat[0] not in (b"Z", b"X"):
            by_parent.setdefault(int(stat[1]), []).append(process)
    found = list(by_parent.get(pid, ()))
    for process in found:
        found += by_parent.get(process, ())
    return found


def session_of(pid: int) -> int | None:
    """The process id of the session leader of a process or zombie; None after it was reaped."""
    stat = _stat(pid)
    return int(stat[3]) if stat else None


_EXECVE_TIMEOUT = 1.0
"""Seconds to wait until a starting program shows its environment: the kernel may have to read it from disk."""


def variables_of(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The initial environment of a process, as ``NAME=value``; empty if it cannot be read.

    Waits for a process that is changing to another program (execve(2)), which shows no environment.
    """
    deadline = clock.monotonic() + _EXECVE_TIMEOUT
    if not (data := _content(proc / f"{pid}/environ")):
        while _is_in_execve(proc / f"{pid}") and clock.monotonic() < deadline:
            clock.sleep(0.001)
        data = _content(proc / f"{pid}/environ")
    return [os.fsdecode(variable) for variable in data.split(b"\0")] if data else []


def _is_in_execve(process: Path) -> bool:
    """Whether a process (a folder in ``/proc``) has a program but shows no arguments yet."""
    with suppress(OSError):
        return (process / "exe").exists() and (process / "cmdline").read_bytes() == b""
    return False


def _content(file: Path) -> bytes | None:
    """The content of a file in ``/proc``; None if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return None


_ENVIRONMENT = slice(47, 49)
"""Indices of the addresses of the environment in ``/proc/pid/stat`` after the name (proc(5): fields 50 and 51)."""


def overwrite_variable(name: str, value: str) -> None:
    """Change a variable in the initial environment of this process, which :func:`variables_of` reads.

    This is needed for forks, which otherwise show the initial environment of their parent. Nothing changes unless the
    variable exists with a value of the same length. ``os.environ`` does not change.
    """
    start, end = map(int, _stat(os.getpid())[_ENVIRONMENT] or (0, 0))
    if not start:
        return  # the kernel hides the addresses
    key = f"\0{name}=".encode()
    area = b"\0" + ctypes.string_at(start, end - start)
    offset = area.find(key)
    old = area[offset + len(key) :].partition(b"\0")[0]
    if offset >= 0 and len(old) == len(value):
        ctypes.memmove(start + offset + len(key) - 1, value.encode(), len(value))


def state_of(pid: int) -> str:
    """The state of a process (proc(5)), such as ``T`` (stopped by a signal) or ``t`` (by a tracer); empty if gone."""
    return b"".join(_stat(pid)[:1]).decode()


@dataclass(frozen=True, kw_only=True)
class LivingProcess:
    """A living process."""

    session: int  # process id of its session leader
    command: str  # its command line, or its name in brackets if it has none


_EXITING = 0x4  # PF_EXITING of the kernel


def is_pending(pid: int, number: int) -> bool:
    """Whether a signal that a process does not block is pending."""
    pending = _signals(pid, "SigPnd") | _signals(pid, "ShdPnd")
    return bool(pending & ~_signals(pid, "SigBlk") & 1 << (number - 1))


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, and does not block it."""
    return bool(_signals(pid, "SigCgt") & ~_signals(pid, "SigBlk") & 1 << (number - 1))


def _signals(pid: int, name: str) -> int:
    """A signal mask of a process (proc(5), ``/proc/pid/status``); 0 if unknown."""
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return int(status[name], 16)
    except (OSError, ValueError, KeyError):
        return 0


def kernel_wait(pid: int) -> str:
    """A message with the kernel function in which a process waits; empty if unknown."""
    with suppress(OSError, UnicodeDecodeError):
        function = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
        return f"waiting in the kernel function {function}" if function not in ("", "0") else ""
    return ""


def describe(pid: int) -> LivingProcess | None:
    """The session and command of a process; None if it has ended or is exiting."""
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
    """The number of processes that the out-of-memory killer has killed in this process's cgroup; 0 if unknown.

    Read from ``memory.events`` of cgroup v2, or ``memory.oom_control`` of v1. In a container, the cgroup may be mounted
    as the root, although ``/proc/self/cgroup`` has its path on the host.
    """
    return max(map(_oom_kills, _memory_files()), default=0)


def is_memory_kill(status: int | None, memory_kills: int) -> bool:
    """Whether the out-of-memory killer ended a process: by SIGKILL, after `memory_kills` earlier kills."""
    return status == -signal.SIGKILL and killed_for_memory() > memory_kills


def killed(number: int, *, for_memory: bool) -> str:
    """A message with the signal that ended a process."""
    return "killed by the kernel's out-of-memory killer" if for_memory else f"killed by {signal_name(number)}"


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
    """Wait until a descriptor is readable; False after `timeout` seconds (None: wait forever)."""
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
    """A descriptor that becomes readable at a fixed interval (timerfd_create(2), which Python has since 3.13)."""

    def __init__(self, seconds: float) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC))
        whole, fraction = divmod(seconds, 1)
        interval = _Timespec(int(whole), int(fraction * 1e9))
        _checked(libc.timerfd_settime(self._descriptor, 0, ctypes.byref(_Itimerspec(interval, interval)), None))

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def has_expired(self) -> bool:
        """Whether the timer has expired since the last call; it keeps running."""
        try:
            return bool(os.read(self._descriptor, 8))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
