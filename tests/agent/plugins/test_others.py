"""Plugins that need nothing of ours: each promise of the table in docs/pytest.md about them."""

import pytest

from allranks.protocol.records import AgentFailed, Collected, FailureKind, Notice

ALL = ["asyncio", "pytest_mock", "pytest-subprocess", "repeat", "socket", "randomly", "rerunfailures", "pytest_cov"]

FIVE = {
    "test_a.py": """
        import os, random
        import pytest
        import torch
        import torch.distributed as dist

        @pytest.fixture(autouse=True)
        def in_setup():
            return random.random()

        @pytest.mark.parametrize("number", range(5))
        def test_each(number, in_setup):
            mine = torch.tensor([in_setup, random.random(), number], dtype=torch.float64)
            all_of_them = [torch.zeros_like(mine) for _ in range(2)]
            dist.all_gather(all_of_them, mine)
            assert torch.equal(*all_of_them)
            with open(os.environ["WORDS"], "w") as fifo:
                print(number, mine.tolist(), file=fifo)
    """
}


def order_of(agent):
    return agent.all(Collected)[0].tests


@pytest.mark.thorough
def test_all_that_is_installed_may_be_loaded(run_with):
    agent = run_with(ALL, FIVE, "-p", "no:randomly")
    for number in range(5):
        assert agent.outcomes(f"test_each[{number}]") == ("passed", "passed")


def test_randomly_gives_all_ranks_one_order_and_one_seed(run_with):
    agent = run_with(["randomly"], FIVE, "--randomly-seed=4")
    assert sorted(order_of(agent)) != list(order_of(agent))
    for number in range(5):
        assert agent.outcomes(f"test_each[{number}]") == ("passed", "passed")


@pytest.mark.thorough
def test_randomly_draws_by_the_seed_of_the_run(run_with):
    agent = run_with(["randomly"], FIVE, seed=4)
    assert "--randomly-seed=4" in agent.log
    assert sorted(order_of(agent)) != list(order_of(agent))


@pytest.mark.thorough
def test_randomly_is_switched_off_as_ever(run_with):
    agent = run_with(["randomly"], FIVE, "--randomly-dont-reorganize", "--randomly-dont-reset-seed")
    assert sorted(order_of(agent)) == list(order_of(agent))
    assert agent.outcomes("test_each[0]") == ("passed", "passed")


@pytest.mark.thorough
def test_an_order_of_our_own_wins(run_with):
    agent = run_with(["randomly"], FIVE, "--randomly-seed=4", shuffle=1)
    assert any("--shuffle 1" in notice.text for notice in agent.all(Notice))
    assert agent.outcomes("test_each[0]") == ("passed", "passed")


@pytest.mark.thorough
def test_a_repeated_test_is_one_test_for_each_time(run_with):
    tests = """
        import pytest
        import torch.distributed as dist

        def test_often():
            dist.barrier()

        @pytest.mark.repeat(3)
        def test_more_often(request):
            assert "2-3" not in request.node.name or dist.get_rank() == 0
    """
    agent = run_with(["repeat"], {"test_a.py": tests}, "--count=2")
    assert agent.outcomes("test_often[1-2]") == agent.outcomes("test_often[2-2]") == ("passed", "passed")
    assert agent.outcomes("test_more_often[2-3]") == ("passed", "failed")
    assert agent.outcomes("test_more_often[3-3]") == ("passed", "passed")


@pytest.mark.thorough
def test_flake_finder_repeats_functions_and_cases(run_with):
    tests = """
        import unittest
        import pytest
        import torch.distributed as dist

        def test_often():
            dist.barrier()

        @pytest.mark.usefixtures("process_group")
        class TestCase(unittest.TestCase):
            def test_case(self):
                dist.barrier()
    """
    agent = run_with(["flakefinder"], {"test_a.py": tests}, "--flake-finder", "--flake-runs=3")
    assert [agent.outcomes(f"test_often[{number}]") for number in range(3)] == [("passed", "passed")] * 3
    assert len(agent.arrived("test_case")) == 3 * 2


