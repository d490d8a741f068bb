"""A job on two nodes: two agents on this host, two ranks each, and all that can befall either of them."""

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

from allranks.agent.job_end import HANGUP_STATUS
from allranks.engines.agents import arrange_meeting
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

TALKING = """
import sys
def test_talks(rank):
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
    """A job in the middle of a test that all four ranks hang in."""
    job = start_nodes(HANGING).go()
    assert [job.word() for _ in range(4)] == ["hanging"] * 4
    return job


def lost_node(job):
    """What the leader says of the node that it has lost."""
    [event] = job.all(NodeLost)
    return event.message


def failed_nodes(job):
    [event] = job.all(NodesFailed)
    return event.message


# What goes well


@pytest.mark.parametrize("init_method", ["env", "tcp", "file"])
def test_ranks_of_both_nodes_meet_and_know_their_places(run_nodes, init_method):
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


def test_ranks_that_cannot_be_spread_evenly_are_spread_in_blocks(run_nodes):
    job = run_nodes(
        f"""{WORDS}
def test_place(rank):
    assert (NODE, os.environ["LOCAL_WORLD_SIZE"]) == [("0", "2"), ("0", "2"), ("1", "1")][rank]
""",
        world_size=3,
    )
    assert job.outcomes("test_place") == ("passed",) * 3


def test_a_gang_lives_on_both_nodes_until_a_bad_outcome(run_nodes):
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


def test_a_suite_that_launches_ranks_runs_on_the_first_node_alone(run_nodes):
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


def test_output_of_a_rank_of_node_1_comes_home(run_nodes):
    job = run_nodes(TALKING)
    case = job.cases(3)["test_talks"]
    assert case.stdout.strip() == "out of 3"
    assert case.stderr.splitlines()[-1] == "err of 3"  # where no name server answers, torch's warning stands before it
    assert "out of 2" in (job.home / "rank-2.log").read_text()


def test_a_module_that_skips_itself_has_an_outcome_on_every_rank(run_nodes):
    job = run_nodes("import pytest\npytest.skip('not here', allow_module_level=True)\n")
    assert [(end.nodeid, end.outcome, end.message) for end in job.ends] == [
        ("suite/test_it.py", "skipped", "not here")
    ] * 4
    assert {end.rank for end in job.ends} == {0, 1, 2, 3}


def test_files_of_both_agents_come_home_and_none_is_lost(run_nodes):
    job = run_nodes(TALKING)
    names = {path.name for path in job.home.iterdir()}
    assert {"agent.log", "agent-1.log"} <= names
    assert {f"rank-{rank}.{kind}" for kind in ("log", "stacks.txt") for rank in range(4)} <= names


def test_the_leader_alone_tells_what_tests_came_to(run_nodes):
    job = run_nodes(PASSING)
    assert {end.rank for end in job.arrived("test_passes")} == {0, 1, 2, 3}
    assert job.follower.ends == []
    assert job.all(Finished)
    assert job.follower.all(Finished)


def test_a_process_left_behind_on_node_1_is_killed_and_told(run_nodes):
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


# Who leads


def test_a_failure_on_node_1_leads_while_node_0_waits_for_it(run_nodes):
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
    assert (called.kind, called.ranks) == ("all_reduce", (0, 1, 2, 3))  # those of both nodes, on one clock


def test_a_rank_of_node_1_that_is_killed_leads(run_nodes):
    job = run_nodes(
        f"""{WORDS}
def test_dies(rank):
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def test_after(): pass
"""
    )
    # A peer of it may have lost its connection, and said so, before the word of its end came over the wire.
    cause = next(ended for ended in job.arrived("test_dies") if not ended.consequence)
    assert (cause.rank, cause.outcome, cause.message) == (3, "crashed", "rank 3 was killed by SIGKILL")
    assert job.outcomes("test_after") == ("passed",) * 4


def test_a_rank_of_node_1_that_hangs_times_out_with_its_place_and_its_peers_are_aborted(run_nodes):
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
    assert "no end after 2 s (limits.test)" in message
    assert "in test_hangs" in message
    assert job.outcomes("test_hangs") == ("aborted", "aborted", "aborted", "timed_out")
    assert "test_hangs" in job.cases(2)["test_hangs"].text


# Agents that do not come, or come with something else


def test_different_collections_are_an_error_that_names_what_is_only_where(start_nodes):
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


def test_different_orders_are_an_error(start_nodes):
    job = start_nodes(
        f"""{WORDS}
