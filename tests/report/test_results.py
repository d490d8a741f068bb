"""Results of ranks: which one counts if a rank has several of a test."""

from array import array
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.report.results import (
    NO_ARRIVAL,
    SEVERITY,
    Arrivals,
    Durations,
    Key,
    RankFile,
    RankResult,
    fold,
    own_failures,
    rank_groups,
    results_of,
)

BEGAN = 1_795_289_453.0
MICROS = st.integers(0, 5_000_000_000).map(lambda number: number / 1e6)


def result(outcome: str, rank: int = 0, **said: Any) -> RankResult:
    return RankResult(nodeid="t::x", classname="t", name="x", rank=rank, outcome=Outcome(outcome), **said)


def file(outcome: str, rank: int = 0) -> RankFile:
    return RankFile(path=Path(), rank=rank, keys=(Key("t", "x"),), details={0: result(outcome, rank)})


def test_every_outcome_has_a_severity():
    assert set(SEVERITY) == set(Outcome)


def test_of_several_results_of_a_rank_the_worst_counts_and_keeps_the_texts_and_the_output_of_all():
    passed = result("passed", text="one", stdout="a", duration=2.0)
    errored = result("errored", message="tear-down broke", text="two", stdout="b", stderr="c", duration=1.0)
    skipped = result("skipped", message="not here", stdout="a")
    for order in permutations([passed, errored, skipped]):
        folded = fold(order)
        assert (folded.outcome, folded.message, folded.duration) == (Outcome.ERRORED, "tear-down broke", 2.0)
        assert (folded.text, folded.stdout, folded.stderr) == ("two\n\nnot here\n\none", "ba", "c")


@pytest.mark.parametrize("place", range(len(SEVERITY) - 1))
def test_an_outcome_counts_before_all_that_are_less_severe(place):
    better, worse = SEVERITY[place], SEVERITY[place + 1]
    assert fold([result(better), result(worse)]).outcome is worse


def test_of_two_results_alike_the_earlier_one_counts():
    late, early, untimed = (result("failed", at=at, message=f"at {at}") for at in (2.0, 1.0, None))
    assert fold([late, untimed, early]).message == "at 1.0"


@pytest.mark.parametrize(
    "change",
    [
        {"gpus_needed": 1},
        {"skip_code": 75},
        {"skip_kind": SkipKind.HARDWARE},
        {"world_size": 4},
        {"caused_by": 1},
        {"phase": "call"},
        {"duration": 2.0},
        {"at": 1.0},
        {"consequence": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_two_results_that_differ_in_one_detail_fold_to_the_same_in_any_order(change):
    one = result("skipped")
    other = replace(one, **change)
    assert fold([one, other]) == fold([other, one])


def test_a_rank_of_which_two_files_report_a_test_has_one_result_the_worse():
    files = [file("passed"), file("failed"), file("passed", 1)]
    found = results_of("t::x", rank_groups(files))
    assert sorted((each.rank, each.outcome.value) for each in found) == [(0, "failed"), (1, "passed")]


@pytest.mark.parametrize(
    ("outcomes", "own"),
    [
        ("failed aborted missing", {0}),
        ("passed aborted missing", {2}),
        ("passed aborted skipped", set()),
    ],
)
def test_a_rank_without_a_result_went_wrong_only_if_no_other_did(outcomes, own):
    assert own_failures(result(outcome, rank) for rank, outcome in enumerate(outcomes.split())) == own


@given(st.lists(MICROS | st.floats(0, 1e9)), st.lists(MICROS, max_size=5), MICROS | st.floats(0, 1e9))
def test_a_column_of_seconds_changes_none_of_them(some, others, last):
    column = Durations.of(some)
    column.extend(others)
    column.resize(len(column) + 1)
    column[len(column) - 1] = last
    assert list(column) == [column[place] for place in range(len(column))] == [*some, *others, last]


@given(st.lists(st.lists(st.just(NO_ARRIVAL) | st.floats(BEGAN, BEGAN + 3.9), max_size=6), max_size=4))
def test_times_of_arrival_on_ranks_in_lockstep_are_exact(ranks):
    first = array("d")
    for arrivals in ranks:
        one, each = Arrivals(first), Arrivals(first)
        one.extend(arrivals)
        each.resize(len(arrivals))
        for place, at in enumerate(arrivals):
            each[place] = at
        assert list(one) == list(each) == arrivals
        assert [one[place] for place in range(len(one))] == arrivals


def test_a_rank_that_comes_hours_later_is_known_to_a_hundredth_of_a_second():
    first = array("d", [BEGAN])
    late = Arrivals(first)
    late.extend([BEGAN + 86_400.123456])
    assert late[0] == pytest.approx(BEGAN + 86_400.123456, abs=0.01, rel=0)
