"""The processes of a launcher: how they meet, who stands for a node, and how all of them end."""

import os
import threading
import time
from dataclasses import replace

import pytest

from allranks.engines.gpus import Inventory
from allranks.engines.launch_files import SESSION, Member, Pulse, Session, path_of, read_file, write
from allranks.engines.launch_follower import LaunchFollower
from allranks.engines.launch_leader import LaunchLeader, assemble, elected, leading
from allranks.engines.launched_node import LaunchedNode, LaunchOrder, Variable, variables_of
from allranks.errors import EngineError, ExitCode, UsageError


def member(rank, host="n0", local=0, **more):
    return Member(rank=rank, nonce=f"nonce-{rank}", local_rank=local, host=host, place=host, **more)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / ".inside-x"


@pytest.fixture
def node(folder):
    """``node(rank)``: the supervisors of a node without GPUs; they start nothing here."""
    return lambda rank: LaunchedNode(folder, rank, Inventory(), {})


@pytest.fixture
def follow(folder, node):
    """``follow(member)``: a process other than process 0, in a thread; a list that gets its exit code or its error."""
    threads = []

    def start(own, silence=5.0):
        ends = []

        def run():
            try:
                ends.append(LaunchFollower(folder, own, node(own.rank), assembly=5.0, silence=silence).run())
            except EngineError as error:
                ends.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return ends

    yield start
    for thread in threads:
        thread.join(30)


@pytest.fixture(autouse=True)
def in_any_thread(monkeypatch):
    """Only the main thread may change what signals do, and here others have its part."""
    from contextlib import nullcontext

    monkeypatch.setattr("allranks.engines.launch_follower.deaf", nullcontext)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_all_processes_end_with_the_runs_exit_code_and_leave_nothing(folder, node, follow):
    ends = [follow(member(1, local=1)), follow(member(2, "n1"))]
    leader = LaunchLeader(folder, assemble(folder, member(0), 3, 20.0), node(0), 5.0)
    assert leader.nodes == 2
    with leading(leader) as ending:
        ending.code = ExitCode.TESTS_FAILED
    wait_for(lambda: all(ends))
    assert ends == [[ExitCode.TESTS_FAILED]] * 2
    assert list(folder.parent.iterdir()) == []


def test_an_error_of_process_0_ends_the_others_with_its_code(folder, node, follow):
    ends = follow(member(1, "n1"))
    leader = LaunchLeader(folder, assemble(folder, member(0), 2, 20.0), node(0), 5.0)
    error = UsageError("no such cell")
    with pytest.raises(UsageError), leading(leader):
        raise error
    wait_for(lambda: ends)
    assert ends == [ExitCode.USAGE]


def test_processes_that_do_not_see_one_another_end_with_the_folder_in_the_error(folder, follow):
    ends = follow(member(1, "n1"))
    with pytest.raises(EngineError) as raised:
        assemble(folder, member(0), 3, 1.0)
    assert str(folder) in raised.value.what
    assert raised.value.what.endswith(": 2.")
    wait_for(lambda: ends)
    assert ends == [ExitCode.INFRASTRUCTURE]
    assert not folder.exists()


def test_a_process_whose_process_0_never_comes_says_where_it_looked(folder, node, monkeypatch):
    monkeypatch.setattr("allranks.engines.launch_follower._LATER", 0.0)
    with pytest.raises(EngineError, match=r"Process 0 .*\.inside-x"):
        LaunchFollower(folder, member(1), node(1), assembly=0.3, silence=1.0).run()
    assert not folder.exists()


def test_a_process_whose_process_0_is_gone_ends_as_infrastructure(folder, follow):
    session = Session(nonces=("a", "nonce-1"), nodes=(0, 1))
    ends = follow(member(1, "n1"), silence=0.5)
    wait_for(lambda: path_of(folder, 1).exists())
    write(folder / SESSION, session)
    wait_for(lambda: ends)
    assert ends[0].exit_code == ExitCode.INFRASTRUCTURE
    assert "gave no sign of life for 0.5 s" in ends[0].what
    assert not folder.exists()


def test_files_of_an_earlier_launch_of_this_name_count_for_nothing(folder, node, follow):
    write(folder / SESSION, Session(nonces=("a", "another nonce"), nodes=(0, 1), exit_code=1))
    write(path_of(folder, 1), replace(member(1), nonce="another nonce"))
    ends = follow(member(1, "n1"))
    members = assemble(folder, member(0), 2, 20.0)
    assert members[1].nonce == "nonce-1"
    with leading(LaunchLeader(folder, members, node(0), 5.0)) as ending:
        ending.code = ExitCode.OK
    wait_for(lambda: ends)
    assert ends == [ExitCode.OK]


def test_folders_of_launches_that_were_killed_are_removed_after_a_while(folder):
    old, live = folder.with_name(".inside-old"), folder.with_name(".inside-live")
    for each in (old, live):
        write(path_of(each, 0), member(0))
    os.utime(path_of(old, 0), (0, time.time() - 700))
    folder.with_name(".inside-new").mkdir()
    assemble(folder, member(0), 1, 1.0)
    assert sorted(path.name for path in folder.parent.iterdir()) == [".inside-live", ".inside-new", ".inside-x"]


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
    assert elected(members) == ranks


