"""Records how the processes that a test starts end; runs in the rank and in each process below it.

Forks inherit the observer, and other Python processes load it through the folder ``child_python``. Each process appends
its events to its own file in the folder :data:`FOLDER`, for :mod:`allranks.agent.child_processes`:

- ``Named``: the name that ``multiprocessing`` gave a process, written by its parent or by the process itself;
- ``Began``: this process is a Python program, or a fork of one;
- ``Replaced``: this process is about to execute another program;
- ``Ranked``: this process set the environment variable with its rank;
- ``FoundDead``: as this process ends, a sibling is already dead, which the parent may notice later;
- ``Left``: this process ends with an exception, or an exit status other than 0;
- ``PassedOn``: this worker of a pool sent an exception to the process that submitted the task, and continues;
- ``Signaled``: this process sent a signal to a process;
- ``Ended``: a process that this one started has ended with a status other than 0.

The kernel reports the status of a child only once, to the first caller that waits for it. Therefore Python's functions
that wait for processes are wrapped. Functions that send signals are wrapped as well, because a process that was stopped
by its parent did not fail by itself.

This runs in arbitrary programs and delays their start. Therefore the module imports only what Python itself has already
imported, and its functions import the rest when they need it.
"""

# ruff: noqa: PTH100, PTH108, PTH110, PTH118, PTH120, PTH123, PTH208 - pathlib is slow to import
from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import sys
import time
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, Final

FOLDER: Final = "ALLRANKS_CHILDREN"
"""The environment variable with the folder of the events."""

PYTHON_PATH: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child_python")
"""The folder with the ``sitecustomize`` that loads this module."""

_LONGEST_MESSAGE: Final = 2_000
_LONGEST_TEXT: Final = 50_000
_STATUS_MASK: Final = 255
_MOST_SIGNALS: Final = 128
_MOST_FRAMES: Final = 50

_KILLED: Final = frozenset({os.CLD_KILLED, os.CLD_DUMPED})
_ENDED: Final = _KILLED | {os.CLD_EXITED}
_PEEK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Query the end of a process without reaping it."""

_TRACKER: Final = "multiprocessing.resource_tracker"
_FORK_SERVER: Final = "multiprocessing.forkserver import main"
"""Parts of the command lines of Python's helper processes."""

_EXECUTE: Final = ("subprocess", "_execute_child")
"""The function that forks to execute a program if the caller has a ``preexec_fn``."""

_ALLRANKS: Final = "allranks."
"""The prefix of the modules that fork ranks."""

_PASSED_ON: Final = (
    ("multiprocessing.pool", "ExceptionWithTraceback"),
    ("concurrent.futures.process", "_ExceptionWithTraceback"),
)
"""The classes in which workers of pools send an exception."""

_NOTED: Final = "_allranks_noted"
"""The attribute of processes of ``multiprocessing`` whose end has been written."""

_TORCH_SPAWN: Final = "torch.multiprocessing.spawn"
_STARTERS: Final = frozenset({__name__, "multiprocessing.process", _TORCH_SPAWN, *dict(_PASSED_ON)})
"""Modules whose frames precede those of a process's own function in a traceback."""

_FLAGS: Final = 6
_STARTED: Final = 19
"""Indices in ``/proc/pid/stat`` after the name (proc(5): fields 9 and 22); a start is in clock ticks since the boot."""

_EXITING: Final = 0x4
"""The kernel's flag of a process that is exiting (``PF_EXITING``)."""

_clock, _getpid, _getppid, _waitid = time.clock_gettime, os.getpid, os.getppid, os.waitid
_mkdir, _open, _put, _close = os.mkdir, os.open, os.write, os.close
"""Bound now, because a test may replace them."""


class _Process:
    """The state of the observer in this process."""

    def __init__(self) -> None:
        self.folder = ""  # of the events; kept, because a test may change the environment
        self.begin()

    def begin(self) -> None:
        """Initialize the state in a new process, including forks."""
        self.pid = _getpid()
        self.has_begun = False  # always False in a rank, which is reported in another way
        self.has_left = False
        self.started: list[ref[Any]] = []
        self.ended: set[int] = set()  # processes whose end has been written
        self.unwaited: set[int] = set()  # those of them that have not been reaped
        self.ranks: set[int] = set()  # child processes that are reported in another way


