"""Unmatched calls in the process groups of a kept gang are an error of their own test and reach no other."""

import pytest
from long_lists import quick

from allranks.protocol.records import Notice

LEAVES_A_MESSAGE = """
import torch, torch.distributed as dist

def test_leaves_a_message(rank):
    if rank == 0:
        dist.isend(torch.ones(1), dst=1)

def test_forgets_to_send(rank):
    if rank == 1:
        dist.recv(torch.ones(1), src=0)
"""


def test_a_message_left_behind_fails_its_own_test_and_reaches_no_other(run_agent):
    agent = run_agent({"test_left.py": LEAVES_A_MESSAGE}, limits={"test": 3})
    assert agent.outcomes("test_leaves_a_message") == ("errored", "passed")
    message = agent.cases(0)["test_leaves_a_message"].message
    assert message == "rank 0 sent 1 message that rank 1 did not receive in this test"
    assert agent.outcomes("test_forgets_to_send")[1] != "passed"
    assert len(agent.gangs()) == 2


def test_a_collective_left_behind_fails_only_its_own_test(run_agent):
    suite = """
        import torch, torch.distributed as dist

        def test_leaves_a_collective(rank):
            if rank == 1:
                global work
                work = dist.all_reduce(torch.ones(1), async_op=True)

        def test_is_innocent(rank):
            tensor = torch.full((1,), rank + 1.0)
            dist.all_reduce(tensor)
            assert tensor.item() == 3
    """
    agent = run_agent({"test_left.py": suite})
    assert agent.outcomes("test_leaves_a_collective") == ("errored", "passed")
    message = agent.cases(0)["test_leaves_a_collective"].message
    assert message == "rank 1 called all_reduce once in the default group, rank 0 not at all"
    assert agent.outcomes("test_is_innocent") == ("passed", "passed")


@pytest.mark.thorough
def test_an_uncertain_mismatch_replaces_the_gang_without_an_error(run_agent):
    suite = """
        import pytest, torch, torch.distributed as dist

        def test_left_by_c_plus_plus(rank):
            if rank == 0:
                global work
                work = torch.ops._c10d_functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD.group_name)

        def test_left_before_a_skip(rank, sends):
            pass

        @pytest.fixture
        def sends(rank):
            if rank == 0:
                dist.isend(torch.ones(1), dst=1)
            pytest.skip("after all")

        def test_is_innocent(rank):
            tensor = torch.full((1,), rank + 1.0)
            dist.all_reduce(tensor)
            assert tensor.item() == 3
    """
    agent = run_agent({"test_left.py": suite})
    assert agent.outcomes("test_left_by_c_plus_plus") == ("passed", "passed")
    assert agent.outcomes("test_left_before_a_skip") == ("skipped", "skipped")
    assert agent.outcomes("test_is_innocent") == ("passed", "passed")
    assert len(agent.gangs()) == 3


def test_matching_calls_keep_the_gang(run_agent):
    suite = """
        import torch, torch.distributed as dist

        def test_first(rank):
            dist.send(torch.ones(1), dst=1) if rank == 0 else dist.recv(torch.ones(1))

        def test_second(rank):
            group = dist.new_group([1])
            if rank == 1:
                dist.all_reduce(torch.ones(1), group=group)

        def test_third():
            dist.barrier()
    """
    agent = run_agent({"test_right.py": suite})
    assert {case.outcome for rank in (0, 1) for case in agent.cases(rank).values()} == {"passed"}
    assert len(agent.gangs()) == 1


@pytest.mark.thorough
def test_calls_are_not_compared_with_test_isolation(run_agent):
    agent = run_agent({"test_left.py": LEAVES_A_MESSAGE}, limits={"test": 3}, isolation="test")
    assert agent.outcomes("test_leaves_a_message") == ("passed", "passed")
    assert agent.outcomes("test_forgets_to_send")[1] != "passed"


@pytest.mark.thorough
def test_a_gang_without_a_process_group_is_not_compared(run_agent):
    suite = """
        import pytest, torch, torch.distributed as dist

        @pytest.mark.no_process_group
        def test_alone(rank):
            if rank == 0:
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
                dist.all_reduce(torch.ones(1))
                dist.destroy_process_group()

        @pytest.mark.no_process_group
        def test_after(rank):
            assert not dist.is_initialized()
    """
    agent = run_agent({"test_own.py": suite})
    assert {case.outcome for rank in (0, 1) for case in agent.cases(rank).values()} == {"passed"}
    assert len(agent.gangs()) == 1


OWN_WORLD = """
import os
import pytest, torch, torch.distributed as dist

@pytest.fixture(scope="module")
def world(rank, world_size):
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()
"""

