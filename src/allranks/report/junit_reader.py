"""Reads JUnit XML, of allranks and of other writers, in a stream.

Nothing in a file can make the reader fetch or expand anything: a document type declaration, the only way to declare an
entity, is refused. Every element and attribute must be in the vocabulary.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final
from xml.parsers import expat

from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import clipped, cut, printable
from allranks.report.case_details import CaseDetails
from allranks.report.folder import REPORT_NAME
from allranks.report.suite_counts import Suite
from allranks.report.untrusted import open_regular
from allranks.report.vocabulary import (
    OURS,
    ROOTS,
    TEXTS,
    UnknownError,
    checked,
    checked_property,
    outcome_said,
    seconds_of,
)

_CHUNK: Final = 1 << 18
_FIRST_CHUNK: Final = 1 << 10
"""Small, so that few testcases come with the declaration and the root."""

_DEEPEST: Final = 64
_SHOWN: Final = 40
_OF_PYTEST: Final = "pytest tests"
_OF_GOOGLETEST: Final = "AllTests"


class UnreadableError(Exception):
    """A file cannot be read to its end, or not be interpreted.

    It says why, without a full stop, and in one sentence what to do, if that is known.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        self.why, self.remedy = why, remedy
        super().__init__("\n".join(filter(None, (f"{why}.", remedy))))