_process = _Process()


def observe() -> None:
    """Observe the processes that this one starts, and its forks."""
    _process.begin()
    _process.folder = os.environ.get(FOLDER, "")
    try:  # noqa: SIM105 - contextlib takes longer to import
        _mkdir(_process.folder)
    except OSError:  # it exists already, or its parent folder has been removed
        pass
    for name in ("waitpid", "wait", "wait3", "wait4"):
        _wrap_result(name, lambda found: _note_status(found[0], found[1]))
    _wrap_result("waitid", _note_waitid)
    for name, targets in _TARGETS.items():
        _wrap_signals(name, targets)
    for name in ("execv", "execve"):  # all others call these
        _wrap_exec(name)
    _wrap_exit()
    _wrap_putenv()
    if "subprocess" in sys.modules:  # it has already bound os.waitpid
        sys.modules["subprocess"].Popen.returncode = _ReturnCode()
    os.register_at_fork(after_in_child=_begin_fork)
    _observe_multiprocessing()


def observe_this_program() -> None:
    """Observe this Python program and the processes that it starts, if a test of a rank started it."""
    if not os.environ.get(FOLDER) or _is_in_command_line(_TRACKER):
        return
    if _is_in_command_line("multiprocessing"):
        import multiprocessing.process  # noqa: F401, PLC0415 - it is about to be imported anyway
    observe()
    note_begin()
    if _is_in_command_line(_FORK_SERVER):
        _write("Named", pid=_getpid(), name="forkserver")
        return
    sys.excepthook = sys.__excepthook__ = _with_note(sys.excepthook)  # some programs check whether the two are the same


def _is_in_command_line(part: str) -> bool:
    return any(part in argument for argument in sys.orig_argv)


def note_ends() -> None:
    """Write the ends of all processes that have ended, including those that have not been reaped."""
    _note_started()
    try:
        if _waitid(os.P_ALL, 0, _PEEK) is None:
            return
    except ChildProcessError:
        return
    for pid in _children() - _process.unwaited:
        try:
            found = _waitid(os.P_PID, pid, _PEEK)
        except ChildProcessError:
            continue
        if found is not None:
            _note_waitid(found)
            _process.unwaited.add(pid)


def _note_started() -> None:
    for reference in _process.started:
        _note_process(reference())


def ignore(pid: int) -> None:
    """Do not write the end of a child process, such as a rank, which is reported in another way."""
    _process.ranks.add(pid)


def begin_test() -> None:
    """Delete all events except those by and about processes that are still alive."""
    _note_started()
    _process.started.clear()
    _process.ended &= _process.unwaited  # the kernel may reuse the process id of a reaped process
    if has_events():  # most tests start no process
        _forget_the_dead()


def _forget_the_dead() -> None:
    import json  # noqa: PLC0415 - see _write

    own = f"{_process.folder}/{_getpid()}"
    try:
        events = [(json.loads(line)[1]["pid"], line) for line in _read(own).splitlines()]
        for entry in os.scandir(_process.folder):
            if entry.path == own or not _lives(entry.name):
                os.unlink(entry.path)
        if kept := [line for pid, line in events if pid != _process.pid and _lives(pid)]:
            with open(own, "w", encoding="ascii") as file:
                file.writelines(f"{line}\n" for line in kept)
    except (OSError, ValueError, LookupError, TypeError):  # a test may have changed anything there
        pass


def has_events() -> bool:
    """Whether there are events; imports nothing, because a test may remove all modules."""
    try:
        return bool(os.listdir(_process.folder))
    except OSError:
        return False


def _lives(pid: object) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _begin_fork() -> None:
    _process.begin()
    caller = sys._getframe().f_back  # noqa: SLF001 - the only way to find the caller of fork
    module = caller.f_globals.get("__name__", "") if caller else ""
    if module.startswith(_ALLRANKS) or (caller and (module, caller.f_code.co_name) == _EXECUTE):
        return
    note_begin()
    _observe_multiprocessing()


