"""Fewer executed tests than there once were are an error, unless something else explains them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.cli.main import main
from allranks.errors import ExitCode, UsageError
from allranks.report.judge.baseline import BaselineCheck, read_baseline, update_baseline, updated_baseline
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite, Share
from allranks.report.merging import merge
from allranks.report.results import TestVerdict, Verdict, VerdictKind, VerdictRule

CELL = "gloo-w2-g0-env"
JOB = f"{CELL}/collectives"
A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"
SKIP = {"outcome": "skipped", "message": "no NCCL"}


def job(executed, skipped=0, **changes):
    tests = [
        TestVerdict(
            nodeid=f"t.py::test_{number}",
            classname="t",
            name=f"test_{number}",
            verdict=Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED, executed=number < executed),
        )
        for number in range(executed + skipped)
    ]
    return CellSuite(**{"cell": CELL, "suite": "collectives", "tests": tuple(tests), **changes})


def messages(run_folder, **options):
    suites: list[CellSuite] = []
    merged = merge(run_folder.path, environ={}, observers=[suites.append], **options)
    said = [test.verdict.message for suite in suites for test in suite.tests if test.verdict.is_bad]
    return said, exit_code(merged, nothing_ran_allowed=False)


def test_a_test_that_is_skipped_all_at_once_is_an_error(run_folder):
    run_folder.manifest(JOB, policy={"baseline": {CELL: {"collectives": 2}}})
    run_folder.both(JOB, {A: "passed", B: SKIP})
    said, code = messages(run_folder)
    assert said == ["Fewer tests executed than in the baseline: 1 instead of 2."]
    assert code is ExitCode.TESTS_FAILED


def test_a_suite_that_is_skipped_whole_is_an_error_though_every_verdict_is_good(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: SKIP, B: SKIP})
    assert messages(run_folder, baseline={CELL: {"collectives": 2}})[1] is ExitCode.TESTS_FAILED


@pytest.mark.parametrize("executed", [2, 3])
def test_as_many_or_more_are_well(executed):
    made = job(executed)
    assert BaselineCheck({CELL: {"collectives": 2}}).checked(made) is made


def test_what_the_baseline_does_not_name_is_not_compared():
    made = job(1)
    assert BaselineCheck({CELL: {"other": 2}, "nccl": {"collectives": 2}}).checked(made) is made


def test_a_selection_explains_a_drop():
    made = job(1, deselected=1)
    assert BaselineCheck({CELL: {"collectives": 2}}).checked(made) is made


def test_a_job_in_trouble_explains_a_drop(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, error={"kind": "agent", "what": "The agent died."})
    assert messages(run_folder, baseline={CELL: {"collectives": 2}})[0] == ["The agent died."]


def test_shards_count_together(run_folder):
    shards = [f"{CELL}/rpc@{number}of2" for number in (1, 2)]
    run_folder.manifest(*shards)
    for number, name in enumerate(shards, start=1):
        share = {"suite": "rpc", "number": number, "count": 2, "split": "5eed", "elsewhere": 1}
        run_folder.both(name, {(A, B)[number - 1]: "passed"}, share=share)
    assert messages(run_folder, baseline={CELL: {"rpc": 2}})[0] == []
    assert messages(run_folder, baseline={CELL: {"rpc": 3}})[0] == [
        "Fewer tests executed than in the baseline: 2 instead of 3."
    ]


def test_a_shard_alone_says_nothing_about_the_suite(run_folder):
    run_folder.manifest(f"{CELL}/rpc@1of2")
    share = {"suite": "rpc", "number": 1, "count": 2, "split": "5eed", "elsewhere": 1}
    run_folder.both(f"{CELL}/rpc@1of2", {A: "passed"}, share=share)
    assert messages(run_folder, baseline={CELL: {"rpc": 9}})[0] == []


def test_the_command_makes_the_baseline_and_holds_a_run_against_it(run_folder, tmp_path, capsys):
    file = tmp_path / "baseline.json"
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed", B: "passed"})
    assert main(["report", str(run_folder.path), "--update-baseline", str(file)]) == ExitCode.OK
    assert read_baseline(file) == {CELL: {"collectives": 2}}
    run_folder.both(JOB, {A: "passed", B: SKIP})
    assert main(["report", str(run_folder.path), "--baseline", str(file)]) == ExitCode.TESTS_FAILED
    assert "Fewer tests executed than in the baseline: 1 instead of 2." in capsys.readouterr().out
    assert main(["report", str(run_folder.path), "--update-baseline", str(file)]) == ExitCode.OK
    assert read_baseline(file) == {CELL: {"collectives": 1}}


def test_a_suite_of_the_baseline_that_is_not_there_is_missed_without_a_plan(write_ranks):
    root = write_ranks("gloo-w1-g0-env/a/rank-0.xml", ['<testcase name="a"/>'])
    merged = merge(root, environ={}, baseline={"gloo-w1-g0-env": {"a": 1}, "other": {"b": 1}})
    assert [(failure.job, failure.message) for failure in merged.failures] == [
        ("other / b", "The baseline has this suite, but the results do not.")
    ]
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.TESTS_FAILED


def test_only_suites_in_which_all_is_well_renew_the_baseline():
    known = {CELL: {"collectives": 5, "other": 7}}
    failed = Verdict(kind=VerdictKind.FAILURE, rule=VerdictRule.PRIMARY_FAILURE)
    bad = job(0, tests=(TestVerdict(nodeid="t", classname="c", name="n", verdict=failed),))
    assert updated_baseline(known, [bad.row]) == known
    assert updated_baseline(known, [job(3).row]) == {CELL: {"collectives": 3, "other": 7}}


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"schema": 9, "executed": {}}', '{"schema": 1, "executed": {"c": {"s": -1}}}', "\0"]
)
def test_a_file_that_is_no_baseline_is_one_clear_error(tmp_path, content):
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(UsageError, match="is not a baseline"):
        read_baseline(tmp_path / "b.json")
    with pytest.raises(UsageError, match="is not a baseline"):
        update_baseline(tmp_path / "b.json", [])
    assert (tmp_path / "b.json").read_text() == content


def test_the_file_is_text_that_shows_a_suite_a_line(tmp_path):
    update_baseline(tmp_path / "b.json", [job(3).row])
    assert json.loads((tmp_path / "b.json").read_text())["executed"] == {CELL: {"collectives": 3}}
    assert '   "collectives": 3' in (tmp_path / "b.json").read_text().splitlines()


def test_the_file_is_sorted_so_that_its_changes_are_few(tmp_path):
    rows = [replace(job(1).row, cell=cell, suite=suite) for cell, suite in (("b", "y"), ("a", "z"), ("b", "x"))]
    update_baseline(tmp_path / "b.json", rows)
    lines = (tmp_path / "b.json").read_text().splitlines()
    assert [line.strip().partition(":")[0] for line in lines if '": 1' in line or '": {' in line] == [
        '"executed"', '"a"', '"z"', '"b"', '"x"', '"y"', '"schema"',
    ]  # fmt: skip


@pytest.mark.parametrize("numbers", [(1,), (1, 2), (1, 2, 3)])
def test_a_suite_is_renewed_only_when_all_its_shards_are_there(numbers):
    shards = [
        job(2, suite=f"rpc@{number}of3", share=Share(suite="rpc", number=number, count=3)).row for number in numbers
    ]
    assert updated_baseline({}, shards) == ({CELL: {"rpc": 6}} if len(numbers) == 3 else {})


def test_a_shard_that_went_wrong_keeps_the_baseline_of_its_suite():
    good, bad = (job(2, suite=f"rpc@{n}of2", share=Share(suite="rpc", number=n, count=2)).row for n in (1, 2))
    bad = replace(bad, counts=replace(bad.counts, errors=1))
    assert updated_baseline({CELL: {"rpc": 9}}, [bad, good]) == {CELL: {"rpc": 9}}


def test_a_selection_in_a_shard_explains_a_drop_in_its_suite():
    watch = BaselineCheck({CELL: {"rpc": 9}})
    for number, deselected in ((1, 1), (2, 0)):
        share = Share(suite="rpc", number=number, count=2)
        made = job(2, suite=f"rpc@{number}of2", share=share, deselected=deselected)
        assert watch.checked(made) is made


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_run_is_bad_exactly_where_fewer_tests_executed(wanted, executed, skipped):
    checked = BaselineCheck({CELL: {"collectives": wanted}}).checked(job(executed, skipped))
    assert any(test.verdict.is_bad for test in checked.tests) == (executed < wanted)
