"""How often the files of a job are looked at, which the nodes of a cluster share with all its users."""

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.plugins.slurm import shared_folder_job
from allranks.plugins.slurm.agent.node_files import AgentExit
from allranks.plugins.slurm.allocation import Allocation
from allranks.plugins.slurm.queue import PolledJob, QueuedJob
from allranks.plugins.slurm.shared_folder_job import SharedFolderJob, _NodeAgent


class FakeQueue:
    """A queue that has always seen the same."""

    def __init__(self, state):
        self.polled = PolledJob(job=QueuedJob(number="1", state=state), absences=0)

    def status(self, _name):
        return self.polled.status

    def cause_at_end(self, _name):
        return self.polled.status.cause


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """The files that one round of a node's agent looks at, by the state of its job in SLURM."""
    (tmp_path / "node-0").mkdir()
    seen = []
    for place, name in ((Path, "stat"), (shared_folder_job, "open_start")):
        real = getattr(place, name)

        def look(path, *arguments, real=real, **named):
            seen.append(path.name)
            return real(path, *arguments, **named)

        monkeypatch.setattr(place, name, look)

    def of(state, is_vanished=False):
        allocation = Allocation(FakeQueue(state), tmp_path, "1")
        allocation.gone_since = 0.0 if is_vanished else None
        agent = _NodeAgent(allocation, 0)
        seen.clear()
        list(agent.read(()))
        agent.close()
        return seen, agent.has_ended

    return of


def test_a_queued_job_costs_one_look_at_the_shared_folder(looks):
    assert looks("PENDING") == (["placed.json"], False)


def test_a_placed_job_is_looked_at_for_its_end_and_its_records(looks, tmp_path):
    (tmp_path / "node-0" / "placed.json").write_text(json.dumps({"at": 1.0, "host": "n1"}))
    assert looks("RUNNING")[0][-2:] == ["exit.json", "stream"]


def test_a_job_whose_nodes_have_begun_to_run_is_looked_at_for_an_end_without_a_beginning(looks):
    assert looks("RUNNING") == (["placed.json", "exit.json", "stream"], False)


def test_a_job_that_ended_before_its_supervisor_began_is_looked_at_once_more_and_has_ended(looks):
    assert looks("FAILED", is_vanished=True) == (["placed.json", "exit.json", "stream"], True)


@pytest.fixture
def placed(tmp_path):
    """The agent of node 0 of a job that SLURM runs, whose files a test may spoil."""
    (tmp_path / "node-0").mkdir()
    (tmp_path / "node-0" / "placed.json").write_text(json.dumps({"at": 1.0, "host": "n1"}))
    agent = _NodeAgent(Allocation(FakeQueue("RUNNING"), tmp_path, "1"), 0)
    yield agent
    agent.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_stream_that_is_no_file_is_not_waited_for(placed, make):
    make(placed.folder / "stream")
    (placed.folder / "exit.json").write_text(json.dumps({"status": 0}))
    assert list(placed.read(())) == []
    assert placed.has_ended


def test_a_stream_of_an_impossible_size_is_not_read(placed):
    (placed.folder / "stream").touch()
    os.truncate(placed.folder / "stream", 1 << 40)
    [damage] = placed.read(())
    assert "has grown" in damage.what


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"status": 0, "signals": [1]}',
        '{"status": "0"}',
        '{"status": 1e99}',
        f'{{"status": {1 << 40}}}',
        "[" * 9**6,
    ],
)
def test_an_unreadable_end_is_no_status(placed, text):
    (placed.folder / "exit.json").write_text(text)
    list(placed.read(()))
    assert (placed.has_ended, placed.exit().status) == (True, None)


@pytest.mark.parametrize("at", ["1e308", "-1.0", "NaN", "Infinity", "null", '"1"'])
def test_a_moment_that_cannot_be_is_now(tmp_path, at):
    (tmp_path / "node-0").mkdir()
    (tmp_path / "node-0" / "placed.json").write_text(f'{{"at": {at}, "host": "n1"}}')
    allocation = Allocation(FakeQueue("RUNNING"), tmp_path, "1")
    allocation.poll()
    assert time.time() - 60 < allocation.placed_at <= time.time()


class CancellingQueue(FakeQueue):
    """A queue that ends nodes which were asked to end in vain."""

    def __init__(self, folder):
        super().__init__("RUNNING")
        self.folder = folder
        self.cancels = 0

    def cancel(self, _name):
        self.cancels += 1
        for node in (0, 1):
            text = json.dumps({"status": -9, "signals": ["SIGTERM"]})
            (self.folder / f"node-{node}" / "exit.json").write_text(text)