import pytest
@pytest.mark.parametrize("n", [1, 2] if NODE == "0" else [2, 1])
def test_it(n): pass
"""
    ).go()
    assert job.wait() == 1
    assert "same tests in different orders: suite/test_it.py::test_it[1] on node 0" in failed_nodes(job)


def test_different_versions_of_torch_are_an_error(start_nodes):
    job = start_nodes(PASSING, follower={"environment": {"TORCH_VERSION": "0.1"}}).go()
    assert job.wait() == 1
    assert failed_nodes(job).endswith("and node 1 has torch 0.1.")


def test_what_cannot_be_collected_on_node_1_is_told_with_its_text(start_nodes):
    job = start_nodes(f"{WORDS}\nassert NODE == '0', 'broken over there'\n{PASSING}").go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert failure.nodeid == "suite/test_it.py"
    assert failure.text.startswith("On node 1: ")
    assert "broken over there" in failure.text


def test_a_module_without_tests_that_is_broken_on_node_1_alone_is_told(start_nodes):
    broken = f"{WORDS}\nassert NODE == '0', 'broken over there'\n"
    job = start_nodes({"test_it.py": PASSING, "test_none.py": broken}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert (failure.nodeid, "broken over there" in failure.text) == ("suite/test_none.py", True)


def test_a_module_that_is_broken_on_every_node_is_one_error_and_the_others_run(start_nodes):
    job = start_nodes({"test_it.py": PASSING, "test_broken.py": "1 / 0"}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert failure.nodeid == "suite/test_broken.py"
    assert job.all(GangStarted)


def test_a_command_line_that_pytest_refuses_on_node_1_is_told_with_its_text(start_nodes):
    job = start_nodes(PASSING, follower={"pytest_args": ("--no-such-option",)}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert "--no-such-option" in failure.text


def test_a_suite_that_ends_the_process_that_imports_it_on_node_1_is_told_at_once(start_nodes):
    job = start_nodes(f"{WORDS}\nif NODE == '1': os._exit(3)\n{PASSING}", limits={"assembly": 600}).go()
    assert job.wait() == 0
    [failure] = job.all(CollectionFailed)
    assert failure.text.startswith("On node 1: The process that imports the suite ended with exit status 3.")


def test_an_agent_that_is_killed_while_it_collects_is_noticed_at_once(start_nodes):
    suite = f"{WORDS}\nif NODE == '1': say('here'); time.sleep(600)\n{PASSING}"
    job = start_nodes(suite, limits={"assembly": 600}).go()
    assert job.word() == "here"
    job.wait_for(NodesMet)  # the suite may be imported before
    job.follower.signal(signal.SIGKILL)
    assert job.wait() == 1
    assert failed_nodes(job) == "The agent of node 1 is gone: it ended before it had collected its tests."


@pytest.mark.thorough
def test_an_agent_that_hangs_at_import_has_not_collected_within_the_limit(start_nodes):
    job = start_nodes(f"{WORDS}\nif NODE == '1': time.sleep(600)\n{PASSING}", limits={"assembly": 1}).go()
    assert job.wait() == 1
    assert failed_nodes(job) == "The agent of node 1 has not collected its tests within 1 s (limits.assembly)."
    job.follower.close_stdin()
    assert job.follower.wait() == HANGUP_STATUS


def test_an_agent_that_never_comes_is_told_after_the_limit(start_nodes):
    job = start_nodes(PASSING, follower=None, limits={"assembly": 0.5}).go()
    assert job.wait() == 1
    assert failed_nodes(job) == (
        "The agent of node 1 did not connect within 0.5 s (limits.assembly). "
        f"Check that every agent runs and can reach 127.0.0.1:{job.port}."
    )


@pytest.mark.thorough
def test_an_agent_with_the_wrong_token_is_turned_away(start_nodes):
    wrong = arrange_meeting()
    wrong.held.close()
    job = start_nodes(PASSING, follower=None, limits={"assembly": 3})
    other = type(wrong)(job.meeting.held, wrong.token)
    job.add_follower(meeting=other)
    assert job.follower.wait() == 1
    assert failed_nodes(job.follower) == "The leading agent rejected the connection of this agent."
    assert job.wait() == 1
    assert failed_nodes(job) == (
        "The agent of node 1 did not connect within 3 s (limits.assembly). "
        f"Check that every agent runs and can reach 127.0.0.1:{job.port}."
    )


# Strangers


def connect(job):
    return socket.create_connection(("127.0.0.1", job.port), timeout=10)


def read_to_end(stranger):
    with contextlib.suppress(ConnectionResetError):
        while stranger.recv(1 << 16):
            pass


def framed(message):
    data = json.dumps(message).encode()
    return struct.pack("!I", len(data)) + data


STRANGERS = {
    "wrong token": framed(["Claim", {"node": 1, "nonce": "n", "proof": "0" * 64}]),
    "no proof": framed(["Claim", {"node": 1}]),
    "an order": framed(["Kill", {"ranks": [0]}]),
    "a number for a name": framed(["Claim", {"node": "1", "nonce": 1, "proof": None}]),
    "no message": framed([1]),
    "no JSON": struct.pack("!I", 3) + b"{{{",
    "too long": struct.pack("!I", 1 << 31),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("words", quick(3, STRANGERS.values()), ids=STRANGERS)
def test_a_stranger_at_the_port_is_cut_off_and_the_job_passes(start_nodes, words):
    job = start_nodes(PASSING, follower=None)
    job.wait_for(Begun)
    with _connected_when_open(job) as stranger:
        stranger.sendall(words)
        read_to_end(stranger)
    job.add_follower()
    assert job.go().finish() == (0, 0)
    assert job.come_home().outcomes("test_passes") == ("passed",) * 4


def test_strangers_who_say_nothing_keep_nobody_out_and_are_cut_off(start_nodes):
    job = start_nodes(PASSING, follower=None)
    job.wait_for(Begun)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(_connected_when_open(job)) for _ in range(100)]
        job.add_follower()
        assert job.go().finish() == (0, 0)
        for stranger in strangers:
            read_to_end(stranger)
    assert job.come_home().outcomes("test_passes") == ("passed",) * 4


def test_the_port_is_closed_while_the_job_runs(hanging_job):
    with pytest.raises(ConnectionRefusedError):
        connect(hanging_job)


def _connected_when_open(job):
    """A connection, as soon as the agent listens: it has a moment of Python before that, and can tell nobody."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            return connect(job)
    pytest.fail("nobody listens")


