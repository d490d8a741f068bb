"""What torch's test cases find in ``self.processes``: a rank that is a fork, and answers as a process of Python's."""

import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from allranks.harness.launchers.launch import Launch

MakeProcess = Callable[..., BaseProcess]
"""Makes a process, not started, from the arguments of ``multiprocessing.Process``."""


class RankHandle:
    """One rank of a test, for the launching process.

    Args:
        process: What the rank is to do; never started.
        number: Its rank.
    """

    def __init__(self, process: BaseProcess, number: int) -> None:
        self._process = process
        self._number = number
        self._launch: Launch | None = None

    @property
    def name(self) -> str:
        """Its name, as torch chose it."""
        return self._process.name

    @property
    def pid(self) -> int:
        """The process id; a number below 0, which no process has, before the ranks are forked."""
        return -1 - self._number if self._launch is None else self._launch.pids[self._number]

    @property
    def exitcode(self) -> int | None:
        """The exit status, negative for a signal; None while the rank lives."""
        return None if self._launch is None else self._launch.exit_status(self._number)

    def start(self) -> None:
        """Nothing yet: all ranks are forked together, when there is a handle of each."""

    def started(self, launch: Launch) -> None:
        """Take note that the ranks live."""
        self._launch = launch

    def run(self) -> None:
        """Do what the process is for; in the rank."""
        self._process.run()

    def is_alive(self) -> bool:
        """Whether the rank lives."""
        return self._launch is not None and self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for the rank's end.

        Args:
            timeout: Seconds; None to wait for ever.
        """
        if self._launch is not None:
            self._launch.wait_for_end(self._number, timeout)

    def terminate(self) -> None:
        """Send SIGTERM, if the rank lives."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, if the rank lives."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._launch is not None:
            self._launch.signal(self._number, number)


def handle_factory(make_process: MakeProcess) -> tuple[Callable[..., RankHandle], list[RankHandle]]:
    """What makes handles in the place of processes, and the handles that it has made."""
    made: list[RankHandle] = []

    def make(*args: Any, **kwargs: Any) -> RankHandle:  # noqa: ANN401 - passed on as they come
        made.append(RankHandle(make_process(*args, **kwargs), len(made)))
        return made[-1]

    return make, made
