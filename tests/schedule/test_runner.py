"""The runner against an engine that is a script: what happens in which order, and what is written down."""

import json
import signal
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from allranks.engine.protocol import JobExit
from allranks.errors import EngineError, ImageError, ResultsError
from allranks.interruption import interruptible
from allranks.schedule.gpus import try_lease
from allranks.schedule.live import LiveView
from allranks.schedule.request import Surroundings
from allranks.schedule.runner import Host, Runner

COLLECTED = {"event": "collected", "tests": ["t"], "deselected": 1}
ARRIVED = {
    "event": "arrived", "at": 2.0, "nodeid": "t", "rank": 0, "outcome": "passed", "message": "", "consequence": False,
}  # fmt: skip
FINISHED = {"event": "agent_finished"}
WELL = (COLLECTED, ARRIVED, FINISHED)

pytestmark = pytest.mark.usefixtures("locks")


@dataclass
class ScriptedEngine:
    """An engine that writes down what it is asked, and does as told for each cell.

    Attributes:
        events: What the job of a cell says.
        failures: What a step of a cell's job raises: ``("start", "gloo-w1-g0-env")``.
    """

    log: list = field(default_factory=list)
    specs: dict = field(default_factory=dict)
    events: dict = field(default_factory=dict)
    failures: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    name: str = "scripted"

    def note(self, step, cell):
        self.log.append(f"{step} {cell}")
        if (step, cell) in self.failures:
            raise self.failures[step, cell]

    @contextmanager
    def start(self, spec, held=()):
        cell = spec.agent.cell
        self.specs[cell] = (spec, tuple(held))
        self.note("start", cell)
        try:
            yield ScriptedJob(self, cell)
        finally:
            self.note("close", cell)

    def reap(self):
        return []


@dataclass
class ScriptedJob:
    engine: ScriptedEngine
    cell: str

    def go(self):
        self.engine.note("go", self.cell)

    def wait(self, sink):
        for event in self.engine.events.get(self.cell, WELL):
            sink(event)
        self.engine.note("wait", self.cell)
        return JobExit(status=0)

    def stop(self):
        self.engine.note("stop", self.cell)

    def collect(self, results):
        self.engine.note("collect", self.cell)
        for name, text in self.engine.files.get(self.cell, {}).items():
            (results / name).write_text(text)


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def runner(matrix, make_folder, engine, lines):
    def make(wanted, *, gpus=(), surroundings=lambda job: Surroundings(image=job.image.name)):
        host = Host(engine=engine, gpus=gpus, surroundings=surroundings)
        return Runner(matrix, host, make_folder(wanted), LiveView(lines), ("-k", "x"))

    return make


@pytest.fixture
def records(tmp_path):
    """The records of a run by cell, read from its files."""

    def read():
        found = (tmp_path / "results" / "r1" / "cells").glob("*/tiny/attempt-*/job.json")
        return {path.parents[2].name: json.loads(path.read_text()) for path in found}

    return read


@pytest.fixture
def pair(jobs):
    return [jobs["gloo-w1-g0-env"], jobs["gloo-w2-g0-env"]]


ONE, TWO = "gloo-w1-g0-env", "gloo-w2-g0-env"


def test_the_next_job_is_started_before_the_current_one_is_awaited(runner, engine, pair):
    runner(pair).run(pair)
    assert engine.log == [
        f"start {ONE}", f"go {ONE}", f"start {TWO}", f"wait {ONE}", f"go {TWO}", f"collect {ONE}", f"close {ONE}",
        f"wait {TWO}", f"collect {TWO}", f"close {TWO}",
    ]  # fmt: skip


def test_no_jobs_are_no_trouble(runner, engine):
    runner([]).run([])
    assert engine.log == []


def test_a_job_of_another_image_waits_for_the_current_one(runner, engine, jobs, pair):
    """Making an image can take minutes, in which nobody would listen to the current job."""
    other = [pair[0], jobs["nccl-w1-g1-env"]]
    runner(other).run(other)
    assert engine.log.index("wait gloo-w1-g0-env") < engine.log.index("start nccl-w1-g1-env")


def test_a_job_that_needs_the_current_ones_gpus_waits_for_it(runner, engine, jobs):
    wanted = [jobs["nccl-w1-g1-env"], jobs["nccl-w2-g2-env"]]
    runner(wanted, gpus=("GPU-a", "GPU-b")).run(wanted)
    assert engine.log.index("close nccl-w1-g1-env") < engine.log.index("start nccl-w2-g2-env")
    assert [engine.specs[job.cell.id][0].gpus for job in wanted] == [("GPU-a",), ("GPU-a", "GPU-b")]


