"""The processes that a test has started, from the events that :mod:`allranks.agent.child_observer` has written."""

import itertools
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from allranks.agent import evidence, linux
from allranks.agent.stacks import Stacks, relative_to
from allranks.protocol import skip_codes
from allranks.protocol.grouping import by_key
from allranks.protocol.tracebacks import headline
from allranks.protocol.typed_json import RecordError, by_name, decode_line
from allranks.protocol.xml_text import clipped

_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})
"""Signals that indicate a defect."""

_HARMLESS: Final = frozenset({signal.SIGPIPE})
"""Signals that do not count as a failure: SIGPIPE only means that the reader of a pipe has closed it."""

_REQUESTS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that request a process to end, which it may do with an exception or any status."""

_MOST_FILES: Final = 10_000
_MOST_BYTES: Final = 1 << 20
_MOST_TOTAL_BYTES: Final = 4 << 20
_LONGEST_NAME: Final = 60


@dataclass(frozen=True, kw_only=True)
class _Event:
    at: float  # seconds by the monotonic clock, which all processes of a host share
    pid: int


@dataclass(frozen=True, kw_only=True)
class Named(_Event):
    """``multiprocessing`` has started a process."""

    name: str
    rank: int | None = None  # its index among the processes that ``torch.multiprocessing`` starts together


@dataclass(frozen=True, kw_only=True)
class Began(_Event):
    """A Python program or a fork has started."""

    parent: int = 0
    rank: int | None = None  # from its environment


@dataclass(frozen=True, kw_only=True)
class Replaced(_Event):
    """A process is about to execute another program."""


@dataclass(frozen=True, kw_only=True)
class Ranked(_Event):
    """A process has set its rank in its environment."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class _Raised(_Event):
    status: int = 0  # the exit status that it is about to end with; 0 if it continues
    rank: int | None = None  # from torch.distributed, or from its environment
    message: str = ""  # type and message of the exception; empty for none
    text: str = ""  # its traceback
    stack: str = ""  # its frames, innermost first, as faulthandler writes them


@dataclass(frozen=True, kw_only=True)
class FoundDead(_Event):
    """Another process of the same parent has died."""


@dataclass(frozen=True, kw_only=True)
class Left(_Raised):
    """A process is about to end with a status other than 0."""


@dataclass(frozen=True, kw_only=True)
class PassedOn(_Raised):
    """A worker of a pool has sent an exception to the process that submitted the task, and continues."""


@dataclass(frozen=True, kw_only=True)
class Ended(_Event):
    """A process has ended, as reported by its parent."""

    status: int  # negative for a signal


@dataclass(frozen=True, kw_only=True)
class Signaled(_Event):
    """A process has been sent a signal."""

    number: int


_KINDS: Final = by_name((Named, Began, Replaced, Ranked, FoundDead, Left, PassedOn, Ended, Signaled))
_FAILURES: Final = (FoundDead, Left, PassedOn, Ended)
"""Events that concern only the test that is running when they are written."""


@dataclass(frozen=True, kw_only=True)
class ChildProcess:
    """A process below a rank that ended with an exception, a signal, or an exit status other than 0.

    Attributes:
        at: When it ended, in seconds of the monotonic clock; if it wrote nothing, when another process noticed.
        rank: None if it has no rank, or only the rank of the process that runs the test.
        is_earlier: Whether an earlier test started it.
        left: The event that it wrote itself before it ended.
        ended: The event of its parent, if there is one yet.
        stopped_by: The signal with which a process above ended it; 0 for none.
    """

    pid: int
    at: float
    name: str = ""
    rank: int | None = None
    is_earlier: bool = False
    left: _Raised | None = None
    ended: Ended | None = None
    stopped_by: int = 0

    @property
    def was_stopped(self) -> bool:
        """Whether a process above it ended it with a signal."""
        return self.stopped_by != 0

    @property
    def label(self) -> str:
        """The process in a message, as in "child process Process-1"."""
        known = f"child process {self.name}" if self.name else "a child process"
        label = known if self.rank is None else f"child process (rank {self.rank})"
        return f"{label} of an earlier test" if self.is_earlier else label

    @property
    def has_crashed(self) -> bool:
        """Whether it was killed by a signal that indicates a defect."""
        return not self.was_stopped and self.ended is not None and -self.ended.status in _CRASHES

    @property
    def waited_for_a_peer(self) -> bool:
        """Whether its exception came from a call of torch.distributed, and may be secondary."""
        return self._stacks.waits_in_distributed()

    @cached_property
    def _stacks(self) -> Stacks:
        return Stacks(self.left.stack if self.left else "")

    @property
    def status(self) -> int:
        """Its exit status, negative for a signal; 0 if unknown."""
        return self.ended.status if self.ended else self.left.status if self.left else 0

    def message(self, root: Path | None) -> str:
        """How it ended, and where, as a message with its label; paths are relative to `root`."""
        return f"{self.label} {self.ending(root)}"

    def ending(self, root: Path | None) -> str:
        """How it ended, and where, as a message without its label; paths are relative to `root`."""
        if self.was_stopped:
            return f"was stopped by the test ({linux.signal_name(self.stopped_by)})"
        if self.left is not None and self.left.message:
            frame = self._stacks.user_frame or next(iter(self._stacks.frames), None)
            where = f" at {relative_to(root, frame.file)}:{frame.line}" if frame else ""
            return f"raised {headline(self.left.message)}{where}"
        if self.status < 0:
            return f"was killed by {linux.signal_name(-self.status)}"
        return f"ended with exit status {self.status}"


