"""What the records of a job say about the job as a whole."""

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

WELL = JobExit(status=0)


def facts(*records):
    return facts_of(records)


def job_error(records, ending):
    return facts(*records).error(ending, TimeLimit(value=3.0, setting="limits.job"))


def test_a_sick_gpu_is_an_error_of_the_infrastructure_that_names_it():
    records = (
        GpusChecked(gpus=("GPU-a",), seconds=1.0),
        GpuFailed(gpu="GPU-b", name="GPU 1 (H100, GPU-b)", message="it hangs"),
    )
    error = job_error(records, JobExit(status=1))
    assert (error.kind, error.what) == ("infrastructure", "GPU 1 (H100, GPU-b) is sick: it hangs.")
    assert (facts(*records).well_gpus, facts(*records).sick_gpus) == ({"GPU-a"}, {"GPU-b": "it hangs"})


def test_a_gpu_that_is_lost_in_the_middle_of_a_job_is_the_infrastructures_fault():
    lost = AgentFailed(message="before t.py::a, the GPU of rank 1 no longer computes", kind=FailureKind.GPU)
    records = (GpusChecked(gpus=("GPU-a",), seconds=1.0), lost)
    error = job_error(records, JobExit(status=1))
    assert (error.kind, error.what) == ("infrastructure", lost.message)
    assert "nvidia-smi" in error.remedy
    assert (facts(*records).has_lost_a_gpu, facts(*records).well_gpus) == (True, frozenset())


def test_another_torch_than_the_cells_is_the_infrastructures_fault():
    broken = AgentFailed(message="the matrix file states torch 2.14.1", kind=FailureKind.OTHER_TORCH)
    error = job_error([broken], WELL)
    assert error.kind == "infrastructure"
    assert "process.python" in error.remedy


def test_a_python_that_lacks_torch_is_the_infrastructures_failure():
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
def test_what_a_cluster_did_to_a_job_is_the_infrastructures_fault_unless_it_was_done(records, is_blamed):
    error = job_error(records, JobExit(status=0, ended_by="was preempted"))
    assert (error and (error.kind, error.what)) == (("infrastructure", "The job was preempted.") if is_blamed else None)


def test_a_job_whose_agent_finished_has_no_error():
    assert job_error([COLLECTED, FINISHED], WELL) is None


def test_a_suite_that_cannot_be_collected_is_named_with_its_text():
    broken = [
        CollectionFailed(nodeid="a.py", text="SyntaxError: a"),
        CollectionFailed(nodeid="b.py", text="ImportError: b"),
    ]
    error = job_error([*broken, FINISHED], WELL)
    assert (error.kind, error.what) == ("collection", "a.py, b.py cannot be collected.")
    assert error.why == "SyntaxError: a\n\nImportError: b"


def test_a_suite_without_a_name_is_called_the_suite():
    assert job_error([CollectionFailed(text="usage")], WELL).what == "the suite cannot be collected."


def test_a_suite_that_ends_its_fork_server_is_at_fault_and_not_allranks():
    error = job_error([AgentFailed(message="t.py left with exit code 3.", kind=FailureKind.SUITE)], JobExit(status=1))
    assert (error.kind, error.what) == ("collection", "t.py left with exit code 3.")


def test_an_agent_that_failed_says_why():
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
def test_an_agent_on_a_full_disk_is_no_bug(broken):
    error = job_error([broken], JobExit(status=1))
    assert (error.kind, error.why) == ("infrastructure", "[Errno 28] No space left on device")
    assert "bug" not in error.remedy


def test_a_missing_text_of_a_failed_agent_is_none():
    assert job_error([AgentFailed(message="no torch")], WELL).why == ""


@pytest.mark.parametrize(
    ("records", "ending"),
    [
        ([], JobExit(status=-9, timed_out=True)),
        ([JobTimedOut(limit=3.0), FINISHED], WELL),
        ([Interrupted(), FINISHED], JobExit(status=130, timed_out=True)),
    ],
    ids=["the engine's limit", "the agent's limit", "ended by the engine"],
)
def test_a_time_limit_is_a_timeout(records, ending):
    error = job_error(records, ending)
    assert error.kind == "timeout"
    assert error.what == "The job timed out before the first test ended: no end after 3 s (limits.job)."
    assert "limits.job" in error.remedy


def test_a_broken_module_does_not_hide_how_the_other_tests_ended():
    broken = CollectionFailed(nodeid="t.py", text="SyntaxError")
    late = job_error([broken, Went(), PASSED, failed("last"), JobTimedOut(limit=3.0)], WELL)
    assert late.kind == "collection"
    assert late.what == "t.py cannot be collected. The job timed out after last: no end after 3 s (limits.job)."
    dead = job_error([broken, Went(), PASSED], JobExit(status=-9))
    assert (dead.kind, "SyntaxError" in dead.why) == ("collection", True)
    assert "ended before its work was done" in dead.what
    assert job_error([broken, FINISHED], WELL).what == "t.py cannot be collected."


def test_a_timeout_names_the_last_test_that_was_heard_of():
    records = [PASSED, failed("last"), JobTimedOut(limit=3.0)]
    assert "after last" in job_error(records, WELL).what


def test_an_interrupted_job_says_so():
    assert job_error([Interrupted(), FINISHED], JobExit(status=130)).kind == "interrupted"


