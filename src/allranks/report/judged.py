"""Judged jobs and the judged run as frozen values, with their troubles and exit code.

A job's tests stay in memory only while its part of the report is written; a :class:`SuiteRow` keeps the data that the
rest of the report needs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from allranks.errors import AllranksError, ExitCode
from allranks.protocol.outcomes import named
from allranks.protocol.repetitions import RepetitionTally, command_to_repeat
from allranks.protocol.tracebacks import excerpt
from allranks.protocol.xml_text import command, cut, first_line, xml_id
from allranks.report.failure_groups import Failure, GroupKey, grouped, groups_of, message_of, ranks_of
from allranks.report.rank_course import RankCourse, absences
from allranks.report.results import XPASS, SkipPolicy, TestVerdict, Verdict, VerdictKind, VerdictRule
from allranks.report.section import Section

if TYPE_CHECKING:
    from allranks.report.axis_correlation import Blame
    from allranks.report.run_files import Manifest

MANIFEST_PLACE: Final = ("run", "manifest")
"""Cell and suite of the suite that reports an unreadable manifest."""

KEPT_NAMES: Final = 50
"""Node ids in a list of a job's row: as many as the longest list built from rows can show."""

KEPT_TRACEBACKS: Final = 20
"""Failures of a job whose row has an excerpt of the traceback, too."""

_LONGEST_COMMAND: Final = 2000
"""Characters: pytest has no limit for a test's parameters, and half a command is none."""

_SHARES: Final = range(1, 1_001)  # the limit of a matrix file
_MESSAGE: Final = 500
_SHOWN: Final = 4


@dataclass(kw_only=True)
class Counts:
    """The testcases by result, and their seconds; flaky tests are counted among the passed or skipped too."""

    tests: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    skip_but_pass: int = 0
    flaky: int = 0
    time: float = 0.0

    @property
    def bad(self) -> int:
        """The number of failures and errors."""
        return self.failed + self.errors

    @property
    def words(self) -> str:
        """The results that there are: ``1 failed, 12 passed``; empty for no testcase."""
        told = {"failed": self.failed, "errors": self.errors, "passed": self.passed, "skipped": self.skipped}
        return ", ".join(f"{number} {name}" for name, number in told.items() if number)

    @property
    def as_object(self) -> dict[str, int | float]:
        """The same for programs."""
        return {**asdict(self), "time": round(self.time, 3)}

    def add(self, kind: VerdictKind, time: float, *, skip_but_pass: bool = False, flaky: bool = False) -> None:
        """Count one testcase."""
        self.tests += 1
        self.passed += kind is VerdictKind.PASSED
        self.failed += kind is VerdictKind.FAILURE
        self.errors += kind is VerdictKind.ERROR
        self.skipped += kind is VerdictKind.SKIPPED
        self.skip_but_pass += skip_but_pass
        self.flaky += flaky
        self.time += time

    def __iadd__(self, other: Self) -> Self:
        """Add other testcases, in place."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)
        return self


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a suite's tests that a job had, if several jobs share the suite."""

    suite: Annotated[str, xml_id]
    number: Annotated[int, _SHARES]  # from 1
    count: Annotated[int, _SHARES]
    split: str = ""  # a digest of which job has which test; empty if the collection never ended
    elsewhere: int = 0  # the number of collected tests that belong to other jobs

    @property
    def all_names(self) -> tuple[str, ...]:
        """The name of each of the jobs, as in the plan and in the folder."""
        return tuple(f"{self.suite}@{number}of{self.count}" for number in range(1, self.count + 1))


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """The data of one suite in one cell, or of one shard of it, besides its tests."""

    cell: str
    suite: str
    axes: Mapping[str, str | int] = field(default_factory=dict)  # the cell's value on each axis; empty if unknown
    pack: str = ""  # the pack of a plan for several machines that it is in; empty for none
    engine: str = ""
    torch: str = ""  # the version that its ranks imported; empty if unknown
    image: str = ""
    attempt: int | None = None  # number of the attempt that counts; None where there are no attempts
    folder: str = ""  # the folder of its files, relative to the report's folder; empty if there are no attempts
    gpus: tuple[str, ...] = ()
    deselected: int = 0  # tests that pytest's own selection (``-k``, ``-m``) left out
    notes: tuple[str, ...] = ()  # sentences about the job, without their full stops
    started: float | None = None  # seconds since the epoch
    elapsed: float | None = None  # seconds from the job's start to its end
    share: Share | None = None  # None for a whole suite
    seed: int | None = None  # the number that the seeds of its tests derive from
    # How tests have fared that were repeated, by node id.
    repeated: Mapping[str, RepetitionTally] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the job behind it."""
        return f"{self.cell}/{self.suite}"

    @property
    def name(self) -> str:
        """``<cell> / <suite>``, as reports show it."""
        return f"{self.cell} / {self.suite}"

    @property
    def whole_suite(self) -> str:
        """The suite's name, without the shard."""
        return self.share.suite if self.share else self.suite

    def again(self, nodeid: str = "") -> list[str]:
        """The command that runs a test, or the whole job, again in this cell; empty for results from elsewhere.

        A test that runs alone may be in another shard.
        """
        if not (self.engine or self.axes):
            return []
        seed = [] if self.seed is None else ["--seed", str(self.seed)]
        told = self.repeated.get(nodeid) or next(iter(self.repeated.values()), None)
        selection = [self.cell, "--suite", self.whole_suite if nodeid else self.suite, *seed]
        return command_to_repeat(nodeid, selection, told)


