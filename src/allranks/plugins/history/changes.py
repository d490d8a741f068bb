"""Adds runs to a history, as the statuses that they changed, and deletes the oldest runs.

A status is the letter of a :class:`Status`, independent of the policy for skips. The ranks with primary failures follow
unless these are all ranks: ``F``, ``F3``, ``E0-2, 5``.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from allranks.plugins.history.database import HistoryError, Values, rows
from allranks.report.judged import CLASSNAME
from allranks.report.status import Status

if TYPE_CHECKING:
    import sqlite3

KEPT: Final = 500
"""The number of runs that a history keeps, unless a matrix file sets another."""

MANY: Final = "many"
"""Stands for the ranks of a status if there are too many to name."""

SINCE: Final = """
SELECT run FROM change WHERE cell = :cell AND test = :test AND status GLOB '[FE]*' AND run <= :run AND run > coalesce((
    SELECT max(run) FROM change WHERE cell = :cell AND test = :test AND status GLOB '[PSf]*' AND run <= :run
), -1) ORDER BY run LIMIT 1
"""
"""The run since which a test has failed, up to a given run. Runs without an outcome do not end a series of failures."""

_INSERT: Final = "INSERT OR IGNORE INTO change VALUES (?, ?, ?, ?)"
_STATUSES: Final = """
SELECT test, status FROM change WHERE cell = :cell AND run < :run
AND test IN (SELECT number FROM test WHERE suite = :suite) ORDER BY test, run
"""
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
class StatusesByJob:
    """The statuses of a run's tests: their node ids and statuses, by suite and cell."""

    jobs: dict[str, dict[str, tuple[list[str], list[str]]]] = field(default_factory=dict)

    def add(self, cell: str, suite: str, nodeids: Iterable[str], statuses: Iterable[str]) -> None:
        """Add a job, or a shard of one."""
        own_nodeids, own_statuses = self.jobs.setdefault(suite, {}).setdefault(cell, ([], []))
        own_nodeids.extend(map(sys.intern, nodeids))  # all cells have the same node ids
        own_statuses.extend(map(sys.intern, statuses))


def record(
    database: "sqlite3.Connection",
    run_id: str,
    started: float | None,
    statuses_by_job: StatusesByJob,
    keep: int | None = None,
) -> int:
    """Add a run in chronological order, replacing an earlier record of its id, and delete all but the newest runs.

    Args:
        database: The history.
        run_id: The id of the run.
        started: When it started, in seconds since the epoch.
        statuses_by_job: The statuses of its tests.
        keep: The number of runs to keep, now and from now on. None for the number that was set last, or :data:`KEPT`.

    Returns:
        The number of the run.

    Raises:
        HistoryError: The run is older than those that are kept.
    """
    run = int(time.time() if started is None else started)
    for [number] in list(rows(database, "SELECT number FROM run WHERE id = :id", (int,), {"id": run_id})):
        run = number if started is None else run
        _remove(database, number)
    while _first(database, "SELECT number FROM run WHERE number = :run", {"run": run}) is not None:
        run += 1
    # Runs before the first one have been deleted, so the statuses of tests at that time are unknown.
    ends: Values = {"run": run, "first": _first(database, "SELECT number FROM run ORDER BY number LIMIT 1", {}) or run}
    was_deleted = _first(database, "SELECT run FROM change WHERE run >= :run AND run < :first LIMIT 1", ends)
    database.execute("INSERT INTO run VALUES (?, ?)", (run, run_id))
    query = "SELECT number FROM run ORDER BY number DESC LIMIT 1 OFFSET :newer"
    oldest = _first(database, query, {"newer": _kept(database, keep) - 1}) or 0
    if run < oldest or was_deleted is not None:
        msg = "does not keep runs as old as this one"
        raise HistoryError(msg)
    for suite_id, jobs in statuses_by_job.jobs.items():
        suite = _number(database, "suite", suite_id)
        tests = _test_numbers(database, suite, dict.fromkeys(chain.from_iterable(own for own, _ in jobs.values())))
        for cell, (nodeids, statuses) in jobs.items():
            job = {"cell": _number(database, "cell", cell), "suite": suite, "run": run}
            _record_job(
                database, job, [(tests[nodeid], status) for nodeid, status in zip(nodeids, statuses, strict=True)]
            )
    if _first(database, "SELECT number FROM run WHERE number < :run LIMIT 1", {"run": oldest}) is not None:
        _remove_before(database, oldest)
    return run


