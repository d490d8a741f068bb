"""What flows through the report, as frozen values: what a rank came to, and what the ranks of a test add up to."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

from allranks.errors import ExitCode
from allranks.harness.outcome import Outcome, SkipKind

SkipPolicy = Literal["skip", "pass"]
"""How an environment skip is read: as the skip it is, or as a pass that keeps its reason."""


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


class Rule(IntEnum):
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
    rule: Rule
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
        return self.kind is VerdictKind.PASSED and self.rule is Rule.SKIPPED


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
