"""Writes one file of the merged report: a complete JUnit document with its own counts.

Testcases are written to disk at once. The counts in the start tags are known only at the end, so space is reserved for
them.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Final

from allranks.protocol.xml_text import attribute
from allranks.report.folder import REPORT_NAME, is_merged_report
from allranks.report.judged import Counts
from allranks.report.junit_case import Fact, properties
from allranks.report.results import VerdictKind
from allranks.report.untrusted import open_regular, remove_existing

_HEADER: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_RESERVED: Final = 160
"""Bytes reserved for the counts in a start tag: five numbers of up to 20 digits, and their names."""

_LONGEST: Final = 1e12
"""The largest sum of seconds that is written: a damaged file may state any number."""

_END_OF_SUITE: Final = b"</testsuite>\n"
_END: Final = b"</testsuites>\n"

CONTINUED: Final = b"<!-- continues in the next file -->\n"
"""The end of a file that is not the last one of its report."""


def _attributes(counts: Counts) -> str:
    return (
        f' tests="{counts.tests}" failures="{counts.failed}" errors="{counts.errors}" skipped="{counts.skipped}"'
        f' time="{min(counts.time, _LONGEST):.3f}"'
    )


@dataclass(frozen=True, kw_only=True)
class SuiteHead:
    """The start of a suite."""

    name: str
    facts: tuple[Fact, ...]  # its properties
    started: float | None = None

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return len(properties(self.facts).encode()) + len(self.name.encode()) + 2 * _RESERVED

    @property
    def timestamp(self) -> str:
        """The start of the job in ISO 8601; empty if unknown."""
        started = self.started
        return "" if started is None else datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds")


class JUnitDocument:
    """A file that is written suite by suite: ``testsuites`` with a ``testsuite`` for each job."""

    def __init__(self, path: Path) -> None:
        self.has_cases = False
        self.size = len(_END_OF_SUITE) + len(_END)  # at least the bytes of the file if it ended here
        self._file = remove_existing(path).open("w+b")
        self._all, self._suite = Counts(), Counts()
        self._counts: list[tuple[int, Counts]] = []
        self._write(_HEADER)
        self._start(f'<testsuites name="{REPORT_NAME}"', self._all, "")

    def _start(self, tag: str, counts: Counts, rest: str) -> None:
        """Write a start tag with space reserved for counts."""
        self._write(tag.encode())
        self._counts.append((self._file.tell(), counts))
        self._write(b" " * _RESERVED + f"{rest}>\n".encode())

    def begin(self, head: SuiteHead) -> None:
        """Begin a suite."""
        self._suite = Counts()
        timestamp = f' timestamp="{head.timestamp}"' if head.timestamp else ""
        self._start(f"<testsuite name={attribute(head.name)}", self._suite, timestamp)
        self._write(properties(head.facts).encode())

    def add(self, case: bytes, kind: VerdictKind, seconds: float) -> None:
        """Add a testcase to the open suite."""
        self.has_cases = True
        self._suite.add(kind, seconds)
        self._write(case)

    def end(self) -> None:
        """End the suite."""
        self._all += self._suite
        self._write(_END_OF_SUITE)

    def finish(self) -> None:
        """Complete the file and close it."""
        self._write(_END)
        for offset, counts in self._counts:
            self._file.seek(offset)
            self._file.write(_attributes(counts).encode())
        self.close()

    def close(self) -> None:
        """Close the file, which is a complete document only after :meth:`finish`."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        self.size += self._file.write(data)


def part_path(first: Path, number: int) -> Path:
    """The path of a part of a report; parts count from 1."""
    return first if number == 1 else first.with_name(f"{first.stem}-{number}{first.suffix}")


def report_parts(first: Path) -> Iterator[Path]:
    """The files of a JUnit report, including those that continue a report of allranks (``junit-2.xml`` and so on).

    One that is announced but missing is included, too, so that reading it is an error.
    """
    yield first
    part = first
    for number in count(2):
        is_expected = is_merged_report(part) and _is_continued(part)
        part = part_path(first, number)
        if not (is_expected or (is_merged_report(first) and is_merged_report(part))):
            return
        yield part


def _is_continued(part: Path) -> bool:
    with suppress(OSError), open_regular(part) as file:
        file.seek(-min(2 * len(CONTINUED), part.stat().st_size), os.SEEK_END)
        return CONTINUED.strip() in file.read()
    return False