@dataclass(kw_only=True)
class _Events:
    """The events of a folder, by process."""

    since: float  # when the test began, in seconds by the monotonic clock
    names: dict[int, Named] = field(default_factory=dict)
    began: dict[int, Began] = field(default_factory=dict)
    ranked: dict[int, Ranked] = field(default_factory=dict)
    found_dead: dict[int, FoundDead] = field(default_factory=dict)
    left: dict[int, Left] = field(default_factory=dict)
    passed_on: dict[int, PassedOn] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    starters: dict[int, set[int]] = field(default_factory=dict)  # the processes that started a process
    signals: dict[int, list[tuple[int, Signaled]]] = field(default_factory=dict)  # to a process, with their senders

    def children(self, pids: Iterable[int], own_rank: int | None) -> list[ChildProcess]:
        """These processes, in the order of their ends; with their ranks, unless all inherited the same rank."""
        ranks = {pid: self._rank_of(pid, own_rank) for pid in self._pids | set(pids)}
        has_ranks = set(ranks.values()) - {None, own_rank}
        positions = self._positions()
        children = [self._child(pid, ranks[pid] if has_ranks else None, positions.get(pid, "")) for pid in pids]
        return sorted(children, key=lambda child: child.at)

    @property
    def _pids(self) -> set[int]:
        return self.names.keys() | self.began.keys() | self.left.keys() | self.ended.keys()

    def _rank_of(self, pid: int, own_rank: int | None) -> int | None:
        """The rank of a process from the most reliable event; an inherited rank comes last."""
        raised = self.left.get(pid) or self.passed_on.get(pid)
        events = (raised, self.ranked.get(pid), self.names.get(pid), self.began.get(pid))
        ranks = [event.rank for event in events if event is not None and event.rank is not None]
        return next((rank for rank in ranks if rank != own_rank), own_rank if ranks else None)

    def _positions(self) -> dict[int, str]:
        """Names such as "1 of 2" for unnamed processes of this test, if a process started more than one."""
        unnamed = ((pid, began) for pid, began in self.began.items() if pid not in self.names)
        siblings = by_key((began.parent, pid) for pid, began in unnamed if began.at >= self.since)
        several = [pids for pids in siblings.values() if len(pids) > 1]
        return {pid: f"{position} of {len(pids)}" for pids in several for position, pid in enumerate(pids, 1)}

    def _child(self, pid: int, rank: int | None, position: str) -> ChildProcess:
        left, ended, named = self.left.get(pid), self.ended.get(pid), self.names.get(pid)
        at = min((event.at for event in (left, ended, self.found_dead.get(pid)) if event), default=0.0)
        return ChildProcess(
            pid=pid,
            at=at,
            name=clipped(named.name, _LONGEST_NAME) if named else position,
            rank=rank,
            is_earlier=any(event.at < self.since for event in (named, self.began.get(pid)) if event),
            left=left,
            ended=ended,
            stopped_by=self._stopped_by(pid, ended.status, at) if ended else 0,
        )

    def _stopped_by(self, pid: int, status: int, at: float) -> int:
        above = self._above(pid)
        for sender, signaled in self.signals.get(pid, ()):
            explains = signaled.number == -status or (status > 0 and signaled.number in _REQUESTS)
            if explains and sender in above and signaled.at <= at:
                return signaled.number
        return 0

    def _above(self, pid: int) -> set[int]:
        """The processes that started a process, directly or through others."""
        above: set[int] = set()
        unvisited = {pid}
        while unvisited:
            child = unvisited.pop()
            began = self.began.get(child)
            parents = self.starters.get(child, set()) | ({began.parent} if began else set())
            unvisited |= parents - above
            above |= parents
        return above

    def add(self, writer: int, event: _Event) -> None:
        """Add the next event, which the process `writer` wrote."""
        match event:
            case Named():
                self.names[event.pid] = event
            case Began():
                self.began[event.pid] = event
            case Replaced():
                self.began.pop(event.pid, None)
            case Ranked():
                self.ranked[event.pid] = event
            case FoundDead():
                self.found_dead.setdefault(event.pid, event)
            case Left():
                self.left[event.pid] = event
            case PassedOn():
                self.passed_on.setdefault(event.pid, event)
            case Ended():
                self.ended.setdefault(event.pid, event)
        self._relate(writer, event)

    def _relate(self, writer: int, event: _Event) -> None:
        if isinstance(event, Signaled):
            self.signals.setdefault(event.pid, []).append((writer, event))
        elif isinstance(event, Named | Ended) and event.pid != writer:
            self.starters.setdefault(event.pid, set()).add(writer)


