"""A streaming reader of JUnit XML from allranks and other writers.

No file can make the reader fetch or expand anything, because a document type declaration, the only way to declare an
entity, is an error. Every element and attribute must be in the vocabulary.
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
    seconds_of,
    stated_outcome,
)

_CHUNK: Final = 1 << 18
_FIRST_CHUNK: Final = 1 << 10
"""Small, so that the chunk with the declaration and the root has few testcases."""

_DEEPEST: Final = 64
_SHOWN: Final = 40
_OF_PYTEST: Final = "pytest tests"
_OF_GOOGLETEST: Final = "AllTests"


class UnreadableError(Exception):
    """A file cannot be read to its end, or cannot be interpreted.

    Args:
        why: The reason, without a full stop.
        remedy: A sentence on what to do.
    """

    def __init__(self, why: str, remedy: str = "") -> None:
        self.why, self.remedy = why, remedy
        super().__init__("\n".join(filter(None, (f"{why}.", remedy))))


class JUnitReader:
    """Reads one file. Subclasses receive its testcases and suites.

    Args:
        allowed: Additional attributes of suites and testcases, which do not affect the outcome.
    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self.problem = ""  # the first contradiction
        self.note = ""  # an oddity that may be harmless
        self.suites: list[Suite] = []  # the open suites, the root first
        self.tags: list[str] = ["document"]  # the open elements
        self._allowed = frozenset(allowed)
        self._case: Mapping[str, str] = {}
        self._details: CaseDetails | None = None
        self._attributes: Mapping[str, str] = {}
        self._text: list[str] = []
        self._unexpected = ""
        self._is_ours = False
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._reject_doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text

    @property
    def is_of_googletest(self) -> bool:
        """True if GoogleTest wrote the file, in which a testcase without a status did not run."""
        return self.suites[0].name == _OF_GOOGLETEST

    def add_case(self, case: Mapping[str, str], seconds: float, details: CaseDetails | None) -> None:
        """Receive a testcase: its attributes, its time, and its details, unless it has no content."""

    def add_property(self, name: str, value: str) -> None:
        """Receive a property of the innermost open suite."""

    def end_suite(self, suite: Suite) -> None:
        """Receive a suite, or the root, at its end."""

    def for_expat(self, chunk: bytes) -> bytes:
        """Convert the next bytes of the file for expat."""
        return chunk

    def feed(self, path: Path) -> Iterator[None]:
        """Read a file, and yield after each chunk; UnreadableError if it is truncated or is not JUnit XML."""
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
                if self.suites:  # the encoding is known before the root begins, so this is a bug of allranks
                    raise
                msg = f"its encoding cannot be read ({error})"
                raise UnreadableError(msg) from error
            finally:
                del self.parser  # it refers to this reader: the cycle would keep both in memory

    def _parse(self, file: BinaryIO) -> Iterator[None]:
        # An older expat rescans an unfinished attribute with each chunk, so that one of 50 MB would take minutes: the
        # chunk size doubles until expat reports something.
        size, fed = _FIRST_CHUNK, 0
        while chunk := file.read(size):
            chunk = self.for_expat(chunk)
            self.parser.Parse(chunk, False)
            fed += len(chunk)
            size = max(size * 2, _CHUNK) if fed - self.parser.CurrentByteIndex > _CHUNK else _CHUNK
            yield
        self.parser.Parse(b"", True)
        yield

    def _reject_doctype(self, *_: object) -> None:
        msg = "it declares a document type, which can declare entities of any size"
        raise UnknownError(msg, "Remove the declaration.")

    def contradict(self, problem: str) -> None:
        """Record a contradiction; only the first is kept."""
        self.problem = self.problem or problem

    def enter(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Check an element, and open it."""
        self._reject_unexpected_text()
        checked(tag, self.tags[-1], attributes, self._allowed)
        if len(self.tags) > _DEEPEST:
            msg = f"its elements are nested more than {_DEEPEST} levels deep"
            raise UnknownError(msg)
        self.tags.append(tag)

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        parent = self.tags[-1]
        self.enter(tag, attributes)
        if tag == "testcase":
            self._case, self._details = attributes, None
            if self.is_of_googletest and "status" not in attributes:
                msg = "a testcase of GoogleTest has no status, so this is a list of tests, not the report of a run"
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
        self._reject_unexpected_text()
        self.tags.pop()
        if tag == "testcase":
            self._end_case(self._case, self._details)
            self._details = None
        elif tag in ROOTS:
            self._end_suite()
        elif self.tags[-1] == "testcase" and self._details is not None and tag in TEXTS:
            self._details.add(tag, self._attributes, cut("".join(self._text)))

    def text(self, text: str) -> None:
        """Collect the text of an element in a testcase."""
        if self.tags[-1] not in TEXTS:
            self._unexpected = f"{self._unexpected}{text}".lstrip()[: 2 * _SHOWN]
        elif "testcase" in self.tags:
            self._text.append(text)

    def _reject_unexpected_text(self) -> None:
        if self._unexpected:
            found = clipped(printable(self._unexpected.rstrip()), _SHOWN)
            msg = f"<{self.tags[-1]}> has the text {found!r}, but no known writer puts text there"
            raise UnknownError(msg)

    def _read_property(self, name: str, value: str) -> None:
        is_of_case = "testcase" in self.tags
        checked_property(name, value, is_of_case=is_of_case)
        if is_of_case:
            self._details = self._details or CaseDetails()
            self.set_property(self._details.properties, name, value)
        else:
            self._is_ours = self._is_ours or name == "allranks.rank"
            self.set_property(self.suites[-1].properties, name, value)
            self.add_property(name, value)

    def set_property(self, properties: dict[str, str], name: str, value: str) -> None:
        """Add a property; a second, different value of a property of allranks is a contradiction."""
        if properties.setdefault(name, value) != value and name.startswith(OURS):
            self.contradict(f"{name[:_SHOWN]} is {properties[name][:_SHOWN]} and {value[:_SHOWN]}")

    def _end_case(self, case: Mapping[str, str], details: CaseDetails | None) -> None:
        suite, seconds, in_attributes = self.suites[-1], seconds_of(case.get("time")), stated_outcome(case)
        suite.own["tests"] += 1
        if in_attributes[0] is not Outcome.PASSED:
            details = details or CaseDetails()
        if details:
            details.end(in_attributes)
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
                self.note = f"pytest declares {wrong['tests']} tests but has {has['tests']}, because it counts subtests"
            else:
                declared = ", ".join(f"{kind}={count}" for kind, count in wrong.items())
                found = ", ".join(f"{kind}={has[kind]}" for kind in wrong)
                self.contradict(f"a suite declares {declared}, but has {found}")
        self.end_suite(suite)
