"""The processes of a launcher: how they meet, who stands for a node, and how all of them end."""

import os
import threading
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from allranks.engines.gpus import Inventory
from allranks.errors import EngineError, ExitCode, UsageError
from allranks.matrix.model import Limits
from allranks.plugins.slurm.launch_files import (
    SESSION,
    HeartbeatMonitor,
    LaunchedJob,
    Member,
    Session,
    member_path,
    read_file,
    write,
)
from allranks.plugins.slurm.launch_follower import LaunchedNode, follow, supervisor_environment
from allranks.plugins.slurm.launch_leader import LaunchLeader, lead, node_leaders

LIMITS = Limits(assembly=20.0, silence=5.0)


def member(rank, host="n0", local=0, **more):
    return Member(rank=rank, nonce=f"nonce-{rank}", local_rank=local, host=host, node_id=host, **more)


def job(name="job", nodes=2, **more):
    return LaunchedJob(name=name, nodes=nodes, python="python", package="/p", **more)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / ".inside-x"


@pytest.fixture
def node(folder):
    """``node(member)``: a node without GPUs, and no supervisors."""
    return lambda own: LaunchedNode(folder, own, Inventory(), {})


@pytest.fixture
def start(node):
    """``start(member)``: a process other than process 0, in a thread; a list that gets its exit code or its error."""
    threads = []

    def begin(own, **limits):
        ends = []

        def run():
            try:
                ends.append(follow(node(own), replace(LIMITS, **limits)))
            except EngineError as error:
                ends.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return ends

    yield begin
    for thread in threads:
        thread.join(30)


@pytest.fixture(autouse=True)
def in_any_thread(monkeypatch):
    """Only the main thread may change what signals do, and here others have its part."""
    monkeypatch.setattr("allranks.plugins.slurm.launch_follower.ignore_signals", nullcontext)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_processes_end_with_the_runs_exit_code_and_leave_nothing(folder, node, start):
    ends = [start(member(1, local=1)), start(member(2, "n1"))]
    nodes = []

    def run(leader):
        nodes.append(leader.nodes)
        return ExitCode.TESTS_FAILED

    assert lead(node(member(0)), 3, LIMITS, run) == ExitCode.TESTS_FAILED
    wait_for(lambda: all(ends))
    assert (nodes, ends) == ([2], [[ExitCode.TESTS_FAILED]] * 2)
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such cell"), ExitCode.USAGE),
        (EngineError("no engine"), ExitCode.INFRASTRUCTURE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (ValueError(), ExitCode.INFRASTRUCTURE),
    ],
)
def test_an_error_of_process_0_ends_the_others_with_its_code(node, start, error, code):
    def run(_leader):
        raise error

    ends = start(member(1, "n1"))
    with pytest.raises(type(error)):
        lead(node(member(0)), 2, LIMITS, run)
    wait_for(lambda: ends)
    assert ends == [code]


def test_processes_that_do_not_see_one_another_end_with_the_folder_in_the_error(folder, node, start):
    ends = start(member(1, "n1"))
    wait_for(member_path(folder, 1).exists)
    with pytest.raises(EngineError) as raised:
        lead(node(member(0)), 3, replace(LIMITS, assembly=1.0), pytest.fail)
    assert str(folder) in raised.value.what
    assert raised.value.what.endswith(": 2.")
    wait_for(lambda: ends)
    assert ends == [ExitCode.INFRASTRUCTURE]
    assert not folder.exists()


def test_a_process_whose_process_0_never_comes_says_where_it_looked(folder, node, monkeypatch):
    monkeypatch.setattr("allranks.plugins.slurm.launch_follower._MARGIN", 0.0)
    with pytest.raises(EngineError, match=r"Process 0 .*\.inside-x"):
        follow(node(member(1)), Limits(assembly=0.3))
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_named(folder, node):
    folder.parent.write_text("")
    for begin in (
        lambda: lead(node(member(0)), 2, LIMITS, pytest.fail),
        lambda: follow(node(member(1)), LIMITS),
    ):
        with pytest.raises(EngineError, match=r"cannot use .*\.inside-x"):
            begin()


