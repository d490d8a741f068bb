"""Which tests of a job run again after a failure, in a resumed run, and after a run that was stopped."""

import json
import os
import signal
from dataclasses import replace

import pytest
from scripted_engine import COLLECTED, FINISHED, PASSED, failed

from allranks.errors import EngineError, UsageError
from allranks.interruption import interruptible
from allranks.ownership import own_run
from allranks.protocol.records import Collected, CollectionFailed
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.merging import merge
from allranks.report.run_files import JudgingPolicy, Manifest
from allranks.runner.earlier_runs import earlier_run, verdict_policy_of
from allranks.runner.results_folder import open_run
from allranks.runner.retry_policy import WHOLE_JOB, JobSelection, newest_attempt, select_rerun

pytestmark = pytest.mark.usefixtures("locks")

ONE, TWO = "gloo-w1-g0-env", "gloo-w2-g0-env"
GOOD, BAD, FLAKY = "suite/test_tiny.py::test_good", "suite/test_tiny.py::test_bad", "suite/test_tiny.py::test_flaky"
ALL = {GOOD: "passed", BAD: "failed", FLAKY: "failed"}


def interrupt():
    """Simulate Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def says(outcomes):
    """The records of tests with these outcomes on their single rank."""
    ends = [
        replace(PASSED, nodeid=nodeid) if outcome == "passed" else failed(nodeid)
        for nodeid, outcome in outcomes.items()
    ]
    return (Collected(tests=tuple(outcomes)), *ends, FINISHED)


def rank_xml(outcomes):
    """The XML of the single rank of such a job, as another program writes it."""
    cases = "".join(
        f'<testcase classname="t" name="{nodeid[-4:]}"><properties><property name="allranks.nodeid" value="{nodeid}"/>'
        f"</properties>{'' if outcome == 'passed' else '<failure>no</failure>'}</testcase>"
        for nodeid, outcome in outcomes.items()
    )
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"


@pytest.fixture
def play(engine):
    """Scripts the outcomes of successive attempts at a cell's job; None for an endless one."""

    def play(cell, *attempts):
        script = iter(attempts)
        if attempts == (None,):
            engine.endless.add(cell)
            return

        def next_attempt():
            outcomes = next(script)
            engine.failures.pop(("collect", cell), None)
            if isinstance(outcomes, EngineError):
                engine.failures["collect", cell] = outcomes
                outcomes = {}
            engine.records[cell] = says(outcomes)

        engine.acts["start", cell] = next_attempt

    return play


@pytest.fixture
def left_of(make_folder, matrix):
    """The selection of a job for a rerun, from the run's folder."""

    def left_of(job, scope):
        return select_rerun(newest_attempt(make_folder([job]).path, job), verdict_policy_of(matrix), scope)

    return left_of


@pytest.fixture
def attempt(make_folder, pair):
    """A job, and the folder of its first attempt."""
    return pair[0], make_folder(pair).new_attempt(pair[0])[1]


@pytest.fixture
def done(make_folder, jobs):
    """The merged run: each test's kind of verdict, and the earlier attempts in which it failed."""

    def done(cell=ONE):
        found = []
        merge(make_folder([jobs[cell]]).path, observers=[found.append])
        [suite] = [suite for suite in found if suite.cell == cell]
        return {test.nodeid: (test.verdict.kind.value, [each.number for each in test.earlier]) for test in suite.tests}

    return done


def test_only_failed_tests_are_retried_and_others_keep_their_results(dispatcher, engine, play, pair, done):
    play(ONE, ALL, {BAD: "failed", FLAKY: "passed"})
    dispatcher(pair[:1], retries=1).run(pair[:1])
    assert engine.specs[ONE][0].agent.only == (BAD, FLAKY)
    assert done() == {GOOD: ("passed", []), BAD: ("failure", [1]), FLAKY: ("passed", [1])}


