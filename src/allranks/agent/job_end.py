"""The end of a job: its time limit is reached, or a stop is requested.

A descriptor becomes readable when a stop is requested and stays readable; every supervising loop, in any thread, waits
on it. Time is measured by the supervisor's monotonic clock, because the supervisor runs no test code.
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

STOPPED_STATUS = 130
"""Exit status of a supervisor that was requested to stop."""


class StopRequestedError(Exception):
    """The host is gone or stops the job: standard input was closed, or SIGTERM arrived."""

    def __init__(self) -> None:
        super().__init__("the job was ended from outside")


class JobLimitError(Exception):
    """The job has reached its time limit."""


class JobEnd:
    """Signals the start and the end of a job."""

    def __init__(self) -> None:
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        # SimpleQueue is reentrant. Event is not: a signal handler that interrupts wait() would deadlock on its lock.
        self._start: SimpleQueue[None] = SimpleQueue()
        self._has_started = False
        self._is_stop_requested = False
        self._limit = TimeLimit(value=math.inf, setting="no limit")
        self._deadline = math.inf
        self._exits_immediately = False

    @classmethod
    def of_this_process(cls, limit: TimeLimit) -> Self:
        """Listen on standard input: data starts the job; end of file, or SIGTERM, requests a stop.

        Until :meth:`disarm_immediate_exit`, a stop request ends the process immediately, because there is nothing to
        clean up yet. The time limit starts with the job.
        """
        end = cls()
        end._limit, end._exits_immediately = limit, True
        signal.signal(signal.SIGTERM, lambda *_: end.request_stop())
        threading.Thread(target=end._listen, daemon=True).start()
        return end

    def disarm_immediate_exit(self) -> None:
        """Leave it to the caller from now on to check for a stop request."""
        self._exits_immediately = False

    def _listen(self) -> None:
        while True:
            try:
                data = os.read(STDIN, 4096)
            except OSError:
                data = b""
            if not data:
                self.request_stop()
                return
            if not self._has_started:
                self._has_started = True
                self.start_limit()
                self._start.put(None)

    def fileno(self) -> int:
        """The descriptor that is readable after a stop request."""
        return self._wakeup_reader

    def request_stop(self) -> None:
        """Request the end of the job; safe in any thread and in a signal handler."""
        if self._exits_immediately:
            os._exit(STOPPED_STATUS)
        if not self._is_stop_requested:
            self._is_stop_requested = True
            os.write(self._wakeup_writer, b".")
            self._start.put(None)

    @property
    def is_over(self) -> bool:
        """Whether a stop was requested or the time limit is reached."""
        return self._is_stop_requested or self.remaining() == 0

    def wait_for_start(self) -> None:
        """Wait until the job has started; raise a StopRequestedError if a stop is requested instead."""
        if not (self._has_started or self._is_stop_requested):
            self._start.get()
        if self._is_stop_requested:
            raise StopRequestedError

    def start_limit(self) -> None:
        """Start the job's time limit; after the collection, which does not count, start it again."""
        self._deadline = clock.monotonic() + self._limit.seconds

    def remaining(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self._deadline - clock.monotonic())

    def check(self) -> None:
        """Raise a :class:`StopRequestedError` or a :class:`JobLimitError` if the job has to end."""
        if self._is_stop_requested:
            raise StopRequestedError
        if clock.monotonic() >= self._deadline:
            msg = f"the job's time limit of {self._limit.words('was reached')}"
            raise JobLimitError(msg)

    def close(self) -> None:
        os.close(self._wakeup_reader)
        os.close(self._wakeup_writer)
