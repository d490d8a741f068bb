"""What processes that a rank has started do while it hangs: spawned ranks, a pool, ``torchrun``.

The rank is about to be killed, and they with it. py-spy reads their Python stacks. Without it they write them
themselves: a fork of the rank to the rank's stack file, another Python on SIGABRT to its standard error, if that is the
rank's (``PYTHONFAULTHANDLER``, which ranks set, has faulthandler do that); then it ends. Of the rest, only the kernel's
words are left.
"""

import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from allranks.agent import clock, linux
from allranks.agent.diagnose.stacks import (
    PYTHON,
    STACKS_SIGNAL,
    VIEW_TIMEOUT,
    StackFile,
    View,
    ask_for_stacks,
    find_py_spy,
    look,
    wait_for_stacks,
)
from allranks.agent.stacks import Stacks
from allranks.protocol.xml_text import clipped

_MOST = 16
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
    names: Mapping[int, str]  # names of its child processes that it has reported, by process id
    stacks: StackFile  # its stack file, to which its forks write, too
    printed: Callable[[], str]  # returns what has been printed on its standard error so far
    pipes: frozenset[int]  # the inodes of its standard output and error


@dataclass(frozen=True, kw_only=True)
class ChildHang:
    """One process that a rank has started."""

    pid: int
    name: str  # who it is, in words, as in "RANK 1"
    about: str  # its process id, state and command, in one line
    stacks: Stacks

    @property
    def line(self) -> str:
        """Where it is, in words; empty if it is in no code of the user's."""
        where = self.stacks.innermost
        return f"{self.name} was in {where}" if where and not where.startswith(_STUB) else ""


def words_for(children: Sequence[ChildHang]) -> str:
    """Where the processes of a rank are, for a message; those that do not wait for a peer come first."""
    lines = [(child.stacks.waits_in_distributed(), child.line) for child in children if child.line]
    ordered = [line for _, line in sorted(lines, key=lambda each: each[0])]
    more = [f"{len(ordered) - _NAMED} more in code of the user's"] if len(ordered) > _NAMED else []
    return "; of its processes, " + ", ".join([*ordered[:_NAMED], *more]) if ordered else ""


def text_of(children: Sequence[ChildHang]) -> str:
    """The stacks of all of them."""
    return "".join(f"\n--- {child.name}: {child.about} ---\n{child.stacks.text}" for child in children)


def find_children(rank: int, around: Surroundings, deadline: float) -> list[ChildHang]:
    """Look at the descendants of a rank that is about to be killed.

    Those that cannot be seen from outside are asked for their stacks, and end by it.

    Args:
        rank: The rank's process id.
        around: What is known of it.
        deadline: When no further stacks are waited for, by the monotonic clock.
    """
    all_pids = linux.descendants(rank)
    pids = all_pids[:_MOST] if len(all_pids) < _TOO_MANY else []
    views = _views(pids, deadline)
    variables = {pid: _place_of(pid) for pid in pids}
    tell_apart = len(set(variables.values()) - {None}) > 1 or set(variables.values()) - {None, str(around.number)}
    found = []
    for pid in pids:
        about = _about(pid)
        stacks = views[pid].stacks if pid in views else ""
        stacks = stacks or (_ask(pid, around) if clock.monotonic() < deadline else "")
        place = variables[pid] if tell_apart else None
        name = around.names.get(pid) or (f"RANK {place}" if place is not None else f"process {pid}")
        found.append(ChildHang(pid=pid, name=name, about=about, stacks=Stacks(stacks)))
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
    return ", ".join(filter(None, (f"pid {pid}", f"state {linux.state_of(pid)}", linux.waits_in(pid), command)))


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
