"""One file of the merged report: a complete JUnit document with counts of its own.

Testcases are written to disk at once. The counts at the beginning are known only at the end: either space is reserved
for them, or the content that follows them is held in a second file.
"""

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final, Self

from allranks.report.folder import NARROW_NAME, WIDE_NAME, is_merged_report
from allranks.report.junit_case import Fact, is_told, properties, property_line
from allranks.report.results import VerdictKind
from allranks.report.untrusted import fresh, open_regular
from allranks.xml_text import attribute

_HEADER: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_ROOM: Final = 160
"""Bytes reserved for the counts in a start tag: five numbers of up to 20 digits, and their names."""

_LONGEST: Final = 1e12
"""The largest sum of seconds that is written: a damaged file may claim any number."""

_END_OF_SUITE: Final = b"</testsuite>\n"
_END: Final = b"</testsuites>\n"

CONTINUED: Final = b"<!-- continues in the next file -->\n"
"""The end of a file that is not the last one of its report."""


@dataclass
class Tally:
    """Counts of testcases, as start tags state them."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    time: float = 0.0

    def add(self, kind: VerdictKind, seconds: float) -> None:
        """Count one testcase."""
        self.tests += 1
        self.failures += kind is VerdictKind.FAILURE
        self.errors += kind is VerdictKind.ERROR
        self.skipped += kind is VerdictKind.SKIPPED
        self.time += seconds

    def __iadd__(self, other: Self) -> Self:
        """Add another tally."""
        self.tests += other.tests
        self.failures += other.failures
        self.errors += other.errors
        self.skipped += other.skipped
        self.time += other.time
        return self

    @property
    def attributes(self) -> dict[str, str]:
        """The counts as names and values of attributes."""
        return {
            "tests": str(self.tests),
            "failures": str(self.failures),
            "errors": str(self.errors),
            "skipped": str(self.skipped),
            "time": f"{min(self.time, _LONGEST):.3f}",
        }

    @property
    def xml(self) -> str:
        """The attributes as XML, with a space before each."""
        return "".join(f' {name}="{value}"' for name, value in self.attributes.items())


@dataclass(frozen=True, kw_only=True)
class SuiteHead:
    """The start of a suite."""

    name: str
    facts: tuple[Fact, ...]  # its properties besides name and counts
    started: float | None = None

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return len(properties(self.facts).encode()) + len(self.name.encode()) + 2 * _ROOM

    @property
    def timestamp(self) -> str:
        """The start of the job, in ISO 8601; empty if unknown."""
        started = self.started
        return "" if started is None else datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")


class JUnitDocument(ABC):
    """A file that is being written, suite by suite."""

    def __init__(self, path: Path) -> None:
        self.has_cases = False  # True if it has a testcase
        self.size = 0  # bytes that the file would have if it ended here, at most
        self._file = fresh(path).open("w+b")
        self._all, self._suite = Tally(), Tally()

    @abstractmethod
    def begin(self, head: SuiteHead) -> None:
        """Begin a suite."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file and close it."""

    def add(self, case: bytes, kind: VerdictKind, seconds: float) -> None:
        """Add a testcase to the suite that was begun last."""
        self.has_cases = True
        self._suite.add(kind, seconds)
        self._write(case)

    def end(self) -> None:
        """End that suite."""
        self._all += self._suite

    def close(self) -> None:
        """Close open files; the file on disk is a complete document only if it was finished."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        self.size += self._file.write(data)


class WideDocument(JUnitDocument):
    """``testsuites`` with a ``testsuite`` for each job."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.size = len(_END_OF_SUITE) + len(_END)
        self._counts: list[tuple[int, Tally]] = []
        self._write(_HEADER)
        self._start(f'<testsuites name="{WIDE_NAME}"', self._all, "")

    def _start(self, tag: str, tally: Tally, rest: str) -> None:
        """Write a start tag with space reserved for counts."""
        self._write(tag.encode())
        self._counts.append((self._file.tell(), tally))
        self._write(b" " * _ROOM + f"{rest}>\n".encode())

    def begin(self, head: SuiteHead) -> None:
        """See :class:`JUnitDocument`."""
        self._suite = Tally()
        began = f' timestamp="{head.timestamp}"' if head.timestamp else ""
        self._start(f"<testsuite name={attribute(head.name)}", self._suite, began)
        self._write(properties(head.facts).encode())

    def end(self) -> None:
        """See :class:`JUnitDocument`."""
        super().end()
        self._write(_END_OF_SUITE)

    def finish(self) -> None:
        """See :class:`JUnitDocument`."""
        self._write(_END)
        for place, tally in self._counts:
            self._file.seek(place)
            self._file.write(tally.xml.encode())
        self._file.close()


