"""Reads the files of a JUnit report, whole or testcase by testcase, and refuses what is none.

junitparser's own reader takes any XML, with entities, and only whole files. This one builds the same elements, of the
library that junitparser uses (lxml, or the standard library's).
"""

import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from xml.parsers import expat

import junitparser

from allranks.errors import UsageError
from allranks.junit.reported import DownloadedReport, ReportedCase, ReportedSuite, selected
from allranks.report.folder import ROOTS
from allranks.report.junit_document import report_parts
from allranks.report.outcome_words import is_bad
from allranks.report.untrusted import number, open_regular

_T = TypeVar("_T", bound=junitparser.junitparser.Element)

_CHUNK: Final = 1 << 16
_DEEPEST: Final = 64
_MOST_ATTRIBUTES: Final = 1000  # lxml takes minutes for 200,000
_STRUCTURE: Final = frozenset({*ROOTS, "testcase"})
_NESTED: Final = frozenset({"testcase", "testsuite"})
_OUTCOMES: Final = frozenset({"failure", "error", "skipped"})
_REMEDY: Final = "Give junit.xml of allranks, or another writer's JUnit XML."


def load(path: str | PathLike[str]) -> DownloadedReport:
    """A report with all that follows in ``junit-2.xml`` and so on, in memory.

    Args:
        path: Its first file, or the folder that has it as ``junit.xml``.

    Raises:
        UsageError: There is no such report.
    """
    first, *more = _parts(Path(path))
    report = cast("DownloadedReport", DownloadedReport.fromroot(_root(first)))
    report.filepath = str(first)  # type: ignore[assignment] # junitparser has no type for it
    for each in more:
        _append(report, _root(each))
    return report


def stream(path: str | PathLike[str], **wanted: Any) -> Iterator[ReportedCase]:  # noqa: ANN401 - see selected
    """The testcases of a report, one at a time, whatever its size; filtered as by :meth:`DownloadedReport.cases`.

    Args:
        path: As for :func:`load`.
        wanted: As for :meth:`DownloadedReport.cases`.

    Raises:
        UsageError: There is no such report, or it ends early.
    """
    return selected((case for part in _parts(Path(path)) for case in _cases(part)), **wanted)


def problem(path: str | PathLike[str]) -> str:
    """Why a report cannot be trusted, although each of its testcases can be read: empty if it can.

    Counts of a suite that contradict its testcases, say: ``failures="1"``, and no testcase that failed.

    Args:
        path: As for :func:`load`.
    """
    from allranks.report.rank_xml import problem_of  # noqa: PLC0415 - it imports all that merging needs

    return next(filter(None, map(problem_of, _parts(Path(path)))), "")


def _parts(path: Path) -> Iterator[Path]:
    return report_parts(path / "junit.xml" if path.is_dir() else path)


def _append(report: DownloadedReport, root: Any) -> None:  # noqa: ANN401 - an element
    total = report._elem  # noqa: SLF001 - junitparser offers no other way
    for name in ("tests", "failures", "errors", "skipped", "time"):
        both = [number(each.get(name)) or 0.0 for each in (total, root)]
        total.set(name, f"{sum(both):.3f}" if name == "time" else str(round(sum(both))))
    for suite in list(root):
        total.append(suite)


def _root(path: Path) -> Any:  # noqa: ANN401 - an element
    builder = _Builder()
    for _ in _fed(builder, path):
        pass
    return builder.root


def _cases(path: Path) -> Iterator[ReportedCase]:
    builder = _CaseBuilder()
    for _ in _fed(builder, path):
        yield from builder.cases
        builder.cases.clear()