def test_an_agent_that_died_leaves_its_status_and_its_last_words():
    error = job_error([COLLECTED], JobExit(status=-11, output="Segmentation fault"))
    assert error.kind == "agent"
    assert "with status -11" in error.what
    assert error.why == "Segmentation fault"


def test_a_death_by_the_out_of_memory_killer_is_named_first():
    error = job_error([], JobExit(status=137, out_of_memory=True, output="Killed"))
    assert error.why.startswith("The kernel's out-of-memory killer ended it")
    assert "limits.memory_mib" in error.why
    assert error.why.endswith("Killed")


def test_a_death_that_nobody_saw_is_told_as_that():
    assert "with unknown status" in job_error([], JobExit(status=None)).what


def test_a_failure_of_the_engine_keeps_its_three_sentences():
    error = JobError.from_exception(EngineError("what", why="why", remedy="remedy"))
    assert error == JobError(kind="infrastructure", what="what", why="why", remedy="remedy")


def test_collected_tests_come_in_any_number_of_records_with_the_number_of_deselected_ones():
    found = facts(Collected(tests=("a",), is_last=False), Collected(tests=("b", "c"), deselected=3))
    assert (found.collected, found.deselected) == (("a", "b", "c"), 3)


@pytest.mark.parametrize("records", [[Begun(schema=2)], [Collected(tests=("a",), is_last=False)]])
def test_a_collection_that_never_ended_is_none(records):
    assert facts(*records).collected is None


def test_tests_that_an_early_stop_left_out_come_with_the_reason():
    assert facts(NotRun(tests=("b",), reason="-x")).not_run == NotRun(tests=("b",), reason="-x")
    assert facts().not_run is None


def test_a_job_is_done_unless_it_was_ended():
    assert [facts(*each).is_done for each in ([FINISHED], [Interrupted(), FINISHED], [PASSED])] == [True, False, False]


def test_processes_that_were_left_behind_are_put_in_words():
    left = [LeftBehind(nodeid="t::a", rank=rank, pid=7, command="sleep 9") for rank in (1, None)]
    assert facts(*left).notes == (
        "rank 1 left a process behind in t::a, which was killed: sleep 9",
        "a rank left a process behind in t::a, which was killed: sleep 9",
    )


def test_a_notice_of_the_agent_is_a_note():
    assert facts(Notice(nodeid="t.py", text="A thread."), Notice(text="No XML.")).notes == ("t.py: A thread", "No XML")


def test_kinds_of_notices_that_the_suite_ignores_are_left_out():
    said = [
        Notice(text="A variable.", kind="state"),
        Notice(text="No kind."),
        LeftBehind(nodeid="t::a", rank=1, pid=7, command="sleep 9"),
        SuiteWarning(file="t.py", line=3, category="UserWarning", text="Old."),
    ]
    found = JobFacts(ignored_notices=("state", "processes", "warnings"))
    for record in said:
        found.take(record)
    assert found.notes == ("No kind",)
    assert len(facts(*said).notes) == 4


def test_warnings_of_the_suites_import_are_notes_each_once_and_few_of_many():
    said = [
        SuiteWarning(file="t.py", line=number, category="UserWarning", text="Old.") for number in (3, 3, *range(30))
    ]
    notes = facts(*said).notes
    assert notes[:2] == ("t.py:3: UserWarning: Old", "t.py:0: UserWarning: Old")
    assert notes[20:] == ("10 more warnings are in agent.log",)
    assert facts(*said).notices == ()


def test_of_many_processes_that_were_left_behind_a_few_are_shown():
    left = [LeftBehind(nodeid="t::a", rank=0, pid=pid, command="sleep") for pid in range(9)]
    assert len(facts(*left).notes) == 6
    assert facts(*left).notes[-1] == "4 more processes were left behind and killed"


def test_a_job_that_ended_before_anybody_looked_is_not_late():
    assert job_error([COLLECTED, PASSED, FINISHED], JobExit(status=0, timed_out=True)) is None


@pytest.mark.parametrize("apart", [NodesFailed(message="it ended"), NodeLost(node=1, message="it is gone")])
def test_a_node_that_was_ended_from_outside_is_infrastructure_though_the_leading_agent_finished(apart):
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
def test_a_shared_file_system_that_failed_is_blamed_for_all_that_went_wrong(records, is_blamed):
    ending = JobExit(status=0, ended_by="could not write", is_disturbed=True)
    error = job_error(records, ending)
    assert (error and error.kind) == ("infrastructure" if is_blamed else None)


def test_courses_of_failures_are_not_kept_in_memory():
    kept = facts(FailureCourse(nodeid="t", stdout="x"), Went())
    assert "FailureCourse" not in repr(kept)
    assert "Went" in repr(kept)


def test_repeated_tests_have_a_note_each_the_worst_first_and_twenty_at_most():
    told = [Repeated(nodeid=f"t{number}", tally=RepetitionTally(runs=100, bad=number)) for number in range(25)]
    notes = facts(Repeated(nodeid="t24", tally=RepetitionTally(runs=9)), *told).notes
    assert notes[0].startswith("t24: 24 of 100 repetitions failed: 24 %")
    assert len(notes) == 21
    assert facts(*told).repeated["t7"] == RepetitionTally(runs=100, bad=7)
    assert notes[-1].startswith("5 more tests: 10 of 500 repetitions failed")
