"""One file of the merged report: a complete JUnit document with counts of its own.

Testcases are written to disk at once. The counts at the beginning are known only at the end: either space is reserved
for them, or the content that follows them is held in a second file.
"""

import shutil
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from allranks.report.folder import NARROW_NAME, WIDE_NAME
from allranks.report.junit_case import Fact, is_told, properties, property_line
from allranks.report.results import VerdictKind
from allranks.report.untrusted import fresh
from allranks.xml_text import attribute

_HEADER: Final = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_ROOM: Final = 160
"""Bytes reserved for the counts in a start tag: five numbers of up to 20 digits, and their names."""

_LONGEST: Final = 1e12
"""The largest sum of seconds that is written: a damaged file may claim any number."""

_END_OF_SUITE: Final = b"</testsuite>\n"
_END: Final = b"</testsuites>\n"


class Tally(defaultdict[str, float]):
    """Counts of testcases, and their seconds, by the names that start tags have for them."""

    def __init__(self) -> None:
        super().__init__(float)

    @property
    def attributes(self) -> dict[str, str]:
        """The counts as names and values of attributes."""
        counts = {name: f"{self[name]:.0f}" for name in ("tests", "failures", "errors", "skipped")}
        return {**counts, "time": f"{min(self['time'], _LONGEST):.3f}"}

    @property
    def xml(self) -> str:
        """The attributes as XML, with a space before each."""
        return "".join(f' {name}="{value}"' for name, value in self.attributes.items())


_COUNT_OF: Final = {VerdictKind.FAILURE: "failures", VerdictKind.ERROR: "errors", VerdictKind.SKIPPED: "skipped"}


@dataclass(frozen=True, kw_only=True)
class SuiteHead:
    """The start of a suite.

    Attributes:
        name: Its name, in each file that has a part of it.
        facts: Its properties besides name and counts.
        started: Seconds since the epoch.
    """

    name: str
    facts: tuple[Fact, ...]
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
    """A file that is being written, suite by suite.

    Attributes:
        has_cases: True if it has a testcase.
        size: Bytes that the file would have if it ended here, at most.
    """

    def __init__(self) -> None:
        self.has_cases = False
        self.size = 0
        self._all, self._suite = Tally(), Tally()

    def begin(self, head: SuiteHead) -> None:
        """Begin a suite."""
        self._suite = Tally()
        self._begin(head, self._suite)

    def add(self, case: bytes, kind: VerdictKind, seconds: float) -> None:
        """Add a testcase to the suite that was begun last."""
        self.has_cases = True
        self._suite["tests"] += 1
        self._suite["time"] += seconds
        if kind in _COUNT_OF:
            self._suite[_COUNT_OF[kind]] += 1
        self._write(case)

    def end(self) -> None:
        """End that suite."""
        for name, count in self._suite.items():
            self._all[name] += count

    @abstractmethod
    def _begin(self, head: SuiteHead, tally: Tally) -> None:
        """Write the start of a suite, whose counts are known at its end."""

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Write to the suite."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the file and close it."""

    @abstractmethod
    def close(self) -> None:
        """Close open files; the file on disk is a complete document only if it was finished."""


class WideDocument(JUnitDocument):
    """``testsuites`` with a ``testsuite`` for each job."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = fresh(path).open("wb")
        self.size = len(_END_OF_SUITE) + len(_END)
        self._tallies: list[tuple[int, Tally]] = []
        self._write(_HEADER)
        self._start(f'<testsuites name="{WIDE_NAME}"', self._all, "")

    def _write(self, data: bytes) -> None:
        self.size += self._file.write(data)

    def _start(self, tag: str, tally: Tally, rest: str) -> None:
        """Write a start tag with space reserved for counts."""
        self._write(tag.encode())
        self._tallies.append((self._file.tell(), tally))
        self._write(b" " * _ROOM + f"{rest}>\n".encode())

    def _begin(self, head: SuiteHead, tally: Tally) -> None:
        began = f' timestamp="{head.timestamp}"' if head.timestamp else ""
        self._start(f"<testsuite name={attribute(head.name)}", tally, began)
        self._write(properties(head.facts).encode())

    def end(self) -> None:
        """End that suite."""
        super().end()
        self._write(_END_OF_SUITE)

    def finish(self) -> None:
        """Complete the file and close it."""
        self._write(_END)
        for place, tally in self._tallies:
            self._file.seek(place)
            self._file.write(tally.xml.encode())
        self._file.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NarrowDocument(JUnitDocument):
    """One ``testsuite`` for everything: Surefire's schema has no root above it, and no nested suites.

    The properties of the wide form's suites become properties of the one suite, prefixed with the job's name.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._body_path = path.with_name(f"{path.name}.body")
        self._body = fresh(self._body_path).open("w+b")
        self._heads: list[tuple[SuiteHead, Tally]] = []
        self.size = len(_HEADER) + len(self._start()) + _ROOM + len(_END_OF_SUITE)

    def _begin(self, head: SuiteHead, tally: Tally) -> None:
        self._heads.append((head, tally))
        self.size += len(self._facts(head, tally)) + _ROOM

    def _write(self, data: bytes) -> None:
        self.size += self._body.write(data)

    def finish(self) -> None:
        """Complete the file and close it."""
        self._body.seek(0)
        with fresh(self._path).open("wb") as file:
            file.write(_HEADER + self._start())
            for head, tally in self._heads:
                file.write(self._facts(head, tally))
            file.write(b"</properties>\n")
            shutil.copyfileobj(self._body, file)
            file.write(_END_OF_SUITE)
        self.close()

    def _start(self) -> bytes:
        return f"<testsuite name={attribute(NARROW_NAME)}{self._all.xml}>\n<properties>\n".encode()

    @staticmethod
    def _facts(head: SuiteHead, tally: Tally) -> bytes:
        counts = " ".join(f"{name}={value}" for name, value in tally.attributes.items())
        facts = (("counts", counts), ("timestamp", head.timestamp), *head.facts)
        job = attribute(head.name)[1:-1]
        return "".join(property_line(f"{job}.{name}", value) for name, value in facts if is_told(value)).encode()

    def close(self) -> None:
        """Close the open file, and remove the temporary one."""
        self._body.close()
        self._body_path.unlink(missing_ok=True)
