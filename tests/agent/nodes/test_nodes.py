"""Jobs on two nodes: two agents on this host, with two ranks each."""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import time

import pytest
from long_lists import quick

from allranks.agent.job_end import STOPPED_STATUS
from allranks.engines.agents import reserve_rendezvous
from allranks.protocol.records import (
    Begun,
    CollectionFailed,
    FailureCourse,
    Finished,
    GangStarted,
    LeftBehind,
    NodeLost,
    NodesAgreed,
    NodesFailed,
    NodesMet,
)

WORDS = """
import os, signal, time
import torch
import torch.distributed as dist

NODE = os.environ["GROUP_RANK"]

def say(word):
    with open(os.environ["WORDS"], "w") as fifo:
        print(word, file=fifo)
"""

PASSING = "def test_passes(): pass\n"

PRINTING = """
import sys
def test_prints(rank):
    print("out of", rank)
    print("err of", rank, file=sys.stderr)
    assert rank != 3
"""

HANGING = f"""{WORDS}
def test_before(): pass

def test_hangs():
    say("hanging")
    time.sleep(600)

def test_after(): pass
"""


@pytest.fixture
def hanging_job(start_nodes):
    """Returns a job in a test that hangs on all four ranks."""
    job = start_nodes(HANGING).go()
    assert [job.word() for _ in range(4)] == ["hanging"] * 4
    return job


def lost_node(job):
    """Return the leader's message about the node that it has lost."""
    [event] = job.all(NodeLost)
    return event.message


def failed_nodes(job):
    [event] = job.all(NodesFailed)
    return event.message


# Passing jobs


@pytest.mark.parametrize("init_method", quick(1, ["env", "tcp", "file"]))
def test_ranks_of_both_nodes_form_one_process_group(run_nodes, init_method):
    job = run_nodes(
        f"""{WORDS}
def test_place(rank):
    place = [os.environ[name] for name in ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")]
    assert place == [str(rank // 2), str(rank % 2), "2", "4"]

def test_all_reduce(rank):
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    assert tensor.item() == 6
""",
        init_method=init_method,
    )
    assert job.outcomes("test_place") == job.outcomes("test_all_reduce") == ("passed",) * 4


@pytest.mark.thorough
def test_ranks_are_distributed_in_blocks_if_not_evenly(run_nodes):
    job = run_nodes(
        f"""{WORDS}
def test_place(rank):
    assert (NODE, os.environ["LOCAL_WORLD_SIZE"]) == [("0", "2"), ("0", "2"), ("1", "1")][rank]
""",
        world_size=3,
    )
    assert job.outcomes("test_place") == ("passed",) * 3


def test_a_gang_is_kept_on_both_nodes_until_a_failure(run_nodes):
    job = run_nodes(
        """
def test_one(): pass
def test_two(rank): assert rank != 3
def test_three(): pass
""",
        isolation="job",
    )
    assert len(job.gangs()) == 2
    assert [len(set(gang)) for gang in job.gangs()] == [4, 4]
    assert job.outcomes("test_two") == ("passed", "passed", "passed", "failed")
    assert job.outcomes("test_three") == ("passed",) * 4


@pytest.mark.thorough
def test_a_suite_that_launches_ranks_runs_only_on_the_first_node(run_nodes):
    job = run_nodes(
        """
import multiprocessing

def test_launches(world_size):
    assert world_size == 4
    with multiprocessing.get_context("fork").Pool(world_size) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]

def test_fails(): assert False
""",
        launches_ranks=True,
        isolation="job",
    )
    assert [(end.nodeid.rpartition("::")[2], end.rank, end.outcome) for end in job.ends] == [
        ("test_launches", 0, "passed"),
        ("test_fails", 0, "failed"),
    ]
    assert [len(gang) for gang in job.gangs()] == [1]


@pytest.mark.thorough
def test_output_of_ranks_on_node_1_is_recorded(run_nodes):
    job = run_nodes(PRINTING)
    case = job.cases(3)["test_prints"]
    assert case.stdout.strip() == "out of 3"
    assert case.stderr.splitlines()[-1] == "err of 3"  # without a name server, torch's warning precedes it
    assert "out of 2" in (job.home / "rank-2.log").read_text()


def test_a_module_that_skips_itself_has_an_outcome_on_every_rank(run_nodes):
    job = run_nodes("import pytest\npytest.skip('not here', allow_module_level=True)\n")
    assert [(end.nodeid, end.outcome, end.message) for end in job.ends] == [
        ("suite/test_it.py", "skipped", "not here")
    ] * 4
    assert {end.rank for end in job.ends} == {0, 1, 2, 3}


