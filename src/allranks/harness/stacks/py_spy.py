"""Stacks as py-spy sees them from outside: native frames, and Python's of a rank that answers no signal.

py-spy (https://github.com/benfred/py-spy) is used where it is installed and never required. Its ``--native`` mode
attaches to the process by ptrace(2), which works as the same user, also without ``SYS_PTRACE``, unless the kernel's
Yama is in its restricted mode; ranks allow that by :func:`allranks.harness.kernel.allow_tracing`. It cannot attach to
a process that is stopped: that one's Python frames are read without stopping it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NATIVE = ("--native",)
"""Python and native frames; the process is held for as long as that takes."""

PYTHON = ("--nonblocking",)
"""Python frames alone, of a process in any state."""

PATIENCE = 2.5
"""Seconds for all ranks together; measured with torch's CPU libraries: 0.7 to 1.2 of one core for each rank."""

_NAME_LIMIT = 200
_OPTIONS = ("dump", "--json", "--full-filenames")


@dataclass(frozen=True, kw_only=True)
class View:
    """What py-spy had to say of one process.

    Attributes:
        stacks: Its threads as text, in the form of Python's own dumps; empty when they could not be had.
        trouble: Why not, in one line.
    """

    stacks: str = ""
    trouble: str = ""


def find_py_spy() -> str | None:
    """The program, on PATH or beside the interpreter; None where it is not installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return shutil.which("py-spy") or (str(beside) if beside.is_file() else None)


def look(program: str, pids: Mapping[int, int], mode: Sequence[str], patience: float = PATIENCE) -> dict[int, View]:
    """Have py-spy look at several processes at once.

    Args:
        program: py-spy.
        pids: The process id of each rank.
        mode: :data:`NATIVE` or :data:`PYTHON`.
        patience: Seconds for all of them together; who has not answered by then is not waited for.

    Returns:
        A view for each rank; nothing is raised, because a missing stack must not cost a verdict.
    """
    deadline = time.monotonic() + patience
    running: dict[int, subprocess.Popen[str] | OSError] = {
        rank: _start(program, pid, mode) for rank, pid in pids.items()
    }
    return {rank: _finish(process, pids[rank], deadline) for rank, process in running.items()}


def _start(program: str, pid: int, mode: Sequence[str]) -> "subprocess.Popen[str] | OSError":
    try:
        return subprocess.Popen(
            [program, *_OPTIONS, *mode, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return error


def _finish(process: "subprocess.Popen[str] | OSError", pid: int, deadline: float) -> View:
    if isinstance(process, OSError):
        return View(trouble=f"py-spy could not be started: {process}")
    try:
        output, errors = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return View(trouble="py-spy was not done in time")
    if process.returncode != 0:
        return View(trouble=f"py-spy failed: {_in_one_line(errors)}")
    try:
        return View(stacks=_render(json.loads(output), pid))
    except (ValueError, LookupError, TypeError):
        return View(trouble="py-spy gave no stacks that can be read")


def _in_one_line(errors: str) -> str:
    """The error and its causes; what follows is py-spy's own stack."""
    lines = [line.strip() for line in errors.partition("Stack backtrace:")[0].splitlines()]
    return " ".join(line for line in lines if line)[:400]


def _render(threads: Sequence[Mapping[str, Any]], pid: int) -> str:
    """All threads in the form of faulthandler's dumps: innermost frame first, the main thread last."""
    ordered = sorted(threads, key=lambda thread: thread["os_thread_id"] == pid)
    return "\n".join(_render_thread(thread, is_main=thread["os_thread_id"] == pid) for thread in ordered)


def _render_thread(thread: Mapping[str, Any], *, is_main: bool) -> str:
    kind = "Current thread" if is_main else "Thread"
    name = f" [{thread['thread_name']}]" if thread.get("thread_name") else ""
    head = f"{kind} 0x{thread['thread_id']:016x}{name} (most recent call first):"
    return "\n".join([head, *map(_render_frame, thread["frames"]), ""])


def _render_frame(frame: Mapping[str, Any]) -> str:
    # A name can be a C++ template of many thousand characters.
    name = frame["name"] if len(frame["name"]) <= _NAME_LIMIT else f"{frame['name'][:_NAME_LIMIT]}…"
    if frame["line"]:
        return f'  File "{frame["filename"]}", line {frame["line"]} in {name}'
    return f"  {name} ({Path(frame['filename']).name})"
