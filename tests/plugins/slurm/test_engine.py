"""The slurm engine on a stand-in for SLURM: real supervisors, agents and ranks, and a queue of this machine's."""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from engine_contract import ENDED, EngineContract, Heard, HeardOnce
from long_lists import quick
from programs import write_python_program

from allranks.engines.agent_output import Damage
from allranks.engines.base import JobEnvironment, Placement
from allranks.engines.package import copied_package
from allranks.errors import EngineError
from allranks.ownership import own_run
from allranks.plugins.slurm import engine as slurm
from allranks.plugins.slurm import queue as slurm_queue
from allranks.plugins.slurm.agent import node_files as files
from allranks.plugins.slurm.engine import SlurmEngine
from allranks.plugins.slurm.keys import Slurm
from allranks.plugins.slurm.submission import job_name, request
from allranks.protocol.records import Finished, Interrupted

FAKE = Path(__file__).parents[2] / "fake_slurm.py"


@pytest.fixture(autouse=True)
def cluster(tmp_path, monkeypatch):
    """The folder of a stand-in for SLURM."""
    folder, commands = tmp_path / "cluster", tmp_path / "bin"
    folder.mkdir()
    commands.mkdir()
    for name in ("sbatch", "srun", "squeue", "scancel"):
        write_python_program(commands / name, FAKE.read_text())
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_queue, "POLL", 0.3)
    return folder


@pytest.fixture
def engine(tmp_path):
    return SlurmEngine(Slurm(spool=str(tmp_path / "spool")), copied_package(tmp_path / "package"))


@pytest.fixture
def environment():
    return JobEnvironment(python=sys.executable)


@pytest.mark.thorough
class TestSlurm(EngineContract):
    @pytest.fixture(autouse=True)
    def nothing_is_left(self, tmp_path):
        yield
        assert list((tmp_path / "spool").glob("*")) == []

    def test_a_job_on_two_nodes(self, engine, tiny):
        heard = Heard()
        with engine.start(replace(tiny, agent=replace(tiny.agent, nodes=2))) as job:
            job.go()
            ending = job.wait(heard)
        assert (ending.status, ending.followers[0].status, ending.ended_by) == (0, 0, "")
        assert len(heard.ends) == 8

    def test_its_time_begins_when_it_is_placed(self, engine, tiny, cluster):
        (cluster / "pending").touch()
        heard, threads = [], []
        spec = replace(tiny, resources=replace(tiny.resources, seconds=0.1))

        def hear(_node, report):
            heard.append(report)
            threads.append(threading.Timer(0.5, job.request_stop))
            threads[-1].start()

        with engine.start(spec) as job:
            job.go()
            ending = job.wait(hear)
            threads[0].join()
        assert (ending.timed_out, ending.began) == (False, None)
        assert heard == [Placement("queued (Resources)", is_placed=False)]
        assert "CANCELLED" in (cluster / f"{job_name(spec)}.state").read_text()

    @pytest.mark.thorough
    def test_where_it_was_placed_is_told(self, engine, tiny):
        heard = Heard()
        with engine.start(tiny) as job:
            job.go()
            ending = job.wait(heard)
        assert Placement("placed on n1 (SLURM job 1)", is_placed=True) in heard
        assert time.time() - 60 < ending.began < time.time()

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("state", "cause"),
        quick(
            1,
            [
                ("CANCELLED|None|n1", "was canceled (scancel)"),
                ("RUNNING|None|n1", "was terminated from outside (SIGTERM)"),
                ("PREEMPTED|None|n1", "was preempted: a job of higher priority has its nodes"),
                ("TIMEOUT|TimeLimit|n1", "was ended by SLURM's time limit"),
            ],
        ),
    )
    def test_what_ended_it_from_outside_is_named(self, engine, endless, cluster, state, cause):
        name = job_name(endless)

        def end():
            (cluster / f"{name}.state").write_text(state)
            [pid] = supervisors_of(name)
            os.kill(pid, signal.SIGTERM)

        heard = HeardOnce(end)
        with engine.start(endless) as job:
            job.go()
            ending = job.wait(heard)
        assert ending.ended_by == f"{cause}; it was SLURM job 1"
        assert heard.first(Interrupted)
        assert ENDED.items() <= heard.ends.items()

    @pytest.mark.thorough
    def test_a_cause_that_slurm_hides_while_it_cleans_up_is_waited_for(self, engine, endless, cluster):
        name = job_name(endless)
        state = cluster / f"{name}.state"

        def end():
            state.write_text("COMPLETING|None|n1")
            [pid] = supervisors_of(name)
            os.kill(pid, signal.SIGTERM)
            threads.append(threading.Timer(0.6, state.write_text, ["CANCELLED|None|n1"]))
            threads[0].start()

        threads = []
        with engine.start(endless) as job:
            job.go()
            ending = job.wait(HeardOnce(end))
            threads[0].join()
        assert ending.ended_by == "was canceled (scancel); it was SLURM job 1"

    @pytest.mark.thorough
    def test_without_its_controller_it_goes_on(self, engine, tiny, cluster):
        heard = Heard()
        with engine.start(tiny) as job:
            (cluster / "away").touch()  # a job that has begun needs no controller
            job.go()
            ending = job.wait(heard)
        assert (ending.status, ending.ended_by) == (0, "")
        assert isinstance(heard[-1], Finished)

    @pytest.mark.thorough
    def test_one_that_left_no_end_is_lost_and_not_waited_for(self, engine, endless, cluster, monkeypatch):
        monkeypatch.setattr("allranks.plugins.slurm.allocation._LATE_FILES", 0.5)
        name = job_name(endless)

        def cut_off():
            (cluster / f"{name}.state").write_text("NODE_FAIL|None|n1")
            for pid in supervisors_of(name):
                os.kill(pid, signal.SIGKILL)

        with engine.start(endless) as job:
            job.go()
            ending = job.wait(HeardOnce(cut_off))
        assert ending.status is None
        assert ending.ended_by == "lost a node (n1); it was SLURM job 1"

    @pytest.mark.thorough
    def test_one_whose_folder_was_emptied_has_lost_its_files(self, engine, endless, monkeypatch, results):
        monkeypatch.setattr("allranks.plugins.slurm.allocation._LATE_FILES", 0.5)
        name = job_name(endless)

        def empty():
            shutil.rmtree(job._leader.folder)
            wait_until(lambda: not supervisors_of(name))

        with engine.start(endless) as job:
            job.go()
            ending = job.wait(HeardOnce(empty))
            job.collect(results)  # no error, which would hide that one
        assert ending.status is None
        assert "lost its files" in ending.ended_by
        assert "was emptied, or removed; it was SLURM job 1" in ending.ended_by

    @pytest.mark.thorough
    @pytest.mark.parametrize("how", quick(1, ["changed", "shrunk"]))
    def test_a_stream_that_does_not_stay_as_it_was_read_is_a_contradiction(self, engine, endless, tmp_path, how):
        stream = tmp_path / "spool" / job_name(endless) / "node-0" / files.STREAM

        def forge():
            if how == "shrunk":
                os.truncate(stream, 10)
            else:
                with stream.open("r+b") as file:
                    file.write(b"x")
            job.request_stop()

        heard = HeardOnce(forge)
        with engine.start(endless) as job:
            job.go()
            job.wait(heard)
        [damage] = [record for record in heard if isinstance(record, Damage)]
        assert damage.what.partition("from")[0].strip() in {
            "its stream has shrunk",  # unless more was written at once, at its old end
            "its stream was changed after it had been read",
        }

    def test_what_it_cannot_submit_leaves_nothing(self, engine, tiny, cluster):
        (cluster / "away").touch()
        with pytest.raises(EngineError, match="SLURM did not accept the job") as raised, engine.start(tiny):
            pass
        assert "Unable to contact slurm controller" in raised.value.why