def test_jobs_that_fit_on_the_gpus_together_overlap(runner, engine, jobs):
    wanted = [jobs["nccl-w1-g1-env"], replace(jobs["nccl-w1-g1-env"], environment={"A": "1"})]
    runner(wanted, gpus=("GPU-a", "GPU-b")).run(wanted)
    assert engine.log[:3] == ["start nccl-w1-g1-env", "go nccl-w1-g1-env", "start nccl-w1-g1-env"]


def test_a_job_holds_its_gpus_until_it_is_put_away(runner, engine, jobs):
    [job] = wanted = [jobs["nccl-w2-g2-env"]]
    held = []
    engine.events[job.cell.id] = WELL
    engine.note = lambda *_: held.append(try_lease(("GPU-a",), 1) is None)
    runner(wanted, gpus=("GPU-a", "GPU-b")).run(wanted)
    assert held == [True] * 5
    assert len(engine.specs[job.cell.id][1]) == 2
    with try_lease(("GPU-a", "GPU-b"), 2) as lease:
        assert lease is not None


def test_a_host_without_the_gpus_runs_the_job_without_a_lease(runner, engine, jobs, records):
    wanted = [jobs["nccl-w2-g2-env"]]
    runner(wanted, gpus=("GPU-a",)).run(wanted)
    assert engine.specs["nccl-w2-g2-env"][0].gpus == ()
    assert records()["nccl-w2-g2-env"]["gpus"] == []


def test_a_record_says_all_about_its_attempt(runner, pair, records):
    runner(pair[:1]).run(pair[:1])
    record = records()[ONE]
    spec = record.pop("spec")
    started, finished = record.pop("started"), record.pop("finished")
    assert record == {
        "schema": 1, "id": f"{ONE}/tiny", "cell": ONE, "suite": "tiny", "attempt": 1, "engine": "scripted", "gpus": [],
        "world_size": 1,
        "nodes": 1, "exit_status": 0, "error": None, "collected": ["t"], "deselected": 1, "notes": [],
    }  # fmt: skip
    assert spec["agent"]["pytest_args"] == ["--strict-markers", "-k", "x"]
    assert spec["agent"]["seed"] == 7
    assert 0 < started <= finished


def test_a_second_run_of_a_job_is_another_attempt(runner, pair, tmp_path):
    for _ in range(2):
        runner(pair[:1]).run(pair[:1])
    folder = tmp_path / "results" / "r1" / "cells" / ONE / "tiny"
    assert sorted(path.name for path in folder.iterdir()) == ["attempt-1", "attempt-2"]


@pytest.mark.parametrize("step", ["start", "wait", "collect"])
def test_a_job_that_the_engine_loses_has_a_record_and_the_rest_goes_on(runner, engine, pair, records, step):
    engine.failures[step, ONE] = EngineError("Lost.", why="Because.", remedy="Look.")
    runner(pair).run(pair)
    assert records()[ONE]["error"] == {"kind": "infrastructure", "what": "Lost.", "why": "Because.", "remedy": "Look."}
    assert records()[TWO]["error"] is None
    assert ("close" in " ".join(engine.log[:-1])) or step == "start"


def test_an_image_that_cannot_be_made_is_an_error_of_its_job(runner, pair, records):
    def surroundings(job):
        if job is pair[1]:
            msg = "No base."
            raise ImageError(msg)
        return Surroundings(image="i")

    runner(pair, surroundings=surroundings).run(pair)
    assert records()[ONE]["error"] is None
    assert records()[TWO]["error"]["what"] == "No base."
    assert records()[TWO]["spec"] is None


def test_an_agent_that_died_is_an_error_of_its_job(runner, engine, pair, records):
    engine.events[ONE] = (COLLECTED,)
    runner(pair).run(pair)
    assert records()[ONE]["error"]["kind"] == "agent"


def test_an_interrupt_while_a_job_runs_writes_its_record_and_closes_everything(runner, engine, pair, records):
    engine.failures["wait", ONE] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        runner(pair).run(pair)
    assert records()[ONE]["error"]["kind"] == "interrupted"
    assert engine.log[-4:] == [f"stop {ONE}", f"collect {ONE}", f"close {ONE}", f"close {TWO}"]


