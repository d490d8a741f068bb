"""Stacks of a stuck rank, and of the processes that it has started: spawned ranks, a pool, ``torchrun``.

A rank writes its own stacks on a signal. py-spy (https://github.com/benfred/py-spy) is used if it is installed, but
never required. Its ``--native`` mode attaches to the process by ptrace(2), which works as the same user without
``SYS_PTRACE``, and under Yama's restricted mode because ranks allow it by
:func:`allranks.agent.linux.allow_tracing`. py-spy cannot attach to a stopped process, whose Python frames are read in
non-blocking mode instead.

Child processes of a rank are inspected when the rank and all that it has started are about to be killed. Without
py-spy, they write their stacks themselves. A fork of the rank writes to the rank's stack file. Another Python program
that shares the rank's standard error writes there on SIGABRT, and then ends (faulthandler does this, because ranks set
``PYTHONFAULTHANDLER``). For other processes, there is only the kernel's information.
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
"""Python and native frames; the process is stopped meanwhile."""

PYTHON = ("--nonblocking",)
"""Python frames only, of a process in any state."""

PY_SPY_TIMEOUT = 2.5
"""Seconds for all ranks together; measured with torch's CPU libraries: 0.7 to 1.2 s of one core for each rank."""

_NAME_LIMIT = 200
_OPTIONS = ("dump", "--json", "--full-filenames")


@dataclass(frozen=True, kw_only=True)
class PySpyDump:
    """py-spy's output on one process."""

    stacks: str = ""  # all threads, in the format of Python's own dumps; empty on an error
    error: str = ""


def find_py_spy() -> str | None:
    """Return the path of py-spy, on PATH or next to the interpreter; None if it is not installed."""
    sibling = Path(sys.executable).parent / "py-spy"
    return shutil.which("py-spy") or (str(sibling) if sibling.is_file() else None)


def run_py_spy(
    program: str, pids: Mapping[int, int], mode: Sequence[str], timeout: float = PY_SPY_TIMEOUT
) -> dict[int, PySpyDump]:
    """Run py-spy on several processes at the same time.

    Args:
        program: py-spy's path.
        pids: The process id of each rank.
        mode: :data:`NATIVE` or :data:`PYTHON`.
        timeout: Seconds for all of them together; then those that still run are killed.

    Returns:
        A dump for each rank. Nothing is raised: a missing stack must not cost a verdict.
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


def _finish(process: "subprocess.Popen[str] | OSError", pid: int, deadline: float) -> PySpyDump:
    if isinstance(process, OSError):
        return PySpyDump(error=f"py-spy could not be started: {process}")
    try:
        output, errors = process.communicate(timeout=max(0.0, deadline - clock.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return PySpyDump(error="py-spy timed out")
    if process.returncode != 0:
        return PySpyDump(error=f"py-spy failed: {_in_one_line(errors)}")
    try:
        return PySpyDump(stacks=_render(json.loads(output), pid))
    except (ValueError, LookupError, TypeError):
        return PySpyDump(error="py-spy returned invalid output")


def _in_one_line(errors: str) -> str:
    """Join the lines of an error and its causes, without py-spy's own stack."""
    lines = [line.strip() for line in errors.partition("Stack backtrace:")[0].splitlines()]
    return clipped(" ".join(line for line in lines if line), 400)


def _render(threads: Sequence[Mapping[str, Any]], pid: int) -> str:
    """Render all threads in the format of faulthandler: innermost frame first, the main thread last."""
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
"""Makes a rank write the Python stacks of all its threads; suites hardly use this signal."""

MAIN_STACK_SIGNAL = signal.SIGRTMAX - 2
"""Makes a rank write the stack of its main thread. Other threads run meanwhile, so reading their stacks could crash a
rank that is to continue."""

_MAX_FILE = 64 << 20
"""Bytes that one stack file may grow to."""

_SILENCE_TIMEOUT = 0.5
_PAUSE_TIMEOUT = 0.25
_WRITE_TIMEOUT = 1.0  # with 2 s, the verdict on a fork bomb came 3 s later
_STOPPED_TIMEOUT = 1.0
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
        """Return the text added since this object was created."""
        return evidence.read(self._path, self._start)

    def from_now_on(self) -> "StackFile":
        """Return the same file, of which only later additions are read."""
        return StackFile(self._path)

    def append(self, text: str) -> None:
        """Add text that the rank did not write itself."""
        evidence.append(self._path, text.encode("utf-8", "replace"), _MAX_FILE)


