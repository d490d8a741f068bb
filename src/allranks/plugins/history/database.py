"""The history as a SQLite file: opened, recognized, locked, and refused in one sentence.

A write is one transaction: a process that is killed in its middle leaves the file as it was, and a second one waits.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from allranks.report.untrusted import other_schema

if TYPE_CHECKING:
    import sqlite3


SCHEMA: Final = 1
"""``user_version`` of the file; a file of another one is not touched."""

APPLICATION: Final = 0x616C6C72
"""``application_id`` of the file, by which it is told from other databases."""

PATIENCE: Final = 30.0
"""Seconds to wait for another process that writes: a merge writes for less than two."""

_TABLES: Final = """
CREATE TABLE run (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, started REAL NOT NULL, jobs BLOB NOT NULL);
CREATE TABLE cell (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE suite (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE job (number INTEGER PRIMARY KEY, cell INTEGER NOT NULL, suite INTEGER NOT NULL);
CREATE TABLE test (number INTEGER PRIMARY KEY, suite INTEGER NOT NULL, nodeid TEXT NOT NULL);
CREATE TABLE outcome (number INTEGER PRIMARY KEY, letter TEXT NOT NULL, ranks TEXT NOT NULL);
CREATE TABLE state (
    part INTEGER PRIMARY KEY, width INTEGER NOT NULL, packed INTEGER NOT NULL, codes BLOB NOT NULL, since BLOB NOT NULL
);
CREATE TABLE delta (
    part INTEGER NOT NULL, first INTEGER NOT NULL, runs INTEGER NOT NULL, width INTEGER NOT NULL, changes BLOB NOT NULL,
    PRIMARY KEY (part, first)
);
CREATE TABLE begins (run INTEGER NOT NULL)
"""
_STATEMENTS: Final = frozenset(map(str.strip, _TABLES.split(";")))


class HistoryError(Exception):
    """A history cannot be used; the message ends a sentence that begins with the file."""


@contextmanager
def written(path: Path, patience: float = PATIENCE) -> Iterator["sqlite3.Connection"]:
    """A transaction that writes: all of it, or nothing. The file is made if there is none.

    Raises:
        HistoryError: It is no history of this version, is damaged, or cannot be written.
    """
    with _connected(path, "rwc", patience) as database:
        database.execute("BEGIN IMMEDIATE")
        if not _is_ours(database):
            begin(database)
        yield database
        database.execute("COMMIT")


def begin(database: "sqlite3.Connection") -> None:
    """Make the tables of an empty history."""
    for statement in _STATEMENTS:
        database.execute(statement)
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {SCHEMA}")


@contextmanager
def read(path: Path, patience: float = PATIENCE) -> Iterator["sqlite3.Connection"]:
    """A view of the file that no other process changes.

    Raises:
        HistoryError: There is none, or it is no history of this version, or damaged.
    """
    if not path.exists():
        msg = "does not exist"
        raise HistoryError(msg)
    # Writable where the file is: the journal of a process that was killed is rolled back by whoever comes next.
    with _connected(path, "rw" if os.access(path, os.W_OK) else "ro", patience) as database:
        database.execute("BEGIN")
        if not _is_ours(database):
            msg = "has no run yet"
            raise HistoryError(msg)
        yield database


def rows(database: "sqlite3.Connection", query: str, *kinds: type) -> Iterator[tuple[Any, ...]]:
    """The rows that a query finds; SQLite would take any value in any column.

    Raises:
        ValueError: A value is not of its column's kind.
    """
    for row in database.execute(query):
        if tuple(map(type, row)) != kinds:
            msg = f"{query} finds {row!r:.60}"
            raise ValueError(msg)
        yield row


@contextmanager
def _connected(path: Path, mode: str, patience: float) -> Iterator["sqlite3.Connection"]:
    try:
        import sqlite3  # noqa: PLC0415 - a Python may have been built without it, and has to merge all the same
    except ImportError as error:
        msg = f"needs the module sqlite3, which this Python does not have ({error})"
        raise HistoryError(msg) from error
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            msg = "is not a regular file"
            raise HistoryError(msg)
        address = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=patience, isolation_level=None)) as database:
            yield database
    except sqlite3.Error as error:
        raise HistoryError(_said(error, patience)) from error
    except OSError as error:
        msg = f"cannot be read ({error.strerror or error})"
        raise HistoryError(msg) from error
    except (ValueError, LookupError, TypeError, OverflowError) as error:  # what the file holds is not what we wrote
        msg = f"is damaged ({type(error).__name__}: {error})"
        raise HistoryError(msg) from error


def _is_ours(database: "sqlite3.Connection") -> bool:
    """False if the file has nothing in it yet.

    Raises:
        HistoryError: Another program wrote it, or it is of another schema.
    """
    [application], [schema], [tables] = (
        database.execute(query).fetchone()
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if not (application or schema or tables):
        return False
    if application != APPLICATION:
        msg = "is a database of another program"
        raise HistoryError(msg)
    if schema != SCHEMA:
        msg = f"is {other_schema(schema, SCHEMA)}"
        raise HistoryError(msg)
    if {sql for [sql] in database.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")} != _STATEMENTS:
        msg = "is damaged (its tables are not those of a history)"  # a view could be without end
        raise HistoryError(msg)
    return True


def _said(error: "sqlite3.Error", patience: float) -> str:
    name = getattr(error, "sqlite_errorname", "")  # SQLITE_BUSY_SNAPSHOT is one kind of SQLITE_BUSY
    match "_".join(name.split("_")[:2]):
        case "SQLITE_BUSY" | "SQLITE_LOCKED":
            return f"has been locked by another process for {patience:g} s"
        case "SQLITE_NOTADB":
            return "is not a history"
        case "SQLITE_CORRUPT" | "SQLITE_ERROR" | "SQLITE_MISMATCH" | "SQLITE_CONSTRAINT":
            return f"is damaged ({error})"
        case _:
            return f"cannot be used ({error})"


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