def test_a_job_that_was_only_started_ahead_leaves_no_attempt(runner, engine, pair, tmp_path):
    engine.failures["wait", ONE] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        runner(pair).run(pair)
    assert list((tmp_path / "results" / "r1" / "cells" / TWO / "tiny").iterdir()) == []


def test_an_interrupt_while_the_next_job_is_started_ends_the_current_one_well(runner, engine, pair, records):
    engine.failures["start", TWO] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        runner(pair).run(pair)
    assert records()[ONE]["error"]["kind"] == "interrupted"
    assert f"close {ONE}" in engine.log


def test_an_interrupt_while_a_job_is_put_away_loses_nothing_of_it(runner, engine, pair, records):
    def interrupt_while_collecting(step, cell):
        engine.log.append(f"{step} {cell}")
        if (step, cell) == ("collect", ONE):
            signal.raise_signal(signal.SIGINT)

    engine.note = interrupt_while_collecting
    with pytest.raises(KeyboardInterrupt), interruptible():
        runner(pair).run(pair)
    assert records()[ONE]["error"] is None
    assert engine.log[-3:] == [f"collect {ONE}", f"close {ONE}", f"close {TWO}"]


def test_an_interrupt_frees_the_gpus(runner, engine, jobs):
    wanted = [jobs["nccl-w2-g2-env"]]
    engine.failures["wait", "nccl-w2-g2-env"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        runner(wanted, gpus=("GPU-a", "GPU-b")).run(wanted)
    with try_lease(("GPU-a", "GPU-b"), 2) as lease:
        assert lease is not None


def test_results_of_a_dead_agent_are_completed_from_what_was_heard(runner, engine, pair, tmp_path):
    started = {"event": "test_started", "at": 1.0, "nodeid": "t", "rank": 0, "world_size": 1}
    engine.files[ONE] = {"events-0.jsonl": json.dumps(started) + "\n"}
    runner(pair[:1]).run(pair[:1])
    attempt = tmp_path / "results" / "r1" / "cells" / ONE / "tiny" / "attempt-1"
    assert (attempt / "rank-0.xml").exists()
    assert [json.loads(line) for line in (attempt / "events-agent.jsonl").read_text().splitlines()] == list(WELL)


def test_the_journal_of_the_job_wins_over_what_was_heard(runner, engine, pair, records):
    engine.files[ONE] = {"events-agent.jsonl": json.dumps({**COLLECTED, "tests": ["t", "u"]}) + "\n"}
    runner(pair[:1]).run(pair[:1])
    assert records()[ONE]["collected"] == ["t", "u"]


def test_ranks_xml_of_the_agent_is_kept(runner, engine, pair, tmp_path):
    engine.files[ONE] = {"events-0.jsonl": "", "rank-0.xml": "the agent's"}
    runner(pair[:1]).run(pair[:1])
    attempt = tmp_path / "results" / "r1" / "cells" / ONE / "tiny" / "attempt-1"
    assert (attempt / "rank-0.xml").read_text() == "the agent's"


def test_a_record_that_cannot_be_written_ends_the_run_and_closes_everything(runner, engine, pair, tmp_path):
    def put_a_folder_in_the_way(cell):
        engine.log.append(f"collect {cell}")
        (tmp_path / "results" / "r1" / "cells" / cell / "tiny" / "attempt-1" / "job.json").mkdir()

    engine.note = lambda step, cell: (
        put_a_folder_in_the_way(cell) if step == "collect" else engine.log.append(f"{step} {cell}")
    )
    with pytest.raises(ResultsError):
        runner(pair).run(pair)
    assert engine.log[-2:] == [f"close {TWO}", f"close {ONE}"]


def test_the_user_is_told_where_each_job_runs_and_what_came_of_it(runner, pair, lines):
    runner(pair[:1]).run(pair[:1])
    assert lines[0] == f"{ONE}/tiny: running in cpu"
    assert lines[1].startswith(f"{ONE}/tiny: 1 passed (")


@pytest.mark.parametrize(
    "said",
    [
        {"event": "collected"},
        {**ARRIVED, "outcome": "splendid"},
        {"event": "arrived"},
    ],
    ids=lambda event: str(sorted(event)),
)
def test_words_of_a_job_that_make_no_sense_end_that_job_alone(runner, engine, pair, records, said):
    engine.events[ONE] = (said, FINISHED)
    runner(pair).run(pair)
    assert records()[ONE]["error"]["kind"] == "agent"
    assert "cannot be understood" in records()[ONE]["error"]["what"]
    assert records()[TWO]["error"] is None