@dataclass(frozen=True, kw_only=True)
class SuiteRow(JobSummary):
    """A row of the table: the data of a job that remains after its tests are written."""

    counts: Counts
    executed: int  # tests that any rank ran, however skips are read
    exit_codes: frozenset[ExitCode]  # the contributions of its verdicts to the run's exit code
    failures: tuple[Failure, ...] = ()  # the groups of its bad tests, in the order of :func:`groups_of`
    # Node ids of tests that were expected to fail but passed; at most :data:`KEPT_NAMES`.
    xpassed: tuple[str, ...] = ()
    # Node ids of tests that went wrong in an earlier attempt alone; at most :data:`KEPT_NAMES`.
    flaky: tuple[str, ...] = ()

    @property
    def time(self) -> float:
        """Seconds from the job's start to its end; of its tests where that is unknown."""
        return self.counts.time if self.elapsed is None else self.elapsed

    @property
    def has_executed(self) -> bool:
        """True if any rank ran any test."""
        return bool(self.executed)

    @property
    def is_about_manifest(self) -> bool:
        """True if this is not a job, but the problems of the run's manifest."""
        return (self.cell, self.suite) == MANIFEST_PLACE

    @property
    def is_empty(self) -> bool:
        """True if it has no testcase at all."""
        return not self.counts.tests

    @property
    def all_deselected(self) -> bool:
        """True if the suite is empty only because the user's own selection left every test out."""
        return self.is_empty and self.deselected > 0 and not self.is_empty_share

    @property
    def is_empty_share(self) -> bool:
        """True if there is nothing to run because other jobs have all of the suite's tests."""
        return self.is_empty and self.share is not None and self.share.elsewhere > 0


@dataclass(frozen=True, kw_only=True)
class CellSuite(JobSummary):
    """One suite in one cell, or one shard of it, with its tests: a ``testsuite`` of the JUnit report."""

    tests: tuple[TestVerdict, ...]
    # How tests that went wrong took their course, by node id, as far as that is known.
    courses: Mapping[str, RankCourse] = field(default_factory=dict)
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what tests show of a backend, by node id

    def course_of(self, test: TestVerdict) -> RankCourse | None:
        """How a test took its course; None if that is unknown."""
        course = self.courses.get(test.nodeid)
        return course if course and course.is_of(test.ranks) else None

    @cached_property
    def counts(self) -> Counts:
        """The counts over the suite's testcases."""
        counts = Counts()
        for test in self.tests:
            verdict = test.verdict
            counts.add(verdict.kind, test.time, skip_but_pass=verdict.is_skip_but_pass, flaky=test.is_flaky)
        return counts

    @property
    def executed(self) -> int:
        """Tests that any rank ran, however skips are read."""
        return sum(test.verdict.executed for test in self.tests)

    @cached_property
    def groups(self) -> Mapping[GroupKey, Sequence[TestVerdict]]:
        """Its bad tests, in groups of the same failure."""
        return groups_of(self.tests)

    @property
    def row(self) -> SuiteRow:
        """The data that the report needs after its tests are written."""
        return SuiteRow(
            **{each.name: getattr(self, each.name) for each in fields(JobSummary)},
            counts=self.counts,
            executed=self.executed,
            exit_codes=frozenset(test.verdict.exit_code for test in self.tests),
            failures=tuple(self._failure(*group, place) for place, group in enumerate(self.groups.items())),
            flaky=tuple(test.nodeid for test in self.tests if test.is_flaky)[:KEPT_NAMES],
            xpassed=tuple(test.nodeid for test in self.tests if test.verdict.reason == XPASS)[:KEPT_NAMES],
        )

    def _absence(self, test: TestVerdict) -> Iterator[str]:
        """Which rank did not come to a collective, in a line at most."""
        course = self.course_of(test)
        return islice(absences(course, test.ranks), 1) if course else iter(())

    def _failure(self, key: GroupKey, tests: Sequence[TestVerdict], place: int) -> Failure:
        test, verdict, (file, line) = tests[0], tests[0].verdict, tests[0].source
        is_of_job = verdict.rule is VerdictRule.JOB
        text = verdict.text if is_of_job else test.lead.text if test.lead else ""
        again = command(self.again("" if is_of_job else test.nodeid))
        return Failure(
            place=self.name,
            nodeid=test.nodeid,
            kind=verdict.kind,
            message=cut(first_line(verdict.message), _MESSAGE),
            said=message_of(test),
            reason=verdict.reason,
            is_of_job=is_of_job,
            code=verdict.exit_code,
            alike=len(tests) - 1,
            key=key,
            cells=(self.cell,),
            packs=(self.pack,) if is_of_job and self.pack else (),
            ranks=ranks_of(tests),
            traceback=(*excerpt(text, file, verdict.message), *self._absence(test)) if place < KEPT_TRACEBACKS else (),
            file=file,
            line=line,
            again=again if len(again) <= _LONGEST_COMMAND else "",
        )


