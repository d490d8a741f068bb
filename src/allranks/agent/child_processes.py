"""The processes that a test has started, by what :mod:`allranks.agent.child_observer` has written of them."""

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
from allranks.protocol.tracebacks import headline
from allranks.protocol.typed_json import RecordError, by_name, decode_line
from allranks.protocol.xml_text import clipped

_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})
"""Signals that only a defect sends."""

_ENDS_WELL: Final = frozenset({signal.SIGPIPE})
"""Signals that end a program whose reader has read enough."""

_REQUESTS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
"""Signals that ask a process to end, by an exception or any status."""

_MOST_FILES: Final = 10_000
_MOST_BYTES: Final = 1 << 20
_MOST_IN_ALL: Final = 4 << 20
_NAME: Final = 60


@dataclass(frozen=True, kw_only=True)
class _Event:
    at: float  # seconds by the monotonic clock, which all processes of a host share
    pid: int


@dataclass(frozen=True, kw_only=True)
class Named(_Event):
    """``multiprocessing`` has started a process, by what that or its starter has written."""

    name: str
    rank: int | None = None  # its number among those that ``torch.multiprocessing`` starts together


@dataclass(frozen=True, kw_only=True)
class Began(_Event):
    """A Python program or a fork has begun."""

    parent: int = 0
    rank: int | None = None  # that of its environment


@dataclass(frozen=True, kw_only=True)
class Replaced(_Event):
    """A process is about to execute another program."""


@dataclass(frozen=True, kw_only=True)
class Ranked(_Event):
    """A process has set its rank in its environment."""

    rank: int


@dataclass(frozen=True, kw_only=True)
class _Raised(_Event):
    status: int = 0  # that it is about to end with; 0 if it goes on
    rank: int | None = None  # torch's, or that of its environment
    message: str = ""  # type and message of the exception; empty for none
    text: str = ""  # its traceback
    stack: str = ""  # its frames, innermost first, as faulthandler writes them


@dataclass(frozen=True, kw_only=True)
class Left(_Raised):
    """A process is about to end with a status other than 0."""


@dataclass(frozen=True, kw_only=True)
class PassedOn(_Raised):
    """A worker of a pool has sent an exception to the process that gave it the task, and goes on."""


@dataclass(frozen=True, kw_only=True)
class Ended(_Event):
    """A process has ended, by what its parent got."""

    status: int  # negative for a signal


@dataclass(frozen=True, kw_only=True)
class Signaled(_Event):
    """A process has been sent a signal."""

    number: int


@dataclass(frozen=True, kw_only=True)
class BeganTest(_Event):
    """A rank begins a test."""


_KINDS: Final = by_name((Named, Began, Replaced, Ranked, Left, PassedOn, Ended, Signaled, BeganTest))


@dataclass(frozen=True, kw_only=True)
class ChildProcess:
    """A process below a rank that ended with an exception, a signal, or an exit status other than 0.

    Attributes:
        at: When it left or, if it wrote nothing then, when its parent noticed; seconds by the monotonic clock.
        rank: None if it has none, or the one that it has is that of the process that runs the test.
        is_earlier: Whether an earlier test has started it.
        left: What it wrote itself before it ended.
        ended: What its parent got; None if it has not got it yet.
        stopped_by: The signal by which a process above it ended it; 0 for none.
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
        """Whether a process above it ended it by a signal."""
        return self.stopped_by != 0

    @property
    def who(self) -> str:
        """It, in words."""
        known = f"child process {self.name}" if self.name else "a child process"
        who = known if self.rank is None else f"child process (rank {self.rank})"
        return f"{who} of an earlier test" if self.is_earlier else who

    @property
    def has_crashed(self) -> bool:
        """Whether a signal killed it that only a defect sends."""
        return not self.was_stopped and self.ended is not None and -self.ended.status in _CRASHES

    @property
    def waited_for_a_peer(self) -> bool:
        """Whether a call of torch.distributed raised its exception, which may follow from another process's end."""
        return self._stacks.waits_in_distributed()

    @cached_property
    def _stacks(self) -> Stacks:
        return Stacks(self.left.stack if self.left else "")

    def words(self, root: Path | None) -> str:
        """Who it is, how it ended, and where."""
        return f"{self.who} {self.how(root)}"

    def how(self, root: Path | None) -> str:
        """How it ended, and where, in words.

        Args:
            root: The folder to which paths are relative.
        """
        if self.was_stopped:
            return f"was stopped by the test ({linux.signal_name(self.stopped_by)})"
        if self.left is not None and self.left.message:
            frame = self._stacks.user_frame or next(iter(self._stacks.frames), None)
            where = f" at {relative_to(root, frame.file)}:{frame.line}" if frame else ""
            return f"raised {headline(self.left.message)}{where}"
        status = self.ended.status if self.ended else self.left.status if self.left else 0
        return f"was killed by {linux.signal_name(-status)}" if status < 0 else f"ended with exit status {status}"


