"""Judged jobs, with their tests and errors, and the judged run.

The tests of a job stay in memory only while its part of the report is written; a :class:`SuiteRow` keeps what the rest
of the report needs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from allranks.errors import AllranksError, ExitCode
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import named
from allranks.protocol.repetitions import RepetitionTally, command_to_repeat
from allranks.protocol.tracebacks import excerpt
from allranks.protocol.xml_text import command, cut, first_line, xml_id
from allranks.report.failure_groups import (
    Failure,
    GroupKey,
    functions_of,
    grouped,
    groups_of,
    message_of,
    ranks_of,
)
from allranks.report.rank_timeline import RankTimeline, absences
from allranks.report.results import XPASS, SkipPolicy, TestVerdict, Verdict, VerdictKind, VerdictRule
from allranks.report.section import Section

if TYPE_CHECKING:
    from allranks.report.axis_correlation import Blame
    from allranks.report.run_files import Manifest

MANIFEST_KEY: Final = ("run", "manifest")
"""The cell and suite under which problems of the input as a whole are reported."""

KEPT_NAMES: Final = 50
"""Node ids that a row keeps for a list: as many as any report shows."""

KEPT_TRACEBACKS: Final = 20
"""Failures of a row that have an excerpt of the traceback."""

_LONGEST_COMMAND: Final = 2000
"""The maximum characters of a command; a longer one is omitted, because half a command is useless."""

_SHARDS: Final = range(1, 1_001)  # the limit of a matrix file
_MESSAGE: Final = 500
_SHOWN: Final = 4


@dataclass(kw_only=True)
class Counts:
    """Numbers of testcases, and their seconds.

    Tests that did not run also count as skipped, and flaky tests as passed or skipped.
    """

    tests: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    not_run: int = 0
    skip_but_pass: int = 0
    flaky: int = 0
    time: float = 0.0

    @property
    def bad(self) -> int:
        """The number of failures and errors."""
        return self.failed + self.errors

    @property
    def words(self) -> str:
        """The nonzero results: ``1 failed, 12 passed, 2 not run``; empty without testcases."""
        results = {
            "failed": self.failed,
            "errors": self.errors,
            "passed": self.passed,
            "skipped": self.skipped - self.not_run,
            "not run": self.not_run,
        }
        return ", ".join(f"{count} {name}" for name, count in results.items() if count)

    @property
    def as_object(self) -> dict[str, int | float]:
        """The counts in report.json."""
        return {**asdict(self), "time": round(self.time, 3)}

    def add(
        self, kind: VerdictKind, time: float, *, not_run: bool = False, skip_but_pass: bool = False, flaky: bool = False
    ) -> None:
        self.tests += 1
        self.passed += kind is VerdictKind.PASSED
        self.failed += kind is VerdictKind.FAILURE
        self.errors += kind is VerdictKind.ERROR
        self.skipped += kind is VerdictKind.SKIPPED
        self.not_run += not_run
        self.skip_but_pass += skip_but_pass
        self.flaky += flaky
        self.time += time

    def __iadd__(self, other: Self) -> Self:
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        return self


@dataclass(frozen=True, kw_only=True)
class Share:
    """The shard of a suite that a job ran."""

    suite: Annotated[str, xml_id]
    number: Annotated[int, _SHARDS]  # from 1
    count: Annotated[int, _SHARDS]
    split: str = ""  # a digest of the assignment of tests to shards; empty if the collection never ended
    elsewhere: int = 0  # the number of collected tests that belong to other shards

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all shards, as in the plan and in the results folder."""
        return tuple(f"{self.suite}@{number}of{self.count}" for number in range(1, self.count + 1))


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """A job (one suite, or one shard of it, in one cell), without its tests."""

    cell: str
    suite: str
    axes: Mapping[str, str | int] = field(default_factory=dict)  # the cell's value on each axis; empty if unknown
    batch: str = ""  # the job's batch in a plan for several machines; empty without such a plan
    engine: str = ""
    torch: str = ""  # the version that its ranks imported; empty if unknown
    image: str = ""
    attempt: int | None = None  # the number of the newest attempt; None if there are no attempts
    folder: str = ""  # the folder of its files, relative to the report's folder; empty if there are no attempts
    gpus: tuple[str, ...] = ()
    deselected: int = 0  # tests that pytest deselected (``-k``, ``-m``)
    notes: tuple[str, ...] = ()  # sentences about the job, without their full stops
    started: float | None = None  # seconds since the epoch
    elapsed: float | None = None  # seconds from the job's start to its end
    share: Share | None = None  # None for a whole suite
    seed: int | None = None  # the number from which the seeds of its tests are derived
    repeated: Mapping[str, RepetitionTally] = field(default_factory=dict)  # the tallies of repeated tests, by node id

    @property
    def id(self) -> str:
        return f"{self.cell}/{self.suite}"

    @property
    def name(self) -> str:
        return f"{self.cell} / {self.suite}"

    @property
    def whole_suite(self) -> str:
        """The name of the suite, without the shard."""
        return self.share.suite if self.share else self.suite

    def rerun_command(self, nodeid: str = "") -> list[str]:
        """The command that reruns a test, or the whole job; empty if allranks did not run the job.

        The command for a test selects the whole suite, since a test that runs alone may be in another shard.
        """
        if not (self.engine or self.axes):
            return []
        seed = [] if self.seed is None else ["--seed", str(self.seed)]
        tally = self.repeated.get(nodeid) or next(iter(self.repeated.values()), None)
        selection = [self.cell, "--suite", self.whole_suite if nodeid else self.suite, *seed]
        return command_to_repeat(nodeid, selection, tally)


