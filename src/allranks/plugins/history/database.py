"""The history as a SQLite file: opens, checks and locks it, and reports any problem in one sentence.

A write is one transaction: a process that is killed in the middle leaves the file unchanged, and others wait.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from allranks.report.untrusted import LAST_MOMENT, other_schema

if TYPE_CHECKING:
    import sqlite3

SCHEMA: Final = 3
"""``user_version`` of the file; files of other versions are not touched."""

APPLICATION: Final = 0x616C6C72
"""``application_id`` of the file, which distinguishes it from other databases."""

LOCK_TIMEOUT: Final = 30.0
"""Seconds to wait for another process that writes."""

# A run's number is the second in which it started, or the next free one: the order is chronological. A row of `change`
# gives the status of a test in a cell from the row's run on; before its first row, a test has no outcome. `job` has the
# suites that each run had in each cell. `kept` has the number of runs to keep, if a matrix file has set it.
_TABLES: Final = """
CREATE TABLE run (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE cell (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE suite (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
CREATE TABLE test (number INTEGER PRIMARY KEY, suite INTEGER NOT NULL, id TEXT NOT NULL, UNIQUE (suite, id));
CREATE TABLE job (
    cell INTEGER NOT NULL, suite INTEGER NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (cell, suite, run)
) WITHOUT ROWID;
CREATE TABLE change (
    cell INTEGER NOT NULL, test INTEGER NOT NULL, run INTEGER NOT NULL, status TEXT NOT NULL,
    PRIMARY KEY (cell, test, run)
) WITHOUT ROWID;
CREATE TABLE kept (runs INTEGER NOT NULL)
"""
_STATEMENTS: Final = tuple(map(str.strip, _TABLES.split(";")))


class HistoryError(Exception):
    """A history cannot be used; the message completes a sentence that begins with the file."""


@contextmanager
def written(path: Path, timeout: float = LOCK_TIMEOUT) -> Iterator["sqlite3.Connection"]:
    """A write transaction; the file is created if necessary.

    Raises:
        HistoryError: The file is not a history of this version, is damaged, or cannot be written.
    """
    with _connected(path, "rwc", timeout) as database:
        database.execute("BEGIN IMMEDIATE")
        if not _is_ours(database):
            for statement in _STATEMENTS:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION}")
            database.execute(f"PRAGMA user_version = {SCHEMA}")
        yield database
        database.execute("COMMIT")


@contextmanager
def read(path: Path, timeout: float = LOCK_TIMEOUT) -> Iterator["sqlite3.Connection"]:
    """A read transaction.

    Raises:
        HistoryError: The file is missing, damaged, unreadable, or not a history of this version.
    """
    if not os.path.lexists(path):
        msg = "does not exist"
        raise HistoryError(msg)
    # Writable if possible: to read, SQLite first rolls back the journal of a killed writer.
    with _connected(path, "rw" if os.access(path, os.W_OK) else "ro", timeout) as database:
        database.execute("BEGIN")
        if not _is_ours(database):
            msg = "has no run yet"
            raise HistoryError(msg)
        yield database


Values = Mapping[str, int | str]


def rows(
    database: "sqlite3.Connection", query: str, kinds: tuple[type, ...], values: Values | None = None
) -> Iterator[tuple[Any, ...]]:
    """The rows that a query finds. If the first column is a number, it is in the range of ``datetime``.

    Raises:
        HistoryError: A value does not have its column's type, which SQLite does not enforce.
    """
    for row in database.execute(query, values or {}):
        if tuple(map(type, row)) != kinds or (kinds[0] is int and not 0 <= row[0] <= LAST_MOMENT):
            msg = f"is damaged (it has the values {row!r:.60})"
            raise HistoryError(msg)
        yield row


@contextmanager
def _connected(path: Path, mode: str, timeout: float) -> Iterator["sqlite3.Connection"]:
    try:
        import sqlite3  # noqa: PLC0415 - a Python that was built without it must still be able to merge
    except ImportError as error:
        msg = f"needs the module sqlite3, which this Python does not have ({error})"
        raise HistoryError(msg) from error
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            msg = "is not a regular file"
            raise HistoryError(msg)
        address = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=timeout, isolation_level=None)) as database:
            yield database
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):  # a bug in this plug-in, not a problem of the file
        raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":  # invalid SQL is a bug as well
            raise
        raise HistoryError(_problem(error, timeout)) from error
    except UnicodeDecodeError as error:  # in a message of SQLite
        msg = "is damaged (it has bytes that are not text)"
        raise HistoryError(msg) from error
    except OSError as error:
        msg = f"cannot be read ({error.strerror or error})"
        raise HistoryError(msg) from error


def _is_ours(database: "sqlite3.Connection") -> bool:
    """False if the file is still empty.

    Raises:
        HistoryError: Another program or version wrote it, or its tables are damaged.
    """
    [application], [schema] = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    tables = [sql for [sql] in database.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]
    if not (application or schema or tables):
        return False
    if application != APPLICATION:
        msg = "is a database of another program"
    elif schema != SCHEMA:
        msg = f"is {other_schema(schema, SCHEMA)}"
    elif set(tables) != set(_STATEMENTS):
        msg = "is damaged (its tables are not those of a history)"  # a view could have endless rows
    else:
        return True
    raise HistoryError(msg)


def _problem(error: "sqlite3.Error", timeout: float) -> str:
    name = getattr(error, "sqlite_errorname", "")  # SQLITE_BUSY_SNAPSHOT is one kind of SQLITE_BUSY
    match "_".join(name.split("_")[:2]):
        case "SQLITE_BUSY" | "SQLITE_LOCKED":
            return f"has been locked by another process for {timeout:g} s"
        case "SQLITE_NOTADB":
            return "is not a history"
        case "SQLITE_CORRUPT" | "SQLITE_MISMATCH" | "SQLITE_CONSTRAINT":
            return f"is damaged ({error})"
        case _:
            return f"cannot be used ({error})"
