"""Reports the processes that a rank starts, and how they end.

The names of those that ``multiprocessing`` starts are known nowhere else: the command line of each spawned process is
the same, and the rank that ``mp.spawn`` gives a process is one of its arguments.

A test often ignores the exit status of its children (``process.join()``, ``subprocess.run``, a fork that nobody waits
for), so a crash in one of them passes unnoticed. The kernel tells the status of a child once, to whoever waits for it.
Therefore the functions of Python that wait for children, and those that send signals, are wrapped in the rank.
"""

import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, cast

from allranks.agent import linux
from allranks.agent.channel import ChildStarted
from allranks.agent.rank import rank_setup
from allranks.protocol.xml_text import clipped

_OF_TORCH = "torch.multiprocessing.spawn"

_KILLED: Final = frozenset({os.CLD_KILLED, os.CLD_DUMPED})
_LOOK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
"""Look at the end of a child, and leave it to others to wait for it."""

_waitid = os.waitid


class ChildWatch:
    """Reports each process that this one starts from now on, and notes those that are killed."""

    def __init__(self) -> None:
        self._started: list[tuple[weakref.ref[BaseProcess], str]] = []
        self._deaths = Deaths()
        start, join, watch = BaseProcess.start, BaseProcess.join, self

        @wraps(start)
        def start_and_report(process: BaseProcess) -> None:
            name = _name(process)  # its start deletes the arguments
            start(process)
            watch.note(process, name)

        @wraps(join)
        def join_and_note(process: BaseProcess, timeout: float | None = None) -> None:
            join(process, timeout)
            watch.note_end(process)

        cast("Any", BaseProcess).start, cast("Any", BaseProcess).join = start_and_report, join_and_note

    def note(self, process: BaseProcess, name: str) -> None:
        """Report a process that has started."""
        # Another thread's report could come into the middle of the main one's.
        if threading.current_thread() is threading.main_thread() and process.pid is not None:
            self._started.append((weakref.ref(process), name))
            rank_setup.tell(ChildStarted(pid=process.pid, name=name))

    def note_end(self, process: BaseProcess | None) -> None:
        """Note the end of a process, if it has ended; a fork server, which is its parent, tells it only this way."""
        if process is not None and (status := _status(process)) < 0:
            self._deaths.note(process.pid or 0, -status)

    def begin(self) -> None:
        """A test begins: forget the processes of the one before."""
        self._started.clear()
        self._deaths.begin()

    def deaths(self) -> Iterator[str]:
        """In words, how processes of this test were killed, but for those that it killed itself."""
        for reference, name in self._started:
            process = reference()
            if process and (status := _status(process)) < 0 and not self._deaths.is_own(process.pid or 0, -status):
                yield f"{name} was killed by {linux.signal_name(-status)}"

    def killed(self) -> tuple[int, ...]:
        """The signals that killed children of this test, one for each, but for those that this process has sent."""
        for reference, _ in self._started:
            self.note_end(reference())
        self._deaths.look()
        return self._deaths.signals


