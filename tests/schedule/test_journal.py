import pytest

from allranks.engine.protocol import JobExit
from allranks.errors import EngineError
from allranks.schedule.journal import JobError, collected, find, job_error, not_run, notes, sick_gpus, well_gpus

FINISHED = {"event": "agent_finished"}
WELL = JobExit(status=0)


def test_a_sick_gpu_is_an_error_of_the_infrastructure_that_names_it():
    events = [
        {"event": "gpus_checked", "gpus": ["GPU-a"]},
        {"event": "gpu_failed", "gpu": "GPU-b", "name": "GPU 1 (H100, GPU-b)", "message": "it hangs"},
    ]
    error = job_error(events, JobExit(status=1))
    assert (error.kind, error.what) == ("infrastructure", "GPU 1 (H100, GPU-b) is sick: it hangs.")
    assert (well_gpus(events), sick_gpus(events)) == ({"GPU-a"}, {"GPU-b"})


def event(kind, **fields):
    return {"event": kind, **fields}


def test_another_torch_than_the_cells_is_the_infrastructures_fault():
    failed = event("agent_failed", message="the cell stands for torch 2.14.1", other_torch="2.13.0")
    error = job_error([failed], WELL)
    assert error.kind == "infrastructure"
    assert "process.python" in error.remedy


def test_a_python_that_lacks_torch_is_the_infrastructures_failure():
    failed = event("agent_failed", message="cannot import torch", cannot_import="torch")
    error = job_error([failed, FINISHED], JobExit(status=1))
    assert error.kind == "infrastructure"
    assert "image" in error.remedy


def test_a_job_whose_agent_finished_has_no_error():
    assert job_error([event("collected"), FINISHED], WELL) is None


def test_a_suite_that_cannot_be_collected_is_named_with_its_text():
    events = [
        event("collection_failed", nodeid="a.py", text="SyntaxError: a"),
        event("collection_failed", nodeid="b.py", text="ImportError: b"),
        FINISHED,
    ]
    error = job_error(events, WELL)
    assert (error.kind, error.what) == ("collection", "a.py, b.py cannot be collected.")
    assert error.why == "SyntaxError: a\n\nImportError: b"


def test_a_suite_without_a_name_is_called_the_suite():
    assert (
        job_error([event("collection_failed", nodeid="", text="usage")], WELL).what == "the suite cannot be collected."
    )


def test_an_agent_that_failed_says_why():
    error = job_error([event("agent_failed", message="no torch", text="Traceback"), FINISHED], JobExit(status=1))
    assert (error.kind, error.what, error.why) == ("agent", "no torch", "Traceback")
    assert "bug" in error.remedy


@pytest.mark.parametrize(
    "failed",
    [
        event("agent_failed", message="the agent cannot write its results: [Errno 28] No space left on device"),
        event("agent_failed", message="broke down", text="Traceback\nOSError: [Errno 28] No space left on device\n"),
    ],
)
def test_an_agent_on_a_full_disk_is_no_bug(failed):
    error = job_error([failed], JobExit(status=1))
    assert (error.kind, error.why) == ("infrastructure", "[Errno 28] No space left on device")
    assert "bug" not in error.remedy


def test_a_missing_text_of_a_failed_agent_is_none():
    assert job_error([event("agent_failed", message="no torch")], WELL).why == ""


@pytest.mark.parametrize(
    ("events", "ending"),
    [([], JobExit(status=-9, timed_out=True)), ([event("job_timed_out"), FINISHED], WELL)],
    ids=["the engine's limit", "the agent's limit"],
)
def test_a_time_limit_is_a_timeout(events, ending):
    error = job_error(events, ending)
    assert error.kind == "timeout"
    assert "before the first test ended" in error.what
    assert "limits.job" in error.remedy


def test_a_timeout_names_the_last_test_that_was_heard_of():
    events = [event("arrived", nodeid="first"), event("arrived", nodeid="last"), event("job_timed_out")]
    assert "after last" in job_error(events, WELL).what


def test_an_interrupted_job_says_so():
    assert job_error([event("interrupted"), FINISHED], JobExit(status=130)).kind == "interrupted"


def test_an_agent_that_died_leaves_its_status_and_its_last_words():
    error = job_error([event("collected")], JobExit(status=-11, output="Segmentation fault"))
    assert error.kind == "agent"
    assert "with status -11" in error.what
    assert error.why == "Segmentation fault"


def test_a_death_for_want_of_memory_says_so_first():
    error = job_error([], JobExit(status=137, out_of_memory=True, output="Killed"))
    assert error.why.startswith("The kernel killed it")
    assert "limits.memory_mib" in error.why
    assert error.why.endswith("Killed")


def test_a_death_that_nobody_saw_is_told_as_that():
    assert "nobody knows how" in job_error([], JobExit(status=None)).what


def test_a_failure_of_the_engine_keeps_its_three_sentences():
    error = JobError.from_exception(EngineError("what", why="why", remedy="remedy"))
    assert error == JobError(kind="infrastructure", what="what", why="why", remedy="remedy")


def test_collected_tests_come_with_the_number_of_deselected_ones():
    assert collected([event("collected", tests=["a", "b"], deselected=3)]) == (["a", "b"], 3)


def test_a_collection_that_never_ended_is_none():
    assert collected([event("agent_started")]) == (None, 0)


def test_tests_that_an_early_stop_left_out_come_with_the_reason():
    events = [event("not_run", tests=["b"], reason="-x")]
    assert not_run(events) == {"not_run": ["b"], "stop_reason": "-x"}
    assert not_run([]) == {}


def test_the_first_event_of_a_kind_is_found():
    assert find([event("a", n=1), event("a", n=2)], "a")["n"] == 1
    assert find([], "a") is None


def test_processes_that_were_left_behind_are_put_in_words():
    events = [event("left_behind", nodeid="t::a", rank=rank, pid=7, command="sleep 9") for rank in (1, None)]
    assert notes(events) == [
        "rank 1 left a process behind in t::a, which was killed: sleep 9",
        "a rank left a process behind in t::a, which was killed: sleep 9",
    ]


def test_a_notice_of_the_agent_is_a_note():
    notices = [event("notice", nodeid="t.py", text="A thread."), event("notice", nodeid="", text="No XML.")]
    assert notes(notices) == ["t.py: A thread", "No XML"]


def test_of_many_processes_that_were_left_behind_a_few_are_shown():
    events = [event("left_behind", nodeid="t::a", rank=0, pid=pid, command="sleep") for pid in range(9)]
    assert len(notes(events)) == 6
    assert notes(events)[-1] == "4 more processes were left behind and killed"
