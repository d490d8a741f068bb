import time
from dataclasses import replace

import pytest
from scripted_engine import failed

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Collected, Passed, Repeated, TestStarted
from allranks.protocol.repetitions import RepetitionTally
from allranks.runner.progress import Board, Pace, rate_so_far


def ended(nodeid, outcome, rank=0):
    if outcome == "passed":
        return Passed(nodeid=nodeid, ranks=(rank,), arrived=(1.0,), seconds=(1.0,), world_size=3)
    return failed(nodeid, rank, outcome=Outcome(outcome), world_size=3)


@pytest.fixture
def board():
    return Board(["a", "b", "c", "d", "e"])


def row(board, job_id):
    return next(row for row in board.picture(99).rows if row.job_id == job_id)


def test_a_test_counts_once_by_the_worst_of_its_ranks(board):
    board.note("a", Collected(tests=("t", "u"), is_last=False))
    board.note("a", Collected(tests=("v", "w")))
    for record in (
        TestStarted(nodeid="t", may_disagree=True),
        ended("t", "skipped"), ended("t", "passed", 1), ended("t", "passed", 2),
        ended("u", "passed"), ended("u", "crashed", 1), ended("u", "passed", 2),
        ended("v", "xfailed"),
    ):  # fmt: skip
        board.note("a", record)
    found = row(board, "a")
    assert (found.done, found.collected) == (3, 4)
    assert (found.passed, found.bad, found.skipped, found.first_bad) == (1, 1, 1, "u")
    assert board.picture(0).tests == {"passed": 1, "bad": 1, "skipped": 1}


@pytest.mark.parametrize(("one", "other"), [("skipped", "passed"), ("passed", "skipped"), ("xfailed", "passed")])
def test_a_test_whose_ranks_disagree_is_bad(board, one, other):
    board.note("a", TestStarted(nodeid="t"))
    board.note("a", ended("t", one))
    assert board.picture(0).tests["bad"] == 0
    board.note("a", ended("t", other, 1))
    assert +board.picture(0).tests == {"bad": 1}


def test_a_job_goes_from_state_to_state_and_holds_its_gpus_until_its_end(board):
    assert row(board, "a").state == "waiting"
    board.move("a", "preparing", (0, 1))
    assert (row(board, "a").state, row(board, "a").gpus, row(board, "a").seconds) == ("preparing", (0, 1), None)
    board.move("a", "running")
    assert (row(board, "a").state, row(board, "a").gpus, row(board, "a").seconds) == ("running", (0, 1), 0)
    board.end("a", 61.5, "")
    assert (row(board, "a").state, row(board, "a").gpus, row(board, "a").seconds) == ("done", (), 61)


def test_a_job_that_is_tried_again_begins_anew(board):
    board.note("a", ended("t", "failed"))
    board.end("a", 1.0, "It died.")
    assert board.picture(0).bad_jobs == 1
    board.move("a", "waiting")
    assert (row(board, "a").bad, row(board, "a").trouble, board.picture(0).bad_jobs) == (0, "", 0)


def test_the_first_failure_stands(board):
    board.fail("one")
    board.fail("two")
    assert board.picture(0).first_failure == "one"


def test_where_room_is_short_those_that_run_come_first_then_bad_ones_in_the_order_of_the_plan(board):
    board.end("a", 1.0, "")
    board.end("c", 1.0, "It died.")
    board.move("d", "preparing")
    board.move("e", "running")
    shown = [[row.job_id for row in board.picture(room).rows] for room in range(6)]
    assert shown == [[], ["e"], ["c", "e"], ["c", "d", "e"], ["b", "c", "d", "e"], ["a", "b", "c", "d", "e"]]
    assert board.picture(1).states == {"running": 1, "preparing": 1, "waiting": 1, "done": 2}


def test_a_job_that_is_over_keeps_counts_and_no_names(board):
    board.note("a", ended("t", "passed"))
    board.end("a", 1.0, "")
    assert row(board, "a").passed == 1
    assert board._jobs["a"].tests._outcomes == {}


def test_the_rate_of_a_job_is_that_of_all_its_tests():
    told = Repeated(nodeid="t", tally=RepetitionTally(runs=10), runs=1500, bad=3)
    assert rate_so_far(told) == "1,500 runs, 3 bad (0.2 %)"
    assert rate_so_far(replace(told, bad=1480)).endswith("(98.7 %)")


def test_a_log_has_a_line_after_ten_seconds_and_then_less_often(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace, lines = Pace(_began=0.0), []
    for now in map(float, range(1, 200)):
        lines += [now] if pace.is_due() else []
    assert lines[:5] == [10, 20, 30, 40, 50]
    assert lines[-1] - lines[-2] > 30


def test_a_job_that_repeats_tests_shows_its_rate_in_the_place_of_its_state(board):
    board.move("a", "running")
    board.show("a", "1,500 runs")
    assert row(board, "a").state == "1,500 runs"