def test_a_process_whose_process_0_is_gone_ends_as_infrastructure(folder, start):
    ends = start(member(1, "n1"), silence=0.5)
    wait_for(member_path(folder, 1).exists)
    write(folder / SESSION, Session(nonces=("a", "nonce-1")))
    wait_for(lambda: ends)
    assert ends[0].exit_code == ExitCode.INFRASTRUCTURE
    assert "sent no heartbeat for 0.5 s" in ends[0].what
    assert not folder.exists()


@pytest.mark.thorough
def test_files_of_an_earlier_launch_of_this_name_count_for_nothing(folder, node, start):
    write(folder / SESSION, Session(nonces=("a", "another nonce"), exit_code=1))
    for item in (member(0), replace(member(1), nonce="another nonce")):
        write(member_path(folder, item.rank), item)
    ends = start(member(1, "n1"))
    nonces = []

    def run(_leader):
        wait_for(lambda: read_file(folder / SESSION, Session))
        nonces.extend(read_file(folder / SESSION, Session).nonces)
        return ExitCode.OK

    lead(node(member(0)), 2, LIMITS, run)
    wait_for(lambda: ends)
    assert (ends, nonces) == ([ExitCode.OK], ["nonce-0", "nonce-1"])


def test_folders_of_launches_that_were_killed_are_removed_after_a_while(folder, node):
    old, live = folder.with_name(".inside-old"), folder.with_name(".inside-live")
    for item in (old, live):
        write(member_path(item, 0), member(0))
    os.utime(member_path(old, 0), (0, time.time() - 700))
    folder.with_name(".inside-new").mkdir()
    lead(node(member(0)), 1, LIMITS, lambda _leader: ExitCode.OK)
    assert sorted(path.name for path in folder.parent.iterdir()) == [".inside-live", ".inside-new"]


@pytest.mark.parametrize(
    ("members", "ranks"),
    [
        ([member(0), member(1, local=1), member(2, "n1"), member(3, "n1", local=1)], (0, 2)),
        ([member(0), member(1, "n1"), member(2, local=1), member(3, "n1", local=1)], (0, 1)),  # one node after another
        ([member(0, local=None), member(1, "n1", local=None), member(2, "n1", local=None)], (0, 1)),  # pods, two on n1
        ([member(0, local=None), member(1, local=None)], (0,)),
    ],
)
def test_one_process_of_each_node_is_elected(members, ranks):
    assert node_leaders(members) == ranks


@pytest.fixture
def leader(folder, node):
    """Process 0 of three nodes, whose other processes live as long as their files are there."""
    members = [member(0), member(1, "n1"), member(2, "n2")]
    for item in members:
        write(member_path(folder, item.rank), item)
    leader = LaunchLeader(members, node(members[0]), 600.0)
    leader.start()
    yield leader
    leader.close()


def submit(leader, name, nodes):
    (leader.folder / name).mkdir()
    leader.submit(job(name, nodes))


def turn(leader, *names):
    for name in names:
        (leader.folder / name / "go").touch()


def running(leader, *names):
    return [leader.status(name).is_running for name in names]


def test_jobs_get_nodes_when_they_have_their_turn_and_free_them_at_their_end(leader):
    for name in "abc":
        submit(leader, name, 2)
    turn(leader, "a", "c")
    wait_for(lambda: running(leader, *"abc") == [True, False, True])
    wait_for(lambda: (session := read_file(leader.folder / SESSION, Session)) and len(session.jobs) == 2)
    session = read_file(leader.folder / SESSION, Session)
    assert {job.name: job.ranks for job in session.jobs} == {"a": (0, 1), "c": (0, 2)}
    assert leader.status("a").nodes == "n0, n1"
    assert leader.status("b").waiting == "queued (waits for 2 of 3 nodes)"
    turn(leader, "b")
    leader.cancel("a")
    wait_for(lambda: running(leader, "b") == [True])