class Deaths:
    """The children of this process that a signal has killed which this process has not sent."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._sent: set[tuple[int, int]] = set()
        self._killed: dict[int, int] = {}
        self._unwaited: set[int] = set()  # dead children that were noted, and that nobody has waited for
        for name in ("waitpid", "wait", "wait3", "wait4"):
            _tell_result(name, lambda found: self._note_status(found[0], found[1]))
        _tell_result("waitid", self._note_end)
        for name, targets in _TARGETS.items():
            self._note_signals(name, targets)
        # subprocess takes os.waitpid when it is imported.
        cast("Any", subprocess.Popen).returncode = _ReturnCode(self.note)

    def begin(self) -> None:
        """A test begins."""
        self._killed.clear()

    def look(self) -> None:
        """Note the dead children that nobody has waited for."""
        with suppress(ChildProcessError):
            if _waitid(os.P_ALL, 0, _LOOK) is None:
                return
            for pid in linux.children() - self._unwaited:
                with suppress(ChildProcessError):
                    self._note_end(_waitid(os.P_PID, pid, _LOOK), is_unwaited=True)

    @property
    def signals(self) -> tuple[int, ...]:
        """The signal of each, in ascending order."""
        return tuple(sorted(self._killed.values()))

    def note(self, pid: int, number: int) -> None:
        """Note that a signal killed a child."""
        if os.getpid() != self._pid or pid in self._unwaited:  # a fork has other children
            self._unwaited.discard(pid)
        elif not self.is_own(pid, number):
            self._killed[pid] = number

    def is_own(self, pid: int, number: int) -> bool:
        """Whether this process has sent that signal to that child."""
        return (pid, number) in self._sent

    def _note_status(self, pid: int, status: int) -> None:
        if pid > 0 and os.WIFSIGNALED(status):
            self.note(pid, os.WTERMSIG(status))

    def _note_end(self, found: os.waitid_result | None, *, is_unwaited: bool = False) -> None:
        if found is not None and found.si_code in _KILLED:
            self.note(found.si_pid, found.si_status)
            if is_unwaited:
                self._unwaited.add(found.si_pid)

    def _note_signals(self, name: str, targets: Callable[[int], Iterable[int]]) -> None:
        """Have a function that sends signals note which of our children it sends one to."""
        module = signal if name == "pidfd_send_signal" else os
        original = getattr(module, name)

        def sending(target: int, number: int, *args: Any) -> Any:  # noqa: ANN401 - as the original
            if number and os.getpid() == self._pid:
                with suppress(OSError, ValueError, TypeError):
                    self._sent.update((pid, int(number)) for pid in targets(target))
            return original(target, number, *args)

        _replace(module, name, sending)


def _tell_result(name: str, note: Callable[[Any], None]) -> None:
    """Have a function of :mod:`os` that waits for a child tell what it returns."""
    original = getattr(os, name)

    def waiting(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
        found = original(*args, **kwargs)
        note(found)
        return found

    _replace(os, name, waiting)


def _replace(module: Any, name: str, function: Callable[..., Any]) -> None:  # noqa: ANN401 - a module
    """Replace a function of the standard library, also where its name for pickle says that it is."""
    original = getattr(module, name)
    wrapped = wraps(original)(function)
    home = __import__(original.__module__)
    setattr(module, name, wrapped)
    setattr(home, name, wrapped)


def _of_kill(pid: int) -> Iterable[int]:
    return [pid] if pid > 0 else _of_group(-pid if pid < -1 else os.getpgrp())


def _of_group(group: int) -> Iterable[int]:
    return [pid for pid in linux.children() if os.getpgid(pid) == (group or os.getpgrp())]


def _of_pidfd(descriptor: int) -> Iterable[int]:
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("Pid:")]


_TARGETS: Final = {"kill": _of_kill, "killpg": _of_group, "pidfd_send_signal": _of_pidfd}
"""For each function that sends signals, the processes that its first argument stands for."""


class _ReturnCode:
    """The attribute ``returncode`` of ``subprocess.Popen``, which notes each status that says a signal."""

    def __init__(self, note: Callable[[int, int], None]) -> None:
        self._note = note

    def __get__(self, process: "subprocess.Popen[Any] | None", owner: object = None) -> object:
        if process is None:
            return self
        try:
            return vars(process)["returncode"]
        except KeyError:
            raise AttributeError("returncode") from None  # noqa: EM101 - as Python words it

    def __set__(self, process: "subprocess.Popen[Any]", status: int | None) -> None:
        vars(process)["returncode"] = status
        if status is not None and status < 0:
            self._note(process.pid, -status)


def _status(process: BaseProcess | None) -> int:
    """The exit status of a process, negative for a signal; 0 if it is unknown."""
    try:
        return (process.exitcode or 0) if process is not None else 0
    except ValueError:  # it is closed
        return 0


def _name(process: BaseProcess) -> str:
    """Its rank among the processes that ``mp.spawn`` starts together, else its name."""
    target: Any = getattr(process, "_target", None)
    arguments: Any = getattr(process, "_args", ())
    is_torchs = getattr(target, "__module__", "") == _OF_TORCH and len(arguments) > 1 and isinstance(arguments[1], int)
    return f"spawned process {arguments[1]}" if is_torchs else clipped(str(process.name), 200)
