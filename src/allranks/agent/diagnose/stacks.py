"""Stacks of a stuck rank: its own, on a signal, and py-spy's view from outside.

py-spy (https://github.com/benfred/py-spy) is used if it is installed and never required. Its ``--native`` mode
attaches to the process by ptrace(2), which works as the same user, even without ``SYS_PTRACE``, unless the kernel's
Yama is in its restricted mode; ranks allow it by :func:`allranks.agent.linux.allow_tracing`. py-spy cannot attach to
a stopped process, whose Python frames are read in non-blocking mode instead.
"""

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.agent import clock, evidence, linux
from allranks.protocol.tracebacks import OUTSIDE, is_of_tools
from allranks.protocol.xml_text import clipped

NATIVE = ("--native",)
"""Python and native frames; the process is stopped for as long as that takes."""

PYTHON = ("--nonblocking",)
"""Python frames only, of a process in any state."""

VIEW_TIMEOUT = 2.5
"""Seconds for all ranks together; measured with torch's CPU libraries: 0.7 to 1.2 s of one core for each rank."""

_NAME_LIMIT = 200
_OPTIONS = ("dump", "--json", "--full-filenames")


@dataclass(frozen=True, kw_only=True)
class View:
    """py-spy's view of one process."""

    stacks: str = ""  # its threads as text, in the form of Python's own dumps; empty on an error
    trouble: str = ""


def find_py_spy() -> str | None:
    """The path of py-spy, on PATH or beside the interpreter; None if it is not installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return shutil.which("py-spy") or (str(beside) if beside.is_file() else None)


def look(program: str, pids: Mapping[int, int], mode: Sequence[str], timeout: float = VIEW_TIMEOUT) -> dict[int, View]:
    """Run py-spy on several processes at the same time.

    Args:
        program: py-spy's path.
        pids: The process id of each rank.
        mode: :data:`NATIVE` or :data:`PYTHON`.
        timeout: Seconds for all of them together; a py-spy that is not done by then is killed.

    Returns:
        A view for each rank; nothing is raised, because a missing stack must not cost a verdict.
    """
    deadline = clock.monotonic() + timeout
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
        output, errors = process.communicate(timeout=max(0.0, deadline - clock.monotonic()))
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
    """The error and its causes, without py-spy's own stack."""
    lines = [line.strip() for line in errors.partition("Stack backtrace:")[0].splitlines()]
    return clipped(" ".join(line for line in lines if line), 400)


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
    # The name of a C++ template can have many thousand characters.
    name = frame["name"] if len(frame["name"]) <= _NAME_LIMIT else f"{frame['name'][:_NAME_LIMIT]}…"
    if frame["line"]:
        return f'  File "{frame["filename"]}", line {frame["line"]} in {name}'
    return f"  {name} ({Path(frame['filename']).name})"


STACKS_SIGNAL = signal.SIGRTMAX - 1
"""Asks a rank to write the Python stacks of all its threads; suites hardly use this signal."""

_MOST = 64 << 20
"""Bytes that one stack file may grow to."""

_TIMEOUT = 0.5
_LONGEST = 1.0  # with 2 s, the verdict on a fork bomb came 3 s later
_QUIET = 0.25
_LAST_TIMEOUT = 1.0
_END_OF_STACKS = re.compile(r"(?: in (?:<module>|_run_module_as_main)|^  \.\.\.)\n\Z", re.MULTILINE)
"""The outermost frame of the oldest thread, which is written last, or the mark of omitted frames."""

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_CURRENT_THREAD = "Current thread 0x"
_TESTS_OF_TORCH = "-packages/torch/testing/_internal/distributed/"
_WAITS = ("-packages/torch/distributed/", "/allranks/testing/shared_files.py")
_WRAPPER = "/allranks/agent/rank/call_counter.py"
_NATIVE_WAITS = re.compile(r"\b(c10d|gloo|nccl\w*|tensorpipe|torch::distributed)(::|\b)")
_IMPORTED = "<module>"
"""The name of a frame in a module that is being imported: torch imports some of its modules late, and slowly."""

_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"


class StackFile:
    """The file that a rank writes its stacks to, from a signal handler.

    Args:
        path: The file, which may hold stacks of earlier gangs, or not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = evidence.size_of(path)

    def added(self) -> str:
        """The text added since this object was created."""
        return evidence.read(self._path, self._start)

    def from_now_on(self) -> "StackFile":
        """The same file, of which only later additions are read."""
        return StackFile(self._path)

    def append(self, text: str) -> None:
        """Add text that the rank did not write itself."""
        evidence.append(self._path, text.encode("utf-8", "replace"), _MOST)


def dump_stacks(pids: Mapping[int, int], stopped: AbstractSet[int], files: Mapping[int, StackFile]) -> dict[int, str]:
    """The current stacks of some ranks; they are also written to their stack files.

    Each rank that runs has been asked for its Python stacks by :data:`STACKS_SIGNAL`. If py-spy is installed, it adds
    the native stacks, and the Python ones of a rank that does not answer (it is stopped, or blocks its signals).

    Args:
        pids: The process id of each rank; none of them has been reaped.
        stopped: The ranks that a signal or a tracer has stopped, which cannot answer.
        files: The stack file of each rank.

    Returns:
        A text for each rank, empty if there is no stack.
    """
    own = wait_for_stacks({rank: files[rank] for rank in set(pids) - stopped}, pids)
    silent = {rank for rank in pids if not own.get(rank)}
    seen = {rank: _append(files[rank], view) for rank, view in _look(pids, stopped, silent).items()}
    return {rank: own.get(rank, "") + seen.get(rank, "") for rank in pids}


def ask_for_stacks(pid: int) -> None:
    """Have a process write its stacks, if possible from its main thread, whose line counts."""
    if not linux.signal_thread(pid, STACKS_SIGNAL):
        linux.signal_process(pid, STACKS_SIGNAL)


def _look(pids: Mapping[int, int], stopped: AbstractSet[int], silent: AbstractSet[int]) -> dict[int, View]:
    """py-spy's view of each rank; for a silent one that it cannot attach to, at least the Python frames."""
    program = find_py_spy()
    if program is None:
        return {}
    views = look(program, {rank: pids[rank] for rank in pids if rank not in stopped}, NATIVE)
    left = {rank: pids[rank] for rank in silent if rank not in views or not views[rank].stacks}
    return {**views, **look(program, left, PYTHON, _LAST_TIMEOUT)}