class NarrowDocument(JUnitDocument):
    """One ``testsuite`` for everything: Surefire's schema has no root above it, and no nested suites.

    The properties of the wide form's suites become properties of the one suite, prefixed with the job's name. They
    precede the testcases, which are in a second file until all suites are known.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._body_path = path, path.with_name(f"{path.name}.body")
        super().__init__(self._body_path)
        self._heads: list[tuple[SuiteHead, Tally]] = []
        self.size = len(_HEADER) + len(self._start()) + _ROOM + len(_END_OF_SUITE)

    def begin(self, head: SuiteHead) -> None:
        """See :class:`JUnitDocument`."""
        self._suite = Tally()
        self._heads.append((head, self._suite))
        self.size += len(self._facts(head, self._suite)) + _ROOM

    def finish(self) -> None:
        """See :class:`JUnitDocument`."""
        self._file.seek(0)
        with fresh(self._path).open("wb") as file:
            file.write(_HEADER + self._start())
            for head, tally in self._heads:
                file.write(self._facts(head, tally))
            file.write(b"</properties>\n")
            shutil.copyfileobj(self._file, file)
            file.write(_END_OF_SUITE)
        self.close()

    def close(self) -> None:
        """Close the open file, and remove it: it is a temporary one."""
        super().close()
        self._body_path.unlink(missing_ok=True)

    def _start(self) -> bytes:
        return f"<testsuite name={attribute(NARROW_NAME)}{self._all.xml}>\n<properties>\n".encode()

    @staticmethod
    def _facts(head: SuiteHead, tally: Tally) -> bytes:
        counts = " ".join(f"{name}={value}" for name, value in tally.attributes.items())
        facts = (("counts", counts), ("timestamp", head.timestamp), *head.facts)
        job = attribute(head.name)[1:-1]
        return "".join(property_line(f"{job}.{name}", value) for name, value in facts if is_told(value)).encode()


_FACT: Final = re.compile(r"allranks\.([\w.]+): (.*)", re.ASCII)


def facts_in(text: str) -> dict[str, str]:
    """The facts at the beginning of an output, in the narrow form: lines that go on are indented."""
    facts: dict[str, str] = {}
    name = ""
    for line in text.split("\n"):
        if match := _FACT.fullmatch(line):
            name = match[1]
            facts[name] = match[2]
        elif name and line.startswith("    "):
            facts[name] += f"\n{line[4:]}"
        else:
            break
    return facts


def report_parts(first: Path) -> Iterator[Path]:
    """The files of a JUnit report: of allranks' own, also those that continue it (``junit-2.xml`` and so on).

    A file that the one before names is among them if it is absent, too: reading it is an error.
    """
    yield first
    part = first
    for number in count(2):
        is_expected = is_merged_report(part) and _is_continued(part)
        part = first.with_name(f"{first.stem}-{number}{first.suffix}")
        if not (is_expected or (is_merged_report(first) and is_merged_report(part))):
            return
        yield part


def _is_continued(part: Path) -> bool:
    with suppress(OSError), open_regular(part) as file:
        file.seek(-min(2 * len(CONTINUED), part.stat().st_size), os.SEEK_END)
        return CONTINUED.strip() in file.read()
    return False