def test_nodes_that_end_with_a_job_out_of_time_are_not_its_cause(tmp_path, monkeypatch):
    monkeypatch.setattr("allranks.engines.agents.STOP_GRACE", 0.3)
    for node in (0, 1):
        (tmp_path / f"node-{node}").mkdir()
    (tmp_path / "node-0" / "placed.json").write_text(json.dumps({"at": 1.0, "host": "n1"}))
    spec = SimpleNamespace(agent=SimpleNamespace(nodes=2), resources=SimpleNamespace(seconds=0.3))
    job = SharedFolderJob(Allocation(CancellingQueue(tmp_path), tmp_path, "1"), spec)
    ending = job.wait(lambda _node, _record: None)
    job.close()
    assert (ending.timed_out, ending.ended_by) == (True, "")


def test_a_node_without_a_sign_of_life_is_not_waited_for_and_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr("allranks.engines.agents.STOP_GRACE", 3600.0)
    for node, ago in ((0, 0), (1, 11)):
        placed = tmp_path / f"node-{node}" / "placed.json"
        placed.parent.mkdir()
        placed.write_text(json.dumps({"at": 1.0, "host": "n1"}))
        os.utime(placed, (time.time() - ago,) * 2)
    (tmp_path / "node-0" / "exit.json").write_text(json.dumps({"status": 1}))
    spec = SimpleNamespace(agent=SimpleNamespace(nodes=2), resources=SimpleNamespace(seconds=60.0))
    queue = CancellingQueue(tmp_path)
    job = SharedFolderJob(Allocation(queue, tmp_path, "1"), spec)
    job.wait(lambda _node, _record: None)
    job.close()
    assert queue.cancels == 1


class ForgetfulQueue(FakeQueue):
    """A queue whose controller has lost every job, and counts what it is asked to cancel."""

    def __init__(self, state="RUNNING", absences=0):
        super().__init__(state)
        self.cancels = 0
        if absences:
            self.polled = PolledJob(absences=absences)

    def cancel(self, _name):
        self.cancels += 1


def ending_of_two_nodes(queue, folder, has_met=False):
    """How a job on two nodes ends, and what it told."""
    spec = SimpleNamespace(agent=SimpleNamespace(nodes=2), resources=SimpleNamespace(seconds=60.0))
    job = SharedFolderJob(Allocation(queue, folder, "SLURM job 1"), spec)
    job._are_connected = has_met
    ending = job.wait(lambda _node, _record: None)
    job.close()
    return ending


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """The folder of a job on two nodes; nothing is waited for longer than a moment."""
    monkeypatch.setattr("allranks.plugins.slurm.allocation._LATE_FILES", 0.2)
    monkeypatch.setattr("allranks.engines.agents.STOP_GRACE", 0.5)
    for node in (0, 1):
        (tmp_path / f"node-{node}").mkdir()
    return tmp_path


def place(folder, node, **ended):
    (folder / f"node-{node}" / "placed.json").write_text(json.dumps({"at": 1.0, "host": f"n{node + 1}"}))
    if ended:
        (folder / f"node-{node}" / "exit.json").write_text(json.dumps(ended))


def test_a_leading_node_that_is_silent_after_all_others_have_ended_is_lost(two_nodes):
    place(two_nodes, 0)
    place(two_nodes, 1, status=1)
    queue = ForgetfulQueue()
    ending = ending_of_two_nodes(queue, two_nodes, has_met=True)
    assert (ending.status, ending.ended_by) == (None, "lost n1; it was SLURM job 1")
    assert queue.cancels == 1  # SLURM keeps what is left of such a job


def test_a_leading_node_that_began_and_never_met_the_others_is_lost(two_nodes):
    place(two_nodes, 0)
    place(two_nodes, 1, status=1)
    ending = ending_of_two_nodes(ForgetfulQueue(), two_nodes)
    assert (ending.status, ending.ended_by) == (None, "lost n1; it was SLURM job 1")


@pytest.mark.thorough
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("ended", [{"status": None, "output": "no such interpreter"}, {"status": 1}, {}])
def test_a_node_that_ends_before_it_begins_ends_the_job_at_once(two_nodes, node, ended):
    (two_nodes / f"node-{node}" / "exit.json").write_text(json.dumps(ended))
    began = time.monotonic()
    ending = ending_of_two_nodes(ForgetfulQueue(), two_nodes)
    assert (ending.timed_out, time.monotonic() < began + 10) == (False, True)
    assert ended.get("output", "") in ending.output + ending.followers[0].output


