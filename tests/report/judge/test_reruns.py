"""A test that its job has run again: the last time counts, and what went before it is told."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks.errors import ExitCode
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import JOURNAL, SCHEMA, Finished, JobStarted, Passed, RankEnded, TestStarted, encode
from allranks.report.journal import read_journal
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.rank_document import write_rank_files
from allranks.report.rank_xml import RankReader

JOB = "gloo-w2-g0-env/s"
TEST = "s/test_a.py::test_a"
START = JobStarted(schema=SCHEMA, run_id="r1", cell="gloo-w2-g0-env", suite="s", attempt=1, world_size=2)

ENDS = st.sampled_from([None, "passed", "failed", "crashed", "aborted", "skipped", "timed_out"])


def end(rank, outcome, at=9.0):
    if outcome == "passed":
        return Passed(nodeid=TEST, ranks=(rank,), arrived=(at,), seconds=(0.5,), world_size=2)
    came_of = {"consequence": True, "caused_by": 0} if outcome == "aborted" else {}
    return RankEnded(
        nodeid=TEST, rank=rank, outcome=Outcome(outcome), world_size=2, arrived=at, message=f"at {at}", **came_of
    )


def records_of(tries):
    for number, outcomes in enumerate(tries, start=1):
        yield TestStarted(nodeid=TEST, number=number)
        for rank, outcome in enumerate(outcomes):
            if outcome is not None:
                yield end(rank, outcome, at=10.0 * number + rank)


def journal_of(folder, tries):
    path = folder / JOURNAL
    path.write_bytes(b"".join(encode(each) + b"\n" for each in (START, *records_of(tries), Finished(status=0))))
    return path


def only_test(run_folder):
    """The one test of a run, and the run's exit code."""
    suites: list[CellSuite] = []
    merged = merge(run_folder.path, environ={}, observers=[suites.append])
    test = next(test for suite in suites for test in suite.tests if test.nodeid == TEST)
    return test, exit_code(merged, nothing_ran_allowed=False)


@given(tries=st.lists(st.tuples(ENDS, ENDS), min_size=1, max_size=4))
def test_each_try_of_each_rank_is_there_in_its_order(tmp_path_factory, tries):
    files = read_journal(journal_of(tmp_path_factory.mktemp("journal"), tries))
    for rank, file in enumerate(files):
        came = [outcomes[rank] or "missing" for outcomes in tries]
        told = file.details.get(0)
        if told is None:
            assert came == ["passed"]
            continue
        assert told.outcome == came[-1]
        assert [rerun.outcome.value for rerun in told.reruns] == came[:-1]


@pytest.mark.parametrize(
    ("tries", "code", "earlier"),
    [
        ([("failed", "aborted"), ("passed", "passed")], ExitCode.OK, ["rank 0 failed: at 10.0"]),
        ([("passed", "crashed"), ("passed", "passed")], ExitCode.OK, ["rank 1 crashed: at 11.0"]),
        (
            [("failed", "passed"), ("passed", "failed"), ("passed", "passed")],
            ExitCode.OK,
            ["rank 0 failed: at 10.0", "rank 1 failed: at 21.0"],
        ),
        ([("failed", "failed"), ("failed", "failed")], ExitCode.TESTS_FAILED, ["rank 0 failed: at 10.0"]),
        ([("failed", "failed"), ("skipped", "skipped")], ExitCode.TESTS_FAILED, ["rank 0 failed: at 10.0"]),
        ([("failed", "failed"), ("passed", None)], ExitCode.UNACCOUNTED, ["rank 0 failed: at 10.0"]),
        ([("skipped", "passed"), ("passed", "passed")], ExitCode.OK, None),
        ([(None, None), ("passed", "passed")], ExitCode.OK, None),
    ],
)
def test_the_last_try_decides_and_the_others_are_told(run_folder, tries, code, earlier):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST])
    journal_of(run_folder.attempt(JOB), tries)
    test, found = only_test(run_folder)
    assert found is code
    assert test.is_flaky is (code is ExitCode.OK)
    if earlier is not None:
        assert [each.verdict.message.partition(" (")[0] for each in test.earlier] == earlier
    assert [each.number for each in test.earlier] == list(range(1, len(tries)))


@pytest.mark.parametrize(
    ("tries", "is_bad"),
    [
        ([("failed", "passed"), ("skipped", "passed")], True),
        ([("failed", "passed"), ("passed", "skipped")], False),
        ([("failed", "passed"), ("skipped", "passed"), ("passed", "skipped")], False),
    ],
)
def test_a_rank_that_failed_and_skips_in_a_further_try_settles_nothing(run_folder, tries, is_bad):
    run_folder.manifest(JOB, policy={"mixed_skip": ["*"]})
    run_folder.job(JOB, collected=[TEST])
    journal_of(run_folder.attempt(JOB), tries)
    test, code = only_test(run_folder)
    assert test.verdict.is_bad is is_bad
    assert code is (ExitCode.TESTS_FAILED if is_bad else ExitCode.OK)