def test_each_retry_is_based_on_the_previous_attempt(dispatcher, engine, play, pair, done):
    play(ONE, ALL, {BAD: "failed", FLAKY: "passed"}, {BAD: "passed"})
    dispatcher(pair[:1], retries=2).run(pair[:1])
    assert engine.specs[ONE][0].agent.only == (BAD,)
    assert done() == {GOOD: ("passed", []), BAD: ("passed", [1, 2]), FLAKY: ("passed", [1])}


def test_a_passed_job_is_not_retried(dispatcher, engine, play, pair):
    play(ONE, {GOOD: "passed"})
    dispatcher(pair[:1], retries=3).run(pair[:1])
    assert engine.log.count(f"start {ONE}") == 1


def test_infrastructure_errors_have_their_own_retries_of_the_whole_job(dispatcher, engine, play, pair, done):
    play(ONE, EngineError("Lost."), ALL, {BAD: "passed", FLAKY: "passed"})
    dispatcher(pair[:1], retries=1).run(pair[:1])
    assert engine.log.count(f"start {ONE}") == 3
    assert done() == {GOOD: ("passed", []), BAD: ("passed", [2]), FLAKY: ("passed", [2])}


def test_without_retries_nothing_is_judged_before_the_run_is_over(dispatcher, engine, play, pair):
    play(ONE, ALL)
    dispatcher(pair[:1]).run(pair[:1])
    assert engine.log.count(f"start {ONE}") == 1


@pytest.mark.parametrize("cores", [1, 8])
def test_fail_fast_stops_running_jobs_and_records_the_reason(dispatcher, play, pair, records, cores):
    play(ONE, ALL)
    play(TWO, None)
    dispatcher(pair, fail_fast=True, cores=cores).run(pair)
    errors = {cell: record["error"] for cell, record in records().items()}
    assert (errors[ONE], errors[TWO]["kind"]) == (None, "stopped")
    assert f"{ONE}/tiny failed" in errors[TWO]["what"]


def test_fail_fast_waits_for_retries(dispatcher, play, pair, records):
    play(ONE, ALL, {BAD: "passed", FLAKY: "passed"})
    dispatcher(pair, fail_fast=True, retries=1).run(pair)
    assert records()[TWO]["error"] is None


def test_an_unfinished_run_is_resumed(dispatcher, play, pair, tmp_path):
    play(ONE, ALL)
    dispatcher(pair, fail_fast=True, most=1).run(pair)
    earlier = earlier_run(tmp_path / "results", None)
    left = earlier.remaining(pair, "failed")
    assert left[pair[0].id] == JobSelection(tests=(BAD, FLAKY), base=1)
    assert set(left) - {pair[0].id} == set(earlier.remaining(pair, "missing"))


def test_only_the_selected_tests_of_a_job_run(dispatcher, play, pair, done):
    play(ONE, ALL)
    dispatcher(pair[:1]).run(pair[:1])
    play(ONE, {FLAKY: "passed"})
    dispatcher(pair[:1]).run(pair[:1], {pair[0].id: JobSelection(tests=(FLAKY,), base=1)})
    assert done() == {GOOD: ("passed", []), BAD: ("failure", []), FLAKY: ("passed", [1])}


def test_a_missing_base_attempt_is_an_error(dispatcher, play, pair, done):
    play(ONE, ALL)
    dispatcher(pair[:1]).run(pair[:1], {pair[0].id: JobSelection(tests=(FLAKY,), base=7)})
    assert done()["allranks::job"][0] == "error"


def test_jobs_that_never_began_are_stopped_even_in_a_resumed_run(dispatcher, play, pair, records):
    play(ONE, ALL)
    dispatcher(pair, fail_fast=True, most=1).run(pair, {job.id: WHOLE_JOB for job in pair})
    assert records()[TWO]["error"]["kind"] == "stopped"