@dataclass(kw_only=True)
class _Found:
    """The events of a folder, by process."""

    since: float = 0.0  # when the test began
    names: dict[int, Named] = field(default_factory=dict)
    began: dict[int, Began] = field(default_factory=dict)
    ranked: dict[int, Ranked] = field(default_factory=dict)
    left: dict[int, Left] = field(default_factory=dict)
    passed_on: dict[int, PassedOn] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    starters: dict[int, set[int]] = field(default_factory=dict)  # the processes that have started each
    signals: dict[int, list[tuple[int, Signaled]]] = field(default_factory=dict)  # to each, with their senders

    def children(self, pids: Iterable[int], own_rank: int | None) -> list[ChildProcess]:
        """These processes, in the order of their ends; with their ranks, unless all inherited the one rank."""
        ranks = {pid: self._rank_of(pid, own_rank) for pid in self._pids | set(pids)}
        has_ranks = set(ranks.values()) - {None, own_rank}
        places = self._places()
        found = [self._child(pid, ranks[pid] if has_ranks else None, places.get(pid, "")) for pid in pids]
        return sorted(found, key=lambda child: child.at)

    @property
    def _pids(self) -> set[int]:
        return self.names.keys() | self.began.keys() | self.left.keys() | self.ended.keys()

    def _rank_of(self, pid: int, own_rank: int | None) -> int | None:
        """What tells best which rank a process is; last of all, the rank that it may have inherited."""
        raised = self.left.get(pid) or self.passed_on.get(pid)
        events = (raised, self.ranked.get(pid), self.names.get(pid), self.began.get(pid))
        found = [event.rank for event in events if event is not None and event.rank is not None]
        return next((rank for rank in found if rank != own_rank), own_rank if found else None)

    def _places(self) -> dict[int, str]:
        """The order of the processes without a name that one process has started in this test, if it is several."""
        together: dict[int, list[int]] = {}
        for pid, began in self.began.items():  # in the order of their starts
            if pid not in self.names and began.at >= self.since:
                together.setdefault(began.parent, []).append(pid)
        several = [pids for pids in together.values() if len(pids) > 1]
        return {pid: f"{place} of {len(pids)}" for pids in several for place, pid in enumerate(pids, 1)}

    def _child(self, pid: int, rank: int | None, place: str) -> ChildProcess:
        left, ended, named = self.left.get(pid), self.ended.get(pid), self.names.get(pid)
        first = left or ended
        return ChildProcess(
            pid=pid,
            at=first.at if first else 0.0,
            name=clipped(named.name, _NAME) if named else place,
            rank=rank,
            is_earlier=any(event.at < self.since for event in (named, self.began.get(pid)) if event),
            left=left,
            ended=ended,
            stopped_by=self._stopped_by(pid, ended.status, first.at) if ended and first else 0,
        )

    def _stopped_by(self, pid: int, status: int, at: float) -> int:
        above = self._above(pid)
        for sender, signaled in self.signals.get(pid, ()):
            explains = signaled.number == -status or (status > 0 and signaled.number in _REQUESTS)
            if explains and sender in above and signaled.at <= at:
                return signaled.number
        return 0

    def _above(self, pid: int) -> set[int]:
        """The processes that have started a process, or one that has."""
        found: set[int] = set()
        left = {pid}
        while left:
            each = left.pop()
            began = self.began.get(each)
            parents = self.starters.get(each, set()) | ({began.parent} if began else set())
            left |= parents - found
            found |= parents
        return found

    def add(self, writer: int, event: _Event) -> None:
        """Add an event that a process has written after those that have been added."""
        match event:
            case Named():
                self.names[event.pid] = event
            case Began():
                self.began[event.pid] = event
            case Replaced():
                self.began.pop(event.pid, None)
            case Ranked():
                self.ranked[event.pid] = event
            case Left():
                self.left[event.pid] = event
            case PassedOn():
                self.passed_on.setdefault(event.pid, event)
            case BeganTest():
                self._begin_test(event.at)
            case Ended():
                self.ended.setdefault(event.pid, event)
            case Signaled():
                self.signals.setdefault(event.pid, []).append((writer, event))
        self._add_starter(writer, event)

    def _begin_test(self, at: float) -> None:
        self.since = at
        self.left.clear()
        self.passed_on.clear()
        self.ended.clear()

    def _add_starter(self, writer: int, event: _Event) -> None:
        if isinstance(event, Named | Ended) and event.pid != writer:
            self.starters.setdefault(event.pid, set()).add(writer)