def test_a_pass_that_ran_again_keeps_its_world_size(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST])
    failed, passed = (
        RankEnded(nodeid=TEST, rank=0, outcome=outcome, world_size=1, arrived=8.0)
        for outcome in (Outcome.FAILED, Outcome.PASSED)
    )
    records = (START, TestStarted(nodeid=TEST), failed, TestStarted(nodeid=TEST, number=2), passed, Finished(status=0))
    journal = run_folder.attempt(JOB) / JOURNAL
    journal.write_bytes(b"".join(encode(each) + b"\n" for each in records))
    test, found = only_test(run_folder)
    assert [rank.rank for rank in test.ranks] == [0]
    assert found is ExitCode.OK
    assert test.is_flaky


@pytest.mark.parametrize("continues", [0, 1])
@pytest.mark.parametrize("last", ["skipped", "passed"])
def test_a_skip_in_a_further_attempt_settles_no_try_that_failed(run_folder, continues, last):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST])
    journal_of(run_folder.attempt(JOB), [("failed", "failed"), ("skipped", "skipped")])
    run_folder.job(JOB, number=2, collected=[TEST], continues=continues)
    journal_of(run_folder.attempt(JOB, 2), [(last, last)])
    test, code = only_test(run_folder)
    assert code is (ExitCode.OK if last == "passed" else ExitCode.TESTS_FAILED)
    assert test.is_flaky is (last == "passed")
    assert [each.verdict.message.partition(" (")[0] for each in test.earlier] == ["rank 0 failed: at 10.0"]


@pytest.mark.parametrize("last", ["skipped", "passed"])
def test_a_try_that_failed_counts_though_the_next_was_cut_short(run_folder, last):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST], error={"kind": "interrupted", "what": "Ctrl-C"})
    journal_of(run_folder.attempt(JOB), [("failed", "failed"), ("aborted", "aborted")])
    run_folder.job(JOB, number=2, collected=[TEST], continues=1)
    journal_of(run_folder.attempt(JOB, 2), [(last, last)])
    test, code = only_test(run_folder)
    assert code is (ExitCode.OK if last == "passed" else ExitCode.TESTS_FAILED)
    assert test.is_flaky is (last == "passed")


def test_the_last_failure_is_the_one_that_stands(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST])
    journal_of(run_folder.attempt(JOB), [("failed", "failed")])
    run_folder.job(JOB, number=2, collected=[TEST])
    journal_of(run_folder.attempt(JOB, 2), [("crashed", "crashed"), ("skipped", "skipped")])
    test, _ = only_test(run_folder)
    assert test.verdict.message == "rank 0 crashed: at 10.0; then at 20.0; at 21.0"
    assert [rank.outcome for rank in test.ranks] == [Outcome.CRASHED, Outcome.CRASHED]


def test_a_try_that_went_well_is_no_failure_of_a_test_that_ran_again(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST])
    journal_of(run_folder.attempt(JOB), [("passed", "passed"), ("skipped", "skipped")])
    test, _ = only_test(run_folder)
    assert (test.verdict.kind.value, test.earlier) == ("skipped", ())


WRONG = ("failed", "crashed", "timed_out")
ATTEMPTS = st.tuples(st.lists(st.sampled_from(WRONG), max_size=2), st.sampled_from([*WRONG, "passed", "skipped"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ATTEMPTS, min_size=1, max_size=3))
def test_nothing_is_good_that_went_wrong_in_any_try_and_has_not_run_well_since(run_folder, tmp_path_factory, attempts):
    folder = replace(run_folder, path=tmp_path_factory.mktemp("run"))
    folder.manifest(JOB)
    for number, (tries, last) in enumerate(attempts, start=1):
        folder.job(JOB, number=number, collected=[TEST])
        journal_of(folder.attempt(JOB, number), [(outcome, outcome) for outcome in (*tries, last)])
    ran = [outcome for tries, last in attempts for outcome in (*tries, last) if outcome != "skipped"]
    test, _ = only_test(folder)
    assert test.verdict.is_bad == bool(ran and ran[-1] in WRONG)


def test_the_xml_of_a_rank_has_its_bad_tries(tmp_path):
    tries = [("failed", "failed"), ("crashed", "passed"), ("passed", "failed")]
    write_rank_files(tmp_path, journal_of(tmp_path, tries))
    zero, one = (RankReader().read(tmp_path / f"rank-{rank}.xml").details[0] for rank in (0, 1))
    assert [rerun.message for rerun in zero.reruns] == ["at 10.0", "at 20.0"]
    assert (zero.outcome, one.outcome) == (Outcome.PASSED, Outcome.FAILED)
    assert [rerun.outcome for rerun in one.reruns] == [Outcome.FAILED]


def test_the_report_says_flaky_in_words(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[TEST])
    journal_of(run_folder.attempt(JOB), [("failed", "failed"), ("passed", "passed")])
    merge(run_folder.path, environ={})
    assert "<flakyFailure" in (run_folder.path / "junit.xml").read_text()
    assert json.loads((run_folder.path / "report.json").read_text())
