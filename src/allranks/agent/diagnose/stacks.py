"""Stacks of a stuck rank, and of the processes that it has started: spawned ranks, a pool, ``torchrun``.

A rank writes its own, on a signal. py-spy (https://github.com/benfred/py-spy) is used if it is installed and never
required. Its ``--native`` mode attaches to the process by ptrace(2), which works as the same user, even without
``SYS_PTRACE``, unless the kernel's Yama is in its restricted mode; ranks allow it by
:func:`allranks.agent.linux.allow_tracing`. py-spy cannot attach to a stopped process, whose Python frames are read in
non-blocking mode instead.

The rank is about to be killed, and its processes with it. Without py-spy they write their stacks themselves: a fork of
the rank to the rank's stack file, another Python on SIGABRT to its standard error, if that is the rank's
(``PYTHONFAULTHANDLER``, which ranks set, has faulthandler do that); then it ends. Of the rest, only the kernel's words
are left.
"""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allranks.agent import clock, evidence, linux
from allranks.agent.orphans import is_helper
from allranks.agent.stacks import Stacks
from allranks.protocol.tracebacks import OUTSIDE
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


class StackFile:
    """The file that a rank writes its stacks to, from a signal handler.

    It may hold stacks of earlier gangs, or not exist yet.
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


def dump_stacks(
    pids: Mapping[int, int], stopped: AbstractSet[int], files: Mapping[int, StackFile], code: Path | None = None
) -> dict[int, Stacks]:
    """The current stacks of some ranks; they are also written to their stack files.

    Each rank that runs has been asked for its Python stacks by :data:`STACKS_SIGNAL`. If py-spy is installed, it adds
    the native stacks, and the Python ones of a rank that does not answer (it is stopped, or blocks its signals).

    Args:
        pids: The process id of each rank; none of them has been reaped.
        stopped: The ranks that a signal or a tracer has stopped, which cannot answer.
        files: The stack file of each rank.
        code: The folder to which paths are relative.

    Returns:
        Those of each rank.
    """
    own = wait_for_stacks({rank: files[rank] for rank in set(pids) - stopped}, pids)
    silent = {rank for rank in pids if not own.get(rank)}
    seen = {rank: _append(files[rank], view) for rank, view in _look(pids, stopped, silent).items()}
    return {rank: Stacks(own.get(rank, "") + seen.get(rank, ""), code) for rank in pids}


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
        if is_over and not any(linux.is_pending(pids[rank], STACKS_SIGNAL) for rank in files):
            break
    return before


_MOST_CHILDREN = 16
"""Processes of a rank that are looked at."""

_TOO_MANY = 100
"""A rank has started that many by mistake: they only delay its end."""

_NAMED = 3
"""Processes that a message names."""

PATIENCE = 4.0
"""Seconds for the processes of all ranks of a node together."""

_EACH = 0.5
_STUB = "<string>:"
"""Where a process of ``multiprocessing`` is that has no code of the user's on its stack: its ``python -c``."""

_COMMAND = 120


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What is known of a rank whose children are looked at."""

    number: int
    names: Mapping[int, str]  # of its child processes, by process id
    stacks: StackFile  # its stack file, to which its forks write, too
    printed: Callable[[], str]  # returns what has been printed on its standard error so far
    pipes: frozenset[int]  # the inodes of its standard output and error
    code: Path | None = None  # the folder to which paths are relative


@dataclass(frozen=True, kw_only=True)
class ChildHang:
    """One process that a rank has started."""

    pid: int
    name: str  # who it is, in words, as in "child process (rank 1)"
    seconds: float  # since it started
    about: str  # its process id, state and command, in one line
    stacks: Stacks

    @property
    def line(self) -> str:
        """Where it is, in words; empty if it is in no code of the user's."""
        where = self.stacks.innermost
        if not where or where.startswith(_STUB):
            return ""
        return f"{self.name} was in {where}, {self.seconds:.1f} s after its start"


def words_for(children: Sequence[ChildHang]) -> str:
    """Where the processes of a rank are, for a message; those that do not wait for a peer come first."""
    lines = [(child.stacks.waits_in_distributed(), child.line) for child in children if child.line]
    ordered = [line for _, line in sorted(lines, key=lambda each: each[0])]
    more = [f"{len(ordered) - _NAMED} more child processes"] if len(ordered) > _NAMED else []
    return "; " + "; ".join([*ordered[:_NAMED], *more]) if ordered else ""


