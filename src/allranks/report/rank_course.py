"""The course of a failed test on its ranks: phases, collectives, and which rank came late or never.

It is read from the same journal as the outcomes, apart from them: no verdict depends on it.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite
from typing import Final, Self

from allranks.protocol.outcomes import numbers
from allranks.protocol.records import EnteredCollective, FailureCourse, PhaseEnd, RankEnded, Record, Tagged, TestStarted
from allranks.protocol.xml_text import clean_cut, printable, readable, xml_id
from allranks.report.results import RankResult
from allranks.report.untrusted import duration

MOST_BYTES: Final = 10_000_000
"""Of all courses of a job, roughly: a page has room for fewer, and a merge has little memory."""

_COURSE_BYTES: Final = 500
_OUTPUT: Final = 16_000

MOST_COLLECTIVES: Final = 16
MOST_RANKS: Final = 1_024
_MOST_PHASES: Final = 8
_NAME: Final = 60

DEFAULT_GROUP: Final = "default"
"""The name of the process group of all ranks."""

LATE: Final = 0.05
"""Seconds that a rank must come after the first one to be called late: a loaded host delays any rank by some."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective, the ranks that called it, and when: in seconds from the start of the test."""

    group: str
    number: int
    kind: str
    ranks: "array[int]"
    seconds: "array[float]"

    @classmethod
    def of(cls, group: str, number: int, kind: str, entered: Mapping[int, float]) -> Self:
        """Make one of the time of each rank."""
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
        """``all_reduce #3``, with its group if that is not the default one."""
        return f"{self.kind} #{self.number}{'' if self.group == DEFAULT_GROUP else f' of group {self.group}'}"


@dataclass(kw_only=True, slots=True)
class RankCourse:
    """What is known of one test beside its outcomes."""

    began: float  # seconds since the epoch, on the clock of the outcomes
    # The phases that each rank has reported; none for a rank that passed.
    phases: dict[int, tuple[PhaseEnd, ...]] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()  # in the order in which the first rank called them
    passed: int | None = None  # a rank that passed, whose output follows
    stdout: str = ""
    stderr: str = ""

    @property
    def bytes(self) -> int:
        """The memory of its output and its collectives, roughly."""
        times = sum(10 * len(each.ranks) + _COURSE_BYTES for each in self.collectives)
        return len(self.stdout) + len(self.stderr) + times

    def is_of(self, ranks: Sequence[RankResult]) -> bool:
        """True if these outcomes arrived after its start: they may be of another attempt."""
        arrived = [rank.at for rank in ranks if rank.at is not None]
        return bool(arrived) and min(arrived) >= self.began


class CourseReader:
    """Collects the courses of the tests in a journal that went wrong, and the tags of all that have some."""

    def __init__(self) -> None:
        self.found: dict[str, RankCourse] = {}  # by the node id of reports
        self.tags: dict[str, Mapping[str, str]] = {}  # likewise
        self._room = MOST_BYTES
        self._began: dict[str, float] = {}

    def take(self, record: Record) -> None:
        """Add the next record."""
        match record:
            case TestStarted():
                self._began[record.nodeid] = record.at
                if self.found:  # nearly all journals have none
                    self.found.pop(xml_id(record.nodeid), None)
            case FailureCourse():
                if course := self._course_of(record.nodeid):
                    course.collectives = tuple(_collectives(record.collectives))
                    course.passed = record.passed
                    course.stdout, course.stderr = (clean_cut(text, _OUTPUT) for text in (record.stdout, record.stderr))
                    self._room -= course.bytes
            case RankEnded() if record.outcome.is_bad or xml_id(record.nodeid) in self.found:
                if course := self._course_of(record.nodeid):
                    course.phases.setdefault(record.rank, record.phases[:_MOST_PHASES])

            case Tagged():
                parts = (readable(text).partition("=") for text in record.tags)
                tags = {name: value for name, _, value in parts if name and value}
                self.tags.update(dict.fromkeys(map(xml_id, record.tests), tags))

    def _course_of(self, nodeid: str) -> RankCourse | None:
        name = xml_id(nodeid)
        if name not in self.found and nodeid in self._began and self._room > 0:
            self._room -= _COURSE_BYTES
            self.found[name] = RankCourse(began=self._began[nodeid])
        return self.found.get(name)


def _collectives(told: Sequence[EnteredCollective]) -> Iterator[Collective]:
    kept = []
    for each in told[-MOST_COLLECTIVES:]:
        pairs = islice(zip(each.ranks, each.seconds, strict=False), MOST_RANKS)
        entered = {rank: at for rank, at in pairs if 0 <= rank < MOST_RANKS and isfinite(at) and duration(at) == at}
        if entered:
            kept.append(Collective.of(_name(each.group), each.number, _name(each.kind), entered))
    yield from sorted(kept, key=lambda each: min(each.seconds))


def _name(text: str) -> str:
    return printable(readable(text))[:_NAME]


def absent(course: RankCourse, collective: Collective, ranks: Sequence[RankResult]) -> list[int]:
    """The ranks that never came to a collective: they are in its group, and have called none that is later."""
    last: dict[int, int] = {}
    for each in course.collectives:
        if each.group == collective.group:
            for rank in each.ranks:
                last[rank] = max(each.number, last.get(rank, 0))
    members = [rank.rank for rank in ranks[:MOST_RANKS]] if collective.group == DEFAULT_GROUP else sorted(last)
    return [rank for rank in members if last.get(rank, 0) < collective.number]


def absences(course: RankCourse, ranks: Sequence[RankResult]) -> Iterator[str]:
    """Who waited for whom in vain, in words: for the last collective of each group that a rank never called."""
    end = max((rank.at for rank in ranks if rank.at is not None), default=course.began) - course.began
    last = {each.group: each for each in course.collectives}
    for each in last.values():
        if late := absent(course, each, ranks):
            since = f"{_seconds(max(0.0, end - min(each.seconds)))} before the end"
            had = f"{_ranks(each.ranks)} had, {f'rank {each.first} first, ' if len(each.ranks) > 1 else ''}{since}"
            yield f"{_ranks(late)} never called {each.name}; {had}"


def waits(course: RankCourse, ranks: Sequence[RankResult]) -> Iterator[str]:
    """The :func:`absences`, then the collective to which a rank came the latest."""
    yield from absences(course, ranks)
    spans = ((max(each.seconds) - min(each.seconds), each) for each in course.collectives)
    span, widest = max(spans, key=lambda one: one[0], default=(0.0, None))
    if widest is not None and span >= LATE:
        yield f"rank {widest.latest} called {widest.name} {_seconds(span)} after rank {widest.first}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