def test_a_running_job_whose_nodes_never_begin_is_given_up(two_nodes, monkeypatch):
    monkeypatch.setattr("allranks.plugins.slurm.allocation._START_LIMIT", 0.3)
    ending = ending_of_two_nodes(queue := ForgetfulQueue(), two_nodes)
    assert ending.ended_by == "got nodes that did not start within 0 min; it was SLURM job 1"
    assert queue.cancels == 1


def test_a_job_that_the_controller_forgot_is_lost_whichever_node_is_looked_at_first(two_nodes):
    ending = ending_of_two_nodes(ForgetfulQueue(absences=2), two_nodes)
    assert ending.ended_by == "has left no exit status: SLURM job 1 is not in the queue"


def test_a_job_that_never_began_is_cancelled_by_its_own_thread(tmp_path):
    for node in (0, 1):
        (tmp_path / f"node-{node}").mkdir()
    queue = CancellingQueue(tmp_path)
    spec = SimpleNamespace(agent=SimpleNamespace(nodes=1), resources=SimpleNamespace(seconds=9.0))
    job = SharedFolderJob(Allocation(queue, tmp_path, "1"), spec)
    job.request_stop()
    assert queue.cancels == 0  # its caller has a hundred of them to end
    job.wait(lambda _node, _record: None)
    job.stop()
    job.close()
    assert queue.cancels == 1


class Away(FakeQueue):
    """A queue whose controller does not answer."""

    def __init__(self, seconds):
        super().__init__("PENDING")
        self.polled = PolledJob(watched_since=time.monotonic() - seconds)


@pytest.mark.parametrize(("seconds", "minutes"), [(70, 1), (299, 4), (590, 5), (601, 10)])
def test_a_queued_job_whose_controller_is_away_is_said_to_be_unknown(tmp_path, seconds, minutes):
    allocation = Allocation(Away(seconds), tmp_path, "1")
    [placement] = [allocation.poll()]
    assert (placement.text, placement.is_placed) == (
        f"unknown: the controller has not answered for {minutes} min",
        False,
    )
    assert allocation.poll() is None


def test_a_job_that_the_cluster_gave_up_goes_on_as_long_as_its_files_change(placed, monkeypatch):
    monkeypatch.setattr("allranks.plugins.slurm.allocation._LATE_FILES", 0.2)
    placed._allocation.queue = FakeQueue("NODE_FAIL")
    placements = []
    for _ in range(8):
        os.utime(placed.folder / "placed.json")
        placements += placed.read(())
        time.sleep(0.05)
    assert not placed.has_ended
    assert [placement.text for placement in placements] == [
        "given up by the cluster (NODE_FAIL), but its files still change"
    ]
    while not placed.has_ended:
        list(placed.read(()))


def test_a_file_system_that_hangs_is_told_and_then_given_up(placed, monkeypatch):
    monkeypatch.setattr("allranks.plugins.slurm.shared_folder_job._POLL_TIMEOUT", 0.01)
    monkeypatch.setattr("allranks.plugins.slurm.allocation.SILENT", 0.1)
    monkeypatch.setattr("allranks.plugins.slurm.allocation._ANSWER_LIMIT", 0.3)
    monkeypatch.setattr("allranks.plugins.slurm.allocation._LATE_FILES", 0.1)
    awake = threading.Event()
    placed._allocation.calls.submit(awake.wait)
    placements = []
    while not placed.has_ended:
        placements += placed.read(())
    awake.set()
    assert [placement.text for placement in placements] == ["the shared file system has not answered for 0 min"]
    assert placed._allocation.cause(None).startswith("was given up: the shared file system has not answered for")


def test_a_job_is_told_to_begin_again_if_the_disk_was_full(tmp_path, monkeypatch):
    (tmp_path / "node-0").mkdir()
    allocation = Allocation(FakeQueue("RUNNING"), tmp_path, "1")
    with monkeypatch.context() as full:
        full.setattr(Path, "touch", lambda *_: os.open("/dev/full/nowhere", os.O_RDONLY))
        allocation.go()
        allocation.calls.call(lambda: None, 10)
    assert not (tmp_path / "go").exists()
    allocation.poll()
    assert (tmp_path / "go").exists()


def test_a_node_that_could_not_write_is_the_cause_whatever_the_leading_agent_ended_with(tmp_path):
    allocation = Allocation(FakeQueue("RUNNING"), tmp_path / "job", "SLURM job 1")
    cause = allocation.cause(AgentExit(status=0, storage_error="No space left on device, for 3 s"))
    assert cause == f"could not write to {tmp_path} (No space left on device, for 3 s); it was SLURM job 1"
