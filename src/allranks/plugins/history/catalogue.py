"""The names in a history, each with a number: cells, suites, jobs, tests, and outcomes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from allranks.plugins.history.history_file import rows

if TYPE_CHECKING:
    import sqlite3


class Code(NamedTuple):
    """An outcome: ``P`` passed, ``S`` skipped, ``F`` failed, ``E`` error, ``f`` passed after a failure, ``-`` none."""

    letter: str
    ranks: str = ""  # those that went wrong by themselves, if not all of them did

    @property
    def is_bad(self) -> bool:
        """True if the test failed."""
        return self.letter in "FE"


MANY: Final = "many"
"""The ranks of an outcome that are too many to name."""

ABSENT: Final = 0
PASSED: Final = 1
FIRST_CODES: Final = tuple(map(Code, "-PFESf"))
"""Outcomes whose number is their place here, in every file."""

_MOST_CODES: Final = 1 << 16


class Catalogue:
    """All names of a history; those that are asked for and not there are added."""

    def __init__(self, database: "sqlite3.Connection") -> None:
        self.cells: dict[str, int] = dict(rows(database, "SELECT id, number FROM cell ORDER BY number", str, int))
        self.suites: dict[str, int] = dict(rows(database, "SELECT name, number FROM suite ORDER BY number", str, int))
        jobs = rows(database, "SELECT number, cell, suite FROM job", int, int, int)
        self.jobs: dict[tuple[int, int], int] = {(cell, suite): number for number, cell, suite in jobs}
        self.tests: list[tuple[int, str]] = list(
            rows(database, "SELECT suite, nodeid FROM test ORDER BY number", int, str)
        )
        self._tests = {test: number for number, test in enumerate(self.tests)}
        self._stored = len(self.tests)
        stored = rows(database, "SELECT letter, ranks FROM outcome ORDER BY number", str, str)
        self.codes = [Code(*each) for each in stored] or list(FIRST_CODES)
        numbered = [sorted(each.values()) == list(range(len(each))) for each in (self.cells, self.suites, self.jobs)]
        if tuple(self.codes[: len(FIRST_CODES)]) != FIRST_CODES or not all(numbered):
            msg = "its names or outcomes have other numbers"
            raise ValueError(msg)
        self._codes = {code: number for number, code in enumerate(self.codes)}

    def cell(self, name: str) -> int:
        """The number of a cell."""
        return self.cells.setdefault(name, len(self.cells))

    def suite(self, name: str) -> int:
        """The number of a suite."""
        return self.suites.setdefault(name, len(self.suites))

    def job(self, cell: int, suite: int) -> int:
        """The number of a suite in a cell."""
        return self.jobs.setdefault((cell, suite), len(self.jobs))

    def test(self, suite: int, nodeid: str) -> int:
        """The number of a test."""
        number = self._tests.setdefault((suite, nodeid), len(self.tests))
        if number == len(self.tests):
            self.tests.append((suite, nodeid))
        return number

    def code(self, code: Code) -> int:
        """The number of an outcome; without its ranks, once there are too many."""
        if code not in self._codes and len(self.codes) >= _MOST_CODES - 8:
            code = Code(code.letter)
        number = self._codes.setdefault(code, len(self.codes))
        if number == len(self.codes):
            self.codes.append(code)
        return number

    def tests_of(self) -> Mapping[int, Sequence[int]]:
        """The numbers of the tests of each suite, in order."""
        found: dict[int, list[int]] = {suite: [] for suite in self.suites.values()}
        for number, (suite, _) in enumerate(self.tests):
            found[suite].append(number)
        return found

    def save(self, database: "sqlite3.Connection") -> None:
        """Write the names that were added."""
        write = database.executemany
        write("INSERT OR IGNORE INTO cell VALUES (?, ?)", [(number, name) for name, number in self.cells.items()])
        write("INSERT OR IGNORE INTO suite VALUES (?, ?)", [(number, name) for name, number in self.suites.items()])
        write("INSERT OR IGNORE INTO job VALUES (?, ?, ?)", [(job, *place) for place, job in self.jobs.items()])
        write("INSERT OR IGNORE INTO outcome VALUES (?, ?, ?)", [(at, *code) for at, code in enumerate(self.codes)])
        added = [(at, *self.tests[at]) for at in range(self._stored, len(self.tests))]
        write("INSERT INTO test VALUES (?, ?, ?)", added)
        self._stored = len(self.tests)
