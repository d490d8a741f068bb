"""When a job ends: its time is up, or its client has closed the connection.

One descriptor becomes readable when somebody hangs up, and stays so: every supervising loop waits for it, in whatever
thread. Time is counted by the monotonic clock of the process that supervises, which runs no code of tests.
"""

import math
import os
import signal
import threading
import time
from queue import SimpleQueue
from typing import Self

STDIN = 0

HANGUP_STATUS = 130
"""Exit status of a supervisor that was told to stop."""


class HangupError(Exception):
    """The orchestrator is gone or wants the job to end: standard input is at its end, or SIGTERM came."""

    def __init__(self) -> None:
        super().__init__("the job was ended from outside")


class JobLimitError(Exception):
    """The job has used up its time."""


class JobEnd:
    """What says that a job is over, and when it has its turn."""

    def __init__(self) -> None:
        self._bell, self._ring = os.pipe()
        # Reentrant, unlike Event: a handler that interrupts a wait for one would wait for its lock for ever.
        self._turn: SimpleQueue[None] = SimpleQueue()
        self._has_had_turn = False
        self._has_hung_up = False
        self._limit = math.inf
        self._deadline = math.inf
        self._leaves_at_once = False

    @classmethod
    def of_this_process(cls, limit: float) -> Self:
        """That of a supervisor: standard input says *go*, and by its end that the job is over; so does SIGTERM.

        Until :meth:`may_leave_no_more` the process ends at once when somebody hangs up: there is nothing to put away.

        Args:
            limit: Seconds that the job may take from its turn on.
        """
        end = cls()
        end._limit, end._leaves_at_once = limit, True
        signal.signal(signal.SIGTERM, lambda *_: end.hang_up())
        threading.Thread(target=end._listen, daemon=True).start()
        return end

    def may_leave_no_more(self) -> None:
        """From here on somebody looks whether the job is over."""
        self._leaves_at_once = False

    def _listen(self) -> None:
        while True:
            try:
                data = os.read(STDIN, 4096)
            except OSError:
                data = b""
            if not data:
                self.hang_up()
                return
            if not self._has_had_turn:
                self._has_had_turn = True
                self._deadline = time.monotonic() + self._limit
                self._turn.put(None)

    def fileno(self) -> int:
        """Readable when the job is over because somebody has hung up."""
        return self._bell

    def hang_up(self) -> None:
        """The job is over; from any thread, and from a signal handler."""
        if self._leaves_at_once:
            os._exit(HANGUP_STATUS)
        if not self._has_hung_up:
            self._has_hung_up = True
            os.write(self._ring, b".")
            self._turn.put(None)

    @property
    def has_hung_up(self) -> bool:
        """Whether somebody has."""
        return self._has_hung_up

    def wait_for_turn(self) -> None:
        """Wait until the job may go.

        Raises:
            HangupError: It is to end instead.
        """
        if not self._has_hung_up:
            self._turn.get()
        if self._has_hung_up:
            raise HangupError

    def restart(self) -> None:
        """Count the job's time from now on: what it took to collect the suite is not its tests'."""
        self._deadline = time.monotonic() + self._limit

    def remaining(self) -> float:
        """Seconds until the time is up."""
        return max(0.0, self._deadline - time.monotonic())

    def check(self) -> None:
        """See whether the job goes on.

        Raises:
            HangupError: Somebody has hung up.
            JobLimitError: Its time is up.
        """
        if self.has_hung_up:
            raise HangupError
        if time.monotonic() >= self._deadline:
            msg = f"the job's time limit of {self._limit:g} s was reached"
            raise JobLimitError(msg)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._bell)
        os.close(self._ring)