def note_begin() -> None:
    """Write that this process has begun."""
    _process.has_begun = True
    _write("Began", pid=_getpid(), parent=_getppid(), rank=_rank(), at=_start())


def _start() -> float:
    """When this process was started, or up to a tick later; a program writes its first event long after that."""
    since_boot, now = _clock(time.CLOCK_BOOTTIME), _clock(time.CLOCK_MONOTONIC)  # in this order, so never too early
    try:
        ticks = int(_stat("self")[_STARTED])
    except (ValueError, IndexError):
        return now
    return min(now, now - since_boot + (ticks + 1) / os.sysconf("SC_CLK_TCK"))


def _write(kind: str, **fields: object) -> None:
    """Append an event to the file of this process, if possible."""
    if not _process.folder:
        return
    fields = {
        "at": _clock(time.CLOCK_MONOTONIC),
        **{name: value for name, value in fields.items() if value is not None},
    }
    if any(isinstance(value, str) for value in fields.values()):
        import json  # noqa: PLC0415 - most programs write numbers alone

        text = json.dumps(fields)
    else:
        text = "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
    try:
        descriptor = _open(f"{_process.folder}/{_getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _put(descriptor, f'["{kind}", {text}]\n'.encode())
        finally:
            _close(descriptor)
    except OSError:
        pass


def _note_left(error: BaseException) -> None:
    """Write the exception that ends this process, or the one that was being handled when it exited."""
    status = 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    _note_left_by(status, error)


def _note_left_by(status: int, cause: BaseException | None) -> None:
    if isinstance(cause, SystemExit):
        cause = cause.__context__
    if (status := status & _STATUS_MASK) and not _process.has_left:
        _process.has_left = True
        _note_dead_siblings()
        _write("Left", pid=_getpid(), status=status, rank=_rank(), **({} if cause is None else _description(cause)))


def _note_dead_siblings() -> None:
    try:
        for pid in _children(_getppid()):
            if _is_dead(pid):
                _write("FoundDead", pid=pid)
    except (OSError, ValueError):
        pass


def _is_dead(pid: int) -> bool:
    state = _stat(pid)
    return not state or state[0] in "ZX" or bool(int(state[_FLAGS]) & _EXITING)


def _description(error: BaseException) -> dict[str, str]:
    import traceback  # noqa: PLC0415 - see _write

    trace = error.__traceback__
    while trace and trace.tb_next and trace.tb_frame.f_globals.get("__name__") in _STARTERS:
        trace = trace.tb_next
    try:
        frames = traceback.extract_tb(trace)[-_MOST_FRAMES:]
        text = "".join(traceback.format_exception(type(error), error, trace))
        message = "".join(traceback.format_exception_only(error)).rstrip()
    except Exception:  # noqa: BLE001 - its own methods may raise anything
        return {"message": type(error).__name__}
    stack = "".join(f'  File "{frame.filename}", line {frame.lineno} in {frame.name}\n' for frame in reversed(frames))
    return {"message": message[:_LONGEST_MESSAGE], "text": text[-_LONGEST_TEXT:], "stack": stack}


def _rank() -> int | None:
    """The rank of this process in torch.distributed or its environment."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:  # noqa: BLE001, S110 - torch may be partially imported, or the group destroyed
        pass
    number = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
    return int(number) if number.isdecimal() else None


def _with_note(hook: Callable[..., None]) -> Callable[..., None]:
    def noting(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # The interpreter sets this before it calls the hook, even if another hook, such as torch's, wraps this one.
        if getattr(sys, "last_value", None) is error:
            _note_left(error)
        hook(kind, error, trace)

    return noting


def _observe_multiprocessing() -> None:
    """Observe the processes of ``multiprocessing``, if it has been imported."""
    module: Any = sys.modules.get("multiprocessing.process")
    process_class = getattr(module, "BaseProcess", None)
    if process_class is None or hasattr(process_class.start, "__wrapped__"):
        return
    start, join, bootstrap = process_class.start, process_class.join, process_class._bootstrap  # noqa: SLF001

    def start_and_note(process: Any) -> None:  # noqa: ANN401 - of multiprocessing
        name, index = str(process.name), _index_of(process)  # starting it deletes its arguments
        start(process)
        _process.started.append(ref(process))
        _write("Named", pid=process.pid, name=name, rank=index)

    def join_and_note(process: Any, timeout: float | None = None) -> None:  # noqa: ANN401
        join(process, timeout)
        _note_process(process)

    def note_and_bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        # Its parent may not be observed, because a program may import multiprocessing at any time.
        _write("Named", pid=_getpid(), name=str(process.name), rank=_index_of(process))
        process.run = _noting(process.run)
        _observe_pools()
        return bootstrap(process, *args, **kwargs)

    process_class.start = _like(start, start_and_note)
    process_class.join = _like(join, join_and_note)
    process_class._bootstrap = _like(bootstrap, note_and_bootstrap)  # noqa: SLF001


def _noting(run: Callable[[], None]) -> Callable[[], None]:
    def running() -> None:
        try:
            run()
        except BaseException as error:
            _note_left(error)
            raise

    return running


def _observe_pools() -> None:
    """Observe the exceptions that this process passes on if it is a worker of a pool."""
    for module, name in _PASSED_ON:
        passed_on: Any = getattr(sys.modules.get(module), name, None)
        if passed_on is None or hasattr(passed_on.__init__, "__wrapped__"):
            continue

        def make_and_note(made: Any, error: BaseException, *args: Any, make: Any = passed_on.__init__) -> None:  # noqa: ANN401
            _write("PassedOn", pid=_getpid(), rank=_rank(), **_description(error))
            make(made, error, *args)  # removes the traceback

        passed_on.__init__ = _like(passed_on.__init__, make_and_note)


def _index_of(process: Any) -> int | None:  # noqa: ANN401
    """The index that ``torch.multiprocessing`` gives a process among those that it starts together."""
    target: Any = getattr(process, "_target", None)
    arguments: Any = getattr(process, "_args", ())
    is_torchs = getattr(target, "__module__", "") == _TORCH_SPAWN and len(arguments) > 1
    return arguments[1] if is_torchs and isinstance(arguments[1], int) else None


def _note_process(process: Any) -> None:  # noqa: ANN401
    """Write the end of a process of ``multiprocessing``; if a fork server started it, only its object knows."""
    try:
        if process is not None and process.pid is not None and process.exitcode and not _was_noted(process):
            _note_end(process.pid, process.exitcode)
    except (ValueError, AssertionError):  # it is closed, or belongs to another process
        pass


def _was_noted(process: Any) -> bool:  # noqa: ANN401
    """Whether its end was written before: a test may join a process that ended in an earlier test."""
    was_noted = hasattr(process, _NOTED)
    setattr(process, _NOTED, True)
    return was_noted


def _note_end(pid: int, status: int) -> None:
    """Write the exit status of a process, negative for a signal.

    ``subprocess`` sets invalid numbers for a process that was reaped elsewhere.
    """
    if _getpid() != _process.pid or pid in _process.ended or pid in _process.ranks:
        return
    if not -_MOST_SIGNALS < status <= _STATUS_MASK:
        return
    _process.ended.add(pid)
    _write("Ended", pid=pid, status=status)


def _note_status(pid: int, status: int) -> None:
    if pid > 0 and status and (os.WIFSIGNALED(status) or os.WIFEXITED(status)):
        _note_end(pid, os.waitstatus_to_exitcode(status))


def _note_waitid(found: os.waitid_result | None) -> None:
    if found is not None and found.si_status and found.si_code in _ENDED:
        _note_end(found.si_pid, -found.si_status if found.si_code in _KILLED else found.si_status)


def _has_ended(pid: int) -> bool:
    """Whether a child of this process has ended and was not reaped."""
    try:
        return _waitid(os.P_PID, pid, _PEEK) is not None
    except ChildProcessError:
        return False


def _wrap_result(name: str, note: Callable[[Any], None]) -> None:
    """Wrap a function of :mod:`os` that waits for a process, and call `note` with its result."""
    original = getattr(os, name)

    def waiting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
        found = original(*args, **kwargs)
        note(found)
        return found

    _replace(os, name, waiting)


def _wrap_signals(name: str, targets: Callable[[int], Iterable[int]]) -> None:
    """Wrap a function that sends signals, and write an event for each target."""
    module: Any = _signal if name == "pidfd_send_signal" else os
    original = getattr(module, name, None)
    if original is None:  # not available in this version of Python
        return

    def sending(target: int, number: int, *args: Any) -> Any:  # noqa: ANN401 - as the original
        try:
            for pid in targets(target) if number else ():
                if not _has_ended(pid):
                    _write("Signaled", pid=pid, number=int(number))
        except (OSError, ValueError, TypeError):  # the original raises it as well
            pass
        return original(target, number, *args)

    _replace(module, name, sending)


def _wrap_exec(name: str) -> None:
    """Wrap a function that executes another program in this process, and write an event."""
    original = getattr(os, name)

    def executing(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
        _write("Replaced", pid=_getpid())
        try:
            return original(*args, **kwargs)
        finally:  # the program could not be executed
            note_begin()

    _replace(os, name, executing)


def _wrap_exit() -> None:
    """Wrap ``os._exit``, and write the status and the exception that is being handled."""
    original = os._exit

    def exiting(status: int) -> None:
        if _process.has_begun and _getpid() == _process.pid and isinstance(status, int):
            _note_left_by(status, sys.exc_info()[1])
        original(status)

    os._exit = _like(original, exiting)


def _wrap_putenv() -> None:
    """Wrap ``os.putenv``, and write an event if a process sets its rank."""
    original = os.putenv

    def setting(name: Any, value: Any) -> None:  # noqa: ANN401 - as the original
        original(name, value)
        is_rank = name == b"RANK" or (name == b"LOCAL_RANK" and not os.environ.get("RANK"))
        if is_rank and _process.has_begun and bytes(value).isdigit():
            _write("Ranked", pid=_getpid(), rank=int(value))

    _replace(os, "putenv", setting)


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:  # noqa: ANN401 - a module
    """Replace a function of the standard library, in its public module and in the one that implements it."""
    original = getattr(module, name)
    replacement = _like(original, function)
    others = (original.__module__, module.__name__.strip("_"))
    for owner in {module, *(sys.modules.get(other, module) for other in others)}:
        setattr(owner, name, replacement)
    if original in os.supports_fd:
        os.supports_fd.add(replacement)


def _like(original: Any, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401 - a function
    """A function with the names of another one, as with ``functools.wraps``."""
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, attribute, getattr(original, attribute))
    function.__wrapped__ = original  # type: ignore[attr-defined]
    return function


def _children(parent: int | str = "self") -> set[int]:
    found: set[int] = set()
    for task in os.listdir(f"/proc/{parent}/task"):
        found.update(map(int, _read(f"/proc/{parent}/task/{task}/children").split()))
    return found


def _stat(pid: int | str) -> list[str]:
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _of_kill(pid: int) -> Iterable[int]:
    return [pid] if pid > 0 else _of_group(-pid if pid < -1 else os.getpgrp())


def _of_group(group: int) -> Iterable[int]:
    return [pid for pid in _children() if os.getpgid(pid) == (group or os.getpgrp())]


def _of_pidfd(descriptor: int) -> Iterable[int]:
    lines = _read(f"/proc/self/fdinfo/{descriptor}").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("Pid:")]


_TARGETS: Final = {"kill": _of_kill, "killpg": _of_group, "pidfd_send_signal": _of_pidfd}
"""For each function that sends signals, the processes that its first argument refers to."""


class _ReturnCode:
    """The attribute ``returncode`` of ``subprocess.Popen``, which also writes each status."""

    def __get__(self, process: Any, owner: object = None) -> object:  # noqa: ANN401
        if process is None:
            return self
        try:
            return vars(process)["returncode"]
        except KeyError:
            raise AttributeError("returncode") from None  # noqa: EM101 - Python's message

    def __set__(self, process: Any, status: int | None) -> None:  # noqa: ANN401
        vars(process)["returncode"] = status
        if status:
            _note_end(process.pid, status)