def dump_stacks(
    pids: Mapping[int, int],
    unable: AbstractSet[int],
    files: Mapping[int, StackFile],
    code: Path | None = None,
    *,
    briefly: bool = False,
) -> dict[int, Stacks]:
    """Collect the current stacks of ranks, which also go to their stack files.

    The caller has sent :data:`STACKS_SIGNAL` to each rank that runs, or :data:`MAIN_STACK_SIGNAL` for a brief look. If
    py-spy is installed, it adds the native stacks, and the Python stacks of a rank that does not respond (it is
    stopped, or blocks its signals).

    Args:
        pids: The process id of each rank; none of them has been reaped.
        unable: The ranks that cannot respond: a signal or a tracer has stopped them, or they have no handler.
        files: The stack file of each rank.
        code: The folder to which paths are relative.
        briefly: The ranks are not stopped, so there are no native stacks.
    """
    number = MAIN_STACK_SIGNAL if briefly else STACKS_SIGNAL
    own = wait_for_stacks({rank: files[rank] for rank in set(pids) - unable}, pids, number)
    silent = {rank for rank in pids if not own.get(rank)}
    attachable = set[int]() if briefly else set(pids) - unable
    seen = {rank: _append(files[rank], dump) for rank, dump in _py_spy_dumps(pids, attachable, silent).items()}
    return {rank: Stacks(own.get(rank, "") + seen.get(rank, ""), code) for rank in pids}


def request_stacks(pid: int) -> None:
    """Have a process write its stacks, if possible from its main thread, whose frames are the ones reported."""
    if not linux.signal_thread(pid, STACKS_SIGNAL):
        linux.signal_process(pid, STACKS_SIGNAL)


def _py_spy_dumps(
    pids: Mapping[int, int], attachable: AbstractSet[int], silent: AbstractSet[int]
) -> dict[int, PySpyDump]:
    """Attach py-spy to these ranks; for a silent rank that it does not attach to, get at least the Python frames."""
    program = find_py_spy()
    if program is None:
        return {}
    dumps = run_py_spy(program, {rank: pids[rank] for rank in pids if rank in attachable}, NATIVE)
    left = {rank: pids[rank] for rank in silent if rank not in dumps or not dumps[rank].stacks}
    return {**dumps, **run_py_spy(program, left, PYTHON, _STOPPED_TIMEOUT)}


def _append(file: StackFile, dump: PySpyDump) -> str:
    text = f"\n{OUTSIDE}: {dump.error}\n" if dump.error else f"\n{OUTSIDE}:\n{dump.stacks}"
    file.append(text)
    return text


def wait_for_stacks(
    files: Mapping[int, StackFile], pids: Mapping[int, int], number: int = STACKS_SIGNAL
) -> dict[int, str]:
    """Wait for the stacks that each rank adds to its stack file.

    The rank writes from a signal handler, in parts, and does not signal the end. On a busy host it may get no processor
    for a while: before its handler runs, while the signal is still pending, and between two parts. A rank that writes
    nothing for half a second is not waited for any longer.
    """
    began = changed = clock.monotonic()
    before: dict[int, str] = {}
    while (now := clock.monotonic()) < began + _WRITE_TIMEOUT:
        clock.sleep(0.02)
        added = {rank: file.added() for rank, file in files.items()}
        if added != before:
            before, changed = added, now
            continue
        if all(map(_END_OF_STACKS.search, added.values())):
            break
        is_over = now > changed + (_PAUSE_TIMEOUT if all(added.values()) else _SILENCE_TIMEOUT)
        if is_over and not any(linux.is_pending(pids[rank], number) for rank in files):
            break
    return before


_MAX_CHILDREN = 16
"""Child processes of a rank that are inspected."""

_TOO_MANY = 100
"""A rank that has started this many processes did so by mistake: none is inspected, as that delays their end."""

_MAX_NAMES = 3
"""Child processes in one message."""

CHILDREN_TIMEOUT = 4.0
"""Seconds for the child processes of all ranks of a node together."""

_ABORT_TIMEOUT = 0.5
_STUB = "<string>:"
"""The ``python -c`` of a ``multiprocessing`` child: its innermost frame if no user code is on its stack."""

_COMMAND_LENGTH = 120


@dataclass(frozen=True, kw_only=True)
class ParentRank:
    """A rank whose child processes are inspected."""

    number: int
    pid: int
    names: Mapping[int, str]  # names of child processes, by process id
    stacks: StackFile  # its stack file, to which its forks write, too
    read_stderr: Callable[[], str]  # returns its standard error of this test so far
    pipes: frozenset[int]  # the inodes of its standard output and error
    code: Path | None = None  # the folder to which paths are relative


@dataclass(frozen=True, kw_only=True)
class ChildHang:
    """One process that a rank has started."""

    pid: int
    name: str  # as in "child process (rank 1)"
    seconds: float  # since it started
    about: str  # its process id, state and command, in one line
    stacks: Stacks

    @property
    def location(self) -> str:
        """Where it was, as a clause; empty if it was not in user code."""
        frame = self.stacks.innermost
        if not frame or frame.startswith(_STUB):
            return ""
        return f"{self.name} was in {frame}, {self.seconds:.1f} s after its start"


