"""What a history tells of a run: new, failing since, fixed, flaky, by cell and by rank."""

import json
import shutil

import pytest

from allranks.plugins.history.database import read
from allranks.plugins.history.recorder import recorded_status
from allranks.plugins.history.trends import History, Trend
from allranks.report.merging import merge
from allranks.report.results import TestVerdict, Verdict, VerdictKind, VerdictRule
from allranks.report.summary import render_summary, render_table

A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"
RANK_1 = ("passed", "failed")


def lines_of(path, text):
    """The tests that a text means, over all runs of a history."""
    with read(path) as database:
        return History(database).lookup(text, 0)[1]


def letters(line):
    return "".join(status.status for status in line.statuses)


def past(merged, test=A):
    return next((entry.text for entry in merged.history.tests if entry.test.nodeid == test), None)


def test_a_test_is_new_then_failing_since_then_fixed(merged):
    assert merged(1, {A: "passed", B: "passed"}).history.tests == ()
    assert past(merged(2, {A: "failed", B: "passed"})) == "new"
    assert past(merged(3, {A: "failed", B: "passed"})) == "failing since 2001-09-11 (run r2), 2 of 3"
    assert past(merged(4, {A: "passed", B: "passed"})) == "fixed, failed since 2001-09-11 (run r2)"
    assert past(merged(5, {A: "passed", B: "passed"})) is None


def test_a_skip_after_a_failure_fixes_nothing_and_is_no_good_run_between(merged):
    outcomes = ["failed", "skipped", "failed", "skipped", "passed"]
    result = [past(merged(number, {A: outcome, B: "passed"})) for number, outcome in enumerate(outcomes, 1)]
    assert result == [None, None, "new", None, "fixed"]


def test_a_test_that_comes_and_goes_is_flaky_on_its_rank(merged):
    for number, outcome in enumerate(["passed", RANK_1, "passed", RANK_1, "passed"], 1):
        last = merged(number, {A: outcome})
    assert past(last) == "flaky, 2 of 5, rank 1"
    assert past(merged(6, {A: ("failed", "passed")})) == "flaky, 3 of 6, rank 1 in 2 of these"


def test_more_ranks_than_are_a_trait_of_a_test_are_many(merged):
    passed, failed = "passed", "failed"
    for number in (1, 2):
        last = merged(number, {A: (passed,) * 3 + (failed,) * 9}, job="gloo-w12-g0-env/suite", size=12)
    assert past(last) == "failing since 2001-09-10 (run r1), many ranks"


def test_each_cell_has_a_past_of_its_own(merged):
    merged(1, {A: "passed"})
    merged(2, {A: "failed"}, job="gloo-w4-g0-env/suite")
    found = merged(3, {A: "failed"})
    assert [(entry.test.cell_id, entry.trend) for entry in found.history.tests] == [("gloo-w2-g0-env", Trend.NEW)]


def test_terminal_summary_page_and_json_tell_of_it(merged):
    merged(1, {A: "passed", B: "failed"})
    found = merged(2, {A: RANK_1, B: "failed"}).run
    assert f"  new, rank 1: {A} (gloo-w2-g0-env / suite)\n" in render_table(found)
    assert "History: 1 new, 1 failing for longer; 2 runs recorded." in render_table(found)
    summary = render_summary(found, {})
    assert "### History: 1 new, 1 failing for longer; 2 runs recorded\n" in summary
    assert "- **new, rank 1**: s/test\\_a.py::test\\_one (gloo-w2-g0-env / suite)\n" in summary
    page = found.page.read_text()
    assert "<td>new, rank 1</td><td><bdi>s/test_a.py::test_one</bdi></td>" in page
    result = json.loads(found.page.with_name("report.json").read_text())["history"]
    assert (result["runs"], result["problem"]) == (2, None)
    assert result["tests"][0] == {
        "cell": "gloo-w2-g0-env", "suite": "suite", "test": A, "trend": "new", "bad": 1, "of": 2, "since": None,
        "ranks": {"1": 1},
    }  # fmt: skip


def test_the_first_run_calls_nothing_new(merged):
    found = merged(1, {A: "failed"})
    assert "History: this is the first run in the history." in render_table(found.run)
    assert "new" not in render_table(found.run).partition("History")[2]
    assert found.history.tests == ()
    assert [line.trend for line in lines_of(found.history.path, A)] == [None]


def test_without_a_history_nothing_is_told(run_folder):
    run_folder.manifest("gloo-w2-g0-env/suite")
    run_folder.both("gloo-w2-g0-env/suite", {A: "failed"})
    found = merge(run_folder.path, environ={})
    assert found.sections == {}
    assert "istory" not in render_summary(found, {}) + render_table(found)
    assert 'id="history"' not in found.page.read_text()


