"""When a job ends: its time is up, or its client has closed the connection.

One descriptor becomes readable at the hang-up and stays readable: every supervising loop, in any thread, waits for it.
Time is counted by the monotonic clock of the supervisor, which runs no code of tests.
"""

import math
import os
import signal
import threading
from queue import SimpleQueue
from typing import Self

from allranks.agent import clock
from allranks.protocol.config import TimeLimit

STDIN = 0

HANGUP_STATUS = 130
"""Exit status of a supervisor that was told to stop."""


class HangupError(Exception):
    """The orchestrator is gone or ends the job: standard input was closed, or SIGTERM arrived."""

    def __init__(self) -> None:
        super().__init__("the job was ended from outside")


class LostGpuError(Exception):
    """A GPU that passed the check of the job no longer computes; the message says whose."""


class JobLimitError(Exception):
    """The job has used up its time."""


class JobEnd:
    """Tells a job when it may start and when it is over."""

    def __init__(self) -> None:
        self._bell, self._ring = os.pipe()
        # SimpleQueue is reentrant; Event is not: a handler that interrupts its wait() would wait for its lock for ever.
        self._turn: SimpleQueue[None] = SimpleQueue()
        self._has_had_turn = False
        self._has_hung_up = False
        self._limit = TimeLimit(value=math.inf, setting="no limit")
        self._deadline = math.inf
        self._leaves_at_once = False

    @classmethod
    def of_this_process(cls, limit: TimeLimit) -> Self:
        """The supervisor's: data on standard input is the *go*; its end, or SIGTERM, ends the job.

        Until :meth:`may_leave_no_more` a hang-up ends the process at once: there is nothing to clean up yet. The time
        limit counts from the *go* on.
        """
        end = cls()
        end._limit, end._leaves_at_once = limit, True
        signal.signal(signal.SIGTERM, lambda *_: end.hang_up())
        threading.Thread(target=end._listen, daemon=True).start()
        return end

    def may_leave_no_more(self) -> None:
        """A hang-up no longer ends the process: from here on the caller checks for it."""
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
                self._deadline = clock.monotonic() + self._limit.seconds
                self._turn.put(None)

    def fileno(self) -> int:
        """Readable after a hang-up."""
        return self._bell

    def hang_up(self) -> None:
        """End the job; safe in any thread and in a signal handler."""
        if self._leaves_at_once:
            os._exit(HANGUP_STATUS)
        if not self._has_hung_up:
            self._has_hung_up = True
            os.write(self._ring, b".")
            self._turn.put(None)

    @property
    def has_hung_up(self) -> bool:
        """True after a hang-up."""
        return self._has_hung_up

    @property
    def is_over(self) -> bool:
        """True after a hang-up, and when the time is up."""
        return self._has_hung_up or self.remaining() == 0

    def wait_for_turn(self) -> None:
        """Wait for the *go*; a HangupError says that the job is to end instead."""
        if not self._has_hung_up:
            self._turn.get()
        if self._has_hung_up:
            raise HangupError

    def restart(self) -> None:
        """Restart the job's clock: collecting the suite does not count."""
        self._deadline = clock.monotonic() + self._limit.seconds

    def remaining(self) -> float:
        """Seconds until the time is up."""
        return max(0.0, self._deadline - clock.monotonic())

    def check(self) -> None:
        """Raise a :class:`HangupError` or a :class:`JobLimitError` if the job may not go on."""
        if self.has_hung_up:
            raise HangupError
        if clock.monotonic() >= self._deadline:
            msg = f"the job's time limit of {self._limit.words('was reached')}"
            raise JobLimitError(msg)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._bell)
        os.close(self._ring)
