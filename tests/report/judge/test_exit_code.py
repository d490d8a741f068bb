"""Which exit code a run comes to."""

from dataclasses import replace
from pathlib import Path

import pytest

from allranks.errors import ExitCode
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import JOURNAL, SCHEMA, Finished, JobStarted, RankEnded, TestStarted, encode
from allranks.report.input_rule import InputRule
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import MergedRun
from allranks.report.merging import merge

ENV, TCP = "gloo-w2-g0-env/s", "gloo-w2-g0-tcp/s"
SKIP = {"outcome": "skipped", "message": "no NCCL", "skip_kind": "environment", "skip_code": 76}


def code(merged: MergedRun) -> ExitCode:
    return exit_code(merged, nothing_ran_allowed=False)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("passed", ExitCode.OK),
        ("xfailed", ExitCode.OK),
        ("failed", ExitCode.TESTS_FAILED),
        ("crashed", ExitCode.TESTS_FAILED),
        ("timed_out", ExitCode.TESTS_FAILED),
        ("errored", ExitCode.TESTS_FAILED),
        ("missing", ExitCode.UNACCOUNTED),
        ("aborted", ExitCode.UNACCOUNTED),
        ("skipped", ExitCode.NOTHING_RAN),
    ],
)
def test_one_test_with_this_outcome_on_both_ranks(run_folder, outcome: str, expected: ExitCode):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {"t.py::a": outcome})
    assert code(merge(run_folder.path, environ={})) is expected


def journal(run_folder, *records):
    started = JobStarted(schema=SCHEMA, run_id="r1", cell="gloo-w2-g0-env", suite="s", attempt=1, world_size=2)
    lines = [encode(record) + b"\n" for record in (started, *records)]
    (run_folder.attempt(ENV) / JOURNAL).write_bytes(b"".join(lines))


BEGUN = TestStarted(nodeid="t.py::a")
KILLED = RankEnded(nodeid="t.py::a", rank=1, outcome=Outcome.CRASHED, world_size=2, arrived=1.0, message="SIGSEGV")
SYMPTOM = replace(KILLED, consequence=True, caused_by=0)
OTHER_BEGUN = TestStarted(nodeid="t.py::b")


@pytest.mark.parametrize(
    ("records", "error", "expected"),
    [
        ((BEGUN, KILLED, Finished(status=0)), None, ExitCode.TESTS_FAILED),
        ((BEGUN, KILLED), None, ExitCode.UNACCOUNTED),
        ((BEGUN, KILLED), "agent", ExitCode.UNACCOUNTED),
        ((BEGUN, KILLED, Finished(status=0)), "agent", ExitCode.UNACCOUNTED),
        ((BEGUN, KILLED, Finished(status=0)), "infrastructure", ExitCode.INFRASTRUCTURE),
        ((BEGUN, Finished(status=0)), None, ExitCode.UNACCOUNTED),
        ((BEGUN, SYMPTOM, Finished(status=0)), None, ExitCode.UNACCOUNTED),
        ((BEGUN, KILLED, OTHER_BEGUN, Finished(status=0)), None, ExitCode.UNACCOUNTED),
    ],
    ids=["ended", "not ended", "agent lost", "agent lost late", "daemon lost", "no failure", "symptom", "other test"],
)
def test_a_crash_explains_a_missing_peer_if_the_job_has_ended(run_folder, records, error, expected):
    run_folder.manifest(ENV)
    tests = [record.nodeid for record in records if isinstance(record, TestStarted)]
    run_folder.job(ENV, collected=tests, error=error and {"what": "It broke.", "kind": error})
    journal(run_folder, *records)
    assert code(merge(run_folder.path, environ={})) is expected


@pytest.mark.parametrize("policy", ["skip", "pass"])
def test_nothing_ran_when_every_test_skipped_under_either_policy(run_folder, policy):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {"t.py::a": SKIP, "t.py::b": SKIP})
    merged = merge(run_folder.path, policy=policy, environ={})
    assert code(merged) is ExitCode.NOTHING_RAN
    assert exit_code(merged, nothing_ran_allowed=True) is ExitCode.OK