@dataclass(frozen=True, kw_only=True)
class SuiteRow(JobSummary):
    """A row of the table: what is kept of a job after its tests are written."""

    counts: Counts
    executed: int  # tests that any rank executed, whatever the policy for skips
    exit_codes: frozenset[ExitCode]  # the exit codes of its verdicts
    failures: tuple[Failure, ...] = ()  # the groups of its failed tests, in the order of :func:`groups_of`
    xpassed: tuple[str, ...] = ()  # up to :data:`KEPT_NAMES` node ids of tests that passed although expected to fail
    flaky: tuple[str, ...] = ()  # up to :data:`KEPT_NAMES` node ids of flaky tests

    @property
    def time(self) -> float:
        """Seconds from the job's start to its end, or else those of its tests."""
        return self.counts.time if self.elapsed is None else self.elapsed

    @property
    def is_about_manifest(self) -> bool:
        """True if this is not a job, but the problems of the input as a whole."""
        return (self.cell, self.suite) == MANIFEST_KEY

    @property
    def all_deselected(self) -> bool:
        """True if there are no testcases because the user deselected all tests."""
        return not self.counts.tests and self.deselected > 0 and not self.is_empty_shard

    @property
    def is_empty_shard(self) -> bool:
        """True if there are no testcases because all tests are in other shards."""
        return not self.counts.tests and self.share is not None and self.share.elsewhere > 0


@dataclass(frozen=True, kw_only=True)
class CellSuite(JobSummary):
    """A job with its tests: a ``testsuite`` of the JUnit report."""

    tests: tuple[TestVerdict, ...]
    timelines: Mapping[str, RankTimeline] = field(default_factory=dict)  # of failed tests, by node id, where known
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # for the conformance table, by node id

    def timeline_of(self, test: TestVerdict) -> RankTimeline | None:
        timeline = self.timelines.get(test.nodeid)
        return timeline if timeline and timeline.is_of(test.ranks) else None

    @cached_property
    def counts(self) -> Counts:
        counts = Counts()
        for test in self.tests:
            verdict = test.verdict
            counts.add(
                verdict.kind,
                test.time,
                not_run=verdict.is_not_run,
                skip_but_pass=verdict.is_skip_but_pass,
                flaky=test.is_flaky,
            )
        return counts

    @property
    def executed(self) -> int:
        """The number of tests that any rank executed, whatever the policy for skips."""
        return sum(test.verdict.executed for test in self.tests)

    @cached_property
    def groups(self) -> Mapping[GroupKey, Sequence[TestVerdict]]:
        """The failed tests, grouped by failure."""
        return groups_of(self.tests)

    @property
    def row(self) -> SuiteRow:
        return SuiteRow(
            **{summary.name: getattr(self, summary.name) for summary in fields(JobSummary)},
            counts=self.counts,
            executed=self.executed,
            exit_codes=frozenset(test.verdict.exit_code for test in self.tests),
            failures=tuple(self._failure(*group, index) for index, group in enumerate(self.groups.items())),
            flaky=tuple(test.nodeid for test in self.tests if test.is_flaky)[:KEPT_NAMES],
            xpassed=tuple(test.nodeid for test in self.tests if test.verdict.reason == XPASS)[:KEPT_NAMES],
        )

    def _failure(self, key: GroupKey, tests: Sequence[TestVerdict], index: int) -> Failure:
        test, verdict, (file, line) = tests[0], tests[0].verdict, tests[0].source
        is_of_job = verdict.rule is VerdictRule.JOB
        rerun = command(self.rerun_command("" if is_of_job else test.nodeid))
        return Failure(
            job=self.name,
            nodeid=test.nodeid,
            kind=verdict.kind,
            message=cut(first_line(verdict.message), _MESSAGE),
            rank_message=message_of(test),
            reason=verdict.reason,
            is_of_job=is_of_job,
            code=verdict.exit_code,
            more=len(tests) - 1,
            functions=functions_of(tests),
            key=key,
            cells=(self.cell,),
            batches=(self.batch,) if is_of_job and self.batch else (),
            ranks=ranks_of(tests),
            traceback=tuple(self._traceback(test)) if index < KEPT_TRACEBACKS else (),
            file=file,
            line=line,
            rerun_command=rerun if len(rerun) <= _LONGEST_COMMAND else "",
        )

    def _traceback(self, test: TestVerdict) -> Iterator[str]:
        """An excerpt of the traceback of the primary failure, and a line on a rank that missed a collective."""
        is_of_job = test.verdict.rule is VerdictRule.JOB
        text = test.verdict.text if is_of_job else test.primary.text if test.primary else ""
        yield from excerpt(text, test.source[0], test.verdict.message)
        if timeline := self.timeline_of(test):
            yield from islice(absences(timeline, test.ranks), 1)


