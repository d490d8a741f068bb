"""Reads the files of a JUnit report, whole or testcase by testcase, and rejects anything else.

junitparser's own reader accepts any XML, with entities, and only whole files. This one builds the same elements, with
the library that junitparser uses (lxml or the standard library).
"""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

import junitparser

from allranks.errors import UsageError
from allranks.junit.reported import DownloadedReport, ReportedCase, ReportedSuite, selected
from allranks.report.junit_document import report_parts
from allranks.report.junit_reader import JUnitReader, UnreadableError
from allranks.report.untrusted import number

_T = TypeVar("_T", bound=junitparser.junitparser.Element)


def load(path: str | PathLike[str]) -> DownloadedReport:
    """Load a report, including its parts ``junit-2.xml`` and so on.

    Args:
        path: The first file, or the folder that has it as ``junit.xml``.

    Raises:
        UsageError: There is no such report, or no known writer of JUnit XML wrote it.
    """
    first, *more = _parts(Path(path))
    report = cast("DownloadedReport", DownloadedReport.fromroot(_root(first)))
    report.filepath = str(first)  # type: ignore[assignment] # junitparser has no type for it
    for part in more:
        _append(report, _root(part))
    return report


def stream(path: str | PathLike[str], **wanted: Any) -> Iterator[ReportedCase]:  # noqa: ANN401 - see selected
    """Read the testcases of a report of any size one at a time, filtered as by :meth:`DownloadedReport.cases`.

    Args:
        path: As for :func:`load`.
        wanted: As for :meth:`DownloadedReport.cases`.

    Raises:
        UsageError: There is no such report, it is truncated, or no known writer of JUnit XML wrote it.
    """
    return selected((case for part in _parts(Path(path)) for case in _cases(part)), **wanted)


def problem(path: str | PathLike[str]) -> str:
    """Why a report cannot be trusted although all testcases can be read; empty if it can be trusted.

    For example, the counts of a suite contradict its testcases: ``failures="1"``, but no testcase failed.

    Args:
        path: As for :func:`load`.

    Raises:
        UsageError: As for :func:`load`.
    """
    return problem_and_note(path)[0]


def problem_and_note(path: str | PathLike[str]) -> tuple[str, str]:
    """The :func:`problem` of a report, and an oddity that may be harmless."""
    problem = note = ""
    for part in _parts(Path(path)):
        reader = JUnitReader()
        for _ in _fed(reader, part):
            pass
        problem = problem or (f"{part.name} contradicts itself: {reader.problem}." if reader.problem else "")
        note = note or (f"{part.name}: {reader.note}." if reader.note else "")
    return problem, note


def _parts(path: Path) -> Iterator[Path]:
    return report_parts(path / "junit.xml" if path.is_dir() else path)


def _append(report: DownloadedReport, root: Any) -> None:  # noqa: ANN401 - an element
    total = report._elem  # noqa: SLF001 - junitparser offers no other way
    for name in ("tests", "failures", "errors", "skipped", "time"):
        both = [number(element.get(name)) or 0.0 for element in (total, root)]
        total.set(name, f"{sum(both):.3f}" if name == "time" else str(round(sum(both))))
    for suite in list(root):
        total.append(suite)


def _root(path: Path) -> Any:  # noqa: ANN401 - an element
    builder = _Builder(keep_all=True)
    for _ in _fed(builder, path):
        pass
    return builder.root


def _cases(path: Path) -> Iterator[ReportedCase]:
    builder = _Builder(keep_all=False)
    for _ in _fed(builder, path):
        yield from builder.cases
        builder.cases.clear()


def _fed(reader: JUnitReader, path: Path) -> Iterator[None]:
    """Feed a file to a reader, and yield after each chunk; UsageError if it is not JUnit XML, or cannot be read."""
    remedy = "Pass allranks' junit.xml, or another tool's JUnit XML."
    try:
        yield from reader.feed(path)
    except FileNotFoundError as error:
        msg = f"There is no report {path}."
        raise UsageError(msg, remedy=remedy) from error
    except OSError as error:
        msg = f"The report {path} cannot be read."
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy=remedy) from error
    except UnreadableError as error:
        msg = f"{path} is not JUnit XML that allranks can read, or is truncated."
        raise UsageError(msg, why=f"{error.why[:1].upper()}{error.why[1:]}.", remedy=error.remedy or remedy) from error


class _Builder(JUnitReader):
    """Builds the elements of a file.

    Args:
        keep_all: True to build the whole tree, False to drop testcases and suites that have ended.
    """

    def __init__(self, *, keep_all: bool) -> None:
        super().__init__()
        self.root: Any = None
        self.cases: list[ReportedCase] = []  # without keep_all: the testcases read since the caller cleared this list
        self._keep_all = keep_all
        self._make = junitparser.JUnitXml()._elem.makeelement  # noqa: SLF001 - of the library that junitparser uses
        self._open: list[Any] = []
        self._suites: list[ReportedSuite] = []
        self._implied: Any = None
        self._closed: Any = None
        self._words: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element; testcases in the root, as from Node.js, get a suite."""
        super().start(tag, attributes)
        self._end_text()
        if tag == "testcase" and len(self._open) == 1 and self.root.tag == "testsuites":
            self._implied = self._begin("testsuite", {})
        self._begin(tag, {name: value for name, value in attributes.items() if ":" not in name})

    def _begin(self, tag: str, attributes: dict[str, str]) -> Any:  # noqa: ANN401 - an element
        element = self._make(tag, attributes)
        if self._open:
            self._open[-1].append(element)
        else:
            self.root = element
        self._open.append(element)
        self._closed = None
        if tag == "testsuite":
            self._suites.append(_as(ReportedSuite, element))
        return element

    def end(self, tag: str) -> None:
        super().end(tag)
        self._end_text()
        self._finish(self._open.pop())
        if self._open and self._open[-1] is self._implied:
            self._finish(self._open.pop())

    def _finish(self, element: Any) -> None:  # noqa: ANN401 - an element
        self._closed = element
        if self._keep_all or element.tag not in {"testsuite", "testcase"}:
            return
        if element.tag == "testsuite":
            self._suites.pop()
        else:
            case = _as(ReportedCase, element)
            case.suite = self._suites[-1]
            self.cases.append(case)
        if self._open:
            self._open[-1].remove(element)

    def text(self, text: str) -> None:
        super().text(text)
        self._words.append(text)

    def _end_text(self) -> None:
        if self._words and self._closed is None:
            self._open[-1].text = "".join(self._words)
        elif self._words:
            self._closed.tail = "".join(self._words)
        self._words.clear()


def _as(kind: type[_T], element: Any) -> _T:  # noqa: ANN401 - an element
    """An element as one of junitparser's types."""
    return cast("_T", kind.fromelem(element))  # type: ignore[no-untyped-call]