@pytest.mark.thorough
def test_files_of_both_agents_are_collected(run_nodes):
    job = run_nodes(PRINTING)
    names = {path.name for path in job.home.iterdir()}
    assert {"agent.log", "agent-1.log"} <= names
    assert {f"rank-{rank}.{kind}" for kind in ("log", "stacks.txt") for rank in range(4)} <= names


@pytest.mark.thorough
def test_only_the_leader_records_outcomes(run_nodes):
    job = run_nodes(PASSING)
    assert {end.rank for end in job.arrived("test_passes")} == {0, 1, 2, 3}
    assert job.follower.ends == []
    assert job.all(Finished)
    assert job.follower.all(Finished)


@pytest.mark.thorough
def test_a_process_left_behind_on_node_1_is_killed_and_recorded(run_nodes):
    job = run_nodes(
        """
import os, signal
def test_leaves_a_child(rank):
    if rank == 2 and os.fork() == 0:
        os.closerange(0, 100)
        signal.pause()
"""
    )
    assert [event.rank for event in job.all(LeftBehind)] == [2]


# Primary failures


def test_a_failure_on_node_1_is_primary_while_node_0_waits_for_it(run_nodes):
    job = run_nodes(
        f"""{WORDS}
def test_waits(rank):
    dist.all_reduce(torch.ones(1))
    assert rank != 2, "rank 2 breaks"
    dist.barrier()
"""
    )
    arrived = job.arrived("test_waits")
    assert (arrived[0].rank, arrived[0].outcome) == (2, "failed")
    assert job.outcomes("test_waits")[2] == "failed"
    assert all(event.consequence for event in arrived[1:])
    called = job.all(FailureCourse)[0].collectives[0]
    assert (called.kind, called.ranks) == ("all_reduce", (0, 1, 2, 3))  # from both nodes, on one clock


@pytest.mark.thorough
def test_a_killed_rank_of_node_1_is_primary(run_nodes):
    job = run_nodes(
        f"""{WORDS}
def test_dies(rank):
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def test_after(): pass
"""
    )
    # A peer may have lost its connection, and reported that, before the report of the rank's end arrived.
    cause = next(ended for ended in job.arrived("test_dies") if not ended.consequence)
    assert (cause.rank, cause.outcome, cause.message) == (3, "crashed", "rank 3 was killed by SIGKILL")
    assert job.outcomes("test_after") == ("passed",) * 4


@pytest.mark.thorough
def test_a_hanging_rank_of_node_1_times_out_and_its_peers_are_aborted(run_nodes):
    job = run_nodes(
        f"""{WORDS}
def test_hangs(rank):
    if rank == 3:
        time.sleep(600)
    dist.barrier()
""",
        limits={"test": 2},
    )
    message = job.messages("test_hangs")[3][1]
    assert "not finished after 2 s (limits.test)" in message
    assert "in test_hangs" in message
    assert job.outcomes("test_hangs") == ("aborted", "aborted", "aborted", "timed_out")
    assert "test_hangs" in job.cases(2)["test_hangs"].text


# Agents that do not connect, or have other tests


@pytest.mark.thorough
def test_the_error_for_different_collections_names_the_tests(start_nodes):
    job = start_nodes(
        f"""{WORDS}
import pytest
def test_both(): pass
if NODE == "1":
    def test_only_there(): pass
else:
    @pytest.mark.parametrize("n", range(9))
    def test_only_here(n): pass
"""
    ).go()
    assert job.wait() == 1
    message = failed_nodes(job)
    here = ", ".join(f"suite/test_it.py::test_only_here[{n}]" for n in range(3))
    assert f"only on node 0: {here} and 6 more" in message
    assert "only on node 1: suite/test_it.py::test_only_there." in message
    assert job.gangs() == []


@pytest.mark.thorough
def test_different_orders_are_an_error(start_nodes):
    job = start_nodes(
        f"""{WORDS}
import pytest
@pytest.mark.parametrize("n", [1, 2] if NODE == "0" else [2, 1])
def test_it(n): pass
"""
    ).go()
    assert job.wait() == 1
    assert "same tests in different orders: where node 0 has suite/test_it.py::test_it[1]" in failed_nodes(job)


