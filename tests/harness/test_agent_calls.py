"""What a test leaves behind in a kept gang's process groups is its own error, and reaches no other test."""

import pytest

LEAVES_A_MESSAGE = """
import torch, torch.distributed as dist

def test_leaves_a_message(rank):
    if rank == 0:
        dist.isend(torch.ones(1), dst=1)

def test_forgets_to_send(rank):
    if rank == 1:
        dist.recv(torch.ones(1), src=0)
"""


def test_a_message_left_behind_names_its_test_and_makes_no_other_green(run_agent):
    agent = run_agent({"test_left.py": LEAVES_A_MESSAGE}, limits={"test": 3})
    assert agent.outcomes("test_leaves_a_message") == ("errored", "passed")
    message = agent.cases(0)["test_leaves_a_message"].message
    assert message == "rank 0 sent 1 message that rank 1 did not receive in this test"
    assert agent.outcomes("test_forgets_to_send")[1] != "passed"
    assert len(agent.gangs()) == 2


def test_a_collective_left_behind_names_its_test_and_no_innocent_one(run_agent):
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
    assert message == "rank 1 called all_reduce once in group default, rank 0 not at all"
    assert agent.outcomes("test_is_innocent") == ("passed", "passed")


def test_a_doubt_replaces_the_gang_and_blames_nobody(run_agent):
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
def test_ranks_of_one_test_alone_may_leave_what_they_like(run_agent):
    agent = run_agent({"test_left.py": LEAVES_A_MESSAGE}, limits={"test": 3}, isolation="test")
    assert agent.outcomes("test_leaves_a_message") == ("passed", "passed")
    assert agent.outcomes("test_forgets_to_send")[1] != "passed"


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