def test_a_job_that_no_living_nodes_can_hold_has_lost_one_and_others_get_nodes(leader):
    member_path(leader.folder, 2).unlink()
    submit(leader, "wide", 3)
    submit(leader, "small", 2)
    turn(leader, "wide", "small")
    wait_for(lambda: leader.status("wide").end and running(leader, "small") == [True])
    assert leader.status("wide").cause == "lost a node (n2)"


def test_a_process_is_lost_after_so_many_looks_without_a_beat(folder):
    write(folder / "process-1.json", member(1))
    monitor = HeartbeatMonitor(folder / "process-1.json", limit=1.0)  # four looks
    assert [monitor.is_lost() for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("at", [0.0, 1e9, 2e9])
def test_a_change_of_its_file_is_a_sign_of_life_whatever_the_clock(folder, at):
    path = folder / "process-1.json"
    write(path, member(1))
    monitor = HeartbeatMonitor(path, limit=0.5)
    lost = [monitor.is_lost() for _ in range(3)]
    os.utime(path, (at, at))
    assert (lost, monitor.is_lost()) == ([False, False, True], False)


@pytest.mark.parametrize("missed", [1, 2])
def test_a_file_out_of_sight_for_a_moment_is_no_end(folder, missed):
    path = folder / "process-1.json"
    write(path, member(1))
    monitor = HeartbeatMonitor(path, limit=0.5)
    path.rename(folder / "hidden")
    lost = [monitor.is_lost() for _ in range(missed)]
    (folder / "hidden").rename(path)
    assert [*lost, monitor.is_lost()] == [False] * (missed + 1)


def test_a_process_touches_its_file_and_makes_no_new_one(folder, node):
    path = folder / "process-1.json"
    write(path, member(1))
    os.utime(path, (0, 0))
    node(member(1)).heartbeat()
    first = path.stat().st_mtime
    path.unlink()
    node(member(1)).heartbeat()
    assert (first > 1e9, path.exists()) == (True, False)


OWN = {"PYTHONPATH": "/own", "RANK": "1", "SLURM_PROCID": "1", "CUDA_VISIBLE_DEVICES": "4,5", "MASTER_ADDR": "n0"}


@pytest.mark.parametrize(
    ("number", "count", "visible"),
    [
        (1, 0, ""),
        (1, 1, ""),  # of two nodes the first one has it
        (1, 2, "GPU-a"),
        (1, 4, "GPU-a,GPU-b"),
        (1, 6, ""),
        (0, 2, "GPU-b"),  # leased for it
    ],
)
def test_a_job_sees_only_its_own_gpus_of_a_nodes(number, count, visible):
    made = supervisor_environment(
        job(gpus=("GPU-b",), gpu_count=count), number, Inventory(gpus=("GPU-a", "GPU-b")), OWN
    )
    assert made["CUDA_VISIBLE_DEVICES"] == visible


def test_amds_gpus_are_shown_by_their_numbers():
    inventory = Inventory(driver="rocm", gpus=("GPU-b",), everything=("GPU-a", "GPU-b"))
    made = supervisor_environment(job(gpu_count=2), 1, inventory, {})
    assert (made["HIP_VISIBLE_DEVICES"], made["CUDA_VISIBLE_DEVICES"]) == ("1", "1")


def test_a_job_has_its_nodes_variables_and_its_own_and_none_of_the_launchers():
    made = supervisor_environment(job(variables=("PYTHONPATH=/p", "X=1=2")), 0, Inventory(), OWN)
    assert made == {"PYTHONPATH": "/p:/own", "X": "1=2", "CUDA_VISIBLE_DEVICES": "", "ALLRANKS_NODE_ADDRESS": "n0"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_launch_of_this_name_is_refused_while_the_first_one_lives(folder, node, rank):
    path = member_path(folder, rank)
    write(path, replace(member(rank), nonce="b"))
    later = threading.Timer(0.3, os.utime, (path,))
    later.start()
    own = node(member(rank))
    begin = (lambda: follow(own, LIMITS)) if rank else (lambda: lead(own, 2, LIMITS, pytest.fail))
    with pytest.raises(EngineError, match="Another launch of this name is running"):
        begin()
    later.join()
    assert path.exists()
