"""The fixtures for communication without a process group, in real ranks."""

import pytest

from allranks.protocol.records import TestStarted

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "allranks.testing.fixtures", "-p", "no:hypothesispytest")

HEAD = """
import os
import pytest
import torch
pytestmark = pytest.mark.no_process_group
"""


def passed(agent, test):
    return agent.outcomes(test) == ("passed",) * agent.config.world_size


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_barrier_works_without_a_process_group(run_gang, world_size):
    agent = run_gang(
        {
            "test_it.py": HEAD
            + """
@pytest.mark.parametrize("name", ["a", "../b", "c/d", ""])
def test_barrier(file_barrier, shared_tmp_path, rank, world_size, name):
    assert not (shared_tmp_path / f"1-{rank}").exists()
    for turn in range(1, 20):
        (shared_tmp_path / f"{turn}-{rank}").touch()
        file_barrier()
        assert len(list(shared_tmp_path.glob(f"{turn}-*"))) == world_size
        file_barrier(timeout=20)

def test_store(store, file_barrier, rank, world_size):
    assert store.num_keys() == 0
    file_barrier()
    assert not torch.distributed.is_initialized()
    store.set(f"from {rank}", str(rank))
    for peer in range(world_size):
        assert store.get(f"from {peer}") == str(peer).encode()
    store.add("arrived", 1)

def test_store_again(store, file_barrier):
    assert store.num_keys() == 0
    file_barrier()
    store.set("key", "value")

def test_file(broadcast_file, file_barrier, rank, world_size):
    assert broadcast_file.is_absolute()
    assert broadcast_file.read_bytes() == b""
    file_barrier()
    with broadcast_file.open("ab") as file:
        file.write(b"x")
    file_barrier()
    assert broadcast_file.read_bytes() == b"x" * world_size

def test_names_of_xdist(worker_id, testrun_uid, rank, shared_tmp_path, file_barrier):
    assert worker_id == f"gw{rank}"
    (shared_tmp_path / worker_id).write_text(testrun_uid)
    file_barrier()
    [one] = {path.read_text() for path in shared_tmp_path.iterdir()}
    assert len(one) == 32

def test_group_over_the_store(store, rank, world_size):
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    tensor = torch.ones(1)
    torch.distributed.all_reduce(tensor)
    torch.distributed.destroy_process_group()
    assert tensor.item() == world_size
"""
        },
        world_size=world_size,
    )
    names = set(agent.cases(0))
    assert len(names) == 9
    assert {name for name in names if passed(agent, name)} == names


def test_the_store_exists_until_the_slowest_peer_is_done(run_gang):
    agent = run_gang(
        {
            "test_it.py": HEAD
            + """
def test_it(store, rank, shared_dir, request):
    if rank == 1:
        store.wait(["rank 0 is done"])
        while not (shared_dir / "torn down").exists():
            os.sched_yield()
        store.set("late", "word")
        assert store.get("late") == b"word"

@pytest.fixture(autouse=True)
def torn_down(store, rank, shared_dir):
    yield
    if rank == 0:
        store.set("rank 0 is done", "")
        (shared_dir / "torn down").touch()
"""
        }
    )
    assert agent.outcomes("test_it") == ("passed", "passed")


def test_a_gang_keeps_its_directory_and_removes_that_of_the_previous_test(run_gang):
    agent = run_gang(
        {
            "test_it.py": HEAD
            + """
seen = []

def test_first(shared_dir, shared_tmp_path, file_barrier, rank):
    seen.append(shared_tmp_path)
    (shared_tmp_path / f"checkpoint-{rank}").touch()
    (shared_dir / f"kept-{rank}").touch()
    file_barrier()

def test_second(shared_dir, shared_tmp_path, file_barrier):
    file_barrier()
    assert not seen[0].exists()
    assert list(shared_tmp_path.iterdir()) == []
    assert sorted(path.name for path in shared_dir.iterdir()) == ["kept-0", "kept-1"]
"""
        }
    )
    assert len(agent.gangs()) == 1
    assert agent.outcomes("test_second") == ("passed", "passed")


def test_a_repeated_test_gets_an_empty_folder(run_gang):
    agent = run_gang(
        {
            "conftest.py": """
def pytest_collection_modifyitems(items):
    items += [type(item).from_parent(item.parent, name=item.name) for item in items]
""",
            "test_it.py": HEAD
            + """
def test_it(store, shared_tmp_path, broadcast_file, file_barrier, rank):
    assert not (shared_tmp_path / str(rank)).exists()
    (shared_tmp_path / str(rank)).touch()
    assert store.num_keys() == 0
    assert broadcast_file.read_text() == ""
    file_barrier()
    store.set("key", "value")
    broadcast_file.write_text("written")
""",
        }
    )
    assert [end.outcome for end in agent.arrived("test_it") if end.rank == 0] == ["passed", "passed"]


