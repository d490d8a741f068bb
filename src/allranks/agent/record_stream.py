"""Writes a job's records to the host; a thread waits for a slow reader, so that supervision never does.

A record separator (RFC 7464) precedes each record's line, which distinguishes it from any other output on the stream.
The queue is bounded: when it is half full, texts, notices and printed lines are dropped.
"""

import os
import select
import threading
from collections import deque
from dataclasses import replace
from typing import Protocol

from allranks.agent import clock
from allranks.agent.linux import write_all
from allranks.protocol.records import FailureCourse, Notice, Printed, RankEnded, Record, encode


class Journal(Protocol):
    """Accepts records."""

    def write(self, record: Record) -> None:
        """Write a record with the current time."""


RECORD_SEPARATOR = b"\x1e"

WAITING_LIMIT = 64 << 20
"""Maximum size of the queue in bytes."""


class RecordWriter:
    """Writes records to a blocking descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._is_closed = False
        self._is_broken = False
        self._changed = threading.Condition()
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Write or queue a record with the current time; never blocks."""
        if self._size > WAITING_LIMIT // 2:
            record = _without_texts(record)
            if isinstance(record, Printed | Notice):
                return
        line = RECORD_SEPARATOR + encode(replace(record, at=round(clock.now(), 6))) + b"\n"
        with self._changed:
            if self._size == 0 and not self._is_broken:
                line = line[self._write_directly(line) :]
            if not line:
                return
            if self._is_broken or self._size + len(line) > WAITING_LIMIT:
                # The reader is stuck or gone. The verdict counts missing outcomes as errors.
                return
            self._waiting.append(line)
            self._size += len(line)
            self._changed.notify_all()

    def _write_directly(self, line: bytes) -> int:
        """Write what a pipe accepts without blocking (pipe(7)), which is cheaper than waking up the thread."""
        if len(line) > select.PIPE_BUF or not self._writable.poll(0):
            return 0
        try:
            return os.write(self._descriptor, line)
        except OSError:
            self._is_broken = True
            return 0

    def _drain(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
            try:
                write_all(self._descriptor, data)
            except OSError:
                with self._changed:
                    self._is_broken = True
            with self._changed:
                self._size -= len(data)
                self._changed.notify_all()

    def close(self) -> None:
        """Wait until everything queued has been written, or writing has failed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()


def _without_texts(record: Record) -> Record:
    if isinstance(record, RankEnded):
        return replace(record, text="", stdout="", stderr="")
    if isinstance(record, FailureCourse):
        return replace(record, collectives=(), stdout="", stderr="")
    return record