def test_a_collection_error_is_kept_when_the_run_is_stopped(dispatcher, engine, pair, records):
    broken = CollectionFailed(nodeid="t.py", text="SyntaxError")
    engine.records[ONE] = (broken, COLLECTED, FINISHED)
    engine.endless.add(ONE)
    engine.acts["wait", ONE] = interrupt
    with pytest.raises(KeyboardInterrupt), interruptible():
        dispatcher(pair[:1]).run(pair[:1])
    assert records()[ONE]["error"]["kind"] == "collection"


def test_a_renamed_folder_is_not_resumed(tmp_path, pair):
    folder = open_run(tmp_path, "r1", pair, Manifest(run_id=""), 7)
    folder.path.rename(tmp_path / "copy")
    with pytest.raises(UsageError, match="is a renamed folder of the run r1"):
        earlier_run(tmp_path, "copy")


def test_a_resumed_run_keeps_its_policy(tmp_path, pair):
    open_run(tmp_path, "r1", pair, Manifest(run_id="", policy=JudgingPolicy(skip="pass", mixed_skip=("x",))), 7)
    assert earlier_run(tmp_path, "r1").policy == VerdictPolicy(skip="pass", mixed_skip=("x",))


ENDED = {"schema": 2, "world_size": 1, "collected": list(ALL), "error": None}
ONE_MORE = [*ALL, "t::new"]
FAILED, NEW = JobSelection(tests=(BAD, FLAKY), base=1), JobSelection(tests=("t::new",), base=1)


@pytest.mark.parametrize(
    ("record", "failed", "missing"),
    [
        (ENDED, FAILED, None),
        ({**ENDED, "error": {"kind": "agent", "what": "died"}}, WHOLE_JOB, WHOLE_JOB),
        ({**ENDED, "error": {"kind": "infrastructure", "what": "lost"}}, WHOLE_JOB, WHOLE_JOB),
        ({**ENDED, "error": {"kind": "collection", "what": "no"}}, WHOLE_JOB, None),
        ({**ENDED, "collected": None, "error": {"kind": "collection", "what": "no"}}, WHOLE_JOB, None),
        ({**ENDED, "collected": ONE_MORE, "error": {"kind": "collection", "what": "no"}}, WHOLE_JOB, WHOLE_JOB),
        ({**ENDED, "collected": ONE_MORE, "error": {"kind": "interrupted", "what": "Ctrl-C"}}, None, NEW),
        ({**ENDED, "error": {"kind": "stopped", "what": "-x"}}, FAILED, WHOLE_JOB),
        ({**ENDED, "collected": ONE_MORE, "not_run": ["t::new"]}, None, NEW),
        ({**ENDED, "collected": None, "error": {"kind": "interrupted", "what": "Ctrl-C"}}, WHOLE_JOB, WHOLE_JOB),
        ({}, WHOLE_JOB, WHOLE_JOB),
        (None, WHOLE_JOB, WHOLE_JOB),
    ],
)
def test_the_selection_depends_on_how_the_job_ended(attempt, left_of, record, failed, missing):
    job, folder = attempt
    (folder / "rank-0.xml").write_text(rank_xml(ALL))
    if record is not None:
        (folder / "job.json").write_text(json.dumps(record))
    everything_bad = JobSelection(tests=(BAD, FLAKY, "t::new"), base=1)
    assert left_of(job, "failed") == (failed or everything_bad)
    assert left_of(job, "missing") == missing


def test_a_test_that_a_rerun_did_not_run_still_has_to_run(attempt, left_of, make_folder, pair):
    job, folder = attempt
    (folder / "job.json").write_text(json.dumps({**ENDED, "collected": ONE_MORE, "not_run": ["t::new"]}))
    (folder / "rank-0.xml").write_text(rank_xml(ALL))
    _, second = make_folder(pair).new_attempt(job)
    (second / "job.json").write_text(json.dumps({**ENDED, "attempt": 2, "continues": 1, "collected": [BAD]}))
    (second / "rank-0.xml").write_text(rank_xml({BAD: "passed"}))
    assert left_of(job, "missing") == JobSelection(tests=("t::new",), base=2)
    assert left_of(job, "failed") == JobSelection(tests=(FLAKY, "t::new"), base=2)


