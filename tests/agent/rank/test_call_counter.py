"""The counts of real gloo ranks for all public functions of torch.distributed, and their comparison."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gloo_calls import COLLECTIVES, DOUBTFUL, RIGHT, WORLD_SIZE, WRONG
from torch import distributed as dist

from allranks.agent.call_log import DEFAULT_GROUP, NEW_GROUP, Calls
from allranks.agent.diagnose.unmatched_calls import find_mismatch
from allranks.agent.rank.call_counter import COLLECTIVES as COUNTED
from allranks.agent.rank.call_counter import MESSAGES, describe
from allranks.protocol.typed_json import from_object

CONTROL = {"_end_coalescing"}
"""Returns the work of calls that were counted."""

PROGRAM = Path(__file__).parent / "gloo_calls.py"


@pytest.fixture(scope="module")
def counted():
    """The counts by the name of the calls, and by rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {
        name: {rank: from_object(Calls, calls) for rank, calls in enumerate(ranks)} for name, ranks in found.items()
    }


@pytest.mark.parametrize("name", RIGHT)
def test_correct_calls_match(counted, name):
    assert find_mismatch(counted[name]) is None


@pytest.mark.parametrize("name", DOUBTFUL)
def test_uncertain_mismatches_are_no_errors(counted, name):
    mismatch = find_mismatch(counted[name])
    assert mismatch is not None
    assert not mismatch.is_error


@pytest.mark.parametrize("name", WRONG)
def test_mismatches_are_errors(counted, name):
    mismatch = find_mismatch(counted[name])
    assert mismatch is not None
    assert (mismatch.message, mismatch.is_error) == (WRONG[name].__doc__, True)


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name in RIGHT])
def test_a_collective_is_counted_on_each_rank(counted, name):
    used = [[group for group in counted[name][rank].groups if group.counts] for rank in range(WORLD_SIZE)]
    assert [[group.name for group in groups] for groups in used] == [[DEFAULT_GROUP]] * WORLD_SIZE
    assert all(count.peer is None for [group] in used for count in group.counts)


def test_a_subgroup_has_the_ranks_of_the_gang(counted):
    calls = counted["a_group_whose_ranks_have_another_order"]
    [group] = [group for group in calls[0].groups if group.counts and group.name not in (DEFAULT_GROUP, NEW_GROUP)]
    assert group.members == (0, 3)
    assert [count.peer for count in group.counts if count.kind == "send"] == [3]


def test_a_test_counts_only_its_own_calls(counted):
    assert not any(group.counts for calls in counted["nothing"].values() for group in calls.groups)


@pytest.mark.parametrize(
    ("tensor", "operation", "described"),
    [
        (torch.ones(4, 2), dist.ReduceOp.SUM, "float32"),
        (torch.ones(4, 2), dist.ReduceOp.MAX, "float32 max"),
        (torch.ones(4, 2).to_sparse(), dist.ReduceOp.SUM, "float32 sparse_coo"),
    ],
)
def test_a_call_is_described_by_what_must_be_equal_on_all_ranks(tensor, operation, described):
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    assert describe("all_reduce", ([tensor], options), 0) == (described, "4x2")


@pytest.mark.thorough
def test_missing_methods_of_torch_are_not_wrapped():
    program = """
import torch.distributed as dist
from allranks.agent.call_log import CallLog, map_log, open_log
from allranks.agent.rank.call_counter import CallCounter
before = set(dir(dist.ProcessGroup)) | set(dir(dist.Work))
CallCounter(CallLog(map_log(open_log()[1])))
assert set(dir(dist.ProcessGroup)) | set(dir(dist.Work)) == before
"""
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_all_methods_of_torch_are_wrapped():
    """If this fails, add the new collective of a new version of torch to the counter."""
    methods = {name: getattr(dist.ProcessGroup, name).__doc__ or "" for name in dir(dist.ProcessGroup)}
    calls = {name for name, signature in methods.items() if "-> c10d::Work" in signature}
    assert calls
    assert calls - CONTROL <= {*COUNTED, *MESSAGES}


@pytest.mark.thorough
def test_a_group_dropped_by_its_own_thread_aborts_no_later_test(tmp_path):
    """A callback of a future may hold the last reference; its thread would wait for its own end."""
    (tmp_path / "test_it.py").write_text("""
import threading
import torch
from torch import distributed as dist

begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

class Held:
    def __del__(self):
        has_ended.set()

def test_that_makes_it(rank):
    group = dist.new_group([0, 1])
    def late(future, group=group, held=Held()):
        begun.set()
        may_end.wait()
        return future.value()
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(late)
        dist.barrier()
        assert begun.wait(10)
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)

def test_during_which_it_is_let_go(rank):
    if rank == 0:
        may_end.set()
        assert has_ended.wait(10)
    dist.barrier()
""")
    command = [sys.executable, "-m", "pytest", "--ranks=2", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert "2 passed" in done.stdout, done.stdout