@pytest.mark.parametrize("nothing_ran_allowed", [False, True])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("empty", ExitCode.NOTHING_RAN),
        ("deselected", ExitCode.NOTHING_RAN),
        ("skipped", ExitCode.NOTHING_RAN),
        ("passed", ExitCode.NOTHING_RAN),
        ("failed", ExitCode.TESTS_FAILED),
        ("aborted", ExitCode.UNACCOUNTED),
        ("absent", ExitCode.UNACCOUNTED),
    ],
)
def test_a_suite_without_tests_is_an_error_beside_any_other(run_folder, other, expected, nothing_ran_allowed):
    run_folder.manifest(ENV, TCP)
    run_folder.job(ENV, collected=[])
    if other in {"empty", "deselected"}:
        run_folder.job(TCP, collected=[], deselected=3 * (other == "deselected"))
    elif other != "absent":
        run_folder.both(TCP, {"t.py::a": other})
    assert exit_code(merge(run_folder.path, environ={}), nothing_ran_allowed=nothing_ran_allowed) is expected


@pytest.mark.parametrize(
    "text",
    [
        "<testsuites/>",
        '<testsuite name="s" tests="0"/>',
        '<testsuites><testsuite name="s"/></testsuites>',
        '<testsuite name="s" tests="1" skipped="1"><testcase name="a"><skipped/></testcase></testsuite>',
        '<testsuite><testcase name="a"><skipped/></testcase><testcase name="b"><skipped/></testcase></testsuite>',
    ],
)
def test_a_report_from_elsewhere_without_an_executed_test_is_nothing_ran(tmp_path, text):
    (tmp_path / "rank-0.xml").write_text(text)
    assert code(merge(tmp_path, InputRule(world_size=1), environ={})) is ExitCode.NOTHING_RAN


def test_one_executed_test_is_enough(run_folder):
    run_folder.manifest(ENV)
    run_folder.both(ENV, {"t.py::a": SKIP, "t.py::b": "passed"})
    assert code(merge(run_folder.path, environ={})) is ExitCode.OK


def test_skips_in_one_job_and_a_selection_that_left_out_the_other_is_nothing_ran(run_folder):
    run_folder.manifest(ENV, TCP)
    run_folder.both(ENV, {"t.py::a": SKIP})
    run_folder.job(TCP, collected=[], deselected=3)
    assert code(merge(run_folder.path, environ={})) is ExitCode.NOTHING_RAN


def test_an_empty_plan_is_nothing_ran(run_folder):
    run_folder.manifest()
    assert code(merge(run_folder.path, environ={})) is ExitCode.NOTHING_RAN


def test_the_stronger_code_wins(run_folder):
    run_folder.manifest(ENV, TCP)
    run_folder.both(ENV, {"t.py::a": "failed"})
    assert code(merge(run_folder.path, environ={})) is ExitCode.UNACCOUNTED


def test_a_session_answers_for_its_own_jobs(run_folder):
    run_folder.manifest(ENV, TCP)
    run_folder.both(ENV, {"t.py::a": "passed"})
    merged = merge(run_folder.path, environ={})
    assert code(merged) is ExitCode.UNACCOUNTED
    assert code(merged.only({ENV})) is ExitCode.OK
    assert merged.only({ENV}).junit == Path(merged.junit)


def test_a_session_answers_for_a_damaged_manifest(run_folder):
    run_folder.both(ENV, {"t.py::a": "passed"})
    (run_folder.path / "run.json").write_text("{")
    merged = merge(run_folder.path, environ={})
    assert code(merged.only({ENV})) is ExitCode.UNACCOUNTED


def test_what_befell_a_job_is_told_in_the_order_of_the_exit_codes(run_folder):
    lost = ["gloo-w2-g0-env/a", "gloo-w2-g0-env/b"]
    sick, empty = "gloo-w2-g0-tcp/a", "gloo-w2-g0-tcp/b"
    run_folder.manifest(empty, *lost, sick)
    run_folder.job(empty, error={"kind": "collection", "what": "No such module."})
    run_folder.job(sick, error={"kind": "infrastructure", "what": "A sick GPU."})
    merged = merge(run_folder.path, environ={})
    told = ["A sick GPU.", "The job left no results", "No such module."]
    assert [failure.message[: len(text)] for failure, text in zip(merged.failures, told, strict=True)] == told