def test_a_job_that_collected_nothing_runs_again(attempt, left_of):
    job, folder = attempt
    (folder / "job.json").write_text(json.dumps({**ENDED, "collected": []}))
    assert left_of(job, "failed") is WHOLE_JOB


@pytest.mark.parametrize("text", ["<testsuites><testsuite><testcase", "not XML"])
def test_a_job_with_broken_files_runs_as_a_whole(attempt, left_of, text):
    job, folder = attempt
    (folder / "job.json").write_text(json.dumps(ENDED))
    (folder / "rank-0.xml").write_text(text)
    assert left_of(job, "missing") is WHOLE_JOB


def test_a_job_with_contradictory_files_runs_as_a_whole(attempt, left_of):
    job, folder = attempt
    (folder / "job.json").write_text(json.dumps(ENDED))
    (folder / "rank-0.xml").write_text(rank_xml(ALL))
    (folder / "rank-00.xml").write_text(rank_xml({**ALL, BAD: "passed"}))
    assert left_of(job, "failed") is WHOLE_JOB


def test_a_job_that_never_began_runs_as_a_whole(pair, left_of):
    assert left_of(pair[0], "missing") is WHOLE_JOB


def test_a_new_attempt_has_the_highest_number(make_folder, pair):
    folder = make_folder(pair)
    for _ in range(2):
        folder.new_attempt(pair[0])
    (folder.path / "cells" / pair[0].id / "attempt-1").rmdir()
    assert folder.new_attempt(pair[0])[0] == 3


def test_a_resumed_run_has_its_planned_jobs_and_arguments(tmp_path, jobs):
    one, two = jobs[ONE], jobs[TWO]
    open_run(tmp_path, "r1", [one], Manifest(run_id=""), 7, ("-k", "x"))
    open_run(tmp_path, "r1", [one, two], Manifest(run_id=""), 7)
    earlier = earlier_run(tmp_path, "r1")
    assert earlier.planned(list(jobs.values())) == [one, two]
    assert earlier.arguments_of([one], ()) == earlier.arguments_of([one], ("-k", "x")) == ("-k", "x")
    assert earlier.arguments_of([two], ()) == ()
    with pytest.raises(UsageError, match="different pytest arguments"):
        earlier.arguments_of([one, two], ())
    with pytest.raises(UsageError, match="had other pytest arguments: -k x"):
        earlier.arguments_of([one], ("-k", "y"))
    with pytest.raises(UsageError, match=f"planned {TWO}/tiny, which is no longer in the matrix"):
        earlier.check_complete([one])


def test_a_living_run_is_not_resumed(tmp_path, pair):
    open_run(tmp_path, "r1", pair, Manifest(run_id=""), 7)
    with own_run("r1"), pytest.raises(UsageError, match="has not ended yet"):
        earlier_run(tmp_path, None)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "There is no run"), ("{", "cannot be read"), ("[]", "cannot be read")]
)
def test_an_unreadable_manifest_is_an_error(tmp_path, text, message):
    (tmp_path / "latest").mkdir()
    if text:
        (tmp_path / "latest/run.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        earlier_run(tmp_path, None)


def test_the_order_of_shuffled_jobs_depends_on_the_seed(dispatcher, engine, jobs):
    scope = [job for job in jobs.values() if not job.cell.gpu_count]
    begun = []
    for seed in range(6):
        engine.log.clear()
        dispatcher(scope, most=1, shuffle=seed).run(scope)
        begun.append(tuple(line for line in engine.log if line.startswith("go")))
    assert len(set(begun)) == 2
    assert {engine.specs[cell][0].agent.shuffle for cell in engine.specs} == {5}