def _record_job(database: "sqlite3.Connection", job: Mapping[str, int], statuses: Sequence[tuple[int, str]]) -> None:
    """Record the changed statuses of a job; tests are given by their numbers."""
    # Several shards may have an error of the same name.
    now = dict(statuses) | {test: status for test, status in statuses if Status(status[0]).is_bad}
    # If a job error is absent, the job has passed; a test that is absent has no outcome.
    errors = {number: Status.PASSED for [number] in rows(database, _ERRORS, (int,), {"suite": job["suite"]})}
    before = errors | dict(rows(database, _STATUSES, (int, str), job))  # the last status of each test
    now = dict.fromkeys(before, Status.ABSENT) | errors | now
    changed = [test for test, status in now.items() if status != before.get(test, Status.ABSENT)]
    cell, run, later = job["cell"], job["run"], _first(database, _NEXT_RUN, job)
    if later is not None:  # keep the statuses of the later run
        database.executemany(_INSERT, [(cell, test, later, before.get(test, Status.ABSENT)) for test in changed])
    database.executemany(_INSERT, [(cell, test, run, now[test]) for test in changed])
    database.execute("INSERT INTO job VALUES (:cell, :suite, :run)", job)


def _first(database: "sqlite3.Connection", query: str, values: Values) -> int | None:
    """The number in the first row that a query finds."""
    return next((number for [number] in list(rows(database, query, (int,), values))), None)


def _kept(database: "sqlite3.Connection", keep: int | None) -> int:
    """Store the number of runs to keep, if it is given, and return the stored number."""
    if keep is not None:
        database.execute("DELETE FROM kept")
        database.execute("INSERT INTO kept VALUES (?)", (keep,))
    return _first(database, "SELECT runs FROM kept", {}) or KEPT


def _number(database: "sqlite3.Connection", table: str, name: str) -> int:
    """The number of a cell or suite, which is added if it is missing."""
    database.execute(f"INSERT OR IGNORE INTO {table} (id) VALUES (?)", (name,))  # noqa: S608 - a constant
    [[number]] = rows(database, f"SELECT number FROM {table} WHERE id = :id", (int,), {"id": name})  # noqa: S608
    return int(number)


def _test_numbers(database: "sqlite3.Connection", suite: int, nodeids: Iterable[str]) -> Mapping[str, int]:
    """The numbers of a suite's tests, which are added if they are missing."""
    added = [(suite, nodeid) for nodeid in nodeids]
    database.executemany("INSERT OR IGNORE INTO test (suite, id) VALUES (?, ?)", added)
    return dict(rows(database, "SELECT id, number FROM test WHERE suite = :suite", (str, int), {"suite": suite}))


def _remove(database: "sqlite3.Connection", run: int) -> None:
    """Remove a run; the statuses of later runs stay the same."""
    for cell, suite in list(rows(database, "SELECT cell, suite FROM job WHERE run = :run", (int, int), {"run": run})):
        job: Values = {"cell": cell, "suite": suite, "run": run}
        later = _first(database, _NEXT_RUN, job)
        if later is not None:
            database.execute(_CARRY, {**job, "next": later})
    for statement in (
        "DELETE FROM change WHERE run = ?",
        "DELETE FROM job WHERE run = ?",
        "DELETE FROM run WHERE number = ?",
    ):
        database.execute(statement, (run,))


def _remove_before(database: "sqlite3.Connection", oldest: int) -> None:
    """Remove the runs before `oldest`, but keep the status of each test in that run, and since when it has failed."""
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
        change: Values = {"cell": cell, "test": test, "run": run}
        since = _first(database, SINCE, change)
        has_outcome = status != Status.ABSENT or _first(database, _LATER, change) is not None  # in a kept run
        database.execute(_DELETE, {**change, "since": run if since is None else since, "has_outcome": has_outcome})
    for statement in (
        "DELETE FROM run WHERE number < :oldest",
        "DELETE FROM job WHERE run < :oldest",
        "DELETE FROM test WHERE number NOT IN (SELECT test FROM change)",
        "DELETE FROM cell WHERE number NOT IN (SELECT cell FROM job)",
        "DELETE FROM suite WHERE number NOT IN (SELECT suite FROM job)",
    ):
        database.execute(statement, values)
