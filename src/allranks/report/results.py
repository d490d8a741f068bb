"""The values of the report: results of ranks, in columns, and the tests they add up to.

A job of 64 ranks and 20,000 tests has over a million results, of which nearly all say *passed* and how long it took. A
value for each would take a gigabyte; a column of seconds, and names that the ranks share, take ten megabytes.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple, overload

from allranks.errors import ExitCode
from allranks.outcomes import Outcome, SkipKind

SkipPolicy = Literal["skip", "pass"]
"""How an environment skip is read: as the skip it is, or as a pass that keeps its reason."""

XPASS: Final = "xpass"
"""The reason of a pass that was expected, not strictly, to be a failure on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rerun:
    """A try of a test after which the same rank tried again.

    Attributes:
        at: See :class:`RankResult`, and so for the next two; None where nothing says.
    """

    outcome: Outcome
    message: str = ""
    text: str = ""
    at: float | None = None
    consequence: bool = False
    caused_by: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """What one rank of one test came to.

    Attributes:
        nodeid: pytest's node id; ``classname::name`` for XML that does not say it.
        at: Seconds on the clock of the leading agent when the outcome arrived there: for order only. None where the
            XML does not say.
        consequence: Whether this bad outcome came within the grace after the leading one.
        caused_by: For an aborted rank, the rank that went first.
        skip_code: Exit code of torch's skip table.
        duration: Seconds.
        world_size: Ranks that took part in this test, where it differs from the job's.
        reruns: Tries before the one whose outcome this is, the oldest first.
    """

    nodeid: str
    classname: str
    name: str
    rank: int
    outcome: Outcome
    at: float | None = None
    consequence: bool = False
    caused_by: int | None = None
    skip_kind: SkipKind | None = None
    skip_code: int | None = None
    phase: str = ""
    message: str = ""
    text: str = ""
    duration: float = 0.0
    stdout: str = ""
    stderr: str = ""
    world_size: int | None = None
    reruns: tuple[Rerun, ...] = ()


class VerdictKind(StrEnum):
    """What a test in a cell came to, in the words of JUnit."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILURE = "failure"
    ERROR = "error"


class VerdictRule(IntEnum):
    """The verdict rules of the design, by number, and one for testcases that stand for no test."""

    UNACCOUNTED = 1
    LEADING_OUTCOME = 2
    RANKS_DISAGREE = 3
    SKIPPED = 4
    PASSED = 5
    JOB = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the rank outcomes of one test in one cell add up to.

    Attributes:
        rule: The first rule that applied.
        reason: One or two words for the ``type`` attribute: ``failed``, ``timed_out``, ``pytest.skip``.
        exit_code: What this verdict alone would make of the run's exit code.
        leading: The rank that the verdict leads with.
        executed: Whether a rank got to run the test.
    """

    kind: VerdictKind
    rule: VerdictRule
    reason: str = ""
    exit_code: ExitCode = ExitCode.OK
    leading: int | None = None
    message: str = ""
    text: str = ""
    executed: bool = True
    skip_kind: SkipKind | None = None
    skip_code: int | None = None

    @property
    def is_bad(self) -> bool:
        """Whether this verdict keeps the run from being good."""
        return self.kind in {VerdictKind.FAILURE, VerdictKind.ERROR}

    @property
    def is_skip_but_pass(self) -> bool:
        """Whether this is an environment skip that the policy reads as a pass."""
        return self.kind is VerdictKind.PASSED and self.rule is VerdictRule.SKIPPED


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierAttempt:
    """What a test came to in an attempt at its job before the one that counts.

    Attributes:
        number: The attempt, from 1.
        ranks: As those of :class:`TestVerdict`.
    """

    number: int
    verdict: Verdict
    ranks: Sequence[RankResult] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TestVerdict:
    """One testcase of the report: a test in a cell, or something about its job that has no test.

    Attributes:
        ranks: The rank results behind the verdict, by rank; those that never came back included.
        earlier: Earlier attempts in which the test went wrong, the oldest first.
        slowest: Seconds of the slowest rank, where that is known without asking each.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    nodeid: str
    classname: str
    name: str
    verdict: Verdict
    ranks: Sequence[RankResult] = ()
    earlier: tuple[EarlierAttempt, ...] = ()
    slowest: float | None = None

    @property
    def is_flaky(self) -> bool:
        """Whether the test went wrong in an earlier attempt, and did not in the one that counts."""
        return not self.verdict.is_bad and bool(self.earlier)

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        return max((rank.duration for rank in self.ranks), default=0.0) if self.slowest is None else self.slowest


ABSENT: Final = -math.inf
"""What stands for no time of arrival."""


class Key(NamedTuple):
    """How a file names a test.

    Attributes:
        said: The node id that the file says; empty where it says none.
    """

    classname: str
    name: str
    said: str = ""

    @property
    def nodeid(self) -> str:
        """The node id; ``classname::name`` where the file says none."""
        return self.said or (f"{self.classname}::{self.name}" if self.classname else self.name)


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """The results of one rank, as far as its file could be read.

    Attributes:
        rank: None where neither the file nor its name says.
        properties: The properties of the test suite, by name.
        keys: Its tests, each once, in their order. Ranks that ran the same tests share one tuple.
        seconds: How long each test took.
        at: When the outcome of each test arrived; :data:`ABSENT` where a test does not say it. Empty where none does.
        world_sizes: How many ranks took part in each; 0 where a test does not say it. Empty where none does.
        details: The results that say more than *passed* and these three.
        problem: One sentence that says why the file could not be read to its end, or why it cannot be believed; empty
            when it could.
        note: What is odd in it, and may be well; empty for nothing.
        is_unfinished: Whether it is of a journal that does not say that the job did all its work.
    """

    path: Path
    rank: int | None
    properties: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[Key, ...] = ()
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    at: "array[float]" = field(default_factory=lambda: array("d"))
    world_sizes: "array[int]" = field(default_factory=lambda: array("H"))
    details: Mapping[int, RankResult] = field(default_factory=dict)
    problem: str = ""
    note: str = ""
    is_unfinished: bool = False

    @property
    def results(self) -> tuple[RankResult, ...]:
        """All of them."""
        return tuple(map(self.result, range(len(self.keys))))

    def result(self, place: int) -> RankResult:
        """The result of the test whose key stands at this place."""
        if place in self.details:
            return self.details[place]
        key = self.keys[place]
        at = self.at[place] if self.at else ABSENT
        return RankResult(
            nodeid=key.nodeid,
            classname=key.classname,
            name=key.name,
            rank=self.rank or 0,
            outcome=Outcome.PASSED,
            at=None if at == ABSENT else at,
            duration=self.seconds[place],
            world_size=(self.world_sizes[place] or None) if self.world_sizes else None,
        )


@dataclass(frozen=True, eq=False)
class RankGroup:
    """The files of ranks that ran the same tests, in the order of the ranks."""

    files: tuple[RankFile, ...]

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, in ascending order; a rank twice where two files say that they are its."""
        return tuple(file.rank or 0 for file in self.files)

    @cached_property
    def passed(self) -> str:
        """What :func:`compact` says of a test that all of them passed."""
        return _compact(self.ranks, Outcome.PASSED)

    @cached_property
    def slowest(self) -> "array[float]":
        """Seconds of the slowest rank of each test."""
        return array("d", map(max, zip(*(file.seconds for file in self.files), strict=True)))

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each test stands, by node id."""
        return {key.nodeid: place for place, key in enumerate(self.files[0].keys)}

    @cached_property
    def notable(self) -> frozenset[int]:
        """The places of the tests that did not simply pass on every rank."""
        return frozenset(place for file in self.files for place in file.details)

    @cached_property
    def world_sizes(self) -> "array[int]":
        """The largest world that some rank says each test had; 0 where none does."""
        nothing = array("H", [0]) * len(self.files[0].keys)
        return array("H", map(max, zip(nothing, *(file.world_sizes or nothing for file in self.files), strict=True)))


@dataclass(frozen=True, slots=True, eq=False)
class PassedRanks(Sequence[RankResult]):
    """The results of a test that passed on every rank, each made when it is asked for."""

    team: RankGroup
    place: int

    def __len__(self) -> int:
        """How many ranks."""
        return len(self.team.files)

    @overload
    def __getitem__(self, index: int) -> RankResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankResult, ...]: ...
    def __getitem__(self, index: int | slice) -> RankResult | tuple[RankResult, ...]:
        """One rank's result, or those of some."""
        if isinstance(index, slice):
            return tuple(file.result(self.place) for file in self.team.files[index])
        return self.team.files[index].result(self.place)

    def __iter__(self) -> Iterator[RankResult]:
        """Each rank's result."""
        return (file.result(self.place) for file in self.team.files)

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        return self.team.slowest[self.place]


