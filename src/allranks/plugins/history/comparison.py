"""Finds the tests whose outcomes differ between two runs, or between two parts of one run."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from allranks.errors import UsageError
from allranks.plugins.history.recorder import without_shard
from allranks.protocol.xml_text import cut, first_line
from allranks.report.case_details import CaseDetails
from allranks.report.gathering import gather
from allranks.report.judge.accounting import account, input_errors
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.judged import CellSuite, Share
from allranks.report.junit_document import report_parts
from allranks.report.junit_reader import JUnitReader, UnreadableError
from allranks.report.report_json import SCHEMA, is_report_json
from allranks.report.results import Verdict, VerdictKind, VerdictRule, kind_of, status_of
from allranks.report.run_files import JudgingPolicy
from allranks.report.status import Status
from allranks.report.suite_counts import Suite
from allranks.report.untrusted import open_regular, other_schema, parsed


class Difference(StrEnum):
    """How a test differs between A and B."""

    FAILS = "fails"
    MISSING = "missing"
    SKIPPED = "skipped"
    FLAKY = "flaky"
    OTHER = "other"
    FIXED = "fixed"
    RUNS = "runs"
    ADDED = "added"

    @property
    def is_worse(self) -> bool:
        return self in {Difference.FAILS, Difference.MISSING, Difference.SKIPPED}


class ComparedOutcome(NamedTuple):
    """An outcome, independent of the policy for skips, and the first line of its message."""

    status: Status
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparedJob:
    """The outcomes of a suite in a cell, by node id."""

    cell: str
    suite: str
    axes: Mapping[str, str] = field(default_factory=dict)  # empty if unknown
    tests: Mapping[str, ComparedOutcome]
    notes: tuple[str, ...] = ()  # about the input


@dataclass(frozen=True, kw_only=True)
class DifferentTest:
    """A test that differs."""

    kind: Difference
    cells: tuple[str | None, str | None]  # its cell in A and in B; None if the job is missing there
    suite: str
    nodeid: str
    before: ComparedOutcome
    after: ComparedOutcome

    @property
    def job(self) -> str:
        """Cells and suite, as reports name them."""
        a, b = self.cells
        cells = f"{a} → {b}" if a and b and a != b else b or a
        return f"{cells} / {self.suite}" if cells else self.suite


_ABSENT: Final = ComparedOutcome(Status.ABSENT)
_WORST_FIRST: Final = tuple(Status)
_RUN_ERRORS: Final = frozenset({"allranks::manifest", "allranks::report"})  # errors that belong to no job


def compare(before: Iterable[ComparedJob], after: Iterable[ComparedJob]) -> Iterator[DifferentTest]:
    """The tests that differ, job by job; jobs match if their suites and the values on all other axes are equal."""
    sides = list(before), list(after)
    compared = _compared_axes(*sides)
    a, b = (_by_key(jobs, compared, sides) for jobs in sides)
    for key in dict.fromkeys((*a, *b)):
        yield from _compare_jobs(a.get(key), b.get(key))


def _compared_axes(a: Sequence[ComparedJob], b: Sequence[ComparedJob]) -> frozenset[str]:
    """The axes that have a single value on each side, and different ones."""
    axes = {axis for job in (*a, *b) for axis in job.axes}
    values = {axis: [{job.axes.get(axis) for job in side} for side in (a, b)] for axis in axes}
    return frozenset(axis for axis, (one, other) in values.items() if len(one) == len(other) == 1 and one != other)


def _by_key(
    jobs: Iterable[ComparedJob], compared: frozenset[str], sides: tuple[list[ComparedJob], list[ComparedJob]]
) -> dict[object, ComparedJob]:
    """The jobs of a side, with the shards of a suite merged."""
    by_axes = all(job.axes for side in sides for job in side)
    are_cells = all(len({job.cell for job in side}) == 1 for side in sides)
    found: dict[object, ComparedJob] = {}
    for job in jobs:
        axes = () if are_cells else tuple(sorted((a, v) for a, v in job.axes.items() if a not in compared))
        key = (axes if by_axes or are_cells else job.cell, job.suite)
        known = found.get(key)
        tests = worst_outcomes([*known.tests.items(), *job.tests.items()]) if known else job.tests
        found[key] = replace(job, tests=tests)
    return found


def worst_outcomes(outcomes: Iterable[tuple[str, ComparedOutcome]]) -> dict[str, ComparedOutcome]:
    """The worst outcome of each node id."""
    worst: dict[str, ComparedOutcome] = {}
    for nodeid, outcome in outcomes:
        worst[nodeid] = min(outcome, worst.get(nodeid, outcome), key=lambda found: _WORST_FIRST.index(found.status))
    return worst


def _compare_jobs(a: ComparedJob | None, b: ComparedJob | None) -> Iterator[DifferentTest]:
    job = b or a
    tests_a, tests_b = a.tests if a else {}, b.tests if b else {}
    for nodeid in dict.fromkeys((*tests_a, *tests_b)):
        before, after = tests_a.get(nodeid) or _absent(nodeid, a), tests_b.get(nodeid) or _absent(nodeid, b)
        if job and (kind := difference(before.status, after.status)):
            cells = (a.cell if a else None, b.cell if b else None)
            yield DifferentTest(kind=kind, cells=cells, suite=job.suite, nodeid=nodeid, before=before, after=after)


def _absent(nodeid: str, job: ComparedJob | None) -> ComparedOutcome:
    """The outcome of a test that a side lacks; if it stands for an error of a job or run, there was no such error."""
    is_error = nodeid.startswith("allranks::") and (job is not None or nodeid in _RUN_ERRORS)
    return ComparedOutcome(Status.PASSED) if is_error else _ABSENT


def difference(before: Status, after: Status) -> Difference | None:
    """How two outcomes differ; None if they are the same."""
    match before, after:
        case _ if before is after:
            kind = None
        case _ if after.is_bad:
            kind = Difference.OTHER if before.is_bad else Difference.FAILS
        case _, Status.ABSENT:
            kind = Difference.MISSING
        case Status.ABSENT, _:
            kind = Difference.ADDED
        case _, Status.SKIPPED:
            kind = Difference.SKIPPED
        case Status.SKIPPED, _:
            kind = Difference.RUNS
        case Status.PASSED, Status.FLAKY:
            kind = Difference.FLAKY
        case _:
            kind = Difference.FIXED
    return kind


_MESSAGE = 300
_TIME = re.compile(r"-[0-9]{14}$")
"""The time that xmlrunner appends to the name of a suite."""


def read_jobs_of(path: Path) -> list[ComparedJob]:
    """The outcomes of a results folder, a downloaded report in a folder, ``report.json``, or an XML file."""
    try:
        jobs = list(_from_folder(path.resolve()) if path.is_dir() else _from_file(path))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except UnreadableError as error:
        raise _unreadable(path, error.why, error.remedy) from error
    if any(job.tests for job in jobs):
        return jobs
    raise _unreadable(path, "it has no results")


def _from_folder(folder: Path) -> Iterator[ComparedJob]:
    gathered = gather(folder)
    if gathered.attempts or gathered.manifest:
        recorded = gathered.manifest.policy if gathered.manifest else JudgingPolicy()
        policy = VerdictPolicy(skip=recorded.skip or "skip", mixed_skip=recorded.mixed_skip)
        for suite in account(gathered, policy):
            job = _from_suite(suite)
            if not gathered.is_own:  # a cell may be named after the folder, whose name differs in each run
                job = replace(job, cell="" if job.cell == folder.name else job.cell, notes=suite.notes)
            yield job
    else:
        reports = (folder / name for name in ("report.json", "junit.xml"))
        found = next((report for report in reports if report.is_file()), None)
        if found is None:
            return
        yield from _from_file(found)
        parts = set(report_parts(folder / "junit.xml"))
        unread = tuple(path for path in gathered.unread if folder / path not in parts)
        gathered = replace(gathered, unread=unread)
    yield from map(_from_suite, input_errors(gathered))


def _unreadable(path: Path, why: str, remedy: str = "") -> UsageError:
    remedy = remedy or "Give the folder of a run, its report.json, or a junit.xml."
    return UsageError(f"{path} cannot be compared.", why=f"{why[:1].upper()}{why[1:]}.", remedy=remedy)


def _from_suite(suite: CellSuite) -> ComparedJob:
    tests = ((test.nodeid, test.status, test.verdict.message) for test in suite.tests)
    return _job(suite.cell, suite.whole_suite, suite.axes, tests)


def _job(
    cell: str, suite: str, axes: Mapping[str, str | int], tests: Iterable[tuple[str, Status, str]], *notes: str
) -> ComparedJob:
    """A job from the node ids, statuses and messages of its tests."""
    outcomes = (
        (nodeid, ComparedOutcome(status.without_policy, cut(first_line(message), _MESSAGE)))
        for nodeid, status, message in tests
        if status is not Status.ABSENT
    )
    texts = {axis: str(value) for axis, value in axes.items()}
    return ComparedJob(cell=cell, suite=_TIME.sub("", suite), axes=texts, tests=worst_outcomes(outcomes), notes=notes)


def _from_file(path: Path) -> Iterator[ComparedJob]:
    if not is_report_json(path):
        yield from _from_xml(path)
        return
    try:
        with open_regular(path) as file:
            document = json.load(file)
        schema = document.get("schema") if isinstance(document, dict) else SCHEMA
        if schema != SCHEMA:
            raise _unreadable(path, f"it is {other_schema(schema, SCHEMA)}")
        suites = parsed(_Report, document).suites
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is damaged ({error})") from error
    yield from map(_from_json, suites)


@dataclass(frozen=True, kw_only=True)
class _Test:
    nodeid: Annotated[str, str]
    verdict: Literal["passed", "skipped", "failure", "error"]
    rule: Annotated[int, range(1, len(VerdictRule) + 1)]
    message: str = ""
    executed: Any = False
    flaky: Any = False


@dataclass(frozen=True, kw_only=True)
class _Suite:
    cell: Annotated[str, str]
    suite: Annotated[str, str]
    axes: Mapping[Annotated[str, str], str | int] = field(default_factory=dict)
    share: Share | None = None
    tests: tuple[_Test, ...]


@dataclass(frozen=True, kw_only=True)
class _Report:
    """The part of a report.json that is read."""

    suites: tuple[_Suite, ...]


def _from_json(suite: _Suite) -> ComparedJob:
    tests = ((test.nodeid, _status_in_json(test), test.message) for test in suite.tests)
    return _job(suite.cell, suite.share.suite if suite.share else suite.suite, suite.axes, tests)


def _status_in_json(test: _Test) -> Status:
    verdict = Verdict(kind=VerdictKind(test.verdict), rule=VerdictRule(test.rule), executed=bool(test.executed))
    return status_of(verdict, has_earlier=bool(test.flaky))


def _from_xml(path: Path) -> Iterator[ComparedJob]:
    for part in report_parts(path):
        reader = _Jobs(path.stem)
        for _ in reader.feed(part):
            yield from reader.jobs
            reader.jobs.clear()
        if reader.problem or reader.note:
            text = f"{part.name} contradicts itself: {reader.problem}."
            tests = [("allranks::report", Status.ERROR, text)] if reader.problem else []
            yield _job("", "report", {}, tests, *([f"{part.name}: {reader.note}"] if reader.note else []))


class _Jobs(JUnitReader):
    """Reads the outcomes of a JUnit report, each suite as a job; ``name`` is used for suites without a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.jobs: list[ComparedJob] = []  # completed, but not yet consumed
        self._name = name
        self._tests: dict[Suite, list[tuple[str, Status, str]]] = {}

    def add_case(self, case: Mapping[str, str], _: float, details: CaseDetails | None) -> None:
        self._tests.setdefault(self.suites[-1], []).append(_outcome(case, details or CaseDetails()))

    def end_suite(self, suite: Suite) -> None:
        """Turn a suite with testcases of its own into a job."""
        if tests := self._tests.pop(suite, []):
            facts = {name.removeprefix("allranks."): value for name, value in suite.properties.items()}
            axes = {name.removeprefix("axis."): value for name, value in facts.items() if name.startswith("axis.")}
            name = without_shard(facts.get("suite") or suite.name or self._name)
            self.jobs.append(_job(facts.get("cell", ""), name, axes, tests))


def _outcome(case: Mapping[str, str], details: CaseDetails) -> tuple[str, Status, str]:
    """Node id, status and message of a testcase."""
    facts = details.properties
    nodeid = facts.get("allranks.nodeid") or "::".join(filter(None, (case.get("classname"), case.get("name"))))
    outcome, message, _ = details.worst
    is_job_error = facts.get("allranks.rule") == str(VerdictRule.JOB.value)
    rule = VerdictRule.SKIPPED if "allranks.skip_but_pass" in facts else VerdictRule.PASSED
    verdict = Verdict(kind=kind_of(outcome), rule=VerdictRule.JOB if is_job_error else rule, executed=not is_job_error)
    return nodeid, status_of(verdict, has_earlier=bool(details.reruns) or "allranks.earlier" in facts), message
