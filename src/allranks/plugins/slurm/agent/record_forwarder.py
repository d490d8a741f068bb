"""Copies an agent's records from a pipe to a shared file system, which may be full, slow or away.

A write that fails is tried again, and what waits meanwhile is kept: by the pipe, then by the agent, whose clocks go on.
"""

import os
import threading
import time
from pathlib import Path
from typing import Final

from allranks.plugins.slurm.agent.node_files import is_gone

PATIENCE: Final = 60.0
"""Seconds without one successful write until the job is given up."""

_PIECE: Final = 1 << 16
_TRY_AGAIN: Final = 0.5

_PAUSE: Final = 0.05
"""Seconds between two writes, each of which opens and closes the file: NFS shows it to other hosts at its close."""

SLOW: Final = 10.0
"""Seconds: a write that takes longer may have held up ranks that write there, too."""


class RecordForwarder:
    """A thread that reads the pipe to its end.

    Args:
        source: The reading end of the pipe, which belongs to this object from now on.
        target: The file. No other process writes to it.
    """

    def __init__(self, source: int, target: Path) -> None:
        self._source = source
        self._target = target
        self._size = 0
        self._began: float | None = None
        self._why = ""
        self._trouble = ""
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
                    if is_gone(self._target.parent):  # no try can help, and the job's end is told elsewhere
                        self._given_up.set()
                    self._given_up.wait(_TRY_AGAIN)
            self._trouble = self.trouble
            self._began = None
            self._why = ""
            self._given_up.wait(_PAUSE)
        os.close(self._source)

    def _put(self, data: bytes) -> None:
        """Write the whole piece at its place: after an error, the same bytes come to the same place again."""
        descriptor = os.open(self._target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], self._size + written)
        finally:
            os.close(descriptor)  # NFS tells here of a disk that is full
        self._size += len(data)

    @property
    def stuck(self) -> float:
        """Seconds for which the file has not taken what waits; 0 if nothing does."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    @property
    def trouble(self) -> str:
        """What was last wrong with the file, with how long it was; empty if nothing ever was."""
        stuck = self.stuck
        if self._why:
            return f"{self._why}, for {stuck:.0f} s"
        return f"no answer for {stuck:.0f} s" if stuck > SLOW else self._trouble

    def finish(self, seconds: float) -> None:
        """Wait until all has been written, the pipe's writers having ended; give up after so many seconds."""
        self._thread.join(seconds)
        self._given_up.set()