@dataclass(frozen=True, kw_only=True)
class MergedRun:
    """A run folder, read and judged."""

    folder: Path
    junit: Path  # the merged JUnit file; the first one if the report is split
    page: Path
    summary: Path
    run_id: str
    suites: tuple[SuiteRow, ...]
    policy: SkipPolicy = "skip"
    manifest: "Manifest | None" = None  # the plan of the run; None if the folder has none
    junit_files: tuple[Path, ...] = ()
    is_own: bool = True  # False for results that state no run, such as JUnit XML of another runner
    sections: Mapping[str, Section] = field(default_factory=dict)  # the sections of plug-ins, by name
    blames: "Mapping[GroupKey, Blame]" = field(default_factory=dict)  # the predicate for each group of failures, if any
    errors: tuple[AllranksError, ...] = ()  # of observers, which write other files

    @cached_property
    def failures(self) -> list[Failure]:
        """The groups of failures: errors of whole jobs first, then by size."""
        return grouped((suite.failures for suite in self.suites), self.blames)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notices about jobs and the run."""
        problems = (section.problem for section in self.sections.values() if section.problem)
        return (*self._notes_on_jobs(), *self._notes_on_missing_shards(), *self._note_on_idle_jobs(), *problems)

    @property
    def shown_sections(self) -> dict[str, Section]:
        """The sections that have something to show, by name."""
        return {name: section for name, section in self.sections.items() if not section.problem}

    @property
    def section_objects(self) -> dict[str, Any]:
        """The values of sections in report.json, by name."""
        return {name: section.object for name, section in self.sections.items() if not section.page_only}

    @cached_property
    def planned(self) -> frozenset[str] | None:
        """The job ids of the manifest; None if there is no manifest."""
        return frozenset(f"{job.cell}/{job.suite}" for job in self.manifest.jobs) if self.manifest else None

    def _notes_on_jobs(self) -> Iterator[str]:
        """The notices about each job; equal notices of several jobs are combined."""
        jobs_of_note = by_key((note, suite.name) for suite in self.suites for note in dict.fromkeys(suite.notes))
        for suite in self.suites:
            if suite.all_deselected:
                yield f"{suite.name}: pytest's options deselected all of its tests ({suite.deselected})."
            if suite.is_empty_shard and suite.share:
                yield f"{suite.name}: nothing to run, because all tests ({suite.share.elsewhere}) are in other shards."
            if self.planned is not None and suite.id not in self.planned and not suite.is_about_manifest:
                yield f"{suite.name}: has results, but is not in the plan."
            for note in suite.notes:
                if names := jobs_of_note.pop(note, []):
                    yield f"{named(names, _SHOWN)}: {note}."
            if suite.xpassed:
                yield f"{suite.name}: expected to fail, but passed: {named(suite.xpassed, _SHOWN)}."

    def _notes_on_missing_shards(self) -> Iterator[str]:
        present = {(suite.cell, suite.suite) for suite in self.suites}
        shards = {(suite.cell, suite.share.suite, suite.share.all_names) for suite in self.suites if suite.share}
        for cell, suite, names in sorted(shards):
            count = sum((cell, name) in present for name in names)
            if count < len(names):
                yield f"{cell} / {suite}: this report has {count} of {len(names)} shards."

    def _note_on_idle_jobs(self) -> Iterator[str]:
        """A run passes if some of its jobs ran tests; without this note, jobs that ran none would go unnoticed."""
        idle = [row.name for row in self.suites if not (row.executed or row.all_deselected or row.is_empty_shard)]
        if idle:
            yield f"No test executed in {len(idle)} of {len(self.suites)} jobs: {named(idle, _SHOWN)}."

    @property
    def counts(self) -> Counts:
        return total(self.suites)

    def only(self, jobs: Collection[str]) -> "MergedRun":
        """Keep these jobs, and problems of the input: sessions that share a folder report their own jobs."""
        suites = tuple(suite for suite in self.suites if suite.id in jobs or suite.is_about_manifest)
        return replace(self, suites=suites)


def total(suites: Iterable[SuiteRow]) -> Counts:
    """Add up the counts of all suites."""
    counts = Counts()
    for suite in suites:
        counts += suite.counts
    return counts


CLASSNAME: Final = "allranks"
"""The class name of testcases for errors of jobs."""


def job_error(name: str, text: str, code: ExitCode = ExitCode.TESTS_FAILED) -> TestVerdict:
    """An error testcase of a job, named after its subject (``job``, ``rank 3``); its message is the first line."""
    judged = Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.JOB,
        reason=name,
        exit_code=code,
        message=first_line(text),
        text=text,
        executed=False,
    )
    return TestVerdict(nodeid=f"{CLASSNAME}::{name}", classname=CLASSNAME, name=name, verdict=judged)