@pytest.fixture
def leader(folder, node):
    """Process 0 of three nodes, whose other processes live until their files say otherwise."""
    members = [member(0), member(1, "n1"), member(2, "n2")]
    for each in members:
        write(path_of(folder, each.rank), each)
    leader = LaunchLeader(folder, members, node(0), 600.0)
    leader.start()
    yield leader
    for each in members:
        write(path_of(folder, each.rank), replace(each, has_left=True))
    leader.close(ExitCode.OK)


def submit(leader, name, nodes):
    (leader.folder / name).mkdir()
    leader.submit(name, nodes)


def turn(leader, *names):
    for name in names:
        (leader.folder / name / "go").touch()


def states(leader, *names):
    return [leader.look(name).job.state for name in names]


def test_jobs_get_nodes_when_they_have_their_turn_and_free_them_at_their_end(leader):
    for name in "abc":
        submit(leader, name, 2)
    turn(leader, "a", "c")
    wait_for(lambda: states(leader, *"abc") == ["RUNNING", "PENDING", "RUNNING"])
    session = read_file(leader.folder / SESSION, Session)
    wait_for(lambda: len(read_file(leader.folder / SESSION, Session).jobs) == 2)
    session = read_file(leader.folder / SESSION, Session)
    assert {job.name: job.ranks for job in session.jobs} == {"a": (0, 1), "c": (0, 2)}
    assert leader.look("a").job.nodes == "n0, n1"
    assert leader.look("b").job.reason == "waits for 2 of 3 nodes"
    turn(leader, "b")
    leader.forget("a")
    wait_for(lambda: states(leader, "b") == ["RUNNING"])


def test_a_job_that_no_living_nodes_can_hold_has_lost_one(leader):
    write(path_of(leader.folder, 2), replace(member(2, "n2"), has_left=True))
    submit(leader, "wide", 3)
    wait_for(lambda: states(leader, "wide") == ["NODE_FAIL"])
    assert leader.look("wide").job.cause == "lost a node (n2)"


def test_time_in_which_this_process_was_stopped_is_no_silence_of_another():
    pulse = Pulse(limit=2.0, now=0.0)
    assert not pulse.is_lost(1, 0.2)
    assert not pulse.is_lost(1, 100.0)
    assert pulse.is_lost(1, 101.0) is False
    assert pulse.is_lost(1, 102.0)
    assert not pulse.is_lost(2, 103.0)
    assert [pulse.is_lost(None, 103.0 + number) for number in (1, 2, 3)] == [False, False, True]


OWN = {"PYTHONPATH": "/own", "RANK": "1", "SLURM_PROCID": "1", "CUDA_VISIBLE_DEVICES": "4,5", "MASTER_ADDR": "n0"}


@pytest.mark.parametrize(
    ("gpus", "count", "visible"),
    [((), 0, ""), ((), 1, "GPU-a"), ((), 2, "GPU-a,GPU-b"), ((), 3, ""), (("GPU-b",), 0, "GPU-b")],
)
def test_a_job_sees_only_its_own_gpus_of_a_nodes(gpus, count, visible):
    order = LaunchOrder(python="python", package="/p", gpus=gpus, gpu_count=count)
    assert variables_of(order, Inventory(gpus=("GPU-a", "GPU-b")), OWN)["CUDA_VISIBLE_DEVICES"] == visible


def test_amds_gpus_are_shown_by_their_numbers():
    order = LaunchOrder(python="python", package="/p", gpu_count=1)
    inventory = Inventory(driver="rocm", gpus=("GPU-b",), everything=("GPU-a", "GPU-b"))
    made = variables_of(order, inventory, {})
    assert (made["HIP_VISIBLE_DEVICES"], made["CUDA_VISIBLE_DEVICES"]) == ("1", "1")


def test_a_job_has_its_nodes_variables_and_its_own_and_none_of_the_launchers():
    added = (Variable(name="PYTHONPATH", value="/p"), Variable(name="X", value="1"))
    made = variables_of(LaunchOrder(python="python", package="/p", variables=added), Inventory(), OWN)
    assert made == {"PYTHONPATH": "/p:/own", "X": "1", "CUDA_VISIBLE_DEVICES": "", "ALLRANKS_NODE_ADDRESS": "n0"}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_launch_of_this_name_is_refused_while_the_first_one_lives(folder, node, rank):
    first = {0: Session(nonces=("a", "b"), nodes=(0, 1)), 1: replace(member(1), nonce="b")}[rank]
    path = folder / SESSION if rank == 0 else path_of(folder, 1)
    write(path, first)
    later = threading.Timer(0.3, write, (path, replace(first, beat=1)))
    later.start()
    follower = LaunchFollower(folder, member(1), node(1), assembly=1.0, silence=1.0)
    begin = follower.run if rank else lambda: assemble(folder, member(0), 2, 1.0)
    with pytest.raises(EngineError, match="Another launch of this name is running"):
        begin()
    later.join()
    assert path.exists()