@pytest.mark.thorough
def test_different_versions_of_torch_are_an_error(start_nodes):
    job = start_nodes(PASSING, follower={"environment": {"TORCH_VERSION": "0.1"}}).go()
    assert job.wait() == 1
    assert failed_nodes(job).endswith("and node 1 has torch 0.1.")


@pytest.mark.thorough
def test_a_collection_failure_on_node_1_is_recorded_with_its_text(start_nodes):
    job = start_nodes(f"{WORDS}\nassert NODE == '0', 'broken over there'\n{PASSING}").go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert failure.nodeid == "suite/test_it.py"
    assert failure.text.startswith("On node 1: ")
    assert "broken over there" in failure.text


@pytest.mark.thorough
def test_a_module_without_tests_that_only_fails_on_node_1_is_recorded(start_nodes):
    broken = f"{WORDS}\nassert NODE == '0', 'broken over there'\n"
    job = start_nodes({"test_it.py": PASSING, "test_none.py": broken}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert (failure.nodeid, "broken over there" in failure.text) == ("suite/test_none.py", True)


@pytest.mark.thorough
def test_a_module_that_fails_on_every_node_is_one_error_and_the_others_run(start_nodes):
    job = start_nodes({"test_it.py": PASSING, "test_broken.py": "1 / 0"}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert failure.nodeid == "suite/test_broken.py"
    assert job.all(GangStarted)


@pytest.mark.thorough
def test_an_invalid_command_line_on_node_1_is_recorded_with_its_text(start_nodes):
    job = start_nodes(PASSING, follower={"pytest_args": ("--no-such-option",)}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert "--no-such-option" in failure.text


def test_a_suite_that_exits_on_import_on_node_1_is_recorded_at_once(start_nodes):
    job = start_nodes(f"{WORDS}\nif NODE == '1': os._exit(3)\n{PASSING}", limits={"assembly": 600}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert failure.text.startswith("On node 1: The process that imports the suite ended with exit status 3.")


@pytest.mark.thorough
def test_an_agent_that_is_killed_during_collection_is_detected_at_once(start_nodes):
    suite = f"{WORDS}\nif NODE == '1': say('here'); time.sleep(600)\n{PASSING}"
    job = start_nodes(suite, limits={"assembly": 600}).go()
    assert job.word() == "here"
    job.wait_for(NodesMet)  # the suite may be imported before
    job.follower.signal(signal.SIGKILL)
    assert job.wait() == 1
    assert failed_nodes(job) == "The agent of node 1 is gone: it ended before it had collected its tests."


@pytest.mark.thorough
def test_an_agent_that_hangs_during_import_exceeds_the_limit(start_nodes):
    job = start_nodes(f"{WORDS}\nif NODE == '1': time.sleep(600)\n{PASSING}", limits={"assembly": 1}).go()
    assert job.wait() == 1
    assert failed_nodes(job) == "The agent of node 1 did not collect its tests within 1 s (limits.assembly)."
    job.follower.close_stdin()
    assert job.follower.wait() == STOPPED_STATUS


def test_an_agent_that_does_not_connect_within_the_limit_is_an_error(start_nodes):
    job = start_nodes(PASSING, follower=None, limits={"assembly": 0.5}).go()
    assert job.wait() == 1
    assert failed_nodes(job) == (
        "The agent of node 1 did not connect within 0.5 s (limits.assembly). "
        f"Check that every agent runs and can reach 127.0.0.1:{job.port}."
    )


@pytest.mark.thorough
def test_an_agent_with_the_wrong_token_is_rejected(start_nodes):
    wrong = reserve_rendezvous()
    wrong.held.close()
    job = start_nodes(PASSING, follower=None, limits={"assembly": 3})
    other = type(wrong)(job.rendezvous.held, wrong.token)
    job.add_follower(rendezvous=other)
    assert job.follower.wait() == 1
    assert failed_nodes(job.follower) == "The lead agent rejected the connection of this agent."
    assert job.wait() == 1
    assert failed_nodes(job) == (
        "The agent of node 1 did not connect within 3 s (limits.assembly). "
        f"Check that every agent runs and can reach 127.0.0.1:{job.port}."
    )


# Unauthenticated clients


def connect(job):
    return socket.create_connection(("127.0.0.1", job.port), timeout=10)


def read_to_end(client):
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1 << 16):
            pass


def framed(message):
    data = json.dumps(message).encode()
    return struct.pack("!I", len(data)) + data


INVALID_MESSAGES = {
    "wrong token": framed(["FollowerProof", {"node": 1, "nonce": "n", "proof": "0" * 64}]),
    "no proof": framed(["FollowerProof", {"node": 1}]),
    "a command": framed(["Kill", {"ranks": [0]}]),
    "a number for a name": framed(["FollowerProof", {"node": "1", "nonce": 1, "proof": None}]),
    "no message": framed([1]),
    "no JSON": struct.pack("!I", 3) + b"{{{",
    "too long": struct.pack("!I", 1 << 31),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("words", quick(1, INVALID_MESSAGES.values()), ids=INVALID_MESSAGES)
def test_an_unauthenticated_client_at_the_port_is_disconnected_and_the_job_passes(start_nodes, words):
    job = start_nodes(PASSING, follower=None)
    job.wait_for(Begun)
    with _connected_when_open(job) as client:
        client.sendall(words)
        read_to_end(client)
    job.add_follower()
    assert job.go().finish() == (0, 0)
    assert job.come_home().outcomes("test_passes") == ("passed",) * 4


@pytest.mark.thorough
def test_silent_clients_are_disconnected_and_do_not_keep_followers_out(start_nodes):
    job = start_nodes(PASSING, follower=None)
    job.wait_for(Begun)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_connected_when_open(job)) for _ in range(100)]
        job.add_follower()
        assert job.go().finish() == (0, 0)
        for client in clients:
            read_to_end(client)
    assert job.come_home().outcomes("test_passes") == ("passed",) * 4


@pytest.mark.thorough
def test_the_port_is_closed_while_the_job_runs(hanging_job):
    with pytest.raises(ConnectionRefusedError):
        connect(hanging_job)


def _connected_when_open(job):
    """Connect as soon as the agent listens, which it does not signal."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            return connect(job)
    pytest.fail("the agent does not listen")


# Agents that die, or are stopped


def test_a_killed_agent_loses_its_ranks_and_fails_the_job(hanging_job):
    hanging_job.follower.signal(signal.SIGKILL)
    assert hanging_job.wait() == 1
    assert lost_node(hanging_job) == "The agent of node 1 is gone."
    hanging_job.assert_nothing_left()
    hanging_job.come_home()
    message = "the agent of node 1 is gone"
    messages = hanging_job.messages("test_hangs")
    assert [messages[rank] for rank in (2, 3)] == [("crashed", f"rank {rank} is lost: {message}") for rank in (2, 3)]
    assert hanging_job.arrived("test_hangs")[0].rank == 2
    assert hanging_job.outcomes("test_hangs") == ("aborted", "aborted", "crashed", "crashed")
    assert "test_after" not in hanging_job.cases(2)


@pytest.mark.thorough
def test_a_stopped_agent_is_lost(hanging_job):
    hanging_job.follower.signal(signal.SIGSTOP)
    assert hanging_job.wait() == 1
    assert lost_node(hanging_job) == "The agent of node 1 did not answer within 3 s (limits.silence)."
    messages = hanging_job.messages("test_hangs")
    assert messages[2] == ("crashed", "rank 2 is lost: the agent of node 1 did not answer within 3 s (limits.silence)")


@pytest.mark.thorough
def test_a_stopped_agent_that_continues_too_late_kills_its_ranks(hanging_job):
    hanging_job.follower.signal(signal.SIGSTOP)
    assert hanging_job.wait() == 1
    hanging_job.follower.signal(signal.SIGCONT)
    assert hanging_job.follower.wait() == STOPPED_STATUS
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_an_agent_that_is_stopped_for_a_moment_is_not_lost(start_nodes):
    job = start_nodes(f"{WORDS}\ndef test_it(rank):\n    say('x')\n    signal.sigtimedwait([], 0.5)\n").go()
    job.word()
    job.follower.signal(signal.SIGSTOP)
    job.word()
    job.follower.signal(signal.SIGCONT)
    assert job.finish() == (0, 0)
    assert job.come_home().outcomes("test_it") == ("passed",) * 4


@pytest.mark.thorough
def test_no_test_runs_after_an_agent_has_died(start_nodes):
    job = start_nodes(
        f"""{WORDS}
def test_passes(rank): pass

def test_agent_dies(rank):
    dist.barrier()
    if rank == 3:
        os.kill(os.getppid(), signal.SIGKILL)
    if rank > 1:
        time.sleep(600)

def test_never_runs(): pass
""",
        isolation="test",
    ).go()
    assert job.wait() == 1
    assert lost_node(job) == "The agent of node 1 is gone."
    assert job.come_home().outcomes("test_passes") == ("passed",) * 4
    assert job.outcomes("test_agent_dies")[2:] == ("crashed", "crashed")
    assert job.arrived("test_never_runs") == []


@pytest.mark.thorough
def test_an_agent_that_dies_after_its_ranks_have_finished_fails_the_job(start_nodes):
    """Records that it had not yet written are missing."""
    job = start_nodes(
        f"""{WORDS}
import pytest

@pytest.fixture(scope="session", autouse=True)
def agent_dies_last(rank):
    yield
    if rank == 3:
        os.kill(os.getppid(), signal.SIGKILL)

def test_passes(): pass
"""
    ).go()
    assert job.wait() == 1
    assert lost_node(job) == "The agent of node 1 is gone."


@pytest.mark.thorough
def test_an_agent_that_dies_before_the_start_fails_the_job(start_nodes):
    job = start_nodes(PASSING)
    job.wait_for(NodesAgreed)
    job.follower.signal(signal.SIGKILL)
    job.follower.wait()
    assert job.go().wait() == 1
    assert lost_node(job) == "The agent of node 1 is gone."
    assert job.gangs() == []
    job.assert_nothing_left()


@pytest.mark.thorough
def test_an_agent_that_is_told_to_stop_is_reported_as_such(hanging_job):
    hanging_job.follower.signal(signal.SIGTERM)
    assert hanging_job.finish() == (1, STOPPED_STATUS)
    assert lost_node(hanging_job) == "The agent of node 1 received a request to stop."


@pytest.mark.thorough
def test_a_stopped_leader_aborts_the_ranks_of_both_nodes(hanging_job):
    hanging_job.signal(signal.SIGTERM)
    assert hanging_job.finish() == (STOPPED_STATUS, STOPPED_STATUS)
    hanging_job.assert_nothing_left()
    assert hanging_job.come_home().outcomes("test_hangs") == ("aborted",) * 4


@pytest.mark.thorough
def test_a_killed_leader_ends_all_agents_and_ranks(hanging_job):
    hanging_job.signal(signal.SIGKILL)
    assert hanging_job.wait() == -signal.SIGKILL
    assert hanging_job.follower.wait() == STOPPED_STATUS
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_a_follower_ends_when_its_input_is_closed(hanging_job):
    hanging_job.follower.close_stdin()
    assert hanging_job.finish() == (1, STOPPED_STATUS)
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_a_deleted_results_folder_of_node_1_changes_no_outcome(hanging_job):
    shutil.rmtree(hanging_job.follower.results)
    for pid in hanging_job.ranks_of_node(1):
        os.kill(pid, signal.SIGKILL)
    assert hanging_job.wait() == 0
    assert hanging_job.outcomes("test_hangs")[2:] == ("crashed", "crashed")
    assert hanging_job.outcomes("test_after") == ("passed",) * 4
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_the_time_limit_of_the_job_ends_both_agents(start_nodes):
    job = start_nodes(HANGING, limits={"job": 5}).go()
    assert job.wait() == 0
    job.follower.wait()
    assert job.come_home().outcomes("test_hangs") == ("timed_out",) * 4


# The token


@pytest.mark.thorough
def test_the_token_is_in_no_result_and_in_no_rank(run_nodes):
    job = run_nodes(
        """
import os
def test_environment(rank):
    print(os.environ)
    with open("/proc/self/environ") as file:
        print(file.read())
    assert False
"""
    )
    token = job.config.node_config.token
    assert len(token) >= 32
    left = [path for path in job.home.rglob("*") if path.is_file()]
    assert any(b"GROUP_RANK" in path.read_bytes() for path in left)
    assert [path for path in left if token.encode() in path.read_bytes()] == []


@pytest.mark.thorough
def test_a_rank_does_not_inherit_the_connection_of_its_agent(run_nodes):
    """Else a process that outlives the rank could keep it open, and the leader would not notice the agent's end."""
    job = run_nodes(
        """
import os, socket
def test_sockets():
    found = [name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    sockets = [int(name) for name in found if os.readlink(f"/proc/self/fd/{name}").startswith("socket:")]
    [family] = [socket.socket(fileno=os.dup(number)).family for number in sockets]
    assert family == socket.AF_UNIX  # its own connection to its supervisor
test_sockets.pytestmark = [__import__("pytest").mark.no_process_group]
"""
    )
    assert job.outcomes("test_sockets") == ("passed",) * 4