def wait_until(happens):
    deadline = time.monotonic() + 30
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def supervisors_of(name):
    """The process ids of the supervisors of a job."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if command[1:2] == [b"-I"] and b"node_supervisor" in command[-3] and command[-2].endswith(name.encode()):
            found.append(int(path.name))
    return found


@contextmanager
def orphaned(engine, spec):
    """A job that its orchestrator has started, heard in part and left."""
    folder = engine._make_folder(spec)
    engine._submit(spec, folder)
    (folder / files.GO).touch()
    yield folder
    engine._queue.cancel(folder.name)


@pytest.fixture
def spec(make_spec):
    return make_spec()


def test_a_job_whose_orchestrator_died_is_adopted_and_told_from_the_first(engine, tmp_path, environment):
    contract = TestSlurm()
    spec = next(contract.spec.__wrapped__(contract, tmp_path, environment))
    tiny = contract.tiny.__wrapped__(contract, spec)
    heard = Heard()
    with own_run(spec.run_id), orphaned(engine, tiny) as folder:
        adopted = SlurmEngine(Slurm(spool=str(tmp_path / "spool")), tmp_path).adopt(tiny)
        with adopted as job:
            job.go()
            assert job.wait(heard).status == 0
        assert not folder.exists()
    assert len(heard.ends) == 8


def test_a_job_whose_orchestrator_lives_on_another_host_is_refused(engine, spec):
    with orphaned(engine, replace(spec, python=sys.executable)) as folder:
        owner = folder / "owner.json"
        report = {**json.loads(owner.read_text()), "host": "elsewhere", "name": "login-2"}
        owner.write_text(json.dumps(report))
        with pytest.raises(
            EngineError, match="allranks on login-2 is still running this run; its last sign of life was 0 s ago"
        ):
            engine.adopt(spec)
        os.utime(owner, (0, time.time() - 70))
        adopted = engine.adopt(spec)
        owner.unlink()  # another host was quicker
        with pytest.raises(EngineError, match="has just taken over"), adopted:
            pass


def test_a_job_that_is_adopted_on_a_full_disk_keeps_its_owner_file(engine, spec, monkeypatch):
    def refuse(path, flags, *arguments, real=os.open, **options):
        if flags & os.O_CREAT and folder in Path(os.fsdecode(path)).parents:
            raise OSError(28, "No space left on device")
        return real(path, flags, *arguments, **options)

    with orphaned(engine, replace(spec, python=sys.executable)) as folder:
        owner = folder / "owner.json"
        before = json.loads(owner.read_text())
        owner.write_text(json.dumps({**before, "host": "elsewhere, with a longer name"}))
        os.utime(owner, (0, time.time() - 70))
        with monkeypatch.context() as full:
            full.setattr(os, "open", refuse)
            with engine.adopt(spec):
                assert json.loads(owner.read_text()) == before


def test_a_job_of_another_attempt_or_of_part_of_the_tests_is_not_adopted(engine, spec):
    assert engine.adopt(spec) is None
    with orphaned(engine, replace(spec, python=sys.executable)) as folder:
        assert engine.adopt(replace(spec, attempt=2)) is None
        assert engine.adopt(replace(spec, agent=replace(spec.agent, only=("t",)))) is None
        (folder / "submitted").unlink()
        assert engine.adopt(spec) is None


def test_a_job_of_part_of_the_tests_is_not_taken_for_the_whole(engine, spec, cluster):
    part = replace(spec, python=sys.executable, agent=replace(spec.agent, only=("t",)))
    with orphaned(engine, part) as folder:
        assert engine.adopt(spec) is None  # a resumed run does not know which part it was
        assert "CANCELLED" in (cluster / f"{folder.name}.state").read_text()
        assert not folder.exists()


def test_the_folder_of_another_job_stays(engine, spec, tmp_path):
    folder = tmp_path / "spool" / job_name(spec)
    folder.mkdir(parents=True)
    with pytest.raises(EngineError, match="could not be created"), engine.start(spec):
        pass
    assert folder.exists()


def test_a_job_that_cannot_be_noted_leaves_the_queue(engine, spec, cluster, monkeypatch):
    def refuse(path, text, real=slurm.write_whole):
        if path.name == "submitted":
            raise OSError(28, "No space left on device")
        real(path, text)

    monkeypatch.setattr(slurm, "write_whole", refuse)
    with pytest.raises(EngineError, match="could not be written"), engine.start(replace(spec, python=sys.executable)):
        pass
    assert "CANCELLED" in (cluster / f"{job_name(spec)}.state").read_text()


def test_the_job_of_a_dead_run_of_this_host_is_cancelled_and_others_are_not(engine, spec, cluster):
    with orphaned(engine, replace(spec, run_id="dead-run", python=sys.executable)) as folder:
        with own_run("dead-run"):
            assert engine.clean_up(is_dry_run=True).dead == engine.clean_up().dead == []
        owner = json.loads((folder / "owner.json").read_text())
        (folder / "owner.json").write_text(json.dumps({**owner, "host": "elsewhere"}))
        assert engine.clean_up(is_dry_run=True).dead == engine.clean_up().dead == []
        assert engine.clean_up(is_dry_run=True).unknown == [f"SLURM job {folder.name}"]
        (folder / "owner.json").write_text(json.dumps(owner))
        assert engine.clean_up(is_dry_run=True).dead == engine.clean_up().dead == [f"SLURM job {folder.name}"]
        assert not folder.exists()
        assert "CANCELLED" in (cluster / f"{folder.name}.state").read_text()


def test_a_request_names_what_slurm_needs(spec):
    settings = Slurm(extra=("--partition=gpu", "--exclusive"))
    agent = replace(spec.agent, nodes=2, gpu_count=4)
    folder = Path("/shared/job")
    asked = request(replace(spec, agent=agent), folder, settings)
    assert asked[-1] == "/shared/job/job.sh"
    assert {"--no-requeue", "--nodes=2", "--gpus-per-node=2"} < {*asked}
    assert asked[-3:-1] == ["--partition=gpu", "--exclusive"]
    assert [item for item in request(spec, folder, Slurm()) if item.startswith(("--gpus", "--partition"))] == []


def test_names_of_jobs_are_distinct(spec):
    names = {job_name(replace(spec, job_id=job, attempt=n)) for job in ("a/b", "a_b", "a.b", "ä/b") for n in (1, 2)}
    assert len(names) == 8
    assert all(name.isascii() and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"job_id": "gloo-w2-g0-env/n2-a"}, {"job_id": "gloo-w2-g0-env-n2/a"}),
        ({"job_id": "c/a-1", "attempt": 2}, {"job_id": "c/a", "attempt": 12}),
        ({"job_id": "c/a_b"}, {"job_id": "c/a-b"}),
        ({"job_id": "c/a", "run_id": "r-c"}, {"job_id": "c-c/a", "run_id": "r"}),
        ({"job_id": f"c/{'a' * 300}"}, {"job_id": f"c/{'a' * 301}"}),
    ],
    ids=str,
)
def test_jobs_have_different_names_in_the_queue_that_say_whose_they_are(spec, one, other):
    names = [job_name(replace(spec, **changes)) for changes in (one, other)]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"allranks-[A-Za-z0-9-]{1,131}", name) for name in names)
    assert job_name(replace(spec, run_id="run")).startswith("allranks-run-gloo-w2-g0-env-tiny-1-")