# Agents that die, stop, or are told to end


def test_an_agent_that_is_killed_leaves_lost_ranks_and_a_job_error(hanging_job):
    hanging_job.follower.signal(signal.SIGKILL)
    assert hanging_job.wait() == 1
    assert lost_node(hanging_job) == "The agent of node 1 is gone."
    hanging_job.assert_nothing_left()
    hanging_job.come_home()
    message = "the agent of node 1 is gone"
    told = hanging_job.messages("test_hangs")
    assert [told[rank] for rank in (2, 3)] == [("crashed", f"rank {rank} is lost: {message}") for rank in (2, 3)]
    assert hanging_job.arrived("test_hangs")[0].rank == 2
    assert hanging_job.outcomes("test_hangs") == ("aborted", "aborted", "crashed", "crashed")
    assert "test_after" not in hanging_job.cases(2)


def test_an_agent_that_is_stopped_is_given_up(hanging_job):
    hanging_job.follower.signal(signal.SIGSTOP)
    assert hanging_job.wait() == 1
    assert lost_node(hanging_job) == "The agent of node 1 does not answer within 3 s (limits.silence)."
    told = hanging_job.messages("test_hangs")
    assert told[2] == ("crashed", "rank 2 is lost: the agent of node 1 does not answer within 3 s (limits.silence)")


