"""torch's flight recorder for NCCL: the last collectives of each rank, written when a gang hangs.

In torch 2.5 to 2.13 (``torch/csrc/distributed/c10d``: ``ProcessGroupNCCL.*``, ``FlightRecorder*``), each rank keeps a
ring buffer of its collectives and writes it as a pickle to ``<prefix><rank>``, either when its watchdog sees a
collective time out, or after a write to the named pipe ``<prefix><rank>.pipe``, which a thread checks once a second
(``TORCH_NCCL_COORD_CHECK_MILSEC``). ``torchfrtrace`` reads the files. gloo's collectives are recorded, too, but only a
Python call in the rank itself can write those, and a rank that hangs makes none.
"""

import math
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from allranks.agent import clock
from allranks.agent.evidence import size_of

RECORDING_TIMEOUT = 2.5
"""Seconds for a rank to check its pipe, and to write its recording."""

_POLL_INTERVAL = 0.05
_SETTLED = 0.2
_FILE_NAMES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_SIZE_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_PIPE_NAME = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_DUMP_NAME = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_FILE_RENAMED = (2, 8)
_ON_BY_DEFAULT = (2, 11)


@dataclass(frozen=True, kw_only=True)
class FlightRecorder:
    """The flight recorder of one gang."""

    results: Path  # the folder of the recordings, which are copied with the job's results
    shared: Path  # the folder of the pipes: results are copied, and a pipe cannot be
    gang: int  # number of the gang in its job: no gang overwrites the recordings of another

    def environment(self, torch_version: str, present: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a rank on NCCL needs, except those that the user has set."""
        version = tuple(int(part) for part in torch_version.split(".")[:2])
        variables = {_PIPE_NAME: str(self._pipe_prefix)}
        if not any(name in present for name in _FILE_NAMES):
            variables[_FILE_NAMES[0 if version >= _FILE_RENAMED else 1]] = str(self._file_prefix)
        if version < _ON_BY_DEFAULT and not any(name in present for name in _SIZE_NAMES):
            variables[_SIZE_NAMES[1]] = "2000"
        if version < _ON_BY_DEFAULT:
            variables[_DUMP_NAME] = "1"
        return {name: value for name, value in variables.items() if name not in present}

    def request(self, ranks: Iterable[int]) -> list[Path]:
        """Have ranks write their recordings; returns the files, except for ranks that read no pipe."""
        return [self._file(rank) for rank in ranks if _trigger(Path(f"{self._pipe_prefix}{rank}.pipe"))]

    def wait(self, files: Iterable[Path], timeout: float = RECORDING_TIMEOUT) -> list[Path]:
        """Wait up to `timeout` seconds until the requested files are complete; return those that are not empty.

        torch does not signal the end of a file, so a file counts as complete when it has not grown for a moment.
        """
        files = list(files)
        deadline = clock.monotonic() + timeout
        sizes, grown = dict.fromkeys(files, 0), dict.fromkeys(files, math.inf)
        while files and clock.monotonic() < deadline:
            for file in files:
                if (size := size_of(file)) != sizes[file]:
                    sizes[file], grown[file] = size, clock.monotonic()
            if all(clock.monotonic() - grown[file] > _SETTLED for file in files):
                break
            clock.sleep(_POLL_INTERVAL)
        return [file for file in files if size_of(file) > 0]

    @property
    def _pipe_prefix(self) -> Path:
        return self.shared / f".flight-recorder-gang-{self.gang}-rank-"

    @property
    def _file_prefix(self) -> Path:
        return self.results / f"flight-recorder-gang-{self.gang}-rank-"

    def _file(self, rank: int) -> Path:
        return Path(f"{self._file_prefix}{rank}")


def _trigger(pipe: Path) -> bool:
    """Write to a named pipe that has a reader; return False at once for anything else."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and os.write(descriptor, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)
