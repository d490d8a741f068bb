"""Runs that are recorded and deleted, against a plain list of all statuses."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.plugins.history.changes import StatusesByJob, record
from allranks.plugins.history.database import HistoryError, written
from allranks.plugins.history.trends import History, Trend


@contextmanager
def empty() -> Iterator[sqlite3.Connection]:
    with TemporaryDirectory() as folder, written(Path(folder, "h.sqlite")) as database:
        yield database


def add(database, run_id, started, outcomes, keep=500):
    """Record statuses: cell → suite → test → status."""
    statuses = StatusesByJob()
    for cell, suites in outcomes.items():
        for suite, tests in suites.items():
            statuses.add(cell, suite, tests, tests.values())
    record(database, run_id, started, statuses, keep)


def history_of(database):
    """The ids of the runs, and by cell, suite and test its status in each; None where its job did not run."""
    history, found = History(database), {}
    for [test] in database.execute("SELECT DISTINCT id FROM test"):
        for line in history.lookup(test, 0)[1]:
            statuses = [status and "".join(status) for status in line.statuses]
            found[line.test.cell_id, line.test.suite_name, test] = statuses
    return [run.id for run in history.runs], found


def expected(recorded, keep=500):
    """The same from plain data: run id → (started, outcomes)."""
    runs = sorted(recorded.items(), key=lambda run: run[1][0])[-keep:]
    keys = {
        (c, s, t) for _, (_, jobs) in runs for c, suites in jobs.items() for s, tests in suites.items() for t in tests
    }
    statuses = {
        key: [
            None if key[1] not in jobs.get(key[0], {}) else jobs[key[0]][key[1]].get(key[2], "-")
            for _, (_, jobs) in runs
        ]
        for key in keys
    }
    return [name for name, _ in runs], {key: own for key, own in statuses.items() if {*own} - {None, "-"}}


def rows_of(database, table):
    return database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608


STATUSES = st.sampled_from(["P", "F", "S", "f", "E", "-", "F3", "E0-1"])
TESTS = st.dictionaries(st.sampled_from("abcdefgh"), STATUSES, min_size=1)
OUTCOMES = st.dictionaries(
    st.sampled_from(["w2", "w4", "w8"]), st.dictionaries(st.sampled_from(["s", "t"]), TESTS, min_size=1), min_size=1
)


@given(runs=st.lists(OUTCOMES, min_size=1, max_size=16), keep=st.integers(2, 16))
def test_every_status_of_the_newest_runs_can_be_read_back(runs, keep):
    recorded = {f"r{number}": (float(number), outcomes) for number, outcomes in enumerate(runs)}
    with empty() as database:
        for name, (started, outcomes) in recorded.items():
            add(database, name, started, outcomes, keep)
        assert history_of(database) == expected(recorded, keep)


@given(
    runs=st.lists(OUTCOMES, min_size=1, max_size=5),
    repeated=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), OUTCOMES), max_size=3),
    dice=st.randoms(use_true_random=False),
)
def test_the_order_of_merges_makes_no_difference_and_the_last_of_a_run_counts(runs, repeated, dice):
    recorded = {f"r{number}": (number * 10, outcomes) for number, outcomes in enumerate(runs)}
    order = list(recorded)
    dice.shuffle(order)
    with empty() as database:
        for name in order:
            add(database, name, *recorded[name])
        for number, moment, outcomes in repeated:
            name = f"r{number % len(runs)}"
            recorded[name] = (moment * 10 + number + 1, outcomes)
            add(database, name, *recorded[name])
        assert history_of(database) == expected(recorded)


def test_only_a_status_that_is_another_than_before_has_a_row():
    with empty() as database:
        for number, letters in enumerate(("PP", "PP", "PF", "PF")):
            add(database, f"r{number}", number, {"w2": {"s": dict(zip("ab", letters, strict=True))}})
        assert database.execute("SELECT run, status FROM change").fetchall() == [(0, "P"), (0, "P"), (2, "F")]


def test_a_status_outlives_the_run_that_set_it():
    with empty() as database:
        add(database, "r0", 0, {"w2": {"s": {"a": "P", "b": "F"}}})
        for number in (1, 2, 3):
            add(database, f"r{number}", number, {"w2": {"s": {"a": "P", "b": "F"}}}, keep=2)
        assert history_of(database) == (["r2", "r3"], {("w2", "s", "a"): ["P", "P"], ("w2", "s", "b"): ["F", "F"]})


@pytest.mark.parametrize("statuses", [["F", "F", "F", "F"], ["F", "E", "E", "E"], ["F3", "F4", "F", "F"]])
def test_since_when_a_test_fails_outlives_the_runs_and_costs_two_rows_at_most(statuses):
    with empty() as database:
        for number, status in enumerate(statuses, 1):
            add(database, f"r{number}", 86400 * number, {"w2": {"s": {"a": status, "b": "P"}}}, keep=2)
        [past] = History(database).newest(Path()).tests
        assert (past.trend, past.text) == (Trend.FAILING, "failing since 1970-01-02")
        rows = database.execute("SELECT run FROM change JOIN test ON test = number WHERE id = 'a'").fetchall()
        assert rows[0] == (86400,)
        assert len(rows) <= 2


def test_a_row_of_failures_outlives_a_run_without_the_test_when_both_are_deleted():
    days = []
    with empty() as database:
        for number, letter in enumerate("PFF-FFFFF--F", 1):
            add(database, f"r{number}", 86400 * number, {"w2": {"s": {"a": letter, "b": "P"}}}, keep=5)
            days += [entry.since.day for entry in History(database).newest(Path()).tests if entry.since]
    assert days == ["1970-01-03"] * 7


def test_a_test_without_an_outcome_in_the_kept_runs_is_forgotten():
    with empty() as database:
        for number, letter in enumerate("FF--", 1):
            add(database, f"r{number}", number, {"w2": {"s": {"a": letter, "b": "P"}}}, keep=2)
        assert [name for _, _, name in rows_of(database, "test")] == ["b"]


def test_what_no_kept_run_has_is_deleted_whole():
    with empty() as database:
        add(database, "r1", 1, {"w2": {"s": {"a": "P", "gone": "P"}, "t": {"c": "F"}}, "w4": {"u": {"d": "P"}}})
        for number in (2, 3, 4):
            add(database, f"r{number}", number, {"w2": {"s": {"a": "P"}}}, keep=2)
        names = {table: [row[-1] for row in rows_of(database, table)] for table in ("cell", "suite", "test")}
        assert names == {"cell": ["w2"], "suite": ["s"], "test": ["a"]}
        assert len(rows_of(database, "change")) == 1
        assert [run for _, _, run in rows_of(database, "job")] == [3, 4]


def test_the_number_of_rows_does_not_grow_with_the_number_of_runs():
    with empty() as database:
        sizes = []
        for number in range(40):
            tests = {str(test): ("P", "F", "F3")[(number + test) % 3] for test in range(8)} | {f"only-{number}": "F"}
            add(database, f"r{number}", number, {"w2": {"s": tests}}, keep=5)
            sizes.append(sum(len(rows_of(database, table)) for table in ("run", "job", "test", "change")))
        assert set(sizes[10:25]) == set(sizes[25:])


@pytest.mark.parametrize(
    ("name", "started", "keep"),
    [("late", 5, 4), ("late", 15, 4), ("r60", 5, 4), ("late", 5, 100), ("late", 10, 100)],
)
def test_a_run_that_is_as_old_as_deleted_ones_is_refused(name, started, keep):
    with empty() as database:
        for number in range(10, 70, 10):
            add(database, f"r{number}", number, {"w2": {"s": {"a": "P"}}}, keep=4)
        with pytest.raises(HistoryError, match="does not keep runs as old as this one"):
            add(database, name, started, {"w2": {"s": {"a": "E"}}}, keep)


def test_a_run_that_is_newer_than_deleted_ones_may_be_the_oldest_that_is_kept():
    with empty() as database:
        for number in range(10, 70, 10):
            add(database, f"r{number}", number, {"w2": {"s": {"a": "P", "b": "F"}}}, keep=4)
        add(database, "r60", 25, {"w2": {"s": {"a": "E", "b": "F"}}}, keep=4)
        assert history_of(database) == (
            ["r60", "r30", "r40", "r50"],
            {("w2", "s", "a"): ["E", "P", "P", "P"], ("w2", "s", "b"): ["F", "F", "F", "F"]},
        )


def test_runs_of_one_second_stay_apart():
    with empty() as database:
        for name, letter in (("r1", "P"), ("r2", "F"), ("r3", "S")):
            add(database, name, 7.5, {"w2": {"s": {"a": letter}}})
        assert history_of(database) == (["r1", "r2", "r3"], {("w2", "s", "a"): ["P", "F", "S"]})


def test_a_run_without_a_start_keeps_its_place_when_it_is_recorded_again():
    with empty() as database:
        add(database, "r1", None, {"w2": {"s": {"a": "P"}}})
        [(number, _)] = rows_of(database, "run")
        database.execute("UPDATE run SET number = number - 100")
        database.execute("UPDATE job SET run = run - 100")
        database.execute("UPDATE change SET run = run - 100")
        add(database, "r1", None, {"w2": {"s": {"a": "F"}}})
        assert rows_of(database, "run") == [(number - 100, "r1")]


def test_where_a_job_has_no_error_of_its_own_it_is_good():
    with empty() as database:
        for number, letter in ((1, "E"), (2, ""), (4, ""), (5, "E"), (3, "E")):  # the last one is merged late
            add(
                database,
                f"r{number}",
                number,
                {"w2": {"s": {"b": "P"} | ({"allranks::job": letter} if letter else {})}},
            )
        assert history_of(database)[1]["w2", "s", "allranks::job"] == ["E", "P", "E", "P", "E"]


def test_an_error_of_a_job_that_came_first_now_is_good_in_later_runs():
    with empty() as database:
        for number, letter in ((1, ""), (3, ""), (2, "E")):
            add(
                database,
                f"r{number}",
                number,
                {"w2": {"s": {"b": "P"} | ({"allranks::job": letter} if letter else {})}},
            )
        assert history_of(database)[1]["w2", "s", "allranks::job"] == ["-", "E", "P"]


def test_of_shards_with_an_error_of_one_name_the_bad_one_counts():
    with empty() as database:
        statuses = StatusesByJob()
        for status in ("P", "E", "P"):
            statuses.add("w2", "s", ["a"], [status])
        record(database, "r1", 1.0, statuses, 500)
        assert history_of(database)[1] == {("w2", "s", "a"): ["E"]}


@given(st.lists(st.sampled_from("PSFFE-"), min_size=1, max_size=24), st.integers(2, 24))
def test_a_bad_test_has_been_bad_since_the_run_after_its_last_good_one(letters, keep):
    since = None
    with empty() as database:
        for number, letter in enumerate(letters, 1):
            tests = {"b": "P"} | ({"a": letter} if letter != "-" else {})
            add(database, f"r{number}", number, {"w2": {"s": tests}}, keep)
            since = (since or number) if letter in "FE" else since if letter == "-" else None
            since = since if {*letters[max(0, number - keep) : number]} - {"-"} else None  # without outcome: forgotten
        found = [past for past in History(database).newest(Path()).tests if past.trend is Trend.FAILING]
        fails_for_longer = letters[-1] in "FE" and since < len(letters)
        assert [past.since.started for past in found] == ([since] if fails_for_longer else [])