def test_a_run_that_is_merged_again_counts_once_and_the_last_merge_counts(merged, tmp_path):
    merged(1, {A: "passed"})
    merged(2, {A: "failed"}, run_id="again")
    merged(3, {A: "passed"}, run_id="again")
    assert [letters(line) for line in lines_of(tmp_path / "history.sqlite", A)] == ["PP"]


def test_a_run_that_is_merged_late_takes_its_place_in_time(merged):
    merged(1, {A: "passed"})
    merged(3, {A: "failed"})
    assert past(merged(2, {A: "failed"})) == "new"
    assert past(merged(4, {A: "failed"})) == "failing since 2001-09-11 (run r2), 3 of 4"


def test_results_from_elsewhere_count_once_by_their_content(write_ranks, recorded):
    root = write_ranks("gloo-w1-g0-env/suite/rank-0.xml", ["<testcase classname='t' name='x' time='0.5'/>"])
    for _ in range(2):
        recorded(root)
    write_ranks("gloo-w1-g0-env/suite/rank-0.xml", ["<testcase classname='t' name='x' time='0.6'/>"])
    assert recorded(root).history.runs == 2


def test_results_from_elsewhere_are_the_same_run_in_another_folder(write_ranks, recorded):
    root = write_ranks("gloo-w1-g0-env/suite/rank-0.xml", ["<testcase classname='t' name='x' time='0.5'/>"])
    again = shutil.copytree(root, root.with_name("again"))
    assert [recorded(folder).history.runs for folder in (root, again)] == [1, 1]
    write_ranks("gloo-w1-g0-env/suite/rank-0.xml", ["<testcase classname='t' name='y' time='0.5'/>"])
    assert recorded(root).history.runs == 2


@pytest.mark.parametrize(
    ("kind", "rule", "executed", "letter"),
    [
        (VerdictKind.PASSED, VerdictRule.PASSED, True, "P"),
        (VerdictKind.PASSED, VerdictRule.SKIPPED, False, "S"),
        (VerdictKind.SKIPPED, VerdictRule.SKIPPED, False, "S"),
        (VerdictKind.SKIPPED, VerdictRule.JOB, False, "-"),
        (VerdictKind.ERROR, VerdictRule.JOB, False, "E"),
        (VerdictKind.FAILURE, VerdictRule.PRIMARY_FAILURE, True, "F"),
    ],
)
def test_an_outcome_is_a_letter_however_skips_are_read(kind, rule, executed, letter):
    test = TestVerdict(nodeid="t", classname="", name="t", verdict=Verdict(kind=kind, rule=rule, executed=executed))
    assert recorded_status(test) == letter


def test_an_absent_shard_is_recorded_under_its_suite(run_folder, recorded, tmp_path):
    share = {"suite": "unit", "number": 1, "count": 2}
    run_folder.manifest("gloo-w2-g0-env/unit@1of2", "gloo-w2-g0-env/unit@2of2")
    run_folder.both("gloo-w2-g0-env/unit@1of2", {A: "passed"}, share=share)
    assert not recorded(run_folder.path).history.problem
    lines = lines_of(tmp_path / "history.sqlite", "::")
    assert {(line.test.suite_name, line.test.nodeid) for line in lines} == {("unit", A), ("unit", "allranks::job")}


def test_a_pass_after_a_failure_is_a_letter_of_its_own():
    bad = Verdict(kind=VerdictKind.FAILURE, rule=VerdictRule.PRIMARY_FAILURE)
    good = Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED)
    earlier = (TestVerdict(nodeid="t", classname="", name="t", verdict=bad, number=1),)
    assert recorded_status(TestVerdict(nodeid="t", classname="", name="t", verdict=good, earlier=earlier)) == "f"


def test_jobs_of_a_suite_may_have_different_tests(run_folder, recorded, tmp_path):
    jobs = {"gloo-w2-g0-env/suite": {A: "passed", B: "failed"}, "gloo-w2-g0-tcp/suite": {B: "passed"}}
    run_folder.manifest(*jobs)
    for job, tests in jobs.items():
        run_folder.both(job, tests)
    assert not recorded(run_folder.path).history.problem
    lines = lines_of(tmp_path / "history.sqlite", "test_")
    assert {(line.test.cell_id, line.test.nodeid): letters(line) for line in lines} == {
        ("gloo-w2-g0-env", A): "P",
        ("gloo-w2-g0-env", B): "F",
        ("gloo-w2-g0-tcp", B): "P",
    }
