"""Copies an agent's records from a pipe to a shared file system, which may be full, slow or unreachable.

A failed write is retried. In the meantime, the pipe buffers the records. When the pipe is full, the agent buffers them,
and its clocks keep running.
"""

import os
import threading
import time
from pathlib import Path
from typing import Final

from allranks.plugins.slurm.agent.node_files import is_gone

WRITE_LIMIT: Final = 60.0
"""Seconds without a successful write until the job is given up."""

_PIECE: Final = 1 << 16
_RETRY_DELAY: Final = 0.5

_PAUSE: Final = 0.05
"""Seconds between two writes. Each opens and closes the file, because NFS publishes changes when a file is closed."""

SLOW: Final = 10.0
"""Seconds: if a write takes longer, ranks that write there may have been delayed as well."""


class RecordForwarder:
    """A thread that reads the pipe to its end.

    Args:
        source: The reading end of the pipe, which this object closes.
        target: The file, to which no other process writes.
    """

    def __init__(self, source: int, target: Path) -> None:
        self._source = source
        self._target = target
        self._size = 0
        self._began: float | None = None
        self._why = ""
        self._storage_error = ""
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="records", daemon=True)
        self._thread.start()

    def _forward(self) -> None:
        while data := os.read(self._source, _PIECE):
            self._began = time.monotonic()
            while not self._given_up.is_set():
                try:
                    self._put(data)
                    break
                except OSError as error:
                    self._why = error.strerror or type(error).__name__
                    if is_gone(self._target.parent):  # retries cannot help, and the supervisor ends the job
                        self._given_up.set()
                    self._given_up.wait(_RETRY_DELAY)
            self._storage_error = self.storage_error
            self._began = None
            self._why = ""
            self._given_up.wait(_PAUSE)
        os.close(self._source)

    def _put(self, data: bytes) -> None:
        """Write all bytes at their offset: after an error, a retry writes the same bytes to the same offset."""
        descriptor = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], self._size + written)
        finally:
            os.close(descriptor)  # NFS reports a full disk here
        self._size += len(data)

    @property
    def stuck(self) -> float:
        """Seconds since the start of a write that has not succeeded yet; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def storage_error(self) -> str:
        """The last problem with the file and how long it lasted; empty if there was none."""
        stuck = self.stuck
        if self._why:
            return f"{self._why}, for {stuck:.0f} s"
        return f"no answer for {stuck:.0f} s" if stuck > SLOW else self._storage_error

    def finish(self, seconds: float) -> None:
        """Wait until everything has been written after the pipe was closed; give up after this many seconds."""
        self._thread.join(seconds)
        self._given_up.set()