def children_folder(shared: Path, rank: int) -> Path:
    """The folder of the events of a rank's processes.

    Args:
        shared: What the ranks of its gang share.
        rank: The rank.
    """
    return shared / f"children-{rank}"


def names_of_children(folder: Path, own_rank: int | None) -> dict[int, str]:
    """What to call the processes that have a name or a rank, by their process ids.

    Args:
        folder: Of the events.
        own_rank: As for :func:`read_children`.
    """
    found = _read(folder)
    children = found.children(found.names.keys() | found.began.keys(), own_rank)
    return {child.pid: child.who for child in children if child.name or child.rank is not None}


def read_children(folder: Path, own_rank: int | None) -> Sequence[ChildProcess]:
    """The processes that did not end well, in the order of their ends; none that a helper of Python's is.

    Args:
        folder: Of the events.
        own_rank: The rank of the process that runs the test, which its children inherit.
    """
    found = _read(folder)
    pythons = found.ended.keys() & (found.names.keys() | found.began.keys())
    killed = {pid for pid, ended in found.ended.items() if ended.status < 0 and -ended.status not in _ENDS_WELL}
    pids = found.left.keys() | pythons | killed
    return [child for child in found.children(pids, own_rank) if not _is_skip(child)]


def workers_that_raised(folder: Path, own_rank: int | None) -> Sequence[ChildProcess]:
    """The workers of pools that have sent exceptions to the processes that gave them their tasks; the first of each.

    Args:
        folder: Of the events.
        own_rank: As for :func:`read_children`.
    """
    found = _read(folder)
    raised = [(child, found.passed_on[child.pid]) for child in found.children(found.passed_on, own_rank)]
    return [replace(child, at=event.at, left=event, ended=None, stopped_by=0) for child, event in raised]


def primary(children: Iterable[ChildProcess]) -> ChildProcess | None:
    """The process that failed first by itself; None if none did.

    One that waited for a peer comes after others: the peer's end may have made it fail. One of an earlier test comes
    last.
    """
    own = [child for child in children if not child.was_stopped]
    return min(own, key=lambda child: (child.is_earlier, child.waited_for_a_peer, child.at), default=None)


def table(children: Sequence[ChildProcess], root: Path) -> str:
    """A line for each: who it is, and how it ended."""
    return "".join(f"{child.who} (pid {child.pid}) {child.how(root)}\n" for child in children)


def _read(folder: Path) -> _Found:
    events: list[tuple[int, _Event]] = []
    files: list[Path] = []
    with suppress(OSError):
        files = [path for path in itertools.islice(folder.iterdir(), _MOST_FILES) if path.name.isdecimal()]
    room = _MOST_IN_ALL
    for path in sorted(files, key=evidence.size_of):  # if anything is left out, then what is large
        lines = _lines(path, min(room, _MOST_BYTES))
        room -= sum(map(len, lines))
        for line in lines:
            with suppress(RecordError):  # cut off, or written by someone else
                events.append((int(path.name), decode_line(line, _KINDS)))
    found = _Found()
    for writer, event in sorted(events, key=lambda each: each[1].at):
        found.add(writer, event)
    return found


def _lines(path: Path, most: int) -> list[bytes]:
    if (file := evidence.open_start(path)) is not None:
        with suppress(OSError), file:
            return file.read(most).splitlines()
    return []


def _is_skip(child: ChildProcess) -> bool:
    """Whether its exit status is one of those by which torch's tests skip."""
    status = child.ended.status if child.ended else child.left.status if child.left else 0
    return skip_codes.reason_of_exit(status) is not None
