"""Adds runs to a history, as the statuses that they changed, and deletes the oldest ones.

A status is the letter of a :class:`Status`, however skips are read, and the ranks that went wrong by themselves if not
all of them did: ``F``, ``F3``, ``E0-2, 5``.
"""

import sys
import time
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from allranks.plugins.history.database import HistoryError, Values, rows
from allranks.report.judged import CLASSNAME
from allranks.report.status import Status

if TYPE_CHECKING:
    import sqlite3

KEPT: Final = 500
"""Runs that a history keeps, unless a matrix file has said otherwise."""

MANY: Final = "many"
"""The ranks of a status that are too many to name."""

SINCE: Final = """
SELECT run FROM change WHERE cell = :cell AND test = :test AND status GLOB '[FE]*' AND run <= :run AND run > coalesce((
    SELECT max(run) FROM change WHERE cell = :cell AND test = :test AND status GLOB '[PSf]*' AND run <= :run
), -1) ORDER BY run LIMIT 1
"""
"""The run since which a test has failed, up to a run. Runs without an outcome do not end a row of failures."""

_INSERT: Final = "INSERT OR IGNORE INTO change VALUES (?, ?, ?, ?)"
_STATUSES: Final = "SELECT test, status FROM change WHERE cell = ? AND run < ? ORDER BY test, run"
_ERRORS: Final = f"SELECT number FROM test WHERE suite = :suite AND id GLOB '{CLASSNAME}::*'"  # noqa: S608 - ours
_NEXT_RUN: Final = "SELECT run FROM job WHERE cell = :cell AND suite = :suite AND run > :run ORDER BY run LIMIT 1"
_CARRY: Final = """
INSERT OR IGNORE INTO change SELECT cell, test, :next, status FROM change
WHERE cell = :cell AND run = :run AND test IN (SELECT number FROM test WHERE suite = :suite)
"""
_LATER: Final = "SELECT run FROM change WHERE cell = :cell AND test = :test AND run > :run LIMIT 1"
_DELETE: Final = """
DELETE FROM change WHERE cell = :cell AND test = :test AND run <= :run
AND NOT (:has_outcome AND run IN (:since, :run))
"""


@dataclass(frozen=True)
class RunStatuses:
    """The statuses of a run."""

    # The place of each test in its suite, by suite and node id: from 0, in the order of the mapping.
    tests: dict[str, dict[str, int]] = field(default_factory=dict)
    # The places of tests and their statuses, by cell and suite.
    jobs: dict[str, dict[str, tuple["array[int]", list[str]]]] = field(default_factory=dict)

    def add(self, cell: str, suite: str, nodeids: Iterable[str], statuses: Iterable[str]) -> None:
        """Add a job, or a shard of one."""
        tests = self.tests.setdefault(suite, {})
        places, own = self.jobs.setdefault(cell, {}).setdefault(suite, (array("I"), []))
        places.extend(tests.setdefault(nodeid, len(tests)) for nodeid in nodeids)
        own.extend(map(sys.intern, statuses))


def record(
    database: "sqlite3.Connection", run_id: str, started: float | None, told: RunStatuses, keep: int | None = None
) -> int:
    """Add a run at its place in time, instead of an earlier record of its id, and delete all but the newest runs.

    ``started`` is in seconds since the epoch. ``keep`` says how many runs stay, now and from now on; None for as many
    as were said last, or else :data:`KEPT`. Returns the number of the run; a run older than those that are kept is a
    HistoryError.
    """
    run = int(time.time() if started is None else started)
    for [number] in list(rows(database, "SELECT number FROM run WHERE id = :id", (int,), {"id": run_id})):
        run = number if started is None else run
        _remove(database, number)
    while any(rows(database, "SELECT number FROM run WHERE number = :run", (int,), {"run": run})):
        run += 1
    # Runs before the first one have been deleted, and with them what became of tests in between.
    first = next((number for [number] in rows(database, "SELECT number FROM run ORDER BY number", (int,))), run)
    query = "SELECT run FROM change WHERE run >= :run AND run < :first LIMIT 1"
    is_before_deleted = run < first and any(rows(database, query, (int,), {"run": run, "first": first}))
    database.execute("INSERT INTO run VALUES (?, ?)", (run, run_id))
    query = "SELECT number FROM run ORDER BY number DESC LIMIT 1 OFFSET :newer"
    oldest = next((number for [number] in rows(database, query, (int,), {"newer": _kept(database, keep) - 1})), 0)
    if run < oldest or is_before_deleted:
        msg = "keeps no run that is as old"
        raise HistoryError(msg)
    suites = {suite: _number(database, "suite", suite) for suite in told.tests}
    tests = {suite: _test_numbers(database, suites[suite], nodeids) for suite, nodeids in told.tests.items()}
    for cell_id, jobs in told.jobs.items():
        cell = _number(database, "cell", cell_id)
        before = dict(database.execute(_STATUSES, (cell, run)).fetchall())  # of a test the last
        for suite, (places, statuses) in jobs.items():
            own = [tests[suite][place] for place in places]
            now = dict(zip(own, statuses, strict=True))
            if len(now) < len(own):  # shards may have errors of one name
                now |= {test: status for test, status in zip(own, statuses, strict=True) if Status(status[0]).is_bad}
            # Where a job has no error of its own, that is good; a test that is absent has no outcome.
            errors = {number: Status.PASSED for [number] in rows(database, _ERRORS, (int,), {"suite": suites[suite]})}
            before = errors | before
            now = dict.fromkeys(before.keys() & set(tests[suite]), Status.ABSENT) | errors | now
            changed = [test for test, status in now.items() if status != before.get(test, Status.ABSENT)]
            job: Values = {"cell": cell, "suite": suites[suite], "run": run}
            for [later] in list(rows(database, _NEXT_RUN, (int,), job)):  # its statuses stay what they are
                kept = [(cell, test, later, before.get(test, Status.ABSENT)) for test in changed]
                database.executemany(_INSERT, kept)
            database.executemany(_INSERT, [(cell, test, run, now[test]) for test in changed])
            database.execute("INSERT INTO job VALUES (:cell, :suite, :run)", job)
    if any(rows(database, "SELECT number FROM run WHERE number < :run LIMIT 1", (int,), {"run": oldest})):
        _remove_before(database, oldest)
    return run


