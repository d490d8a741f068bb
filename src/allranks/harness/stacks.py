"""Stacks that a stuck rank writes when it is asked to."""

import re
import signal
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

STACKS_SIGNAL = signal.SIGRTMAX - 1
"""Asks a rank to write the Python stacks of all its threads; a signal that suites hardly use."""

_PATIENCE = 0.5
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_CURRENT_THREAD = "Current thread 0x"
_MACHINERY = ("/_pytest/", "/pluggy/", "/allranks/harness/", "-packages/torch/")
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"


class StackFile:
    """The file that a rank writes its stacks to, from a signal handler.

    Args:
        path: The file, which may hold stacks of earlier gangs, and may not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size if path.exists() else 0

    def added(self) -> str:
        """What has been added since this object was made."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode("utf-8", "replace")


def wait_for_stacks(files: Mapping[int, StackFile]) -> dict[int, str]:
    """What each rank has added to its stack file.

    The rank writes from a signal handler and tells nobody when it is done, so this looks until nothing has
    been added for a moment; a stopped rank writes nothing, which is why it stops looking after half a second.

    Args:
        files: The stack file of each rank that was asked.
    """
    deadline = time.monotonic() + _PATIENCE
    before: dict[int, str] = {}
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now = {rank: file.added() for rank, file in files.items()}
        if now == before and all(now.values()):
            break
        before = now
    return before


def innermost(stacks: str) -> str:
    """The innermost frame of the user's own code, ``file:line in name``; empty when there is none.

    Of several threads, the one that ran the signal handler counts, which is the main one wherever that is possible.
    """
    _, current, of_current = stacks.rpartition(_CURRENT_THREAD)
    frames = _FRAME.finditer(of_current if current else stacks)
    match = next((frame for frame in frames if not _is_machinery(frame["file"])), None)
    return f"{match['file']}:{match['line']} in {match['name']}" if match else ""


def _is_machinery(file: str) -> bool:
    if any(part in file for part in _MACHINERY):
        return True
    return file.startswith(_STANDARD_LIBRARY) and "-packages/" not in file
