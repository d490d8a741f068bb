"""Facts about a job, derived from its records."""

import pytest
from scripted_engine import COLLECTED, FINISHED, PASSED, facts_of, failed

from allranks.engines.base import JobExit
from allranks.errors import EngineError
from allranks.protocol.config import TimeLimit
from allranks.protocol.records import (
    AgentFailed,
    Begun,
    Collected,
    CollectionFailed,
    FailureCourse,
    FailureKind,
    GpuFailed,
    GpusChecked,
    Interrupted,
    JobTimedOut,
    LeftBehind,
    NodeLost,
    NodesFailed,
    Notice,
    NotRun,
    Repeated,
    SuiteWarning,
    Went,
)
from allranks.protocol.repetitions import RepetitionTally
from allranks.report.run_files import JobError
from allranks.runner.job_facts import JobFacts

PASSING = JobExit(status=0)


def facts(*records):
    return facts_of(records)


def job_error(records, ending):
    return facts(*records).error(ending, TimeLimit(value=3.0, setting="limits.job"))


def test_an_unhealthy_gpu_is_an_infrastructure_error_that_names_it():
    records = (
        GpusChecked(gpus=("GPU-a",), seconds=1.0),
        GpuFailed(gpu="GPU-b", name="GPU 1 (H100, GPU-b)", message="it hangs"),
    )
    error = job_error(records, JobExit(status=1))
    assert (error.kind, error.what) == ("infrastructure", "GPU 1 (H100, GPU-b) is unhealthy: it hangs.")
    assert (facts(*records).healthy_gpus, facts(*records).unhealthy_gpus) == ({"GPU-a"}, {"GPU-b": "it hangs"})


def test_a_gpu_that_is_lost_during_a_job_is_an_infrastructure_error():
    lost = AgentFailed(message="the GPU of rank 1 failed before t.py::a", kind=FailureKind.GPU)
    records = (GpusChecked(gpus=("GPU-a",), seconds=1.0), lost)
    error = job_error(records, JobExit(status=1))
    assert (error.kind, error.what) == ("infrastructure", lost.message)
    assert "nvidia-smi" in error.remedy
    assert (facts(*records).has_lost_a_gpu, facts(*records).healthy_gpus) == (True, frozenset())


def test_the_wrong_torch_is_an_infrastructure_error():
    broken = AgentFailed(message="the matrix file states torch 2.14.1", kind=FailureKind.OTHER_TORCH)
    error = job_error([broken], PASSING)
    assert error.kind == "infrastructure"
    assert "process.python" in error.remedy


def test_a_python_without_torch_is_an_infrastructure_error():
    broken = AgentFailed(message="cannot import torch", kind=FailureKind.CANNOT_IMPORT)
    error = job_error([broken, FINISHED], JobExit(status=1))
    assert error.kind == "infrastructure"
    assert "image" in error.remedy


@pytest.mark.parametrize(
    ("records", "is_blamed"),
    [
        ([Interrupted(), FINISHED], True),
        ([], True),
        ([COLLECTED, PASSED, NodeLost(node=1, message="the agent of node 1 does not answer"), FINISHED], True),
        ([COLLECTED, PASSED, FINISHED], False),
    ],
    ids=["interrupted", "silent", "node lost", "done"],
)
def test_a_job_that_a_cluster_ended_is_an_infrastructure_error_unless_it_had_finished(records, is_blamed):
    error = job_error(records, JobExit(status=0, ended_by="was preempted"))
    assert (error and (error.kind, error.what)) == (("infrastructure", "The job was preempted.") if is_blamed else None)


def test_a_job_whose_agent_finished_has_no_error():
    assert job_error([COLLECTED, FINISHED], PASSING) is None


def test_a_collection_error_names_the_suite_and_has_its_text():
    broken = [
        CollectionFailed(nodeid="a.py", text="SyntaxError: a"),
        CollectionFailed(nodeid="b.py", text="ImportError: b"),
    ]
    error = job_error([*broken, FINISHED], PASSING)
    assert (error.kind, error.what) == ("collection", "a.py, b.py cannot be collected.")
    assert error.why == "SyntaxError: a\n\nImportError: b"


def test_a_collection_error_without_a_name_is_that_of_the_suite():
    assert job_error([CollectionFailed(text="usage")], PASSING).what == "the suite cannot be collected."


