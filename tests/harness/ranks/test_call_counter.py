"""What real gloo ranks count of each public function of torch.distributed, and what becomes of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gloo_calls import COLLECTIVES, DOUBTFUL, RIGHT, WORLD_SIZE, WRONG
from torch import distributed as dist

from allranks.harness.gangs.unmatched_calls import DEFAULT_GROUP, calls_of, find_mismatch
from allranks.harness.ranks.call_counter import _COLLECTIVES, _MESSAGES

CONTROL = {"_end_coalescing"}
"""Returns the work of calls that were counted."""

PROGRAM = Path(__file__).parent / "gloo_calls.py"


@pytest.fixture(scope="module")
def counted():
    """By name of the calls, and by rank."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name: dict(enumerate(map(calls_of, ranks))) for name, ranks in json.loads(done.stdout).items()}


@pytest.mark.parametrize("name", RIGHT)
def test_right_calls_match(counted, name):
    assert find_mismatch(counted[name]) is None


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_may_be_innocent_is_no_error(counted, name):
    mismatch = find_mismatch(counted[name])
    assert mismatch is not None
    assert not mismatch.is_error


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_named(counted, name):
    mismatch = find_mismatch(counted[name])
    assert mismatch is not None
    assert (mismatch.message, mismatch.is_error) == (WRONG[name].__doc__, True)


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name in RIGHT])
def test_a_collective_is_counted_on_each_rank(counted, name):
    groups = [counted[name][rank].groups for rank in range(WORLD_SIZE)]
    assert all(len(each) == 1 and each[0].name == DEFAULT_GROUP and each[0].collectives for each in groups)


def test_a_subgroup_has_the_ranks_of_the_gang(counted):
    calls = counted["a_group_whose_ranks_have_another_order"]
    [group] = calls[0].groups
    assert group.members == (0, 3)
    assert list(group.sent) == [3]


def test_a_test_counts_what_it_called_itself(counted):
    assert not any(calls.groups for calls in counted["nothing"].values())


def test_nothing_is_wrapped_that_torch_does_not_have():
    program = """
import torch.distributed as dist
from allranks.harness.ranks.call_counter import CallCounter
before = set(dir(dist.ProcessGroup)) | set(dir(dist.Work))
CallCounter()
assert set(dir(dist.ProcessGroup)) | set(dir(dist.Work)) == before
"""
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_every_call_that_torch_has_is_wrapped():
    """A new kind of collective in a new torch: add it to the counter."""
    methods = {name: getattr(dist.ProcessGroup, name).__doc__ or "" for name in dir(dist.ProcessGroup)}
    calls = {name for name, signature in methods.items() if "-> c10d::Work" in signature}
    assert calls
    assert calls - CONTROL <= {*_COLLECTIVES, *_MESSAGES}
