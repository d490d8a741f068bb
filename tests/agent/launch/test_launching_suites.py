"""Suites whose tests launch ranks themselves: each test runs in one process, which is not a rank."""

import pytest

LAUNCHES = """
    import multiprocessing
    import os
    import random
    import socket

    import pytest
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import without_torch

    pids = []
    random.seed(7)

    def free_port():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def work(rank, world_size, port):
        url = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=world_size)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world_size
        dist.destroy_process_group()

    def test_draws_what_the_file_has_seeded():
        assert random.random() == random.Random(7).random()

    def test_starts_forks(world_size):
        pids.append(os.getpid())
        mp.start_processes(work, (world_size, free_port()), nprocs=world_size, start_method="fork")

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_starts(method, world_size):
        with multiprocessing.get_context(method).Pool(world_size) as pool:
            assert pool.map(without_torch.square, range(4)) == [0, 1, 4, 9]

    def test_skips():
        pytest.skip("in its call")

    @pytest.mark.xfail(reason="known")
    def test_is_known():
        assert False

    def test_is_no_rank(world_size):
        pids.append(os.getpid())
        assert len(set(pids)) == 1
        assert world_size == 2
        assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"}.isdisjoint(os.environ)

    @pytest.mark.require_world_size(3)
    def test_larger(): pass

    class TestClass:
        def test_fails(self):
            assert False

        def test_after(self):
            pass
"""


@pytest.fixture(scope="module")
def launches(run_once):
    files = {"test_launches.py": LAUNCHES, "without_torch.py": "def square(number):\n    return number * number\n"}
    return run_once("launches", files, launches_ranks=True)


@pytest.mark.parametrize("test", ["test_starts_forks", "test_starts[spawn]", "test_starts[forkserver]"])
def test_processes_are_started_by_any_method(launches, test):
    [end] = launches.arrived(test)
    assert end.outcome == "passed", end.text


def test_one_process_that_is_not_a_rank_runs_the_tests(launches):
    [end] = launches.arrived("test_is_no_rank")
    assert (end.outcome, end.world_size) == ("passed", 1), end.text


def test_a_skip_in_a_call_that_no_peer_makes_keeps_the_process(launches):
    [end] = launches.arrived("test_skips")
    assert (end.outcome, end.phase) == ("skipped", "call")
    assert [len(pids) for pids in launches.gangs()] == [1, 1], "the failure is what ended the first"


def test_the_seed_of_a_file_is_kept_for_its_tests(launches):
    [end] = launches.arrived("test_draws_what_the_file_has_seeded")
    assert end.outcome == "passed", end.text


def test_the_world_size_is_the_number_of_ranks_that_a_test_may_start(launches):
    [end] = launches.arrived("test_larger")
    assert (end.outcome, end.skip_code) == ("skipped", 73)


def test_a_failure_gives_the_next_test_a_new_process(launches):
    assert [end.outcome for end in launches.arrived("test_fails")] == ["failed"]
    assert [end.outcome for end in launches.arrived("test_after")] == ["passed"]
    assert [len(pids) for pids in launches.gangs()] == [1, 1]
