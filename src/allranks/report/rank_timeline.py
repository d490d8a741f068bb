"""The timeline of a failed test on its ranks: phases, collectives, and which rank came late or never.

It is read from the same journal as the outcomes, but no verdict depends on it.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Final, Self

from allranks.protocol.outcomes import named_ranks
from allranks.protocol.records import EnteredCollective, FailureCourse, PhaseEnd, RankEnded, Record, Tagged, TestStarted
from allranks.protocol.xml_text import clean_cut, printable, readable, xml_id
from allranks.report.results import RankResult
from allranks.report.untrusted import duration

MOST_BYTES: Final = 10_000_000
"""The approximate limit for all timelines of a job: a merge should need little memory, and a page fits less."""

_TIMELINE_BYTES: Final = 500
_OUTPUT: Final = 16_000

MOST_COLLECTIVES: Final = 16
RANK_LIMIT: Final = 1_024
"""The ranks of which a timeline has the collectives: those below this number."""

_MOST_PHASES: Final = 8
_NAME: Final = 60

DEFAULT_GROUP: Final = "default"
"""The name of the process group of all ranks."""

LATE: Final = 0.05
"""A rank this many seconds behind the first one is reported as late; less is normal on a loaded host."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective, the ranks that called it, and when they did, in seconds from the start of the test."""

    group: str
    number: int
    kind: str
    ranks: "array[int]"
    seconds: "array[float]"

    @classmethod
    def of(cls, group: str, number: int, kind: str, entered: Mapping[int, float]) -> Self:
        return cls(group, number, kind, array("H", entered), array("d", entered.values()))

    @property
    def entered(self) -> dict[int, float]:
        """When each rank called it."""
        return dict(zip(self.ranks, self.seconds, strict=True))

    @property
    def first(self) -> int:
        """The rank that called it first."""
        return min(zip(self.seconds, self.ranks, strict=True))[1]

    @property
    def latest(self) -> int:
        """The rank that called it last."""
        return max(zip(self.seconds, self.ranks, strict=True))[1]

    @property
    def name(self) -> str:
        """``all_reduce #3``, with the group unless it is the default one."""
        return f"{self.kind} #{self.number}{'' if self.group == DEFAULT_GROUP else f' of group {self.group}'}"


@dataclass(kw_only=True, slots=True)
class RankTimeline:
    """The timeline of one test."""

    began: float  # seconds since the epoch, on the clock of the outcomes
    phases: dict[int, tuple[PhaseEnd, ...]] = field(default_factory=dict)  # by rank; none for a rank that passed
    collectives: tuple[Collective, ...] = ()  # in the order in which the first rank called them
    passed: int | None = None  # a rank that passed and printed the following output
    stdout: str = ""
    stderr: str = ""

    @property
    def bytes(self) -> int:
        """The approximate size of its output and its collectives."""
        times = sum(10 * len(collective.ranks) + _TIMELINE_BYTES for collective in self.collectives)
        return len(self.stdout) + len(self.stderr) + times

    def is_of(self, ranks: Sequence[RankResult]) -> bool:
        """True if these outcomes arrived after the start of the timeline; if not, they are from another attempt."""
        arrived = [rank.at for rank in ranks if rank.at is not None]
        return bool(arrived) and min(arrived) >= self.began


class TimelineReader:
    """Collects the timelines of the failed tests in a journal, and the tags of all tests."""

    def __init__(self) -> None:
        self.found: dict[str, RankTimeline] = {}  # by node id as reports write it
        self.tags: dict[str, Mapping[str, str]] = {}  # likewise
        self._bytes_left = MOST_BYTES
        self._began: dict[str, float] = {}

    def add(self, record: Record) -> None:
        match record:
            case TestStarted():
                self._began[record.nodeid] = record.at
                if self.found:  # nearly all journals have none
                    self.found.pop(xml_id(record.nodeid), None)
            case FailureCourse():
                if timeline := self._timeline_of(record.nodeid):
                    timeline.collectives = tuple(_collectives(record.collectives))
                    timeline.passed = record.passed
                    timeline.stdout, timeline.stderr = (
                        clean_cut(text, _OUTPUT) for text in (record.stdout, record.stderr)
                    )
                    self._bytes_left -= timeline.bytes
            case RankEnded() if record.outcome.is_bad or xml_id(record.nodeid) in self.found:
                if timeline := self._timeline_of(record.nodeid):
                    timeline.phases.setdefault(record.rank, record.phases[:_MOST_PHASES])

            case Tagged():
                parts = (readable(text).partition("=") for text in record.tags)
                tags = {name: value for name, _, value in parts if name and value}
                self.tags.update(dict.fromkeys(map(xml_id, record.tests), tags))

    def _timeline_of(self, nodeid: str) -> RankTimeline | None:
        name = xml_id(nodeid)
        if name not in self.found and nodeid in self._began and self._bytes_left > 0:
            self._bytes_left -= _TIMELINE_BYTES
            self.found[name] = RankTimeline(began=self._began[nodeid])
        return self.found.get(name)


def _collectives(records: Sequence[EnteredCollective]) -> Iterator[Collective]:
    kept = []
    for record in records[-MOST_COLLECTIVES:]:
        pairs = islice(zip(record.ranks, record.seconds, strict=False), RANK_LIMIT)
        entered = {rank: at for rank, at in pairs if 0 <= rank < RANK_LIMIT and isfinite(at) and duration(at) == at}
        if entered:
            kept.append(Collective.of(_name(record.group), record.number, _name(record.kind), entered))
    yield from sorted(kept, key=lambda collective: min(collective.seconds))


def _name(text: str) -> str:
    return printable(readable(text))[:_NAME]


def missing_ranks(timeline: RankTimeline, collective: Collective, ranks: Sequence[RankResult]) -> list[int]:
    """The ranks of its group that called neither this collective nor a later one."""
    last: dict[int, int] = {}
    for other in timeline.collectives:
        if other.group == collective.group:
            for rank in other.ranks:
                last[rank] = max(other.number, last.get(rank, 0))
    members = [rank.rank for rank in ranks[:RANK_LIMIT]] if collective.group == DEFAULT_GROUP else sorted(last)
    return [rank for rank in members if last.get(rank, 0) < collective.number]


def absences(timeline: RankTimeline, ranks: Sequence[RankResult]) -> Iterator[str]:
    """A sentence for each group whose last collective some rank never called."""
    end = max((rank.at for rank in ranks if rank.at is not None), default=timeline.began) - timeline.began
    last = {collective.group: collective for collective in timeline.collectives}
    for collective in last.values():
        if missing := missing_ranks(timeline, collective, ranks):
            since = f"{_seconds(max(0.0, end - min(collective.seconds)))} before the end"
            first = f", rank {collective.first} first," if len(collective.ranks) > 1 else ""
            called = f"{named_ranks(collective.ranks)} called it{first} {since}"
            yield f"{named_ranks(missing)} never called {collective.name}; {called}"


def waits(timeline: RankTimeline, ranks: Sequence[RankResult]) -> Iterator[str]:
    """The :func:`absences`, then the longest wait for a late rank."""
    yield from absences(timeline, ranks)
    spans = ((max(collective.seconds) - min(collective.seconds), collective) for collective in timeline.collectives)
    span, widest = max(spans, key=lambda pair: pair[0], default=(0.0, None))
    if widest is not None and span >= LATE:
        yield f"rank {widest.latest} called {widest.name} {_seconds(span)} after rank {widest.first}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