def test_a_suite_that_ends_its_fork_server_is_a_collection_error():
    error = job_error([AgentFailed(message="t.py left with exit code 3.", kind=FailureKind.SUITE)], JobExit(status=1))
    assert (error.kind, error.what) == ("collection", "t.py left with exit code 3.")


def test_a_failed_agent_has_a_reason():
    error = job_error([AgentFailed(message="no torch", text="Traceback"), FINISHED], JobExit(status=1))
    assert (error.kind, error.what, error.why) == ("agent", "no torch", "Traceback")
    assert "bug" in error.remedy


@pytest.mark.parametrize(
    "broken",
    [
        AgentFailed(message="the agent cannot write its results: [Errno 28] No space left on device"),
        AgentFailed(message="broke down", text="Traceback\nOSError: [Errno 28] No space left on device\n"),
    ],
)
def test_a_full_disk_is_not_a_bug(broken):
    error = job_error([broken], JobExit(status=1))
    assert (error.kind, error.why) == ("infrastructure", "[Errno 28] No space left on device")
    assert "bug" not in error.remedy


def test_a_failed_agent_may_have_no_text():
    assert job_error([AgentFailed(message="no torch")], PASSING).why == ""


@pytest.mark.parametrize(
    ("records", "ending"),
    [
        ([], JobExit(status=-9, timed_out=True)),
        ([JobTimedOut(limit=3.0), FINISHED], PASSING),
        ([Interrupted(), FINISHED], JobExit(status=130, timed_out=True)),
    ],
    ids=["the engine's limit", "the agent's limit", "ended by the engine"],
)
def test_a_time_limit_is_a_timeout(records, ending):
    error = job_error(records, ending)
    assert error.kind == "timeout"
    assert error.what == "The job timed out before the first test ended: not finished after 3 s (limits.job)."
    assert "limits.job" in error.remedy


def test_a_collection_error_does_not_hide_a_later_error():
    broken = CollectionFailed(nodeid="t.py", text="SyntaxError")
    late = job_error([broken, Went(), PASSED, failed("last"), JobTimedOut(limit=3.0)], PASSING)
    assert late.kind == "collection"
    assert late.what == "t.py cannot be collected. The job timed out after last: not finished after 3 s (limits.job)."
    dead = job_error([broken, Went(), PASSED], JobExit(status=-9))
    assert (dead.kind, "SyntaxError" in dead.why) == ("collection", True)
    assert "ended before its work was done" in dead.what
    assert job_error([broken, FINISHED], PASSING).what == "t.py cannot be collected."


def test_a_timeout_names_the_last_reported_test():
    records = [PASSED, failed("last"), JobTimedOut(limit=3.0)]
    assert "after last" in job_error(records, PASSING).what


def test_an_interrupted_job_has_an_interrupted_error():
    assert job_error([Interrupted(), FINISHED], JobExit(status=130)).kind == "interrupted"


def test_a_dead_agents_error_has_its_status_and_last_output():
    error = job_error([COLLECTED], JobExit(status=-11, output="Segmentation fault"))
    assert error.kind == "agent"
    assert "with status -11" in error.what
    assert error.why == "Segmentation fault"


def test_the_out_of_memory_killer_is_named_first():
    error = job_error([], JobExit(status=137, out_of_memory=True, output="Killed"))
    assert error.why.startswith("The kernel's out-of-memory killer ended it")
    assert "limits.memory_mib" in error.why
    assert error.why.endswith("Killed")


def test_an_unknown_exit_status_is_reported():
    assert "with unknown status" in job_error([], JobExit(status=None)).what


def test_an_engine_error_keeps_what_why_and_remedy():
    error = JobError.from_exception(EngineError("what", why="why", remedy="remedy"))
    assert error == JobError(kind="infrastructure", what="what", why="why", remedy="remedy")


def test_several_records_of_collected_tests_are_combined():
    found = facts(Collected(tests=("a",), is_last=False), Collected(tests=("b", "c"), deselected=3))
    assert (found.collected, found.deselected) == (("a", "b", "c"), 3)


@pytest.mark.parametrize("records", [[Begun(schema=2)], [Collected(tests=("a",), is_last=False)]])
def test_an_unfinished_collection_is_none(records):
    assert facts(*records).collected is None


def test_tests_that_did_not_run_have_the_reason():
    assert facts(NotRun(tests=("b",), reason="-x")).not_run == NotRun(tests=("b",), reason="-x")
    assert facts().not_run is None


