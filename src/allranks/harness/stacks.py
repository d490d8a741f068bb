"""Stacks that a stuck rank writes when it is asked to."""

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

STACKS_SIGNAL = signal.SIGRTMAX - 1
"""Asks a rank to write the Python stacks of all its threads; a signal that suites hardly use."""

_PATIENCE = 0.5
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_MACHINERY = ("/_pytest/", "/pluggy/", "/allranks/harness/", "/torch/", "/unittest/")


def wait_for_stacks(files: Mapping[int, Path], sizes: Mapping[int, int]) -> dict[int, str]:
    """What each rank has added to its stack file since it was asked.

    The rank writes from a signal handler and tells nobody when it is done, so this looks until nothing has
    been added for a moment; a stopped rank writes nothing, which is why it stops looking after half a second.

    Args:
        files: The stack file of each rank.
        sizes: The size of each, in bytes, before the ranks were asked.
    """
    deadline = time.monotonic() + _PATIENCE
    before = dict.fromkeys(files, -1)
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now = {rank: _size(path) for rank, path in files.items()}
        if now == before and all(now[rank] > sizes[rank] for rank in now):
            break
        before = now
    return {rank: _tail(path, sizes[rank]) for rank, path in files.items()}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tail(path: Path, start: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode("utf-8", "replace")


def innermost(stacks: str) -> str:
    """The innermost frame of the user's own code, ``file:line in name``; empty when there is none."""
    frames = (match for match in _FRAME.finditer(stacks) if not any(part in match["file"] for part in _MACHINERY))
    match = next(frames, None)
    return f"{match['file']}:{match['line']} in {match['name']}" if match else ""