def _fed(builder: "_Builder", path: Path) -> Iterator[None]:
    """Feed a file to a builder, with a pause after each chunk.

    Raises:
        UsageError: It is no JUnit XML, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            size, fed = _CHUNK, 0
            while chunk := file.read(size):
                builder.parser.Parse(chunk, False)
                # As for ranks' XML: an older expat rescans an unfinished attribute with each chunk.
                fed += len(chunk)
                size = size * 2 if fed - builder.parser.CurrentByteIndex > _CHUNK else _CHUNK
                yield
            builder.parser.Parse(b"", True)
            yield
    except FileNotFoundError as error:
        msg = f"There is no report {path}."
        raise UsageError(msg, remedy=_REMEDY) from error
    except OSError as error:
        msg = f"The report {path} cannot be read."
        raise UsageError(msg, why=f"{error.strerror or error}.", remedy=_REMEDY) from error
    except (expat.ExpatError, LookupError, ValueError) as error:
        msg = f"{path} is not JUnit XML, or only a part of it."
        raise UsageError(msg, why=f"{error}.", remedy=_REMEDY) from error


class _Builder:
    def __init__(self) -> None:
        self.root: Any = None
        self._make = junitparser.JUnitXml()._elem.makeelement  # noqa: SLF001 - of the library that junitparser uses
        self._open: list[Any] = []
        self._implied: list[Any] = []
        self._closed: Any = None
        self._text: list[str] = []
        self.parser = expat.ParserCreate(namespace_separator="}")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self._end_with_implied
        self.parser.CharacterDataHandler = self._text.append

    def _refuse(self, *_: object) -> None:
        msg = "it declares a document type, which can declare entities of any size"
        raise ValueError(msg)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        self._end_text()
        tag = tag.rpartition("}")[2]
        if self.root is None and tag not in ROOTS:
            msg = f"its root element is <{tag[:40]}>, and JUnit XML begins with <testsuites> or <testsuite>"
            raise ValueError(msg)
        if len(self._open) >= _DEEPEST:
            msg = f"it has more than {_DEEPEST} elements within each other"
            raise ValueError(msg)
        if len(attributes) > _MOST_ATTRIBUTES:
            msg = f"it has an element with {len(attributes)} attributes"
            raise ValueError(msg)
        self._start_around(tag, self._open[-1].tag if self._open else "")
        element = self._make(tag, {re.sub(r"^(?=.*})", "{", name): said for name, said in attributes.items()})
        if self._open:
            self._open[-1].append(element)
        else:
            self.root = element
        self._open.append(element)
        self._closed = None

    def _start_around(self, tag: str, parent: str) -> None:
        """Begin what has to be around an element: Node.js has testcases in the root, and some suites have errors."""
        if tag.lower() in _STRUCTURE and parent and (tag not in _NESTED or parent not in ROOTS):
            msg = f"it has <{tag}> in <{parent[:40]}>"
            raise ValueError(msg)
        is_outside = bool(parent) and all(each.tag != "testcase" for each in self._open)
        if is_outside and is_bad(tag) and parent not in ROOTS:
            msg = f"it has <{tag[:40]}> in <{parent[:40]}>, and in no testcase"
            raise ValueError(msg)
        if tag in _OUTCOMES and parent in ROOTS:
            self._imply("testcase", {"classname": self._open[-1].get("name") or "", "name": "(suite)"})
        elif tag == "testcase" and parent != "testsuite":
            self._imply("testsuite", {})

    def _imply(self, tag: str, attributes: dict[str, str]) -> None:
        self.start(tag, attributes)
        self._implied.append(self._open[-1])

    def _end_with_implied(self, tag: str) -> None:
        self.end(tag)
        while self._implied and self._open[-1] is self._implied[-1]:
            self.end(self._implied.pop().tag)

    def end(self, _: str) -> None:
        """End an element."""
        self._end_text()
        self._closed = self._open.pop()

    def _end_text(self) -> None:
        if self._text and self._closed is None:
            self._open[-1].text = "".join(self._text)
        elif self._text:
            self._closed.tail = "".join(self._text)
        self._text.clear()


def _as(kind: type[_T], element: Any) -> _T:  # noqa: ANN401 - an element
    """An element as one of junitparser's kinds."""
    return cast("_T", kind.fromelem(element))  # type: ignore[no-untyped-call]


class _CaseBuilder(_Builder):
    """Builds testcase after testcase, each without those before it.

    Attributes:
        cases: Those that have ended since these were cleared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cases: list[ReportedCase] = []
        self._suites: list[ReportedSuite] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """See :class:`_Builder`."""
        super().start(tag, attributes)
        if self._open[-1].tag == "testsuite":
            self._suites.append(_as(ReportedSuite, self._open[-1]))

    def end(self, tag: str) -> None:
        """See :class:`_Builder`."""
        super().end(tag)
        element = self._closed
        if element.tag == "testsuite":
            self._suites.pop()
        elif element.tag == "testcase" and self._open and self._open[-1].tag == "testsuite":
            case = _as(ReportedCase, element)
            case.suite = self._suites[-1]
            self.cases.append(case)
        if element.tag in {"testsuite", "testcase"} and self._open:
            self._open[-1].remove(element)
