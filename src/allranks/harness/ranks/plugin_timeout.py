"""Knows pytest-timeout's way to end a rank: its thread method prints all stacks and leaves by ``os._exit(1)``.

To the agent that looks like any exit in mid-test; only what was printed tells that it was a time limit.
"""

import re

from allranks.harness.stacks.stacks import is_machinery

_TITLE = re.compile(r"\+{10,} Timeout \+{10,}$", re.MULTILINE)
_STACK = re.compile(r"^~+ Stack of (?P<thread>\S+) \(\d+\) ~+$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)


def is_pytest_timeout(output: str) -> str | None:
    """What to say of a rank that pytest-timeout ended; None where it was something else.

    Args:
        output: What the rank printed last; pytest's terminal is its standard output, and a suite may redirect that.
    """
    title = _TITLE.search(output)
    if title is None:
        return None
    where = _innermost(output[title.end() :])
    return f"timed out by pytest-timeout{'; it was in ' + where if where else ''}"


def _innermost(text: str) -> str:
    """The innermost frame of the user's own code in the main thread; pytest-timeout prints it oldest frame first."""
    parts = _STACK.split(text)
    stacks = dict(zip(parts[1::2], parts[2::2], strict=False))
    frames = reversed(list(_FRAME.finditer(stacks.get("MainThread", ""))))
    frame = next((frame for frame in frames if not is_machinery(frame["file"])), None)
    return f"{frame['file']}:{frame['line']} in {frame['name']}" if frame else ""
