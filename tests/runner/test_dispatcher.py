"""The dispatcher with a scripted engine: the order of events, and the records."""

import errno
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from scripted_engine import BEGUN, COLLECTED, FINISHED, PASSED, PASSING, failed

from allranks.engines.agent_output import Damage
from allranks.engines.base import JobEnvironment
from allranks.errors import EngineError, ImageError, ResultsError
from allranks.interruption import check, interruptible
from allranks.protocol.records import (
    JOURNAL,
    SCHEMA,
    CollectionFailed,
    GpuFailed,
    GpusChecked,
    JobStarted,
    Passed,
    Printed,
    decode,
    encode,
)
from allranks.report.rank_xml import RankReader
from allranks.report.untrusted import digest
from allranks.runner.environment_maker import THREAD
from allranks.runner.gpu_leases import claimed, count_free, enqueue, try_lease

pytestmark = pytest.mark.usefixtures("locks")


ONE, TWO = "gloo-w1-g0-env", "gloo-w2-g0-env"


def interrupt():
    """Simulate Ctrl-C: a signal to the process, which the main thread handles."""
    os.kill(os.getpid(), signal.SIGINT)


class Together:
    """A step that several jobs have to reach concurrently."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count)

    def __call__(self):
        self._barrier.wait(20)


def test_the_next_job_is_on_standby_while_the_current_one_runs(dispatcher, engine, pair):
    is_started = threading.Event()
    engine.acts["start", TWO] = is_started.set
    engine.acts["wait", ONE] = lambda: is_started.wait(20)
    dispatcher(pair).run(pair)
    assert engine.log[0] == f"start {ONE}"
    assert engine.log.index(f"start {TWO}") < engine.log.index(f"collect {ONE}")
    assert engine.log.index(f"wait {ONE}") < engine.log.index(f"go {TWO}")
    assert engine.log.index(f"start {TWO}") < engine.log.index(f"go {TWO}") < engine.log.index(f"collect {TWO}")


def test_jobs_run_concurrently_if_there_are_cores_for_all_ranks(dispatcher, engine, pair):
    engine.acts["wait", ONE] = engine.acts["wait", TWO] = Together(2)
    dispatcher(pair, cores=3).run(pair)
    assert engine.log.count(f"close {ONE}") == engine.log.count(f"close {TWO}") == 1


@pytest.mark.parametrize("room", [{"cores": 2}, {"cores": 8, "most": 1}, {"cores": 8, "most_jobs": 1}])
def test_jobs_run_one_by_one_if_both_do_not_fit_or_limits_request_it(dispatcher, engine, pair, room):
    dispatcher(pair, **room).run(pair)
    assert engine.log.index(f"wait {ONE}") < engine.log.index(f"go {TWO}")


def test_no_job_is_on_standby_in_a_queue(dispatcher, engine, pair):
    is_started, seen = threading.Event(), []
    engine.acts["start", TWO] = is_started.set
    engine.acts["wait", ONE] = lambda: seen.append(is_started.wait(0.5))
    dispatcher(pair, cores=8, most_jobs=1).run(pair)
    assert seen == [False]


@pytest.fixture
def orphaned(dispatcher, engine, pair, tmp_path):
    """A run of an engine with a queue, whose first job was started by an earlier orchestrator and has not ended."""
    folder = tmp_path / "results" / "r1" / "cells" / ONE / "tiny" / "attempt-1"
    folder.mkdir(parents=True)
    engine.orphans.add(ONE)
    return dispatcher([pair[0]], most_jobs=9), folder


def test_a_job_that_outlived_its_orchestrator_is_adopted_as_the_same_attempt(orphaned, engine, pair, records):
    run, folder = orphaned
    run.run([pair[0]])
    assert engine.log[:2] == [f"adopt {ONE}", f"start {ONE}"]
    assert [path.name for path in folder.parent.iterdir()] == ["attempt-1"]
    assert (records()[ONE]["attempt"], records()[ONE]["error"]) == (1, None)


def test_a_job_that_cannot_be_adopted_is_started_as_a_new_attempt(orphaned, engine, pair):
    run, folder = orphaned
    engine.orphans.clear()
    (folder / "kept.txt").touch()
    (folder.parent / "attempt-1.before").touch()
    run.run([pair[0]])
    assert sorted(path.name for path in folder.parent.iterdir()) == ["attempt-1", "attempt-1.before", "attempt-2"]


def test_an_adopted_job_with_missing_records_is_an_error(orphaned, pair, records):
    run, folder = orphaned
    lost = Passed(nodeid="gone", ranks=(0,), arrived=(2.0,), seconds=(0.5,), world_size=1, at=1.0)
    started = JobStarted(at=1.0, schema=SCHEMA, run_id="r1", cell=ONE, suite="tiny", attempt=1, world_size=1)
    (folder / "journal.jsonl").write_bytes(b"".join(encode(each) + b"\n" for each in (started, lost)))
    run.run([pair[0]])
    assert "no longer have results that an earlier allranks run had read" in records()[ONE]["error"]["why"]


def test_no_jobs_are_not_an_error(dispatcher, engine):
    dispatcher([]).run([])
    assert engine.log == []


def test_a_job_that_needs_the_current_ones_gpus_waits_for_it(dispatcher, engine, jobs):
    selected = [jobs["nccl-w1-g1-env"], jobs["nccl-w2-g2-env"]]
    dispatcher(selected, gpus=("GPU-a", "GPU-b"), cores=8).run(selected)
    first, second = "nccl-w2-g2-env", "nccl-w1-g1-env"  # the job that needs more GPUs starts first
    assert engine.log.index(f"close {first}") < engine.log.index(f"start {second}")
    assert [engine.specs[job.cell.id][0].gpus for job in selected] == [("GPU-a",), ("GPU-a", "GPU-b")]


def test_jobs_that_fit_on_the_gpus_together_overlap(dispatcher, engine, jobs):
    selected = [jobs["nccl-w1-g1-env"], replace(jobs["nccl-w1-g1-env"], environment={"A": "1"})]
    engine.acts["wait", "nccl-w1-g1-env"] = Together(2)
    dispatcher(selected, gpus=("GPU-a", "GPU-b"), cores=2).run(selected)
    assert engine.log.count("close nccl-w1-g1-env") == 2


def test_a_job_waits_for_gpus_that_another_run_holds(dispatcher, engine, jobs, lines):
    selected = [jobs["nccl-w1-g1-env"], jobs["gloo-w1-g0-env"]]
    lease = try_lease(("GPU-a",), 1)

    def release():
        deadline = time.monotonic() + 20
        while not any("waiting" in line for line in lines) and time.monotonic() < deadline:
            time.sleep(0.01)
        lease.__exit__(None, None, None)

    engine.acts["close", "gloo-w1-g0-env"] = release
    dispatcher(selected, gpus=("GPU-a",), cores=8).run(selected)
    assert engine.log.index("close gloo-w1-g0-env") < engine.log.index("start nccl-w1-g1-env")
    assert [line for line in lines if "waiting for another run to free 1 GPU" in line]


FIRST, SECOND, BOTH = "nccl-w1-g1-env", "gloo-w1-g0-env", "nccl-w2-g2-env"


def called(name, job):
    """The job, with this name of its suite."""
    return replace(job, suite=replace(job.suite, name=name))


@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, "cba"),
        ({"a": 3.0, "b": 1.0, "c": 2.0}, "acb"),
        ({"a": 1.0, "b": 5.0, "c": 5.0}, "bca"),
        ({"b": 5.0}, "abc"),  # the others get the duration of the known one
        ({}, "abc"),
    ],
)
def test_the_longest_job_starts_first(dispatcher, engine, jobs, *, seconds, order):
    selected, started = [called(name, jobs[ONE]) for name in "abc"], []
    engine.acts["start", ONE] = lambda: started.append(engine.specs[ONE][0].agent.suite)
    dispatcher(selected, durations={name: {"gloo": {"t": duration}} for name, duration in seconds.items()}, most=1).run(
        selected
    )
    assert started == list(order)


def test_a_job_that_does_not_fit_waits_while_a_later_one_that_fits_starts(dispatcher, engine, jobs):
    selected = [called("long", jobs[FIRST]), jobs[BOTH], called("short", jobs[FIRST])]
    durations = {name: {"nccl": {"t": duration}} for name, duration in (("long", 9.0), ("tiny", 5.0), ("short", 1.0))}
    engine.acts["wait", FIRST] = Together(2)
    dispatcher(selected, gpus=("GPU-a", "GPU-b"), cores=8, durations=durations).run(selected)
    assert engine.log[: engine.log.index(f"start {BOTH}")].count(f"close {FIRST}") == 2


def test_no_job_with_gpus_overtakes_one_that_waits_for_gpus_of_another_run(dispatcher, engine, jobs):
    lease, selected = try_lease(("GPU-a",), 1), [jobs[FIRST], jobs[BOTH], jobs[ONE]]
    engine.acts["close", ONE] = lambda: lease.__exit__(None, None, None)
    dispatcher(selected, gpus=("GPU-a", "GPU-b"), cores=8).run(selected)
    assert [line for line in engine.log if line.startswith("start")] == [f"start {cell}" for cell in (ONE, BOTH, FIRST)]


UNHEALTHY = (GpuFailed(gpu="GPU-a", name="GPU 0 (GPU-a)", message="it hangs"), FINISHED)


def healthy(*gpus):
    return (GpusChecked(gpus=gpus, seconds=1.0), *PASSING)


def test_an_unhealthy_gpu_is_not_leased_again_and_its_job_runs_on_another(dispatcher, engine, jobs, lines):
    engine.records[FIRST] = UNHEALTHY
    engine.acts["wait", FIRST] = lambda: engine.records.update({FIRST: PASSING})
    dispatcher([jobs[FIRST]], gpus=("GPU-a", "GPU-b"), retries=1).run([jobs[FIRST]])
    assert engine.specs[FIRST][0].gpus == ("GPU-b",)
    assert f"{FIRST}/tiny: retrying the whole job (1 of 1)" in lines
    assert "GPU 0 (GPU-a) is unhealthy: no other job of this run will use it" in lines


def test_without_retries_the_job_has_an_infrastructure_error_and_others_run(dispatcher, engine, jobs, records):
    other = replace(jobs[FIRST], suite=replace(jobs[FIRST].suite, name="other"))
    engine.records[FIRST] = UNHEALTHY
    engine.acts["wait", FIRST] = lambda: engine.records.update({FIRST: PASSING})
    dispatcher([jobs[FIRST], other], gpus=("GPU-a", "GPU-b"), most=1).run([jobs[FIRST], other])
    error = records()[FIRST]["error"]
    assert (error["kind"], error["what"]) == ("infrastructure", "GPU 0 (GPU-a) is unhealthy: it hangs.")
    spec, _ = engine.specs[FIRST]
    assert (spec.job_id, spec.gpus) == (other.id, ("GPU-b",))


def test_a_gpu_that_is_reported_as_unhealthy_during_its_lease_goes_to_no_job(dispatcher, engine, jobs, monkeypatch):
    work = dispatcher([jobs[FIRST]], gpus=("GPU-a", "GPU-b"))

    def lease_after_its_last_job(gpus, *rest):
        work._pool.report_unhealthy(["GPU-a"])
        return try_lease(gpus, *rest)

    monkeypatch.setattr("allranks.runner.gpu_leases.try_lease", lease_after_its_last_job)
    work.run([jobs[FIRST]])
    assert engine.specs[FIRST][0].gpus == ("GPU-b",)


def test_a_gpu_that_failed_the_check_is_recorded_for_later_runs(dispatcher, engine, jobs, locks):
    engine.records[FIRST] = UNHEALTHY
    dispatcher([jobs[FIRST]], gpus=("GPU-a", "GPU-b")).run([jobs[FIRST]])
    assert [path.name for path in locks.glob("unhealthy-*")] == ["unhealthy-GPU-a"]
    assert json.loads((locks / "unhealthy-GPU-a").read_text())["why"] == "it hangs"


def test_an_unhealthy_gpu_of_another_node_is_known_by_that_nodes_record(dispatcher, engine, jobs, records):
    broken = CollectionFailed(nodeid="", text="node 1: GPU 0 (GPU-a) is unhealthy: it hangs")
    engine.records[FIRST] = (broken, *UNHEALTHY)
    dispatcher([jobs[FIRST]], gpus=("GPU-a", "GPU-b")).run([jobs[FIRST]])
    error = records()[FIRST]["error"]
    assert (error["kind"], error["what"]) == ("infrastructure", "GPU 0 (GPU-a) is unhealthy: it hangs.")


def test_a_job_that_needs_more_gpus_than_are_healthy_is_an_error(dispatcher, engine, jobs, records):
    selected = [jobs[BOTH], replace(jobs[FIRST], suite=replace(jobs[FIRST].suite, name="other"))]
    again = replace(jobs[BOTH], suite=replace(jobs[BOTH].suite, name="third"))
    engine.records[BOTH] = UNHEALTHY
    dispatcher([*selected, again], gpus=("GPU-a", "GPU-b"), most=1).run([selected[0], again, selected[1]])
    assert records()[BOTH]["error"]["what"] == "GPU 0 (GPU-a) is unhealthy: it hangs."
    assert engine.log.count(f"start {BOTH}") == 1
    assert engine.specs[FIRST][0].gpus == ("GPU-b",)


def test_each_gpu_is_checked_once_in_each_image(dispatcher, engine, jobs):
    several = [replace(jobs[BOTH], suite=replace(jobs[BOTH].suite, name=name)) for name in "abc"]
    asked = []
    engine.records[BOTH] = healthy("GPU-a", "GPU-b")
    engine.acts["go", BOTH] = lambda: asked.append([each.gpu for each in engine.specs[BOTH][0].agent.check_gpus])
    images = iter(["one", "one", "two"])
    dispatcher(
        several, gpus=("GPU-a", "GPU-b"), cores=2, most=1, environment_of=lambda _: JobEnvironment(image=next(images))
    ).run(several)
    assert asked == [["GPU-a", "GPU-b"], [], ["GPU-a", "GPU-b"]]


def test_a_run_is_in_the_queue_until_it_has_its_gpus(dispatcher, engine, jobs, locks):
    lease = try_lease(("GPU-a",), 1)
    dispatcher_of_both = dispatcher([jobs[BOTH]], gpus=("GPU-a", "GPU-b"))
    seen = []

    def look_at_line():
        deadline = time.monotonic() + 20
        while not claimed() and time.monotonic() < deadline:
            time.sleep(0.01)
        # A later run leases neither, not even the free one.
        seen.extend([claimed(), count_free(("GPU-a", "GPU-b")), try_lease(("GPU-b",), 1)])
        lease.__exit__(None, None, None)

    engine.acts["start", BOTH] = lambda: seen.append(list(locks.glob("queue-*")))
    with ThreadPoolExecutor() as pool:
        other = pool.submit(look_at_line)
        dispatcher_of_both.run([jobs[BOTH]])
        other.result()
    assert seen == [{"GPU-a", "GPU-b"}, 0, None, []]


def test_a_run_does_not_lease_gpus_that_an_earlier_entry_waits_for(dispatcher, engine, jobs):
    entry = enqueue(("GPU-a", "GPU-b"))
    acts = []

    def say(line):
        if line.startswith("waiting for another run to free 1 GPU"):
            acts.append(list(engine.log))
            entry.leave()

    work = dispatcher([jobs[FIRST]], gpus=("GPU-a", "GPU-b"))
    work._live.say = say
    work.run([jobs[FIRST]])
    assert acts == [[]]
    assert engine.log[:2] == ["evict GPU-a", f"start {FIRST}"]


@pytest.mark.parametrize("cells", [(FIRST,), (ONE,), (FIRST, BOTH), (ONE, FIRST, TWO), (ONE, TWO, BOTH)], ids=str)
def test_without_leases_jobs_with_gpus_fail_before_their_image_is_made_and_others_run(
    dispatcher, engine, jobs, records, cells
):
    made, what = [], "No GPU can be leased."
    engine.no_leases = EngineError(what)

    def environment(job):
        made.append(job.cell.id)
        return JobEnvironment(image="i")

    selected = [jobs[cell] for cell in cells]
    dispatcher(selected, gpus=("GPU-a", "GPU-b"), environment_of=environment).run(selected)
    without = [job.cell.id for job in selected if not job.cell.gpu_count]
    assert made == list(engine.specs) == without
    errors = {cell: record["error"] and record["error"]["what"] for cell, record in records().items()}
    assert errors == {cell: None if cell in without else what for cell in cells}


def test_a_job_holds_its_gpus_until_its_results_are_collected(dispatcher, engine, jobs):
    [job] = selected = [jobs["nccl-w2-g2-env"]]
    held = []
    engine.records[job.cell.id] = PASSING
    engine.note = lambda *_: held.append(try_lease(("GPU-a",), 1) is None)
    dispatcher(selected, gpus=("GPU-a", "GPU-b")).run(selected)
    assert held == [True] * 5
    assert len(engine.specs[job.cell.id][1]) == 2
    with try_lease(("GPU-a", "GPU-b"), 2) as lease:
        assert lease is not None


def test_a_host_without_the_gpus_runs_the_job_without_a_lease(dispatcher, engine, jobs, records):
    selected = [jobs["nccl-w2-g2-env"]]
    dispatcher(selected, gpus=("GPU-a",)).run(selected)
    assert engine.specs["nccl-w2-g2-env"][0].gpus == ()
    assert records()["nccl-w2-g2-env"]["gpus"] == []


def test_a_record_has_all_fields_of_its_attempt(dispatcher, pair, records, tmp_path):
    dispatcher(pair[:1]).run(pair[:1])
    record = records()[ONE]
    spec = record.pop("spec")
    started, finished = record.pop("started"), record.pop("finished")
    assert record == {
        "schema": 2, "id": f"{ONE}/tiny", "run_id": "r1", "cell": ONE, "suite": "tiny", "attempt": 1, "continues": 0,
        "engine": "scripted", "gpus": [], "world_size": 1,
        "image": "cpu", "nodes": 1, "exit_status": 0, "error": None, "collected": ["t"], "full_collection": {},
        "deselected": 1,
        "not_run": [], "stop_reason": "", "notes": [], "repeated": {}, "share": None,
        "rank_files": {path.name: digest(path) for path in tmp_path.glob("results/r1/cells/*/*/*/*.*")
                       if path.suffix in {".xml", ".jsonl"}},
    }  # fmt: skip
    assert spec["agent"]["pytest_args"] == ["--strict-markers", "-k", "x"]
    assert spec["agent"]["seed"] == 7
    assert 0 < started <= finished


def test_a_second_run_of_a_job_is_another_attempt(dispatcher, pair, tmp_path):
    for _ in range(2):
        dispatcher(pair[:1]).run(pair[:1])
    folder = tmp_path / "results" / "r1" / "cells" / ONE / "tiny"
    assert sorted(path.name for path in folder.iterdir()) == ["attempt-1", "attempt-2"]


@pytest.mark.parametrize("step", ["start", "wait", "collect"])
def test_a_job_that_the_engine_loses_has_a_record_and_other_jobs_run(dispatcher, engine, pair, records, step):
    engine.failures[step, ONE] = EngineError("Lost.", why="Because.", remedy="Look.")
    dispatcher(pair).run(pair)
    assert records()[ONE]["error"] == {"kind": "infrastructure", "what": "Lost.", "why": "Because.", "remedy": "Look."}
    assert records()[TWO]["error"] is None
    assert ("close" in " ".join(engine.log[:-1])) or step == "start"


def test_an_image_that_cannot_be_made_is_an_error_of_its_job(dispatcher, pair, records):
    def environment(job):
        if job is pair[1]:
            msg = "No base."
            raise ImageError(msg)
        return JobEnvironment(image="i")

    dispatcher(pair, environment_of=environment).run(pair)
    assert records()[ONE]["error"] is None
    assert records()[TWO]["error"]["what"] == "No base."
    assert records()[TWO]["spec"] is None


def test_an_agent_that_died_is_an_error_of_its_job(dispatcher, engine, pair, records):
    engine.records[ONE] = (COLLECTED,)
    dispatcher(pair).run(pair)
    assert records()[ONE]["error"]["kind"] == "agent"


@pytest.fixture
def run_interrupted(dispatcher):
    def run(selected, **room):
        with pytest.raises(KeyboardInterrupt), interruptible():
            dispatcher(selected, **room).run(selected)

    return run


def test_an_interrupt_while_a_job_runs_writes_its_record_and_closes_everything(run_interrupted, engine, pair, records):
    engine.endless.add(ONE)
    is_started = threading.Event()
    engine.acts["start", TWO] = is_started.set
    engine.acts["wait", ONE] = lambda: is_started.wait(20) and interrupt()
    run_interrupted(pair)
    assert records()[ONE]["error"]["kind"] == "interrupted"
    assert [line for line in engine.log if ONE in line][-2:] == [f"collect {ONE}", f"close {ONE}"]
    assert engine.log.count(f"close {TWO}") == 1
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("/tiny")]


def test_an_interrupt_ends_all_jobs_that_run_and_each_has_its_record(run_interrupted, engine, pair, records):
    engine.endless |= {ONE, TWO}
    together = Together(2)
    engine.acts["wait", ONE] = together
    engine.acts["wait", TWO] = lambda: (together(), interrupt())
    run_interrupted(pair, cores=8)
    assert {cell: record["error"]["kind"] for cell, record in records().items()} == dict.fromkeys(
        (ONE, TWO), "interrupted"
    )


def test_a_job_that_was_only_started_ahead_is_recorded_as_interrupted(run_interrupted, engine, pair, records):
    engine.endless.add(ONE)
    engine.acts["start", TWO] = interrupt
    run_interrupted(pair)
    assert records()[TWO]["error"]["what"] == "The run was interrupted before the job started."


def test_an_interrupt_during_a_build_records_all_jobs(dispatcher, engine, jobs, records):
    selected = [jobs[ONE], jobs["nccl-w1-g1-env"]]

    def environment(job):
        if job is selected[0]:
            interrupt()
        return JobEnvironment(image="i")

    engine.endless.add("nccl-w1-g1-env")
    with pytest.raises(KeyboardInterrupt), interruptible():
        dispatcher(selected, cores=8, gpus=("GPU-a",), environment_of=environment).run(selected)
    assert {cell: record["error"]["kind"] for cell, record in records().items()} == dict.fromkeys(
        (ONE, "nccl-w1-g1-env"), "interrupted"
    )
    assert engine.log.count("start nccl-w1-g1-env") == engine.log.count("close nccl-w1-g1-env")
    with try_lease(("GPU-a",), 1) as lease:
        assert lease is not None


def build_without_end():
    """A build that lasts until it is cancelled."""
    while True:
        check()
        time.sleep(0.01)


def test_jobs_run_during_the_build_of_another_ones_image(dispatcher, engine, pair):
    is_over = threading.Event()
    engine.acts["close", ONE] = is_over.set

    def environment(job):
        if job is pair[1]:
            assert is_over.wait(20)
        return JobEnvironment(image="i")

    dispatcher(pair, cores=8, environment_of=environment).run(pair)
    assert engine.log.index(f"close {ONE}") < engine.log.index(f"start {TWO}")


def test_an_interrupt_ends_a_build_at_once(dispatcher, engine, pair):
    def environment(_job):
        interrupt()
        build_without_end()

    with pytest.raises(KeyboardInterrupt), interruptible():
        dispatcher(pair, environment_of=environment).run(pair)
    assert engine.log == []
    assert THREAD not in [thread.name for thread in threading.enumerate()]


def test_the_time_limit_of_a_run_ends_a_build(dispatcher, engine, pair, records):
    dispatcher(pair, environment_of=lambda _: build_without_end(), seconds=0.3).run(pair)
    assert engine.log == []
    assert [record["error"]["kind"] for record in records().values()] == ["stopped", "stopped"]


def test_an_unforeseen_error_of_a_build_ends_the_run(dispatcher, pair):
    def environment(_job):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dispatcher(pair, environment_of=environment).run(pair)


def test_a_thread_that_cannot_be_started_ends_the_run_and_leaves_nothing(dispatcher, jobs, tmp_path, monkeypatch):
    def refuse(thread):
        if thread.name == THREAD:
            return started(thread)
        msg = "can't start new thread"
        raise RuntimeError(msg)

    selected, started = [jobs["nccl-w1-g1-env"]], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        dispatcher(selected, gpus=("GPU-a",)).run(selected)
    assert list((tmp_path / "results" / "r1" / "cells" / "nccl-w1-g1-env" / "tiny").iterdir()) == []
    with try_lease(("GPU-a",), 1) as lease:
        assert lease is not None


def test_a_job_does_not_begin_after_an_interrupt(dispatcher, engine, pair, records):
    """An interrupt between the start of the job and its release."""
    work = dispatcher(pair[:1])
    job_started = work._live.job_started

    def interrupted_meanwhile(*arguments):
        job_started(*arguments)
        work._active[0].cancel()

    engine.endless.add(ONE)
    work._live.job_started = interrupted_meanwhile
    work.run(pair[:1])
    assert f"go {ONE}" not in engine.log
    assert records()[ONE]["error"]["kind"] == "interrupted"


def test_a_job_that_had_finished_before_its_cancellation_is_not_interrupted(dispatcher, engine, pair, records):
    work = dispatcher(pair[:1])

    def interrupt_it():
        work._active[0].cancel()

    engine.acts["wait", ONE] = interrupt_it
    work.run(pair[:1])
    assert records()[ONE]["error"] is None


def test_an_interrupt_while_results_are_collected_loses_nothing(run_interrupted, engine, pair, records):
    engine.acts["collect", ONE] = interrupt
    engine.endless.add(TWO)
    run_interrupted(pair)
    assert records()[ONE]["error"] is None
    assert engine.log.count(f"close {ONE}") == 1


def test_an_interrupt_frees_the_gpus(run_interrupted, engine, jobs):
    selected = [jobs["nccl-w2-g2-env"]]
    engine.endless.add("nccl-w2-g2-env")
    engine.acts["wait", "nccl-w2-g2-env"] = interrupt
    run_interrupted(selected, gpus=("GPU-a", "GPU-b"))
    with try_lease(("GPU-a", "GPU-b"), 2) as lease:
        assert lease is not None


def attempt_of(tmp_path, cell=ONE):
    return tmp_path / "results" / "r1" / "cells" / cell / "tiny" / "attempt-1"


def journal_of(attempt):
    return [decode(line) for line in (attempt / JOURNAL).read_bytes().splitlines()]


def test_a_journal_has_all_records_except_printed_output(dispatcher, engine, pair, tmp_path):
    engine.records[ONE] = (COLLECTED, Printed(rank=0, line="half way"), PASSED, FINISHED)
    dispatcher(pair[:1]).run(pair[:1])
    first, *rest = journal_of(attempt_of(tmp_path))
    assert replace(first, at=0.0) == JobStarted(
        schema=SCHEMA, run_id="r1", cell=ONE, suite="tiny", attempt=1, world_size=1
    )
    assert rest == [BEGUN, COLLECTED, PASSED, FINISHED]


def test_a_record_is_in_the_journal_before_the_next_one_arrives(dispatcher, engine, pair, tmp_path):
    seen = []
    engine.acts["wait", ONE] = lambda: seen.extend(journal_of(attempt_of(tmp_path)))
    dispatcher(pair[:1]).run(pair[:1])
    assert seen[1:] == [BEGUN, *PASSING]


def test_rank_xml_is_written_from_the_journal_regardless_of_the_jobs_files(dispatcher, engine, pair, tmp_path):
    engine.records[ONE] = (COLLECTED, failed("t", message="no"), FINISHED)
    engine.files[ONE] = {"rank-0.xml": "the job's", "job.json": "the job's"}
    dispatcher(pair[:1]).run(pair[:1])
    [result] = RankReader().read(attempt_of(tmp_path) / "rank-0.xml").results
    assert (result.outcome, result.message) == ("failed", "no")
    assert json.loads((attempt_of(tmp_path) / "job.json").read_text())["attempt"] == 1


def test_a_job_whose_journal_cannot_be_written_is_stopped_with_an_error(dispatcher, engine, pair, records, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    engine.endless.add(ONE)
    monkeypatch.setattr("allranks.runner.ledger.os.write", full)
    dispatcher(pair[:1]).run(pair[:1])
    error = records()[ONE]["error"]
    assert (error["kind"], error["what"]) == (
        "infrastructure",
        "The journal of the job could not be written: No space left on device.",
    )


def test_a_record_that_cannot_be_written_ends_the_run_and_closes_everything(dispatcher, engine, pair, tmp_path):
    def put_a_folder_in_the_way(cell):
        engine.log.append(f"collect {cell}")
        (tmp_path / "results" / "r1" / "cells" / cell / "tiny" / "attempt-1" / "job.json").mkdir()

    engine.note = lambda step, cell: (
        put_a_folder_in_the_way(cell) if step == "collect" else engine.log.append(f"{step} {cell}")
    )
    with pytest.raises(ResultsError):
        dispatcher(pair).run(pair)
    assert [line for line in engine.log if "start" in line and line.replace("start", "close") not in engine.log] == []
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("/tiny")]


def test_the_engine_and_the_result_of_each_job_are_printed(dispatcher, pair, lines):
    dispatcher(pair[:1]).run(pair[:1])
    assert lines[0] == f"{ONE}/tiny: running in cpu"
    assert lines[1].startswith(f"{ONE}/tiny: 1 passed (")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Damage("record 3, from byte 70 on, is not JSON"), "record 3, from byte 70 on, is not JSON"),
        (failed("u"), "'u', which it has not collected"),
        (replace(PASSED, ranks=(1,)), "rank 1 in 't', but the world size is 1"),
        (BEGUN, "a second Begun"),
    ],
    ids=["damage", "an unknown test", "an unknown rank", "a second Begun"],
)
def test_a_job_that_contradicts_itself_is_stopped_and_keeps_its_earlier_results(  # noqa: PLR0917
    dispatcher, engine, pair, records, tmp_path, record, why
):
    engine.records[ONE] = (COLLECTED, failed("t", message="no"), record, PASSED, FINISHED)
    engine.endless.add(ONE)
    dispatcher(pair).run(pair)
    error = records()[ONE]["error"]
    assert (error["kind"], error["what"].startswith("The job reported something impossible and was stopped")) == (
        "agent",
        True,
    )
    assert why in error["why"]
    assert journal_of(attempt_of(tmp_path))[1:] == [BEGUN, COLLECTED, failed("t", message="no")]
    assert records()[TWO]["error"] is None


def test_a_record_after_finished_is_a_contradiction(dispatcher, engine, pair, records):
    engine.records[ONE] = (*PASSING, PASSED)
    dispatcher(pair[:1]).run(pair[:1])
    assert "reports Passed after Finished" in records()[ONE]["error"]["why"]


def test_a_journal_has_a_size_limit(dispatcher, pair, records, monkeypatch):
    monkeypatch.setattr("allranks.runner.attempt_runner.MOST_BYTES", 200)
    dispatcher(pair[:1]).run(pair[:1])
    assert "the limit is 200" in records()[ONE]["error"]["what"]


def test_a_run_at_its_time_limit_is_stopped_and_each_job_has_the_reason(dispatcher, engine, pair, records, lines):
    engine.endless.add(ONE)
    dispatcher(pair, most=1, seconds=0.2).run(pair)
    errors = {cell: record["error"] for cell, record in records().items()}
    assert [errors[cell]["kind"] for cell in (ONE, TWO)] == ["stopped", "stopped"]
    assert errors[TWO]["what"] == "Not completed: the run reached its limit of 0.2 s."
    assert "the run reached its limit of 0.2 s: stopping" in lines
    assert f"go {TWO}" not in engine.log


def test_a_run_within_its_time_limit_is_not_stopped(dispatcher, pair, records, lines):
    dispatcher(pair, seconds=60.0).run(pair)
    assert {record["error"] for record in records().values()} == {None}
    assert not [line for line in lines if "limit" in line]