def test_a_job_is_done_unless_it_was_interrupted():
    assert [facts(*each).is_done for each in ([FINISHED], [Interrupted(), FINISHED], [PASSED])] == [True, False, False]


def test_processes_that_were_left_behind_are_notes():
    left = [LeftBehind(nodeid="t::a", rank=rank, pid=7, command="sleep 9") for rank in (1, None)]
    assert facts(*left).notes == (
        "after t::a, a process of rank 1 was still running; allranks killed it: sleep 9",
        "after t::a, a process of a rank was still running; allranks killed it: sleep 9",
    )


def test_a_notice_of_the_agent_is_a_note():
    assert facts(Notice(nodeid="t.py", text="A thread."), Notice(text="No XML.")).notes == ("t.py: A thread", "No XML")


def test_ignored_kinds_of_notices_are_omitted():
    records = [
        Notice(text="A variable.", kind="state"),
        Notice(text="No kind."),
        LeftBehind(nodeid="t::a", rank=1, pid=7, command="sleep 9"),
        SuiteWarning(file="t.py", line=3, category="UserWarning", text="Old."),
    ]
    found = JobFacts(ignored_notices=("state", "processes", "warnings"))
    for record in records:
        found.take(record)
    assert found.notes == ("No kind",)
    assert len(facts(*records).notes) == 4


def test_import_warnings_are_notes_without_duplicates_and_with_a_limit():
    records = [
        SuiteWarning(file="t.py", line=number, category="UserWarning", text="Old.") for number in (3, 3, *range(30))
    ]
    notes = facts(*records).notes
    assert notes[:2] == ("t.py:3: UserWarning: Old", "t.py:0: UserWarning: Old")
    assert notes[20:] == ("in agent.log: 10 more warnings",)
    assert facts(*records).notices == ()


def test_notes_about_processes_left_behind_have_a_limit():
    left = [LeftBehind(nodeid="t::a", rank=0, pid=pid, command="sleep") for pid in range(9)]
    assert len(facts(*left).notes) == 6
    assert facts(*left).notes[-1] == "left behind and killed: 4 more processes"
    assert facts(*left[:6]).notes[-1] == "left behind and killed: 1 more process"


def test_a_job_that_finished_before_the_engine_reported_a_timeout_is_not_late():
    assert job_error([COLLECTED, PASSED, FINISHED], JobExit(status=0, timed_out=True)) is None


@pytest.mark.parametrize("apart", [NodesFailed(message="it ended"), NodeLost(node=1, message="it is gone")])
def test_a_node_that_was_ended_externally_is_an_infrastructure_error_even_if_the_lead_node_finished(apart):
    error = job_error([COLLECTED, apart, FINISHED], JobExit(status=1, ended_by="lost n2"))
    assert (error.kind, error.what) == ("infrastructure", "The job lost n2.")


@pytest.mark.parametrize(
    ("records", "is_blamed"),
    [
        ([COLLECTED, PASSED, FINISHED], False),
        ([COLLECTED, failed("a.py::test_a"), FINISHED], True),
        ([COLLECTED, PASSED, CollectionFailed(nodeid="a.py", text="OSError"), FINISHED], True),
    ],
    ids=["all passed", "a test failed", "something else failed"],
)
def test_a_failed_shared_file_system_is_the_cause_of_all_failures(records, is_blamed):
    ending = JobExit(status=0, ended_by="could not write", is_disturbed=True)
    error = job_error(records, ending)
    assert (error and error.kind) == ("infrastructure" if is_blamed else None)


def test_timelines_of_failures_are_not_kept_in_memory():
    kept = facts(FailureCourse(nodeid="t", stdout="x"), Went())
    assert "FailureCourse" not in repr(kept)
    assert "Went" in repr(kept)


def test_notes_have_the_rates_of_repeated_tests_the_highest_first_with_a_limit():
    records = [Repeated(nodeid=f"t{number}", tally=RepetitionTally(runs=100, bad=number)) for number in range(25)]
    notes = facts(Repeated(nodeid="t24", tally=RepetitionTally(runs=9)), *records).notes
    assert notes[0].startswith("t24: 24 of 100 repetitions failed: 24 %")
    assert len(notes) == 21
    assert facts(*records).repeated["t7"] == RepetitionTally(runs=100, bad=7)
    assert notes[-1].startswith("5 more tests: 10 of 500 repetitions failed")
