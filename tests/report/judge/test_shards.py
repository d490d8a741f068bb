"""Jobs that share a suite: what each had, and whether together they had all of it."""

import pytest

from allranks.errors import ExitCode
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite, MergedRun
from allranks.report.merging import merge

CELL = "gloo-w2-g0-env"
ONE, TWO = f"{CELL}/rpc@1of2", f"{CELL}/rpc@2of2"
A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"


def share(number, *, count=2, split="5eed", elsewhere=1):
    return {"suite": "rpc", "number": number, "count": count, "split": split, "elsewhere": elsewhere}


def judged(run_folder):
    merged = merge(run_folder.path, environ={})
    return merged, exit_code(merged, nothing_ran_allowed=False)


def suites_of(merged: MergedRun) -> list[CellSuite]:
    """The jobs of a run with their tests, which a merged run does not hold."""
    suites: list[CellSuite] = []
    merge(merged.folder, environ={}, observers=[suites.append])
    return suites


@pytest.fixture
def two_shards(run_folder):
    """Writes two shards, each with a test that passed."""

    def write(one, two):
        run_folder.manifest(ONE, TWO)
        run_folder.both(ONE, {A: "passed"}, share=one)
        run_folder.both(TWO, {B: "passed"}, share=two)
        return judged(run_folder)

    return write


def test_each_shard_has_a_row_of_its_own(two_shards):
    merged, code = two_shards(share(1), share(2))
    assert [suite.name for suite in merged.suites] == [f"{CELL} / rpc@1of2", f"{CELL} / rpc@2of2"]
    assert merged.suites[1].share.number == 2
    assert (merged.counts.passed, merged.notes, code) == (2, (), ExitCode.OK)


def test_a_shard_that_left_nothing_is_an_error(run_folder):
    run_folder.manifest(ONE, TWO)
    run_folder.both(ONE, {A: "passed"}, share=share(1))
    merged, code = judged(run_folder)
    assert "left no results" in suites_of(merged)[1].tests[0].verdict.message
    assert code is ExitCode.UNACCOUNTED


def test_where_results_of_several_machines_lie_together_a_shard_that_is_absent_is_an_error(run_folder):
    run_folder.manifest(f"{CELL}/rpc@2of3")
    for number in (1, 2):
        run_folder.both(f"{CELL}/rpc@{number}of3", {A: "passed"}, share=share(number, count=3))
    merged, code = judged(run_folder)
    assert [suite.suite for suite in merged.suites] == ["rpc@2of3", "rpc@1of3", "rpc@3of3"]
    assert "left no results" in suites_of(merged)[2].tests[0].verdict.message
    assert code is ExitCode.UNACCOUNTED


def test_a_shard_that_was_planned_alone_is_complete_alone(run_folder):
    run_folder.manifest(TWO)
    run_folder.both(TWO, {B: "passed"}, share=share(2))
    merged, code = judged(run_folder)
    assert merged.notes == (f"{CELL} / rpc: this report has 1 of 2 shards.",)
    assert code is ExitCode.OK


def test_a_shard_is_complete_beside_other_suites_of_its_plan(run_folder):
    run_folder.manifest(TWO, f"{CELL}/other")
    run_folder.both(TWO, {B: "passed"}, share=share(2))
    run_folder.both(f"{CELL}/other", {A: "passed"})
    assert judged(run_folder)[1] is ExitCode.OK


@pytest.mark.parametrize("planned", [False, True])
def test_a_shard_that_came_without_the_plan_of_its_folder_misses_the_others(run_folder, planned):
    """A part in a folder below, as one of several machines has it, plans for its machine alone."""
    if planned:
        run_folder.manifest(ONE)
    run_folder.both(ONE, {A: "passed"}, share=share(1))
    merged = merge(run_folder.path.parent, environ={})
    assert [suite.suite for suite in merged.suites if suite.counts.bad] == ["rpc@2of2"]
    assert "unlike other shards of its suite" in merged.failures[0].message
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.UNACCOUNTED


def test_the_plan_of_all_machines_tells_which_shards_were_to_run(part, tmp_path):
    part("").manifest(ONE)
    machine = part("machine-1")
    machine.manifest(ONE)
    machine.both(ONE, {A: "passed"}, share=share(1), run_id="r1")
    merged = merge(tmp_path / "gathered", environ={})
    assert merged.notes == (f"{CELL} / rpc: this report has 1 of 2 shards.",)
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK


def test_a_shard_is_no_part_of_the_same_suite_in_another_cell(run_folder):
    other = "gloo-w2-g0-tcp/rpc@1of2"
    run_folder.manifest(ONE, TWO)
    for job, number in ((ONE, 1), (TWO, 2), (other, 1)):
        run_folder.both(job, {A: "passed"}, share=share(number))
    merged, _ = judged(run_folder)
    assert [suite.id for suite in merged.suites if suite.counts.bad] == ["gloo-w2-g0-tcp/rpc@2of2"]


def test_shards_that_did_not_split_alike_are_an_error_in_each_of_them(two_shards):
    merged, code = two_shards(share(1), share(2, split="0ther"))
    for suite in suites_of(merged):
        [trouble] = [test for test in suite.tests if test.name == "split"]
        assert "The shards rpc@1of2, rpc@2of2 divided rpc differently" in trouble.verdict.message
    assert code is ExitCode.UNACCOUNTED


def test_shards_of_another_number_are_another_split(run_folder):
    other = f"{CELL}/rpc@1of1"
    run_folder.manifest(ONE, other)
    run_folder.both(ONE, {A: "passed"}, share=share(1))
    run_folder.both(other, {A: "passed"}, share=share(1, count=1, split="0ther"))
    assert judged(run_folder)[1] is ExitCode.OK


def test_a_shard_whose_collection_never_ended_says_nothing_about_the_split(two_shards):
    assert two_shards(share(1), share(2, split=""))[1] is ExitCode.OK


def test_a_shard_without_tests_is_no_error_and_is_said(run_folder):
    run_folder.manifest(ONE, TWO)
    run_folder.both(ONE, {A: "passed"}, share=share(1, elsewhere=0))
    run_folder.both(TWO, {}, share=share(2))
    merged, code = judged(run_folder)
    assert suites_of(merged)[1].tests == ()
    assert merged.notes == (f"{CELL} / rpc@2of2: nothing to run, because all tests (1) are in other shards.",)
    assert code is ExitCode.OK


@pytest.mark.parametrize("deselected", [0, 3])
def test_a_run_of_a_shard_without_tests_alone_ran_nothing(run_folder, deselected):
    run_folder.manifest(TWO)
    run_folder.both(TWO, {}, share=share(2), deselected=deselected)
    assert judged(run_folder)[1] is ExitCode.NOTHING_RAN


def test_a_suite_without_tests_is_an_error_of_its_shards_too(run_folder):
    run_folder.manifest(TWO)
    run_folder.both(TWO, {}, share=share(2, elsewhere=0))
    merged, code = judged(run_folder)
    assert "No test was collected" in suites_of(merged)[0].tests[0].verdict.message
    assert code is ExitCode.NOTHING_RAN


def test_a_selection_that_leaves_no_test_in_any_shard_ran_nothing(run_folder):
    run_folder.manifest(ONE, TWO)
    for number, job in enumerate((ONE, TWO), start=1):
        run_folder.both(job, {}, share=share(number, elsewhere=0), deselected=2)
    assert judged(run_folder)[1] is ExitCode.NOTHING_RAN
