"""Reports the processes that a rank starts by ``multiprocessing``, and how they end.

Their names are known nowhere else: the command line of each spawned process is the same, and the rank that ``mp.spawn``
gives a process is one of its arguments.
"""

import threading
import weakref
from collections.abc import Iterator
from functools import wraps
from multiprocessing.process import BaseProcess
from typing import Any, cast

from allranks.harness import linux
from allranks.harness.channel import ChildStarted, Report
from allranks.harness.ranks import rank_setup

_OF_TORCH = "torch.multiprocessing.spawn"


class ChildWatch:
    """Reports each process that this one starts from now on."""

    def __init__(self) -> None:
        self._started: list[tuple[weakref.ref[BaseProcess], str]] = []
        start = BaseProcess.start
        watch = self

        @wraps(start)
        def start_and_report(process: BaseProcess) -> None:
            name = _name(process)  # its start deletes the arguments
            start(process)
            watch.note(process, name)

        cast("Any", BaseProcess).start = start_and_report

    def note(self, process: BaseProcess, name: str) -> None:
        """Report a process that has started."""
        # Another thread's report could come into the middle of the main one's.
        if threading.current_thread() is threading.main_thread() and process.pid is not None:
            self._started.append((weakref.ref(process), name))
            rank_setup.tell(Report(goes_on=True, started=ChildStarted(pid=process.pid, name=name)))

    def begin(self) -> None:
        """A test begins: forget the processes of the one before."""
        self._started.clear()

    def deaths(self) -> Iterator[str]:
        """In words, how processes of this test were killed."""
        for reference, name in self._started:
            if (status := _status(reference())) < 0:
                yield f"{name} was killed by {linux.signal_name(-status)}"


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
    return f"spawned process {arguments[1]}" if is_torchs else str(process.name)[:200]