def text_of(children: Sequence[ChildHang]) -> str:
    """The stacks of all of them."""
    return "".join(f"\n--- {child.name}: {child.about} ---\n{child.stacks.text}" for child in children)


def find_children(rank: int, around: Surroundings, deadline: float) -> list[ChildHang]:
    """Look at the descendants of a rank that is about to be killed.

    Those that cannot be seen from outside are asked for their stacks, and end by it.
    """
    all_pids = [pid for pid in linux.descendants(rank) if not is_helper(pid)]
    pids = all_pids[:_MOST_CHILDREN] if len(all_pids) < _TOO_MANY else []
    views = _views(pids, deadline)
    variables = {pid: _place_of(pid) for pid in pids}
    tell_apart = len(set(variables.values()) - {None}) > 1 or set(variables.values()) - {None, str(around.number)}
    found = []
    for pid in pids:
        about, seconds = _about(pid), linux.age(pid)
        stacks = views[pid].stacks if pid in views else ""
        stacks = stacks or (_ask(pid, around) if clock.monotonic() < deadline else "")
        place = variables[pid] if tell_apart else None
        rank_name = f"child process (rank {place})" if place is not None else ""
        name = around.names.get(pid) or rank_name or f"child process {pid}"
        stacks_of = Stacks(stacks, around.code)
        found.append(ChildHang(pid=pid, name=name, seconds=seconds, about=about, stacks=stacks_of))
    return found


def _views(pids: Sequence[int], deadline: float) -> dict[int, View]:
    program, left = find_py_spy(), deadline - clock.monotonic()
    return look(program, {pid: pid for pid in pids}, PYTHON, min(VIEW_TIMEOUT, left)) if program and left > 0 else {}


def _place_of(pid: int) -> str | None:
    """The rank in the environment that the process was started with."""
    variables = dict(each.split("=", 1) for each in linux.variables_of(pid) if "=" in each)
    return variables.get("RANK", variables.get("LOCAL_RANK"))


def _about(pid: int) -> str:
    process = linux.describe(pid)
    command = clipped(process.command, _COMMAND) if process else ""
    return ", ".join(filter(None, (f"pid {pid}", f"state {linux.state_of(pid)}", linux.kernel_wait(pid), command)))


def _ask(pid: int, around: Surroundings) -> str:
    """Have a process write its stacks itself; empty if it cannot."""
    try:
        if linux.catches(pid, STACKS_SIGNAL):
            return _ask_fork(pid, around.stacks)
        if linux.catches(pid, signal.SIGABRT) and _inode_of_errors(pid) in around.pipes:
            return _ask_by_abort(pid, around.printed)
    except (OSError, ValueError):
        pass
    return ""


def _ask_fork(pid: int, file: StackFile) -> str:
    own = file.from_now_on()
    # It was stopped, so that it would not compete for the processor, and must not go on after this.
    ask_for_stacks(pid)
    linux.signal_process(pid, signal.SIGCONT)
    text = wait_for_stacks({pid: own}, {pid: pid}).get(pid, "")
    linux.signal_process(pid, signal.SIGSTOP)
    return text


def _ask_by_abort(pid: int, printed: Callable[[], str]) -> str:
    before = len(printed())
    # 1 keeps even a kernel that pipes core files to a program from writing one (core(5)).
    _, most = resource.prlimit(pid, resource.RLIMIT_CORE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (1 if most else 0, most))
    linux.signal_process(pid, signal.SIGABRT)
    linux.signal_process(pid, signal.SIGCONT)
    deadline = clock.monotonic() + _EACH
    while linux.state_of(pid) not in ("", "Z") and clock.monotonic() < deadline:
        clock.sleep(0.01)
        printed()
    return "".join(_stacks_in(printed()[before:]))


def _stacks_in(text: str) -> Iterator[str]:
    """The part of a process's last words that is faulthandler's."""
    start = text.find("Fatal Python error: Aborted")
    for line in text[start:].splitlines(keepends=True) if start >= 0 else ():
        if line.startswith(("Extension modules:", "<")):
            return
        if line.startswith(("Thread 0x", "Current thread 0x", "  File ", "  ...")):
            yield line


def _inode_of_errors(pid: int) -> int:
    with suppress(OSError):
        return Path(f"/proc/{pid}/fd/2").stat().st_ino
    return 0