@dataclass(frozen=True, kw_only=True)
class MergedRun:
    """A run folder, read and judged."""

    folder: Path
    junit: Path  # the merged JUnit file; the first of them if the report is split
    page: Path  # the report for people, in HTML
    summary: Path
    run_id: str
    suites: tuple[SuiteRow, ...]
    policy: SkipPolicy = "skip"  # how environment skips were read
    manifest: "Manifest | None" = None  # the plan, and what is known of the run as a whole; None if there is none
    junit_files: tuple[Path, ...] = ()
    is_own: bool = True  # False for results that state no run, such as JUnit XML of another runner
    sections: Mapping[str, Section] = field(default_factory=dict)  # what plug-ins add to the report, by name
    # The predicate that holds exactly where a group of failures is.
    blames: "Mapping[GroupKey, Blame]" = field(default_factory=dict)
    errors: tuple[AllranksError, ...] = ()  # of observers, which wrote something else beside the report

    @cached_property
    def failures(self) -> list[Failure]:
        """What went wrong, in groups: errors of whole jobs first, then the most frequent."""
        return grouped((suite.failures for suite in self.suites), self.blames)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for readers of the report that belong to no testcase."""
        problems = (section.problem for section in self.sections.values() if section.problem)
        return (*self._notes_on_suites(), *self._notes_on_absent_shards(), *self._note_on_what_never_ran(), *problems)

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

    def _notes_on_suites(self) -> Iterator[str]:
        """The remarks on each job; jobs of one suite often have the same note, which is told once for all of them."""
        of_note: dict[str, list[str]] = {}
        for suite in self.suites:
            for note in dict.fromkeys(suite.notes):
                of_note.setdefault(note, []).append(suite.name)
        for suite in self.suites:
            if suite.all_deselected:
                yield f"{suite.name}: the selection left out all {suite.deselected} tests."
            if suite.is_empty_share and suite.share:
                yield f"{suite.name}: nothing to run: every test ({suite.share.elsewhere}) is in another shard."
            if self.planned is not None and suite.id not in self.planned and not suite.is_about_manifest:
                yield f"{suite.name}: has results, but is not in the plan."
            for note in suite.notes:
                if names := of_note.pop(note, []):
                    yield f"{named(names, _SHOWN)}: {note}."
            if suite.xpassed:
                yield f"{suite.name}: expected to fail, and passed: {named(suite.xpassed, _SHOWN)}."

    def _notes_on_absent_shards(self) -> Iterator[str]:
        """A shard that runs alone is only a part: its report should state that the rest is missing."""
        present = {(suite.cell, suite.suite) for suite in self.suites}
        shares = {(suite.cell, suite.share.suite, suite.share.all_names) for suite in self.suites if suite.share}
        for cell, suite, names in sorted(shares):
            here = sum((cell, name) in present for name in names)
            if here < len(names):
                yield f"{cell} / {suite}: {here} of {len(names)} shards are here."

    def _note_on_what_never_ran(self) -> Iterator[str]:
        """A run is green if some of it ran: the jobs that ran nothing must be reported, or they go unnoticed."""
        idle = [row.name for row in self.suites if not (row.has_executed or row.all_deselected or row.is_empty_share)]
        if idle:
            yield f"No test executed in {len(idle)} of {len(self.suites)} jobs: {named(idle, _SHOWN)}."

    @property
    def counts(self) -> Counts:
        """The counts over all suites."""
        return total(self.suites)

    def only(self, jobs: Collection[str]) -> "MergedRun":
        """The jobs with these ids, and a damaged manifest: sessions that share a folder report on their own jobs."""
        suites = tuple(suite for suite in self.suites if suite.id in jobs or suite.is_about_manifest)
        return replace(self, suites=suites)


def total(suites: Iterable[SuiteRow]) -> Counts:
    """The counts over all suites."""
    counts = Counts()
    for suite in suites:
        counts += suite.counts
    return counts


CLASSNAME: Final = "allranks"
"""Class name of these testcases."""


def trouble(name: str, text: str, code: ExitCode = ExitCode.TESTS_FAILED) -> TestVerdict:
    """An error testcase named after its subject (``job``, ``rank 3``); the first line of its text is its message."""
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