class JUnitReader:
    """Reads one file. Subclasses receive its testcases and its suites."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self.problem = ""  # the first contradiction
        self.note = ""  # an oddity that may be harmless
        self.suites: list[Suite] = []  # the open ones, the root first
        self.tags: list[str] = ["document"]  # the open elements
        self._allowed = frozenset(allowed)  # attributes of suites and testcases that say nothing about the outcome
        self._case: Mapping[str, str] = {}
        self._details: CaseDetails | None = None
        self._attributes: Mapping[str, str] = {}
        self._text: list[str] = []
        self._stray = ""
        self._is_ours = False
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text

    @property
    def is_of_googletest(self) -> bool:
        """True if the root is GoogleTest's, where a testcase without a status did not run."""
        return self.suites[0].name == _OF_GOOGLETEST

    def add_case(self, case: Mapping[str, str], seconds: float, details: CaseDetails | None) -> None:
        """Receive a testcase: its attributes, its time, and its details, which are None for one with nothing else."""

    def add_property(self, name: str, value: str) -> None:
        """Receive a property of the suite that was begun last."""

    def end_suite(self, suite: Suite) -> None:
        """Receive a suite, or the root, at its end."""

    def taken(self, chunk: bytes) -> bytes:
        """The next bytes of the file, as they are given to expat."""
        return chunk

    def feed(self, path: Path) -> Iterator[None]:
        """Read a file, with a pause after each chunk; UnreadableError if it is not JUnit XML, or cut short."""
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                msg = "it is empty"
                raise UnreadableError(msg)
            try:
                yield from self._parse(file)
            except UnknownError as error:
                msg = f"in line {self.parser.CurrentLineNumber}, {error}" if self.suites else str(error)
                raise UnreadableError(msg, error.remedy) from error
            except expat.ExpatError as error:
                msg = f"it is broken or cut short at line {error.lineno} ({expat.ErrorString(error.code)})"
                raise UnreadableError(msg) from error
            except (LookupError, ValueError) as error:
                if self.suites:  # the encoding is known before the root begins: this is a bug
                    raise
                msg = f"its encoding cannot be read ({error})"
                raise UnreadableError(msg) from error
            finally:
                del self.parser  # it refers to this reader, and both would stay until the cycle is found

    def _parse(self, file: BinaryIO) -> Iterator[None]:
        # An older expat rescans an unfinished attribute with each chunk, so that one of 50 MB would take minutes: the
        # chunk size doubles until expat reports something.
        size, fed = _FIRST_CHUNK, 0
        while chunk := file.read(size):
            left = self.taken(chunk)
            self.parser.Parse(left, False)
            fed += len(left)
            size = max(size * 2, _CHUNK) if fed - self.parser.CurrentByteIndex > _CHUNK else _CHUNK
            yield
        self.parser.Parse(b"", True)
        yield

    def _refuse_doctype(self, *_: object) -> None:
        msg = "it declares a document type, which can declare entities of any size"
        raise UnknownError(msg, "Remove the declaration.")

    def contradict(self, problem: str) -> None:
        """Record a contradiction; only the first is kept."""
        self.problem = self.problem or problem

    def enter(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Check an element, and open it."""
        self._refuse_stray_text()
        checked(tag, self.tags[-1], attributes, self._allowed)
        if len(self.tags) > _DEEPEST:
            msg = f"it has more than {_DEEPEST} elements within each other"
            raise UnknownError(msg)
        self.tags.append(tag)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        parent = self.tags[-1]
        self.enter(tag, attributes)
        if tag == "testcase":
            self._case, self._details = attributes, None
            if self.is_of_googletest and "status" not in attributes:
                msg = "a testcase of GoogleTest has no status, as in a list of tests, which did not run"
                raise UnknownError(msg, "Give the report of a run without --gtest_list_tests.")
        elif tag in ROOTS:
            self._is_ours = self._is_ours or (not self.suites and attributes.get("name") == REPORT_NAME)
            self.suites.append(Suite(attributes))
        elif tag == "property":
            self._read_property(attributes.get("name", ""), attributes.get("value", ""))
        elif parent == "testcase":
            self._details = self._details or CaseDetails()
            self._attributes = attributes
            self._text.clear()

    def end(self, tag: str) -> None:
        """End an element."""
        self._refuse_stray_text()
        self.tags.pop()
        if tag == "testcase":
            self._end_case(self._case, self._details)
            self._details = None
        elif tag in ROOTS:
            self._end_suite()
        elif self.tags[-1] == "testcase" and self._details is not None and tag in TEXTS:
            self._details.add(tag, self._attributes, cut("".join(self._text)))

    def text(self, text: str) -> None:
        """Collect text, up to the end of the element in the testcase that it is in."""
        if self.tags[-1] not in TEXTS:
            self._stray = f"{self._stray}{text}".lstrip()[: 2 * _SHOWN]
        elif "testcase" in self.tags:
            self._text.append(text)

    def _refuse_stray_text(self) -> None:
        if self._stray:
            found = clipped(printable(self._stray.rstrip()), _SHOWN)
            msg = f"<{self.tags[-1]}> has the text {found!r}, where no writer has any"
            raise UnknownError(msg)

    def _read_property(self, name: str, value: str) -> None:
        is_of_case = "testcase" in self.tags
        checked_property(name, value, is_of_case=is_of_case)
        if is_of_case:
            self._details = self._details or CaseDetails()
            self.unite(self._details.properties, name, value)
        else:
            self._is_ours = self._is_ours or name == "allranks.rank"
            self.unite(self.suites[-1].properties, name, value)
            self.add_property(name, value)

    def unite(self, known: dict[str, str], name: str, value: str) -> None:
        """Add a property to those that are known; two values of one of allranks' are a contradiction."""
        if known.setdefault(name, value) != value and name.startswith(OURS):
            self.contradict(f"{name[:_SHOWN]} is {known[name][:_SHOWN]} and {value[:_SHOWN]}")

    def _end_case(self, case: Mapping[str, str], details: CaseDetails | None) -> None:
        suite, seconds, said = self.suites[-1], seconds_of(case.get("time")), outcome_said(case)
        suite.own["tests"] += 1
        if said[0] is not Outcome.PASSED:
            details = details or CaseDetails()
        if details:
            details.end(said)
            suite.add(details, is_disabled=case.get("status") == "notrun")
        self.add_case(case, seconds, details)

    def _end_suite(self) -> None:
        suite = self.suites.pop()
        wrong = suite.end(is_root=not self.suites, may_count_tries=not self._is_ours)
        if self.suites:
            self.suites[-1].add_suite(suite)
        if wrong:
            root, has = self.suites[0] if self.suites else suite, suite.below
            has_more = wrong.keys() == {"tests"} and wrong["tests"] > has["tests"]
            if has_more and root.name == _OF_PYTEST and not self._is_ours:
                self.note = f"pytest declares {wrong['tests']} tests and has {has['tests']}: it counts subtests, too"
            else:
                declared = ", ".join(f"{kind}={count}" for kind, count in wrong.items())
                found = ", ".join(f"{kind}={has[kind]}" for kind in wrong)
                self.contradict(f"a suite declares {declared}, and has {found}")
        self.end_suite(suite)