def test_another_gang_has_another_directory(run_gang):
    agent = run_gang(
        {
            "test_it.py": HEAD
            + """
@pytest.mark.parametrize("time", [1, 2])
def test_it(shared_dir, file_barrier, rank, time):
    assert not (shared_dir / f"mark-{rank}").exists()
    (shared_dir / f"mark-{rank}").touch()
    file_barrier()
    assert (shared_dir / f"mark-{1 - rank}").exists()
"""
        },
        isolation="test",
    )
    assert len(agent.gangs()) == 2
    assert passed(agent, "test_it[1]")
    assert passed(agent, "test_it[2]")


def test_waiting_ranks_name_the_missing_rank(run_gang):
    agent = run_gang(
        {
            "test_it.py": HEAD
            + """
def test_it(file_barrier, rank):
    file_barrier()
    if rank != 1:
        file_barrier(timeout=0.1)
"""
        },
        world_size=3,
    )
    for rank in (0, 2):
        case = agent.cases(rank)["test_it"]
        assert case.outcome == "failed"
        assert f"rank {rank} waited 0.1 s at the file barrier, but rank 1 did not arrive (call 2" in case.message


def test_the_seed_is_the_one_that_is_recorded_and_each_rank_draws_its_own_numbers(run_gang):
    agent = run_gang(
        {
            "test_it.py": HEAD
            + """
def test_it(seed, rank, rank_generator, shared_dir, file_barrier):
    again = torch.rand(4, generator=rank_generator.clone_state())
    mine = torch.rand(4, generator=rank_generator)
    assert torch.equal(mine, again)
    torch.save((seed, mine), shared_dir / f"{rank}.pt")
    file_barrier()
    (other_seed, others) = torch.load(shared_dir / f"{1 - rank}.pt")
    assert other_seed == seed
    assert not torch.equal(mine, others)
    pytest.fail(f"the seed is {seed}")
"""
        }
    )
    [started] = agent.all(TestStarted)
    for rank in (0, 1):
        assert agent.cases(rank)["test_it"].message.endswith(f"the seed is {started.seed}")


MARKED = """
import unittest
import pytest
from allranks.testing import require_world_size

@pytest.fixture
def expensive(): raise AssertionError

@pytest.mark.require_world_size(3)
def test_marked(expensive): ...

@require_world_size(3)
class TestCase(unittest.TestCase):
    def test_decorated(self): ...

class TestOther(unittest.TestCase):
    def test_inside(self):
        require_world_size(3).check()

@pytest.mark.require_gpus
def test_wrong(): ...
"""


def test_a_skip_before_setup_keeps_the_ranks(run_gang):
    agent = run_gang({"test_it.py": MARKED})
    for test in ("test_marked", "test_decorated"):
        assert agent.outcomes(test) == ("skipped", "skipped")
        assert agent.cases(0)[test].properties["skip_code"] == "73"
    # These two share a gang with the third, which skipped too late, so its ranks were not kept.
    assert len(agent.gangs()) == 2


def test_a_skip_inside_a_test_case_keeps_its_code(run_gang):
    agent = run_gang({"test_it.py": MARKED})
    assert agent.cases(1)["test_inside"].properties["skip_code"] == "73"


def test_a_wrong_marker_is_an_error_on_each_rank(run_gang):
    case = run_gang({"test_it.py": MARKED}).cases(0)["test_wrong"]
    assert case.outcome == "errored"
    assert "@pytest.mark.require_gpus on " in case.message


SUITE_OF_ONE = """
import torch

def test_it(store, shared_dir, shared_tmp_path, file_barrier, broadcast_file, rank_generator, seed):
    store.set("key", "value")
    assert store.get("key") == b"value"
    file_barrier()
    file_barrier(timeout=1)
    assert shared_dir.is_dir()
    assert list(shared_tmp_path.iterdir()) == []
    assert broadcast_file.read_bytes() == b""
    assert isinstance(seed, int)
    assert torch.rand(1, generator=rank_generator).shape == (1,)
"""


@pytest.mark.usefixtures("no_cell")
def test_under_plain_pytest_all_fixtures_work_with_one_rank(pytester):
    pytester.makepyfile(SUITE_OF_ONE)
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_without_an_agent_a_rank_whose_peer_does_not_arrive_reports_it(pytester, cell):
    cell(RANK=0, WORLD_SIZE=2, ALLRANKS_RENDEZVOUS_TIMEOUT=1)
    pytester.makepyfile("def test_it(shared_tmp_path): pass")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the rendezvous of the ranks did not finish within 1 s: rank 1 did not arrive*"])


def test_ranks_on_several_nodes_without_a_shared_folder_are_an_error(pytester, cell):
    cell(RANK=0, WORLD_SIZE=2, LOCAL_WORLD_SIZE=1)
    pytester.makepyfile("def test_it(shared_tmp_path): pass")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*2 ranks are on several nodes*", "*Set ALLRANKS_SHARED*"])
