"""The merged JUnit report, written as it comes: one ``testsuite`` at a time.

The form is the one that every reader understands (flat suites, one outcome element with a message, a type and a text,
names that are unique in their suite): nested suites count as no tests in one client, and an outcome without text or a
second outcome counts as a pass in others.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from allranks.report.columns import compact
from allranks.report.judged import CellSuite, Counts, JobFacts
from allranks.report.model import RankResult, TestVerdict, Verdict, VerdictKind
from allranks.report.xml_text import MESSAGE_LIMIT, attribute, cut, element_text, readable

ROOT_NAME: Final = "allranks"
"""Name of the root element, by which a merged report is known for what it is."""

_HEADER: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_ROOT_WIDTH: Final = 200
"""Bytes kept free for the root's start tag: its counts are known at the end, and stand at the beginning."""

_ELEMENTS: Final = {VerdictKind.FAILURE: "failure", VerdictKind.ERROR: "error", VerdictKind.SKIPPED: "skipped"}


class JUnitWriter:
    """Writes the report of a run; a context manager, at whose good end the file takes its place in one step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.unfinished")
        self._counts = Counts()

    def __enter__(self) -> Self:
        """Begin the file.

        Raises:
            OSError: It cannot be written.
        """
        self._file = self._unfinished.open("w", encoding="utf-8", newline="\n")
        self._file.write(_HEADER + " " * _ROOT_WIDTH + "\n")
        return self

    def add(self, suite: CellSuite) -> None:
        """Write a suite with its tests.

        Raises:
            OSError: It cannot be written.
        """
        counts = suite.counts
        self._counts += counts
        self._file.writelines(_suite(suite, counts))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the file; where something went wrong, what was there before stays."""
        try:
            with self._file:
                if kind is None:
                    self._finish()
            if kind is None:
                self._unfinished.replace(self._path)
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _finish(self) -> None:
        self._file.write("</testsuites>\n")
        self._file.seek(len(_HEADER))
        root = f'<testsuites name="{ROOT_NAME}"{_counts(self._counts)}'
        self._file.write(f"{root:<{_ROOT_WIDTH - 1}}>")


def _counts(counts: Counts) -> str:
    return (
        f' tests="{counts.tests}" failures="{counts.failed}" errors="{counts.errors}" skipped="{counts.skipped}"'
        f' time="{counts.time:.3f}"'
    )


def _suite(suite: CellSuite, counts: Counts) -> Iterator[str]:
    began = "" if suite.started is None else f' timestamp="{_iso(suite.started)}"'
    yield f"<testsuite name={attribute(suite.name)}{_counts(counts)}{began}>\n"
    yield _properties(_suite_properties(suite, counts))
    for test, name in zip(suite.tests, _unique_names(suite.tests), strict=True):
        yield _case(test, name)
    yield "</testsuite>\n"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _suite_properties(suite: JobFacts, counts: Counts) -> Iterator[tuple[str, object]]:
    yield "cell", suite.cell
    yield "suite", suite.suite
    for axis, value in suite.axes.items():
        yield f"axis.{axis}", value
    yield "engine", suite.engine
    yield "image", suite.image
    yield "attempt", suite.attempt
    yield "gpus", " ".join(suite.gpus)
    yield "deselected", suite.deselected or None
    yield "skip_but_pass", counts.skip_but_pass or None


def _properties(said: Iterable[tuple[str, object]]) -> str:
    """A ``properties`` element with those that have a value."""
    lines = [
        f'<property name="allranks.{name}" value={attribute(str(value))}/>'
        for name, value in said
        if value is not None and value != ""
    ]
    return f"<properties>{''.join(lines)}</properties>\n"


def _unique_names(tests: Sequence[TestVerdict]) -> Iterator[str]:
    """The name of each testcase, numbered from the second one of the same class name and name on."""
    seen: dict[tuple[str, str], int] = {}
    for test in tests:
        identity = (test.classname, test.name)
        seen[identity] = number = seen.get(identity, 0) + 1
        yield test.name if number == 1 else f"{test.name} #{number}"


def _case(test: TestVerdict, name: str) -> str:
    start = f'<testcase classname={attribute(test.classname)} name={attribute(name)} time="{test.time:.6g}">\n'
    parts = [start, _properties(_case_properties(test))]
    if test.verdict.kind in _ELEMENTS:
        parts.append(_outcome(_ELEMENTS[test.verdict.kind], test.verdict))
    if test.verdict.is_bad:
        parts.extend(_output(test.ranks))
    return "".join([*parts, "</testcase>\n"])


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


def _outcome(tag: str, verdict: Verdict) -> str:
    message = cut(readable(verdict.message).strip() or verdict.reason, MESSAGE_LIMIT)
    text = cut(readable(verdict.text)) or message
    return f"<{tag} message={attribute(message)} type={attribute(verdict.reason)}>{element_text(text)}</{tag}>\n"


def _output(ranks: Sequence[RankResult]) -> Iterator[str]:
    """What the ranks printed, each under its number."""
    for stream, tag in (("stdout", "system-out"), ("stderr", "system-err")):
        printed = [(rank.rank, getattr(rank, stream)) for rank in ranks]
        text = "\n".join(f"--- rank {rank} ---\n{output}" for rank, output in printed if output.strip())
        if text:
            yield f"<{tag}>{element_text(cut(readable(text)))}</{tag}>\n"