def children_folder(shared: Path, rank: int) -> Path:
    """The folder with the events of a rank's child processes, in the folder that its gang shares."""
    return shared / f"children-{rank}"


def labels_of_children(folder: Path, own_rank: int | None, since: float = 0.0) -> dict[int, str]:
    """The labels of the processes that have a name or a rank, by process id; arguments as for :func:`read_children`."""
    events = _read(folder, since)
    children = events.children(events.names.keys() | events.began.keys(), own_rank)
    return {child.pid: child.label for child in children if child.name or child.rank is not None}


def read_children(folder: Path, own_rank: int | None, since: float = 0.0) -> Sequence[ChildProcess]:
    """The processes that failed, in the order of their ends, without helper processes of Python.

    Args:
        folder: The folder with the events.
        own_rank: The rank of the process that runs the test, which its children inherit.
        since: When the test began, in seconds by the monotonic clock; failures before that are left out.
    """
    events = _read(folder, since)
    python = events.ended.keys() & (events.names.keys() | events.began.keys())
    killed = {pid for pid, ended in events.ended.items() if ended.status < 0 and -ended.status not in _HARMLESS}
    children = events.children(events.left.keys() | python | killed, own_rank)
    return [child for child in children if skip_codes.reason_of_exit(child.status) is None]


def workers_that_raised(folder: Path, own_rank: int | None, since: float = 0.0) -> Sequence[ChildProcess]:
    """The workers of pools that have sent an exception to the process that submitted the task, each with its first one.

    The arguments are those of :func:`read_children`.
    """
    events = _read(folder, since)
    raised = [(child, events.passed_on[child.pid]) for child in events.children(events.passed_on, own_rank)]
    return [replace(child, at=event.at, left=event, ended=None, stopped_by=0) for child, event in raised]


def primary(children: Iterable[ChildProcess]) -> ChildProcess | None:
    """The process whose failure caused the others; None if there is none.

    Processes of this test come before those of earlier tests, then processes that did not wait for a peer before those
    that did, and then the first to fail.
    """
    own = [child for child in children if not child.was_stopped]
    return min(own, key=lambda child: (child.is_earlier, child.waited_for_a_peer, child.at), default=None)


def table(children: Sequence[ChildProcess], root: Path) -> str:
    """A line for each process: its label, its process id, and how it ended."""
    return "".join(f"{child.label} (pid {child.pid}) {child.ending(root)}\n" for child in children)


def _read(folder: Path, since: float) -> _Events:
    written: list[tuple[int, _Event]] = []
    files: list[Path] = []
    with suppress(OSError):
        files = [path for path in itertools.islice(folder.iterdir(), _MOST_FILES) if path.name.isdecimal()]
    bytes_left = _MOST_TOTAL_BYTES
    for path in sorted(files, key=evidence.size_of):  # so that large files are cut first
        lines = _lines(path, min(bytes_left, _MOST_BYTES))
        bytes_left -= sum(map(len, lines))
        for line in lines:
            with suppress(RecordError):  # truncated, or written by another program
                written.append((int(path.name), decode_line(line, _KINDS)))
    events = _Events(since=since)
    for writer, event in sorted(written, key=lambda pair: pair[1].at):
        if event.at >= since or not isinstance(event, _FAILURES):
            events.add(writer, event)
    return events


def _lines(path: Path, most: int) -> list[bytes]:
    if (file := evidence.open_start(path)) is not None:
        with suppress(OSError), file:
            return file.read(most).splitlines()
    return []