OWN_CLASS = """
import os, unittest
import torch, torch.distributed as dist

class TestOwn(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo")
        cls.rank = dist.get_rank()

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def test_leaves_a_message(self):
        if self.rank == 0:
            dist.isend(torch.ones(1), dst=1)

    def test_receives_its_own(self):
        if self.rank == 0:
            dist.send(torch.full((1,), 7.0), dst=1)
        else:
            tensor = torch.zeros(1)
            dist.recv(tensor, src=0)
            assert tensor.item() == 7
"""

LEFT_IN_OWN_WORLD = [
    ("if rank == 0: dist.isend(torch.ones(1), dst=1)", "rank 0 sent 1 message that rank 1 did not receive"),
    ("if rank == 0: dist.isend(torch.ones(1), dst=1, tag=3)", "rank 0 sent 1 message that rank 1 did not receive"),
    ("if rank == 1: dist.irecv(torch.ones(1), src=0)", "rank 1 waits for 1 message that rank 0 did not send"),
    (
        "if rank == 0: dist.all_reduce(torch.ones(1), async_op=True)",
        "rank 0 called all_reduce once in the default group",
    ),
    ("if rank == 1: dist.barrier(async_op=True)", "rank 1 called barrier once in the default group, rank 0 not at all"),
    ("dist.new_group([0]); rank == 0 or dist.isend(torch.ones(1), dst=0)", "rank 1 sent 1 message that rank 0 did not"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("left", "message"), quick(2, LEFT_IN_OWN_WORLD))
def test_calls_in_a_group_of_the_suites_own_are_compared(run_agent, left, message):
    suite = f"""{OWN_WORLD}
def test_before(world):
    dist.barrier()

def test_leaves_something(world, rank):
    global kept
    {left}

def test_is_innocent(world, rank):
    tensor = torch.full((1,), rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.item() == 3
"""
    agent = run_agent({"test_own.py": suite}, process_group=False)
    assert agent.outcomes("test_before") == ("passed", "passed")
    assert "errored" in agent.outcomes("test_leaves_something")
    [found] = {case.message for rank in (0, 1) if (case := agent.cases(rank)["test_leaves_something"]).is_bad}
    assert message in found
    assert agent.outcomes("test_is_innocent") == ("passed", "passed")
    assert len(agent.gangs()) == 2


@pytest.mark.thorough
def test_calls_in_a_group_of_a_class_are_compared_from_its_first_test(run_agent):
    agent = run_agent({"test_own.py": OWN_CLASS})
    assert agent.outcomes("test_leaves_a_message") == ("errored", "passed")
    assert agent.outcomes("test_receives_its_own") == ("passed", "passed")


@pytest.mark.thorough
def test_a_suite_whose_own_groups_match_keeps_its_gang(run_agent):
    suite = f"""{OWN_WORLD}
def test_first(world, rank):
    dist.send(torch.ones(1), dst=1) if rank == 0 else dist.recv(torch.ones(1))

def test_second(world):
    dist.all_reduce(torch.ones(1))

@pytest.mark.parametrize("number", range(3))
def test_group_of_a_test(world, rank, number):
    group = dist.new_group([1])
    if rank == 1:
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
"""
    agent = run_agent({"test_own.py": suite}, process_group=False)
    assert {case.outcome for rank in (0, 1) for case in agent.cases(rank).values()} == {"passed"}
    assert len(agent.gangs()) == 1


CATCHING = """
import contextlib
from datetime import timedelta
import pytest, torch, torch.distributed as dist

def catch(call):
    with contextlib.suppress(Exception):
        call()
"""

EXPECTED = [
    "catch(lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.5))) if rank else None",
    "catch(lambda: dist.irecv(torch.ones(1), 0).wait(timedelta(seconds=0.5))) if rank else None",
    "catch(lambda: dist.group.WORLD.allreduce([torch.ones(1), torch.ones(2)]).wait())",
    "catch(lambda: dist.group.WORLD.broadcast([]).wait())",
    "catch(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.5))) if rank == 0 else None",
]


@pytest.mark.parametrize("call", quick(1, EXPECTED))
def test_a_call_that_raised_as_expected_ends_the_gang(run_agent, call):
    suite = f"""{CATCHING}
def test_expects_it(rank):
    {call}

def test_is_innocent(rank):
    tensor = torch.full((1,), rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.item() == 3
"""
    agent = run_agent({"test_raises.py": suite})
    assert agent.outcomes("test_expects_it") == ("passed", "passed")
    assert agent.outcomes("test_is_innocent") == ("passed", "passed")
    assert len(agent.gangs()) == 2


SUSPICIOUS = [
    "dist.all_gather([torch.zeros(2, dtype=dtype) for _ in range(2)], torch.ones(2, dtype=dtype))",
    "dist.broadcast(torch.ones(2, dtype=dtype), src=0)",
    "dist.all_to_all_single(torch.ones(2, dtype=dtype), torch.ones(2, dtype=dtype))",
    "dist.all_gather_into_tensor(torch.ones(2, dtype=dtype), torch.ones(1, dtype=dtype))",
    "dist.scatter(torch.ones(1, dtype=dtype), [torch.ones(1, dtype=dtype)] * 2 if rank == 0 else None)",
    "dist.gather(torch.ones(1, dtype=dtype), [torch.ones(1, dtype=dtype)] * 2 if rank == 0 else None)",
    "rank or catch(lambda: dist.all_reduce(torch.ones(1), async_op=True).wait(timedelta(seconds=0.5)))",
]


@pytest.mark.parametrize("call", quick(1, SUSPICIOUS))
def test_an_uncertain_mismatch_is_a_notice(run_agent, call):
    suite = f"""{CATCHING}
def test_is_suspicious(rank):
    dtype = torch.int32 if rank else torch.float32
    {call}

def test_is_innocent(rank):
    dist.barrier()
"""
    agent = run_agent({"test_suspicious.py": suite})
    assert agent.outcomes("test_is_suspicious") == ("passed", "passed")
    assert agent.outcomes("test_is_innocent") == ("passed", "passed")
    [notice] = [notice for notice in agent.all(Notice) if notice.kind == "calls"]
    assert notice.nodeid.endswith("test_is_suspicious")
    assert notice.text.startswith("calls differ: ")


def test_a_notice_names_tests_whose_ranks_are_replaced_because_a_call_failed(run_agent):
    suite = f"""{CATCHING}
def test_raises():
    catch(lambda: dist.group.WORLD.broadcast([]).wait())

def test_passes():
    dist.barrier()

test_raises_too = test_raises

def test_fails(rank):
    test_raises()
    assert rank
"""
    agent = run_agent({"test_small.py": suite})
    [notice] = agent.all(Notice)
    assert notice.nodeid.endswith("::test_raises")
    assert notice.text == (
        "it made torch.distributed calls that raised an error or were not logged, and so did 1 other test; "
        "its ranks were replaced"
    )
    assert len(agent.gangs()) == 3


DEATHS = ["os._exit(3)", "os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()"]


@pytest.mark.parametrize("death", quick(1, DEATHS))
def test_a_dead_rank_is_compared_by_its_log(run_agent, death):
    suite = f"""
        import os, torch, torch.distributed as dist

        def test_dies(rank):
            store = dist.distributed_c10d._get_default_store()
            dist.all_reduce(torch.ones(1))
            if rank == 0:
                store.set("rank 0 is ready", "")
            else:
                store.wait(["rank 0 is ready"])
                work = dist.broadcast(torch.ones(1), src=1, async_op=True)
                {death}
    """
    agent = run_agent({"test_dies.py": suite})
    assert agent.outcomes("test_dies") == ("passed", "crashed")
    message = "the ranks' calls differ: rank 1 called broadcast once in the default group, rank 0 not at all"
    assert message in agent.cases(1)["test_dies"].message


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("call", "message"),
    quick(
        1,
        [
            (
                "dist.isend(torch.ones(1), dst=0, tag=4)",
                "rank 1 sent 1 message that rank 0 did not receive in this test",
            ),
            (
                "dist.barrier(group, async_op=True)",
                "rank 1 called barrier once in the group of ranks 0 and 1, rank 0 not",
            ),
            ("None", ""),
        ],
    ),
)
def test_a_launched_rank_that_dies_is_compared_in_every_group(run_agent, call, message):
    suite = f"""
        import os, torch, torch.distributed as dist
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestDies(MultiProcessTestCase):
            world_size = 3

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_dies(self):
                store = dist.FileStore(self.file_name, 3)
                dist.init_process_group("gloo", store=store, rank=self.rank, world_size=3)
                group = dist.new_group([0, 1])
                dist.barrier()
                store.set(str(self.rank), "")
                if self.rank == 1:
                    store.wait(["0", "2"])
                    work = {call}
                    os._exit(5)
    """
    agent = run_agent({"test_launched.py": suite}, launches_ranks=True, world_size=3)
    case = agent.cases(1)["test_dies"]
    assert case.is_bad
    assert ("the ranks' calls differ" in case.message) == bool(message)
    assert message in case.message
