"""What flows through the report, as frozen values: rank results, verdicts, suites of a cell, the merged run."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Final, Literal

from allranks.errors import ExitCode
from allranks.harness.outcome import Outcome, SkipKind

SkipPolicy = Literal["skip", "pass"]
"""How an environment skip is read: as the skip it is, or as a pass that keeps its reason."""

MANIFEST_PLACE: Final = ("run", "manifest")
"""Cell and suite of the suite that says that the manifest cannot be read."""

_SHOWN: Final = 4


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
class TestVerdict:
    """One testcase of the report: a test in a cell, or something about its job that has no test.

    Attributes:
        ranks: The rank results behind the verdict, by rank; those that never came back included.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    nodeid: str
    classname: str
    name: str
    verdict: Verdict
    ranks: tuple[RankResult, ...] = ()

    @property
    def time(self) -> float:
        """Seconds of the slowest rank."""
        return max((rank.duration for rank in self.ranks), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many testcases came to what, and their seconds."""

    tests: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    skip_but_pass: int = 0
    time: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        """The counts of both together."""
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__})


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of a suite's tests a job had, where several jobs share the suite.

    Attributes:
        suite: The suite's name.
        number: From 1.
        count: The number of jobs.
        split: A digest of which job has which test; empty where the collection never ended.
        elsewhere: How many of the collected tests are other jobs'.
    """

    suite: str
    number: int
    count: int
    split: str = ""
    elsewhere: int = 0

    @property
    def all_names(self) -> tuple[str, ...]:
        """The name of each of the jobs, as it stands in the plan and in the folder."""
        return tuple(f"{self.suite}@{number}of{self.count}" for number in range(1, self.count + 1))


@dataclass(frozen=True, kw_only=True)
class CellSuite:
    """One suite in one cell, or one shard of it: a row of the table, a ``testsuite`` of the JUnit report.

    Attributes:
        share: None for a whole suite.
        axes: The cell's value on each axis; empty where the folder does not say.
        attempt: Number of the attempt that counts; None where there are no attempts.
        gpus: Ids of the GPUs that the job was given.
        deselected: Tests that pytest's own selection (``-k``, ``-m``) left out.
        notes: Sentences about the job, without their full stops.
        started: Seconds since the epoch.
        elapsed: Seconds from the job's start to its end.
    """

    cell: str
    suite: str
    tests: tuple[TestVerdict, ...]
    axes: Mapping[str, str | int] = field(default_factory=dict)
    engine: str = ""
    image: str = ""
    attempt: int | None = None
    gpus: tuple[str, ...] = ()
    deselected: int = 0
    notes: tuple[str, ...] = ()
    started: float | None = None
    elapsed: float | None = None
    share: Share | None = None

    @property
    def id(self) -> str:
        """The id of the job behind it."""
        return f"{self.cell}/{self.suite}"

    @property
    def name(self) -> str:
        """``<cell> / <suite>``, as reports show it."""
        return f"{self.cell} / {self.suite}"

    @property
    def counts(self) -> Counts:
        """The counts over the suite's testcases."""
        kinds = [test.verdict.kind for test in self.tests]
        return Counts(
            tests=len(kinds),
            passed=kinds.count(VerdictKind.PASSED),
            failed=kinds.count(VerdictKind.FAILURE),
            errors=kinds.count(VerdictKind.ERROR),
            skipped=kinds.count(VerdictKind.SKIPPED),
            skip_but_pass=sum(test.verdict.is_skip_but_pass for test in self.tests),
            time=sum(test.time for test in self.tests),
        )

    @property
    def has_executed(self) -> bool:
        """Whether some rank ran some test, however skips are read."""
        return any(test.verdict.executed for test in self.tests)

    @property
    def is_about_manifest(self) -> bool:
        """Whether this is no job, but what is wrong with the run's manifest."""
        return (self.cell, self.suite) == MANIFEST_PLACE

    @property
    def all_deselected(self) -> bool:
        """Whether the suite is empty only because the user's own selection left every test out."""
        return not self.tests and self.deselected > 0 and not self.is_empty_share

    @property
    def is_empty_share(self) -> bool:
        """Whether there is nothing to run because other jobs have all of the suite's tests."""
        return not self.tests and self.share is not None and self.share.elsewhere > 0


@dataclass(frozen=True, kw_only=True)
class MergedRun:
    """A run folder, read and judged.

    Attributes:
        junit: The merged JUnit file.
        summary: The Markdown summary.
        policy: How environment skips were read.
        planned: The job ids of the manifest; None where there is no manifest.
    """

    folder: Path
    junit: Path
    summary: Path
    run_id: str
    suites: tuple[CellSuite, ...]
    policy: SkipPolicy = "skip"
    planned: frozenset[str] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that a reader of the report should know and no testcase says."""
        return (*self._notes_on_suites(), *self._notes_on_absent_shards(), *self._note_on_what_never_ran())

    def _notes_on_suites(self) -> Iterator[str]:
        for suite in self.suites:
            if suite.all_deselected:
                yield f"{suite.name}: the selection left out all {suite.deselected} tests."
            if suite.is_empty_share and suite.share:
                yield f"{suite.name}: nothing to run: every test of it ({suite.share.elsewhere}) is another shard's."
            if self.planned is not None and suite.id not in self.planned:
                yield f"{suite.name}: has results, and is not in the plan."
            yield from (f"{suite.name}: {note}." for note in suite.notes)

    def _notes_on_absent_shards(self) -> Iterator[str]:
        """A shard that runs alone is a part: whoever reads its report should know that the rest is not in it."""
        present = {(suite.cell, suite.suite) for suite in self.suites}
        shares = {(suite.cell, suite.share.suite, suite.share.all_names) for suite in self.suites if suite.share}
        for cell, suite, names in sorted(shares):
            here = sum((cell, name) in present for name in names)
            if here < len(names):
                yield f"{cell} / {suite}: {here} of {len(names)} shards are here."

    def _note_on_what_never_ran(self) -> Iterator[str]:
        """A run is green when some of it ran: what did not run has to be said, or nobody ever looks."""
        idle = [suite.name for suite in self.suites if suite.tests and not suite.has_executed]
        if idle:
            shown = ", ".join(idle[:_SHOWN]) + (f" and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else "")
            yield f"No test executed in {len(idle)} of {len(self.suites)} jobs: {shown}."

    @property
    def counts(self) -> Counts:
        """The counts over all suites."""
        return sum((suite.counts for suite in self.suites), Counts())

    def only(self, jobs: Collection[str]) -> "MergedRun":
        """The part of the run that belongs to these job ids.

        Sessions that share a run folder merge all of it, and answer for their own jobs alone. A damaged manifest
        concerns each of them.
        """
        return replace(
            self, suites=tuple(suite for suite in self.suites if suite.id in jobs or suite.is_about_manifest)
        )
