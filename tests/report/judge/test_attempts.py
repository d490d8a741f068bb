"""Earlier attempts at a job, and reruns within one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import ExitCode
from allranks.protocol.records import JOURNAL, SCHEMA, JobStarted, TestStarted, encode
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.results import VerdictKind

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
    write_ranks("gloo-w2-g0-env/unit/rank-0.xml", [f'<testcase classname="t" name="x">{again}</testcase>'])
    root = write_ranks("gloo-w2-g0-env/unit/rank-1.xml", ['<testcase classname="t" name="x"/>'])
    tests, _ = judged_tests(root)
    test = tests["t::x"]
    assert test.is_flaky
    assert [(each.number, each.verdict.message) for each in test.earlier] == [(1, "rank 0 failed: boom")]


def test_what_stands_inside_a_rerun_is_not_the_outcome(write_ranks):
    inside = "<flakyError message='lost'><stackTrace>at</stackTrace><system-out>said</system-out></flakyError>"
    root = write_ranks("gloo-w1-g0-env/unit/rank-0.xml", [f'<testcase classname="t" name="x">{inside}</testcase>'])
    tests, _ = judged_tests(root)
    [rank] = tests["t::x"].ranks
    assert (tests["t::x"].verdict.kind, rank.stdout) == (VerdictKind.PASSED, "")
    assert "said" in rank.reruns[0].text


BAD = ("failed", "errored", "crashed", "timed_out", "missing")
SKIPS = (
    {"outcome": "skipped", "message": "not here"},
    {"outcome": "skipped", "message": "not here", "skip_kind": "environment", "skip_code": 76},
)


@pytest.mark.parametrize("policy", ["skip", "pass"])
@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("continues", [0, 1])
def test_a_skip_after_it_went_wrong_is_no_pass(run_folder, policy, skip, bad, continues):
    run_folder.manifest(JOB, policy={"skip": policy})
    attempt(run_folder, 1, a={"outcome": bad, "message": "boom"}, b="passed")
    attempt(run_folder, 2, a=skip, **({} if continues else {"b": "passed"}))
    run_folder.job(JOB, number=2, collected=[A] if continues else [A, B], continues=continues)
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.is_bad
    assert "boom" in tests[A].verdict.message
    assert tests[A].verdict.message.endswith("; then not here")
    assert (merged.counts.bad, merged.counts.passed, merged.counts.flaky) == (1, 1, 0)
    assert exit_code(merged, nothing_ran_allowed=False) is not ExitCode.OK


@pytest.mark.parametrize("after", ["passed", "xfailed", "xpassed"])
def test_what_ran_and_ended_well_settles_what_went_wrong_before(run_folder, after):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a="failed")
    attempt(run_folder, 2, a=SKIPS[0])
    attempt(run_folder, 3, a=after)
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].is_flaky
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK


def test_a_skip_after_a_pass_in_between_is_a_skip(run_folder):
    run_folder.manifest(JOB)
    for number, outcome in enumerate(("failed", "passed", "skipped"), start=1):
        attempt(run_folder, number, a=outcome, b="passed")
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.kind is VerdictKind.SKIPPED
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK


def test_skips_however_many_do_not_settle_a_failure(run_folder):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a="failed", b="passed")
    for number in (2, 3):
        attempt(run_folder, number, a="skipped", b="passed")
    assert judged_tests(run_folder.path)[0][A].verdict.is_bad


def test_a_failure_that_a_later_attempt_does_not_have_stays_one(run_folder):
    """The whole module may have been skipped, under an id of its own."""
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a={"outcome": "failed", "message": "boom"}, b="passed")
    attempt(run_folder, 2, b="passed")
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.message == "rank 0 failed: boom; attempt 2 did not have it"
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.TESTS_FAILED


def test_a_failure_of_a_test_that_was_stopped_later_stays_one(run_folder):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a="failed", b="passed")
    run_folder.job(JOB, number=2, collected=[A, B], not_run=[A], stop_reason="-x")
    for rank in range(2):
        run_folder.rank(JOB, rank, {B: "passed"}, number=2)
    assert judged_tests(run_folder.path)[0][A].verdict.is_bad


def test_a_skip_after_an_attempt_that_was_cut_short_from_outside_is_a_skip(run_folder):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a="aborted", b="passed")
    run_folder.job(JOB, number=1, collected=[A, B], error={"kind": "interrupted", "what": "Ctrl-C"})
    attempt(run_folder, 2, a="skipped", b="passed")
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.kind is VerdictKind.SKIPPED
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("failed_before", [False, True])
def test_a_skip_after_the_agent_died_is_one_if_the_test_had_not_begun(run_folder, begun, failed_before):
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a="failed" if failed_before else "skipped", b="passed")
    run_folder.job(JOB, number=2, collected=[A, B], error={"kind": "agent", "what": "status -9"})
    start = JobStarted(schema=SCHEMA, run_id="r1", cell="gloo-w2-g0-env", suite="collectives", attempt=2, world_size=2)
    records = (start, TestStarted(nodeid=A)) if begun else (start,)
    (run_folder.attempt(JOB, 2) / JOURNAL).write_bytes(b"".join(encode(each) + b"\n" for each in records))
    attempt(run_folder, 3, a="skipped", b="passed")
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.is_bad == (begun or failed_before)
    assert tests[B].is_flaky, "that the agent died stays in the report"
    assert (exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK) == (not begun and not failed_before)


@pytest.mark.parametrize("tag", ["rerunFailure", "rerunError"])
@pytest.mark.parametrize("beside", ["", "<skipped/>"])
def test_a_rerun_of_a_test_that_failed_to_its_end_is_no_pass(write_ranks, tag, beside):
    root = write_ranks(
        "gloo-w1-g0-env/unit/rank-0.xml", [f'<testcase name="x">{beside}<{tag} message="boom"/></testcase>']
    )
    assert merge(root, environ={}).counts.bad == 1


def test_a_skip_after_a_rerun_that_failed_is_no_pass(write_ranks):
    case = '<testcase classname="t" name="x"><rerun message="boom"/><skipped message="not here"/></testcase>'
    tests, merged = judged_tests(write_ranks("gloo-w1-g0-env/unit/rank-0.xml", [case]))
    assert tests["t::x"].verdict.message == "rank 0 failed: boom; then not here"
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.TESTS_FAILED


@given(st.lists(st.sampled_from(["passed", "failed", "crashed", "skipped", "xfailed"]), min_size=1, max_size=4))
def test_nothing_is_good_that_went_wrong_and_has_not_run_well_since(tmp_path_factory, outcomes):
    root = tmp_path_factory.mktemp("run")
    for number, outcome in enumerate(outcomes, start=1):
        folder = root / f"cells/gloo-w1-g0-env/unit/attempt-{number}"
        folder.mkdir(parents=True)
        (folder / "job.json").write_text('{"schema": 2, "world_size": 1}')
        said = f'<properties><property name="allranks.outcome" value="{outcome}"/></properties>'
        element = {"failed": "<failure/>", "crashed": "<error/>", "skipped": "<skipped/>"}.get(outcome, "")
        element = '<skipped type="pytest.xfail"/>' if outcome == "xfailed" else element
        case = f'<testcase classname="t" name="x">{said}{element}</testcase>'
        (folder / "rank-0.xml").write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    tests, _ = judged_tests(root)
    ran = [outcome for outcome in outcomes if outcome != "skipped"]
    assert tests["t::x"].verdict.is_bad == bool(ran and ran[-1] in {"failed", "crashed"})


def of_ranks(run_folder, number, *outcomes, **changes):
    """An attempt at one test, with an outcome for each rank; None for none."""
    run_folder.job(JOB, number=number, collected=[A], **changes)
    for rank, outcome in enumerate(outcomes):
        run_folder.rank(JOB, rank, {A: outcome} if outcome else {}, number=number)


MIXED = {"mixed_skip": ["*"]}


@pytest.mark.parametrize("continues", [0, 1])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("failed", "passed"), ("skipped", "passed")),
        (("passed", "crashed"), ("passed", "skipped")),
        (("failed", "failed"), ("skipped", "xfailed")),
        ((None, "passed"), ("skipped", "passed")),
    ],
)
def test_a_skip_on_a_rank_that_went_wrong_settles_nothing_though_another_rank_passed(
    run_folder, first, then, continues
):
    run_folder.manifest(JOB, policy=MIXED)
    of_ranks(run_folder, 1, *first)
    of_ranks(run_folder, 2, *then, continues=continues)
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].verdict.is_bad
    assert exit_code(merged, nothing_ran_allowed=False) is not ExitCode.OK


def test_the_message_tells_which_rank_skipped_after_it_went_wrong(run_folder):
    run_folder.manifest(JOB, policy=MIXED)
    of_ranks(run_folder, 1, {"outcome": "failed", "message": "boom"}, "passed")
    of_ranks(run_folder, 2, "skipped", "passed")
    message = judged_tests(run_folder.path)[0][A].verdict.message
    assert message == "rank 0 failed: boom; then rank 0 skipped; rank 1 passed"


@pytest.mark.parametrize("peer", ["passed", "aborted"])
def test_a_skip_on_a_rank_that_had_not_gone_wrong_leaves_a_pass_one(run_folder, peer):
    run_folder.manifest(JOB, policy=MIXED)
    of_ranks(run_folder, 1, "failed", peer)
    of_ranks(run_folder, 2, "passed", "skipped")
    tests, merged = judged_tests(run_folder.path)
    assert tests[A].is_flaky
    assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK


@pytest.mark.parametrize(("last", "is_bad"), [(("passed", "skipped"), False), (("skipped", "passed"), True)])
def test_each_rank_that_went_wrong_has_to_end_well_in_whatever_attempt(run_folder, last, is_bad):
    run_folder.manifest(JOB, policy=MIXED)
    for number, outcomes in enumerate([("failed", "failed"), ("skipped", "passed"), last], start=1):
        of_ranks(run_folder, number, *outcomes)
    assert judged_tests(run_folder.path)[0][A].verdict.is_bad is is_bad


def test_ranks_may_have_tried_a_test_more_or_less_often(write_ranks):
    again = '<rerun message="one"/><rerun message="two"/>'
    write_ranks("gloo-w2-g0-env/unit/rank-0.xml", ['<testcase classname="t" name="x"/>'])
    root = write_ranks("gloo-w2-g0-env/unit/rank-1.xml", [f'<testcase classname="t" name="x">{again}</testcase>'])
    tests, _ = judged_tests(root)
    earlier = [(each.number, each.verdict.message, len(each.ranks)) for each in tests["t::x"].earlier]
    assert earlier == [(1, "rank 1 failed: one", 1), (2, "rank 1 failed: two", 1)]


def test_a_test_that_the_newest_attempt_repeats_has_the_tries_of_that_alone(run_folder):
    """Of an attempt before, it has the verdict."""
    run_folder.manifest(JOB)
    attempt(run_folder, 1, a={"outcome": "failed", "message": "one"})
    attempt(run_folder, 2, a={"outcome": "failed", "message": "two"})
    attempt(run_folder, 3, a="passed")
    tests, _ = judged_tests(run_folder.path)
    assert [(each.number, each.verdict.message) for each in tests[A].earlier] == [
        (1, "rank 0 failed: one"),
        (2, "rank 0 failed: two"),
    ]