def _append(file: StackFile, view: View) -> str:
    text = f"\n{OUTSIDE}: {view.trouble}\n" if view.trouble else f"\n{OUTSIDE}:\n{view.stacks}"
    file.append(text)
    return text


def wait_for_stacks(files: Mapping[int, StackFile], pids: Mapping[int, int]) -> dict[int, str]:
    """Wait for the stacks that each rank adds to its stack file.

    The rank writes from a signal handler, piece by piece, and does not signal the end. On a busy host it may get no
    processor for a while: before its handler runs, while the signal is still pending, and between two pieces. A rank
    that writes nothing is given up after half a second.

    Args:
        files: The stack file of each rank that was asked.
        pids: Its process id.
    """
    began = changed = clock.monotonic()
    before: dict[int, str] = {}
    while (now := clock.monotonic()) < began + _LONGEST:
        clock.sleep(0.02)
        added = {rank: file.added() for rank, file in files.items()}
        if added != before:
            before, changed = added, now
            continue
        if all(map(_END_OF_STACKS.search, added.values())):
            break
        is_over = now > changed + (_QUIET if all(added.values()) else _TIMEOUT)
        if is_over and not any(linux.is_coming(pids[rank], STACKS_SIGNAL) for rank in files):
            break
    return before


def innermost(stacks: str) -> str:
    """The innermost frame of the user's own code, ``file:line in name``; empty if there is none.

    Of several threads, the one that ran the signal handler counts, which is the main one if possible.
    """
    match = next((frame for frame in _frames(stacks) if not is_machinery(frame["file"])), None)
    return f"{match['file']}:{match['line']} in {match['name']}" if match else ""


_MOST_SOURCES = 20
_MOST_SOURCE = 1 << 20
_SOURCE_LINE = 200


def with_source(stacks: str) -> str:
    """Stacks with the line of code below each frame, as tracebacks have it, where a file of at most 1 MiB has that."""
    files: dict[str, list[str]] = {}
    lines = []
    for line in stacks.split("\n"):
        lines.append(line)
        frame = _FRAME.fullmatch(line)
        if frame is None or is_of_tools(frame["file"]) or len(frame["line"]) > 9:
            continue
        if frame["file"] not in files and len(files) < _MOST_SOURCES:
            path = Path(frame["file"])
            files[frame["file"]] = evidence.read(path).split("\n") if evidence.size_of(path) <= _MOST_SOURCE else []
        source = files.get(frame["file"], [])[int(frame["line"]) - 1 : int(frame["line"])]
        lines += (f"    {clipped(each.strip(), _SOURCE_LINE)}" for each in source if each.strip())
    return "\n".join(lines)


def waits_in_distributed(stacks: str, *, is_logged: bool = True) -> bool:
    """Whether the innermost frames are torch.distributed's: this rank waits for its peers.

    Its C++ functions have no Python frame, only their callers have: the call counter, if ranks count their calls.

    Args:
        stacks: Of the rank.
        is_logged: It is known to wait for something: a call of the counter's alone may wait for the rank itself.
    """
    inner = list(itertools.takewhile(lambda frame: is_machinery(frame["file"]), _frames(stacks)))
    if any(frame["name"] == _IMPORTED for frame in inner):
        return False
    waits = (*_WAITS, _WRAPPER) if is_logged else _WAITS
    return any(part in frame["file"] for frame in inner for part in waits) or _waits_in_native_code(stacks)


def _waits_in_native_code(stacks: str) -> bool:
    """Whether py-spy has seen the main thread in torch.distributed's C++ code, above any frame of the user's."""
    _, _, seen = stacks.rpartition(OUTSIDE)[2].rpartition(_CURRENT_THREAD)
    native = itertools.takewhile(lambda line: not line.startswith('  File "'), seen.splitlines()[1:])
    return any(_NATIVE_WAITS.search(line) for line in native)


def _frames(stacks: str) -> Iterator[re.Match[str]]:
    """The Python frames of the thread that counts, innermost first; preferably those that the rank wrote itself."""
    own, _, outside = stacks.partition(OUTSIDE)
    text = own if _FRAME.search(own) else outside
    _, current, of_current = text.rpartition(_CURRENT_THREAD)
    return _FRAME.finditer(of_current if current else text)


def is_machinery(file: str) -> bool:
    """Whether a source file is pytest's, torch's, the harness's or the standard library's, and not the user's own.

    A test of torch's own suites in its wheel counts as the user's.
    """
    if _TESTS_OF_TORCH in file and file.endswith("_test.py"):
        return False
    if is_of_tools(file) or "-packages/torch/" in file:
        return True
    return is_of_python(file)


def is_of_python(file: str) -> bool:
    """Whether a source file is the standard library's."""
    return file.startswith((_STANDARD_LIBRARY, "<frozen ")) and "-packages/" not in file