def teams_of(files: Iterable[RankFile]) -> tuple[RankGroup, ...]:
    """The files, those with the same tests together; the ranks of a job that went well are one team."""
    groups: dict[int, list[RankFile]] = {}
    known: list[tuple[Key, ...]] = []
    for file in files:
        same = next((place for place, keys in enumerate(known) if keys is file.keys or keys == file.keys), None)
        if same is None:
            same = len(known)
            known.append(file.keys)
        groups.setdefault(same, []).append(file)
    return tuple(RankGroup(tuple(sorted(group, key=lambda file: file.rank or 0))) for group in groups.values())


def results_of(nodeid: str, teams: Iterable[RankGroup]) -> list[RankResult]:
    """What the ranks say of one test."""
    return [
        file.result(place) for team in teams if (place := team.places.get(nodeid)) is not None for file in team.files
    ]


def compact(ranks: Sequence[RankResult]) -> str:
    """``0-2,5:passed 3-4:failed``: every rank with its outcome, for machines."""
    if isinstance(ranks, PassedRanks):
        return ranks.team.passed
    by_outcome: dict[Outcome, list[int]] = {}
    for rank in ranks:
        by_outcome.setdefault(rank.outcome, []).append(rank.rank)
    return " ".join(_compact(group, outcome) for outcome, group in by_outcome.items())


def _compact(group: Iterable[int], outcome: Outcome) -> str:
    return f"{numbers(group)}:{outcome.value}".replace(" ", "")


def describe(outcome: Outcome) -> str:
    """An outcome as a word or two of prose."""
    return outcome.value.replace("_", " ")


def strip(ranks: Sequence[RankResult], leading: RankResult | None = None) -> str:
    """``0, 2-3 aborted by rank 1; 1 failed (leads)``: every rank with its outcome, equal ones together."""
    by_outcome: dict[str, list[int]] = {}
    for rank in ranks:
        by_outcome.setdefault(_with_role(rank, leading), []).append(rank.rank)
    return "; ".join(f"{numbers(group)} {words}" for words, group in by_outcome.items())


def numbers(ranks: Iterable[int]) -> str:
    """Rank numbers in ascending order, runs of three and more shortened: ``0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(_run(run) for run in runs)


def _run(run: Sequence[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run))


def _with_role(rank: RankResult, leading: RankResult | None) -> str:
    words = describe(rank.outcome)
    if rank is leading:
        return f"{words} (leads)"
    if rank.outcome is Outcome.ABORTED and rank.caused_by is not None:
        return f"{words} by rank {rank.caused_by}"
    return f"{words} (consequence)" if rank.consequence and rank.outcome.is_bad else words
