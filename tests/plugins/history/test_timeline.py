"""A history of runs against a plain list of all outcomes."""

import sqlite3
from array import array
from contextlib import closing, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.plugins.history import timeline
from allranks.plugins.history.database import ABSENT, Code, HistoryError, begin
from allranks.plugins.history.timeline import Timeline

LETTERS = ("P", "F", "S", "f", "E")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts, blocks and the time for late runs are small, so that few runs fill them."""
    monkeypatch.setattr(timeline, "PART", 3)
    monkeypatch.setattr(timeline, "BLOCK", 4)
    monkeypatch.setattr(timeline, "LATE", 2)


def add(database, run_id, started, outcomes, **limits):
    """Record outcomes: cell → suite → test → letter, or letter and ranks."""
    line = Timeline(database)
    told = {}
    for cell, suites in outcomes.items():
        for suite, tests in suites.items():
            place = line.names.cell(cell), line.names.suite(suite)
            numbers = array("I", [line.names.test(place[1], test) for test in tests])
            told[place] = [(numbers, array("H", [line.names.code(Code(*each)) for each in tests.values()]))]
    line.fit()
    later = line.rewind(run_id, started)
    line.append(run_id, started, told)
    line.replay(later)
    line.save(**limits)


@contextmanager
def empty():
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        begin(database)
        yield database


def history_of(database):
    """The ids of the runs, and by cell, suite and test its outcome in each; None where its job did not run."""
    line, found = Timeline(database), {}
    suites = {number: name for name, number in line.names.suites.items()}
    for cell, cell_number in line.names.cells.items():
        for number, (suite, test) in enumerate(line.names.tests):
            place = number * line.width + cell_number
            codes = outcomes_at(line, place, line.names.jobs.get((cell_number, suite)))
            if set(codes) - {None, Code("-")}:
                found[cell, suites[suite], test] = codes
    return [run.id for run in line.runs], found


def outcomes_at(line, place, job):
    code, codes = line.now[place], []
    changes = line.changes_at([place], 1).get(place, [])
    for run in reversed(line.runs):
        has_run = job is not None and run.jobs >> job & 1
        codes.append(line.names.codes[code] if has_run else None)
        if changes and changes[0].run == run.number:
            code = changes.pop(0).before
    assert not changes
    assert code == ABSENT
    return codes[::-1]


def expected(runs):
    """The same from plain data: run id → (started, outcomes)."""
    ordered = sorted(runs.items(), key=lambda run: run[1][0])
    keys = {(c, s, t) for _, (_, told) in ordered for c, of in told.items() for s, tests in of.items() for t in tests}
    return [name for name, _ in ordered], {
        key: [
            None if key[1] not in told.get(key[0], {}) else Code(*told[key[0]][key[1]].get(key[2], "-"))
            for _, (_, told) in ordered
        ]
        for key in keys
    }


CODES = st.sampled_from([*LETTERS, ("F", "3"), ("E", "0-1")])
TESTS = st.dictionaries(st.sampled_from("abcdefgh"), CODES, min_size=1)
OUTCOMES = st.dictionaries(
    st.sampled_from(["w2", "w4", "w8"]), st.dictionaries(st.sampled_from(["s", "t"]), TESTS, min_size=1), min_size=1
)


@settings(max_examples=60)
@given(runs=st.lists(OUTCOMES, min_size=1, max_size=24))
def test_every_outcome_of_every_run_can_be_read_back(runs):
    told = {f"r{number}": (float(number), outcomes) for number, outcomes in enumerate(runs)}
    with empty() as database:
        for name, (started, outcomes) in told.items():
            add(database, name, started, outcomes)
        assert history_of(database) == expected(told)


@settings(max_examples=60)
@given(
    runs=st.lists(OUTCOMES, min_size=1, max_size=5),
    again=st.lists(st.tuples(st.integers(0, 4), OUTCOMES), max_size=3),
    dice=st.randoms(use_true_random=False),
)
def test_the_order_of_merges_makes_no_difference_and_the_last_of_a_run_counts(runs, again, dice):
    told = {f"r{number}": (float(number), outcomes) for number, outcomes in enumerate(runs)}
    order = list(told)
    dice.shuffle(order)
    with empty() as database:
        for name in order:
            add(database, name, *told[name])
        for number, outcomes in again:
            name = f"r{number % len(runs)}"
            told[name] = (told[name][0], outcomes)
            add(database, name, *told[name])
        assert history_of(database) == expected(told)


@settings(max_examples=60)
@given(st.lists(st.sampled_from("PPFFE-"), min_size=1, max_size=24))
def test_a_bad_test_has_been_bad_since_the_run_after_its_last_good_one(letters):
    since = 0
    with empty() as database:
        for number, letter in enumerate(letters, 1):
            tests = {"b": "P", "a": letter} if letter != "-" else {"b": "P"}
            add(database, f"r{number}", number, {"w2": {"s": tests}})
            since = (since or number) if letter in "FE" else 0 if letter == "P" else since
        line = Timeline(database)
        if letters[-1] in "FE":
            place = line.names.test(0, "a") * line.width
            assert line.bad_since([place]) == {place: since}


def test_a_run_from_before_the_packed_ones_is_refused():
    with empty() as database:
        for number in range(10):
            add(database, f"r{number}", number, {"w2": {"s": {"a": "PF"[number % 2]}}})
        for name, started in (("early", 0.5), ("r1", 1)):
            database.execute("BEGIN")
            with pytest.raises(HistoryError, match="4 and more runs after this one"):
                add(database, name, started, {"w2": {"s": {"a": "E"}}})
            database.execute("ROLLBACK")
        add(database, "r9", 9, {"w2": {"s": {"a": "E"}}})
        assert [code.letter for code in history_of(database)[1]["w2", "s", "a"]] == list("PFPFPFPFPE")


def test_the_oldest_runs_of_a_file_that_is_too_large_are_dropped():
    with empty() as database:
        for number in range(40):
            tests = {str(test): "PF"[(number + test) % 2] for test in range(8)}
            add(database, f"r{number}", number, {"w2": {"s": tests}}, largest=1 if number == 39 else 10**9)
        line = Timeline(database)
        assert line.begins > 30
        assert len(line.runs) == 40
        kept = line.changes_at([0], line.begins)[0]
        assert [change.run for change in kept] == list(range(40, line.begins - 1, -1))
        odd = [place for place in range(8) if line.names.codes[line.now[place]].is_bad]
        assert set(line.bad_since(odd).values()) == {40}


def test_outcomes_that_do_not_fit_the_names_are_an_error():
    with empty() as database:
        add(database, "r1", 1, {"w2": {"s": {"a": "P"}}})
        database.execute("INSERT INTO cell VALUES (1, 'w4')")
        with pytest.raises(ValueError, match="1 columns for 2 cells"):
            Timeline(database)