def describe_children(children: Sequence[ChildHang]) -> str:
    """Describe where the child processes of a rank are, those first that do not wait for a peer."""
    located = [child for child in children if child.location]
    locations = [child.location for child in sorted(located, key=lambda child: child.stacks.waits_in_distributed())]
    hidden = len(locations) - _MAX_NAMES
    more = [f"{hidden} more child process{'es' if hidden > 1 else ''}"] if hidden > 0 else []
    return "".join(f"; {part}" for part in [*locations[:_MAX_NAMES], *more])


def child_stacks_text(children: Sequence[ChildHang]) -> str:
    """Return the stacks of child processes, each with a title."""
    return "".join(f"\n--- {child.name}: {child.about} ---\n{child.stacks.text}" for child in children)


def inspect_children(parent: ParentRank, deadline: float) -> list[ChildHang]:
    """Inspect the descendants of a rank that is about to be killed; the inspection may end them."""
    all_pids = [pid for pid in linux.descendants(parent.pid) if not is_helper(pid)]
    pids = all_pids[:_MAX_CHILDREN] if len(all_pids) < _TOO_MANY else []
    dumps = _dump_children(pids, deadline)
    ranks = {pid: _rank_variable(pid) for pid in pids}
    known = set(ranks.values()) - {None}
    has_own_ranks = len(known) > 1 or bool(known - {str(parent.number)})  # else they only inherit the parent's
    children = []
    for pid in pids:
        about, seconds = _about(pid), linux.age(pid)
        text = dumps[pid].stacks if pid in dumps else ""
        text = text or (_stacks_from_child(pid, parent) if clock.monotonic() < deadline else "")
        rank = ranks[pid] if has_own_ranks else None
        default_name = f"child process {pid}" if rank is None else f"child process (rank {rank})"
        name = parent.names.get(pid) or default_name
        children.append(ChildHang(pid=pid, name=name, seconds=seconds, about=about, stacks=Stacks(text, parent.code)))
    return children


def _dump_children(pids: Sequence[int], deadline: float) -> dict[int, PySpyDump]:
    program, left = find_py_spy(), deadline - clock.monotonic()
    if not program or left <= 0:
        return {}
    return run_py_spy(program, {pid: pid for pid in pids}, PYTHON, min(PY_SPY_TIMEOUT, left))


def _rank_variable(pid: int) -> str | None:
    """Return the rank in the environment that a process was started with."""
    variables = dict(entry.split("=", 1) for entry in linux.variables_of(pid) if "=" in entry)
    return variables.get("RANK", variables.get("LOCAL_RANK"))


def _about(pid: int) -> str:
    process = linux.describe(pid)
    command = clipped(process.command, _COMMAND_LENGTH) if process else ""
    return ", ".join(filter(None, (f"pid {pid}", f"state {linux.state_of(pid)}", linux.kernel_wait(pid), command)))


def _stacks_from_child(pid: int, parent: ParentRank) -> str:
    """Have a process write its stacks itself; empty if it cannot."""
    try:
        if linux.catches(pid, STACKS_SIGNAL):
            return _stacks_from_fork(pid, parent.stacks)
        if linux.catches(pid, signal.SIGABRT) and _stderr_inode(pid) in parent.pipes:
            return _stacks_from_abort(pid, parent.read_stderr)
    except (OSError, ValueError):
        pass
    return ""


def _stacks_from_fork(pid: int, file: StackFile) -> str:
    own = file.from_now_on()
    # The process was stopped, so that it would not compete for the processor, and must not continue after this.
    request_stacks(pid)
    linux.signal_process(pid, signal.SIGCONT)
    text = wait_for_stacks({pid: own}, {pid: pid}).get(pid, "")
    linux.signal_process(pid, signal.SIGSTOP)
    return text


def _stacks_from_abort(pid: int, read_stderr: Callable[[], str]) -> str:
    before = len(read_stderr())
    # A limit of 1 prevents core files, even if the kernel pipes them to a program (core(5)).
    _, hard_limit = resource.prlimit(pid, resource.RLIMIT_CORE)
    resource.prlimit(pid, resource.RLIMIT_CORE, (1 if hard_limit else 0, hard_limit))
    linux.signal_process(pid, signal.SIGABRT)
    linux.signal_process(pid, signal.SIGCONT)
    deadline = clock.monotonic() + _ABORT_TIMEOUT
    while linux.state_of(pid) not in ("", "Z") and clock.monotonic() < deadline:
        clock.sleep(0.01)
        read_stderr()
    return "".join(_faulthandler_lines(read_stderr()[before:]))


def _faulthandler_lines(text: str) -> Iterator[str]:
    start = text.find("Fatal Python error: Aborted")
    for line in text[start:].splitlines(keepends=True) if start >= 0 else ():
        if line.startswith(("Extension modules:", "<")):
            return
        if line.startswith(("Thread 0x", "Current thread 0x", "  File ", "  ...")):
            yield line


def _stderr_inode(pid: int) -> int:
    with suppress(OSError):
        return Path(f"/proc/{pid}/fd/2").stat().st_ino
    return 0
