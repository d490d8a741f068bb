"""The merged JUnit report, built and written with junitparser.

The form is the one that every reader understands (flat suites, one outcome element with a message, a type and a text,
names that are unique in their suite): nested suites count as no tests in one client, and an outcome without text or a
second outcome counts as a pass in others.

The counts are set here. junitparser would count a suite again for every testcase added, which is quadratic.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from junitparser import Error, Failure, JUnitXml, Properties, Property, Skipped, SystemErr, SystemOut, TestCase
from junitparser import TestSuite as JUnitSuite

from allranks.report.model import CellSuite, Counts, RankResult, TestVerdict, Verdict, VerdictKind
from allranks.report.strip import compact
from allranks.report.xml_text import MESSAGE_LIMIT, cut, readable

ROOT_NAME: Final = "allranks"
"""Name of the root element, by which a merged report is known for what it is."""

_ELEMENTS: Final = ((VerdictKind.FAILURE, Failure), (VerdictKind.ERROR, Error), (VerdictKind.SKIPPED, Skipped))


def write_junit(suites: Sequence[CellSuite], path: Path) -> None:
    """Writes the report of all suites to ``path``, replacing what is there in one step.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        build_junit(suites).write(str(unfinished))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def build_junit(suites: Sequence[CellSuite]) -> JUnitXml:
    """The report of all suites, one flat ``testsuite`` for each."""
    root = JUnitXml(ROOT_NAME)
    _set_counts(root, sum((suite.counts for suite in suites), Counts()))
    for suite in suites:
        root.append(_suite(suite))
    return root


def _set_counts(element: JUnitXml | JUnitSuite, counts: Counts) -> None:
    element.tests = counts.tests
    element.failures = counts.failed
    element.errors = counts.errors
    element.skipped = counts.skipped
    element.time = round(counts.time, 3)


def _suite(suite: CellSuite) -> JUnitSuite:
    element = JUnitSuite(readable(suite.name))
    _set_counts(element, suite.counts)
    if suite.started is not None:
        element.timestamp = datetime.fromtimestamp(suite.started, UTC).isoformat(timespec="seconds")
    element.append(_properties(_suite_properties(suite)))
    for test, name in zip(suite.tests, _unique_names(suite.tests), strict=True):
        element.append(_case(test, name))
    return element


def _suite_properties(suite: CellSuite) -> Iterator[tuple[str, object]]:
    yield "cell", suite.cell
    yield "suite", suite.suite
    for axis, value in suite.axes.items():
        yield f"axis.{axis}", value
    yield "engine", suite.engine
    yield "image", suite.image
    yield "attempt", suite.attempt
    yield "gpus", " ".join(suite.gpus)
    yield "deselected", suite.deselected or None
    yield "skip_but_pass", suite.counts.skip_but_pass or None


def _properties(said: Iterable[tuple[str, object]]) -> Properties:
    """A ``properties`` element with those that have a value."""
    element = Properties()
    for name, value in said:
        if value is not None and value != "":
            element.append(Property(f"allranks.{name}", readable(str(value))))
    return element


def _unique_names(tests: Sequence[TestVerdict]) -> Iterator[str]:
    """The name of each testcase, numbered from the second one of the same class name and name on."""
    seen: dict[tuple[str, str], int] = {}
    for test in tests:
        identity = (test.classname, test.name)
        seen[identity] = number = seen.get(identity, 0) + 1
        yield test.name if number == 1 else f"{test.name} #{number}"


def _case(test: TestVerdict, name: str) -> TestCase:
    element = TestCase(readable(name), readable(test.classname), round(test.time, 6))
    element.append(_properties(_case_properties(test)))
    for kind, outcome in _ELEMENTS:
        if kind is test.verdict.kind:
            element.append(_outcome(outcome, test.verdict))
    if test.verdict.is_bad:
        _append_output(element, test.ranks)
    return element


def _case_properties(test: TestVerdict) -> Iterator[tuple[str, object]]:
    verdict = test.verdict
    yield "nodeid", test.nodeid
    yield "ranks", compact(test.ranks)
    yield "rule", verdict.rule.value
    yield "leading", verdict.leading
    yield "skip_kind", verdict.skip_kind
    yield "skip_code", verdict.skip_code
    if verdict.is_skip_but_pass:
        yield "skip_but_pass", cut(verdict.message, MESSAGE_LIMIT) or "skipped"


def _outcome(outcome: type[Failure | Error | Skipped], verdict: Verdict) -> Failure | Error | Skipped:
    message = readable(verdict.message).strip() or verdict.reason
    element = outcome(cut(message, MESSAGE_LIMIT), verdict.reason)
    element.text = cut(readable(verdict.text)) or message
    return element


def _append_output(element: TestCase, ranks: Sequence[RankResult]) -> None:
    """What the ranks printed, each under its number."""
    for stream, kind in (("stdout", SystemOut), ("stderr", SystemErr)):
        printed = [(rank.rank, getattr(rank, stream)) for rank in ranks]
        text = "\n".join(f"--- rank {rank} ---\n{output}" for rank, output in printed if output.strip())
        if text:
            element.append(kind(cut(readable(text))))