def _kept(database: "sqlite3.Connection", said: int | None) -> int:
    """How many runs stay: what is said, which holds from now on, or what was said last."""
    if said is not None:
        database.execute("DELETE FROM kept")
        database.execute("INSERT INTO kept VALUES (?)", (said,))
    return next((runs for [runs] in rows(database, "SELECT runs FROM kept", (int,))), KEPT)


def _number(database: "sqlite3.Connection", table: str, name: str) -> int:
    """The number of a cell or suite, which is added if it is not there."""
    database.execute(f"INSERT OR IGNORE INTO {table} (id) VALUES (?)", (name,))  # noqa: S608 - a name of ours
    [[number]] = rows(database, f"SELECT number FROM {table} WHERE id = :id", (int,), {"id": name})  # noqa: S608
    return int(number)


def _test_numbers(database: "sqlite3.Connection", suite: int, nodeids: Mapping[str, int]) -> list[int]:
    """The numbers of a suite's tests: first of these, in order, then of those that are in the history alone."""
    query = "SELECT id, number FROM test WHERE suite = :suite"
    numbers = dict(rows(database, query, (str, int), {"suite": suite}))
    if added := [(suite, nodeid) for nodeid in nodeids if nodeid not in numbers]:
        database.executemany("INSERT INTO test (suite, id) VALUES (?, ?)", added)
        numbers = dict(rows(database, query, (str, int), {"suite": suite}))
    return [*map(numbers.pop, nodeids), *numbers.values()]


def _remove(database: "sqlite3.Connection", run: int) -> None:
    """Remove a run; the statuses of later runs stay what they are."""
    for cell, suite in list(rows(database, "SELECT cell, suite FROM job WHERE run = :run", (int, int), {"run": run})):
        job: Values = {"cell": cell, "suite": suite, "run": run}
        for [later] in list(rows(database, _NEXT_RUN, (int,), job)):
            database.execute(_CARRY, {**job, "next": later})
    for statement in (
        "DELETE FROM change WHERE run = ?",
        "DELETE FROM job WHERE run = ?",
        "DELETE FROM run WHERE number = ?",
    ):
        database.execute(statement, (run,))


def _remove_before(database: "sqlite3.Connection", oldest: int) -> None:
    """Remove all runs before one; of each test its status in this one stays, and the change since which it fails."""
    values: Values = {"oldest": oldest}
    gone = "SELECT cell, suite FROM job GROUP BY cell, suite HAVING max(run) < :oldest"
    for job in list(rows(database, gone, (int, int), values)):
        of_job = "DELETE FROM change WHERE cell = ? AND test IN (SELECT number FROM test WHERE suite = ?)"
        database.execute(of_job, job)
    replaced = """
    SELECT cell, test, max(run), status FROM change WHERE run <= :oldest
    GROUP BY cell, test HAVING count(*) > 1 OR status = '-'
    """
    for cell, test, run, status in list(rows(database, replaced, (int, int, int, str), values)):
        place: Values = {"cell": cell, "test": test, "run": run}
        since = next((since for [since] in rows(database, SINCE, (int,), place)), run)
        has_outcome = status != Status.ABSENT or any(rows(database, _LATER, (int,), place))  # in a kept run
        database.execute(_DELETE, {**place, "since": since, "has_outcome": has_outcome})
    for statement in (
        "DELETE FROM run WHERE number < :oldest",
        "DELETE FROM job WHERE run < :oldest",
        "DELETE FROM test WHERE number NOT IN (SELECT test FROM change)",
        "DELETE FROM cell WHERE number NOT IN (SELECT cell FROM job)",
        "DELETE FROM suite WHERE number NOT IN (SELECT suite FROM job)",
    ):
        database.execute(statement, values)
