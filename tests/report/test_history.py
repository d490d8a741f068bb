"""Earlier attempts at a job, and reruns within one."""

from allranks.errors import ExitCode
from allranks.report.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merge import merge
from allranks.report.model import VerdictKind

JOB = "gloo-w2-g0-env/collectives"
A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"


def judged_tests(folder):
    suites: list[CellSuite] = []
    merged = merge(folder, environ={}, observers=[suites.append])
    return {test.nodeid: test for suite in suites for test in suite.tests}, merged


def attempt(run_folder, number, **tests):
    named = {{"a": A, "b": B}[name]: outcome for name, outcome in tests.items()}
    run_folder.job(JOB, number=number, collected=list(named))
    for rank in range(2):
        run_folder.rank(JOB, rank, named, number=number)


def test_a_pass_after_a_failure_is_flaky_and_good(run_folder):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a={"outcome": "failed", "message": "boom", "text": "trace"}, b="passed")
    attempt(run_folder, 2, a="passed", b="passed")
    tests, merged = judged_tests(run_folder.path)
    [earlier] = tests[A].earlier
    assert tests[A].is_flaky
    assert not tests[B].is_flaky
    assert (earlier.number, earlier.verdict.kind, earlier.verdict.message) == (
        1,
        VerdictKind.FAILURE,
        "rank 0 failed: boom",
    )
    assert [rank.message for rank in earlier.ranks] == ["boom", "boom"]
    assert (merged.counts.passed, merged.counts.flaky) == (2, 1)
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK


def test_a_failure_in_every_attempt_is_a_failure_that_knows_the_earlier_ones(run_folder):
    run_folder.manifest(JOB)
    for number, message in enumerate(("one", "two", "three"), start=1):
        attempt(run_folder, number, a={"outcome": "failed", "message": message})
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.message == "rank 0 failed: three"
    assert [each.verdict.message for each in tests[A].earlier] == ["rank 0 failed: one", "rank 0 failed: two"]
    assert (merged.counts.failed, merged.counts.flaky) == (1, 0)


def test_a_test_that_an_earlier_attempt_passed_and_the_newest_fails_has_no_history(run_folder):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a="passed")
    attempt(run_folder, 2, a="failed")
    tests, merged = judged_tests(run_folder.path)
    assert (tests[A].earlier, merged.counts.failed) == ((), 1)


def test_reruns_that_a_rank_reports_are_earlier_attempts(write_ranks):
    again = '<rerun message="boom">trace</rerun>'
    write_ranks("unit/rank-0.xml", [f'<testcase classname="t" name="x">{again}</testcase>'])
    root = write_ranks("unit/rank-1.xml", ['<testcase classname="t" name="x"/>'])
    tests, _ = judged_tests(root)
    test = tests["t::x"]
    assert test.is_flaky
    assert [(each.number, each.verdict.message) for each in test.earlier] == [(1, "rank 0 failed: boom")]


def test_what_stands_inside_a_rerun_is_not_the_outcome(write_ranks):
    inside = "<flakyError message='lost'><stackTrace>at</stackTrace><system-out>said</system-out></flakyError>"
    root = write_ranks("unit/rank-0.xml", [f'<testcase classname="t" name="x">{inside}</testcase>'])
    tests, _ = judged_tests(root)
    [rank] = tests["t::x"].ranks
    assert (tests["t::x"].verdict.kind, rank.stdout) == (VerdictKind.PASSED, "")
    assert "said" in rank.reruns[0].text


def test_attempts_from_elsewhere_are_told_apart_by_their_folders(write_ranks):
    write_ranks(
        "gloo/unit/attempt-1/rank-0.xml", ['<testcase classname="t" name="x"><failure message="m"/></testcase>']
    )
    root = write_ranks("gloo/unit/attempt-2/rank-0.xml", ['<testcase classname="t" name="x"/>'])
    tests, merged = judged_tests(root)
    assert (tests["t::x"].is_flaky, merged.counts.tests) == (True, 1)