@pytest.mark.thorough
def test_an_agent_that_was_stopped_and_goes_on_too_late_ends_its_ranks(hanging_job):
    hanging_job.follower.signal(signal.SIGSTOP)
    assert hanging_job.wait() == 1
    hanging_job.follower.signal(signal.SIGCONT)
    assert hanging_job.follower.wait() == HANGUP_STATUS
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_an_agent_that_is_slow_for_a_moment_is_not_given_up(start_nodes):
    job = start_nodes(f"{WORDS}\ndef test_it(rank):\n    say('x')\n    signal.sigtimedwait([], 0.5)\n").go()
    job.word()
    job.follower.signal(signal.SIGSTOP)
    job.word()
    job.follower.signal(signal.SIGCONT)
    assert job.finish() == (0, 0)
    assert job.come_home().outcomes("test_it") == ("passed",) * 4


@pytest.mark.thorough
def test_no_test_is_run_after_the_one_in_which_an_agent_died(start_nodes):
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
def test_an_agent_that_dies_when_its_ranks_are_done_is_an_error_too(start_nodes):
    """What it had still to write is not there, and nobody knows what that was."""
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


def test_an_agent_that_dies_before_the_go_fails_the_job(start_nodes):
    job = start_nodes(PASSING)
    job.wait_for(NodesAgreed)
    job.follower.signal(signal.SIGKILL)
    job.follower.wait()
    assert job.go().wait() == 1
    assert lost_node(job) == "The agent of node 1 is gone."
    assert job.gangs() == []
    job.assert_nothing_left()


def test_an_agent_that_is_told_to_stop_says_so(hanging_job):
    hanging_job.follower.signal(signal.SIGTERM)
    assert hanging_job.finish() == (1, HANGUP_STATUS)
    assert lost_node(hanging_job) == "The agent of node 1 was told to stop."


def test_a_leader_that_is_told_to_stop_aborts_the_ranks_of_both_nodes(hanging_job):
    hanging_job.signal(signal.SIGTERM)
    assert hanging_job.finish() == (HANGUP_STATUS, HANGUP_STATUS)
    hanging_job.assert_nothing_left()
    assert hanging_job.come_home().outcomes("test_hangs") == ("aborted",) * 4


def test_a_leader_that_is_killed_takes_all_agents_and_ranks_with_it(hanging_job):
    hanging_job.signal(signal.SIGKILL)
    assert hanging_job.wait() == -signal.SIGKILL
    assert hanging_job.follower.wait() == HANGUP_STATUS
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_the_end_of_its_input_ends_a_follower(hanging_job):
    hanging_job.follower.close_stdin()
    assert hanging_job.finish() == (1, HANGUP_STATUS)
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_a_results_folder_of_node_1_that_is_deleted_costs_evidence_and_no_outcome(hanging_job):
    shutil.rmtree(hanging_job.follower.results)
    for pid in hanging_job.ranks_of_node(1):
        os.kill(pid, signal.SIGKILL)
    assert hanging_job.wait() == 0
    assert hanging_job.outcomes("test_hangs")[2:] == ("crashed", "crashed")
    assert hanging_job.outcomes("test_after") == ("passed",) * 4
    hanging_job.assert_nothing_left()


@pytest.mark.thorough
def test_the_time_limit_of_the_job_ends_both(start_nodes):
    job = start_nodes(HANGING, limits={"job": 5}).go()
    assert job.wait() == 0
    job.follower.wait()
    assert job.come_home().outcomes("test_hangs") == ("timed_out",) * 4


# The secret


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


def test_a_rank_has_no_hold_on_the_connection_of_its_agent(run_nodes):
    """What outlives a rank could keep it open, and the end of an agent would tell the other nothing."""
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