@pytest.mark.thorough
def test_a_rank_does_not_decide_alone_how_long_to_repeat(start_with):
    agent = start_with(["flakefinder"], FIVE, "--flake-finder", "--flake-max-minutes=1").go()
    agent.wait()
    [failed] = agent.all(AgentFailed)
    assert failed.kind is FailureKind.USAGE
    assert failed.message.startswith("--flake-max-minutes cannot be used")


@pytest.mark.thorough
def test_coroutines_are_run_on_each_rank(run_with):
    tests = """
        import asyncio
        import pytest, pytest_asyncio
        import torch
        import torch.distributed as dist

        @pytest_asyncio.fixture(loop_scope="module", scope="module")
        async def loop_of_module():
            await asyncio.sleep(0)
            return asyncio.get_running_loop()

        @pytest.mark.asyncio(loop_scope="module")
        async def test_collective(loop_of_module):
            tensor = torch.ones(1)
            await asyncio.to_thread(dist.all_reduce, tensor)
            assert tensor == 2
            assert asyncio.get_running_loop() is loop_of_module

        @pytest.mark.asyncio
        async def test_red():
            await asyncio.sleep(0)
            assert dist.get_rank() == 0
    """
    agent = run_with(["asyncio"], {"test_a.py": tests})
    assert agent.outcomes("test_collective") == ("passed", "passed")
    assert agent.outcomes("test_red") == ("passed", "failed")


@pytest.mark.thorough
def test_a_mock_is_undone_and_keeps_a_rank_from_nothing(run_with):
    tests = """
        import os, time
        import torch.distributed as dist

        def test_mocked(mocker):
            for name in ("time.time", "time.monotonic", "time.sleep", "os._exit", "os.write", "socket.socket"):
                mocker.patch(name)
            spy = mocker.spy(dist, "barrier")
            dist.barrier()
            assert spy.call_count == 1

        def test_undone():
            assert time.time() > 1e9
            dist.barrier()
    """
    agent = run_with(["pytest_mock"], {"test_a.py": tests})
    assert agent.outcomes("test_mocked") == agent.outcomes("test_undone") == ("passed", "passed")
    assert len(agent.gangs()) == 1


@pytest.mark.thorough
def test_sockets_are_blocked_for_tests_and_not_for_their_process_group(run_with):
    tests = """
        import socket
        import pytest
        import torch.distributed as dist
        from pytest_socket import SocketBlockedError

        def test_blocked():
            with pytest.raises(SocketBlockedError):
                socket.socket()
            dist.barrier()

        @pytest.mark.enable_socket
        def test_enabled():
            socket.socket().close()
            group = dist.new_group([0, 1])
            dist.barrier(group)
    """
    agent = run_with(["socket"], {"test_a.py": tests}, "--disable-socket")
    assert agent.outcomes("test_blocked") == agent.outcomes("test_enabled") == ("passed", "passed")


@pytest.mark.thorough
def test_a_launcher_test_needs_no_more_than_unix_sockets(run_with):
    tests = """
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestLauncher(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_each(self):
                assert self.rank in (0, 1)
    """
    agent = run_with(["socket"], {"test_a.py": tests}, "--disable-socket", "--allow-unix-socket")
    assert agent.outcomes("test_each") == ("passed", "passed")


@pytest.mark.thorough
def test_commands_are_faked_on_each_rank(run_with):
    tests = """
        import subprocess
        import torch.distributed as dist

        def test_faked(fp):
            fp.register(["nvidia-smi"], stdout=f"of rank {dist.get_rank()}")
            assert subprocess.check_output(["nvidia-smi"]).decode().strip() == f"of rank {dist.get_rank()}"
            dist.barrier()

        def test_real():
            assert subprocess.check_output(["echo", "real"]) == b"real\\n"
    """
    agent = run_with(["pytest-subprocess"], {"test_a.py": tests})
    assert agent.outcomes("test_faked") == agent.outcomes("test_real") == ("passed", "passed")
