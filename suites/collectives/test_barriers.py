"""barrier and monitored_barrier: nobody leaves before everybody has come."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch.distributed as dist

from allranks.testing import (
    RankEnvironment,
    SkipCode,
    SubgroupMaker,
    skip,
    skip_if_small_world_size,
    skip_when,
)

from .tensors import everyone

# Under NCCL rank 0 is warned that a barrier takes the current device, which is the one that is wanted.
pytestmark = [
    pytest.mark.conformance(operation="barrier"),
    pytest.mark.usefixtures("device"),
    pytest.mark.filterwarnings("ignore:barrier:UserWarning"),
]

LATE = 0.05
"""By how much the last rank comes late, seconds: the delay is what these tests are about."""

PATIENCE = timedelta(seconds=0.2)
"""How long a monitored barrier waits for a rank that never comes."""


@pytest.fixture
def one_clock(rank_environment: RankEnvironment) -> None:
    """The test compares times of several ranks, and the clocks of two nodes do not agree."""
    if rank_environment.local_world_size != rank_environment.world_size:
        skip(SkipCode.GENERIC, "the ranks run on several nodes, whose clocks cannot be compared")


@pytest.fixture
def monitored(backend: str) -> None:
    """Skip on backends for which torch itself refuses a monitored barrier: all but gloo."""
    if backend != "gloo":
        skip(SkipCode.GENERIC, f"{backend} has no monitored_barrier")


@dataclass(frozen=True)
class Passage:
    """When a rank came to the barrier and when it left, seconds on the node's clock."""

    came: float
    left: float


def pass_when_the_last_comes_late(rank: int, world_size: int, wait: Callable[[], object]) -> list[Passage]:
    """Each rank's passage, by rank."""
    if rank == world_size - 1:
        time.sleep(LATE)
    came = time.monotonic()
    wait()
    return everyone(Passage(came, left=time.monotonic()))


@skip_if_small_world_size(2)
@pytest.mark.usefixtures("one_clock")
def test_nobody_leaves_before_the_last_has_come(rank: int, world_size: int) -> None:
    """A barrier is passed when the last rank has come to it."""
    passages = pass_when_the_last_comes_late(rank, world_size, dist.barrier)
    assert min(passage.left for passage in passages) >= max(passage.came for passage in passages)


@pytest.mark.conformance(mode="async")
@skip_if_small_world_size(2)
@pytest.mark.usefixtures("one_clock")
def test_handle_of_a_barrier_waits(rank: int, world_size: int) -> None:
    """An asynchronous barrier is passed by waiting for its handle."""
    passages = pass_when_the_last_comes_late(rank, world_size, lambda: dist.barrier(async_op=True).wait())
    assert min(passage.left for passage in passages) >= max(passage.came for passage in passages)


@pytest.mark.conformance(group="sub", ranks="some")
@skip_if_small_world_size(2)
def test_barrier_of_a_group_does_not_wait_for_others(rank: int, world_size: int, subgroup: SubgroupMaker) -> None:
    """The last rank is no member, and comes only after the others have told it that they are through."""
    members = list(range(world_size - 1))
    group = subgroup(members)
    told: list[object] = [None]
    if rank in members:
        dist.barrier(group=group)
        if rank == 0:
            dist.send_object_list(["through"], dst=world_size - 1)
    else:
        dist.recv_object_list(told, src=0)
        assert told == ["through"]


@pytest.mark.conformance(operation="monitored_barrier")
@pytest.mark.usefixtures("monitored")
@skip_if_small_world_size(2)
@pytest.mark.usefixtures("one_clock")
def test_monitored_barrier_waits_for_the_last(rank: int, world_size: int) -> None:
    """A monitored barrier is a barrier."""
    passages = pass_when_the_last_comes_late(rank, world_size, dist.monitored_barrier)
    # The ranks are let go one after the other, and only rank 0 has seen everybody come.
    assert passages[0].left >= max(passage.came for passage in passages)


@pytest.mark.conformance(operation="monitored_barrier")
@pytest.mark.usefixtures("monitored")
@skip_if_small_world_size(2)
def test_monitored_barrier_names_the_rank_that_never_came(rank: int, world_size: int, subgroup: SubgroupMaker) -> None:
    """Rank 0 says who is missing; the other ranks learn that the barrier failed."""
    group = subgroup(range(world_size))
    absent = world_size - 1
    if rank == 0:
        with pytest.raises(RuntimeError, match=rf"Rank {absent} failed to pass monitoredBarrier"):
            dist.monitored_barrier(group=group, timeout=PATIENCE)
    elif rank != absent:
        with pytest.raises(RuntimeError):
            dist.monitored_barrier(group=group, timeout=PATIENCE)
    # Whoever left now would take its connections along, and the peers would see that instead of the time-out.
    dist.barrier()


@pytest.mark.conformance(operation="monitored_barrier")
@pytest.mark.usefixtures("monitored")
@skip_if_small_world_size(2)
def test_monitored_barrier_can_name_all_that_never_came(rank: int, world_size: int, subgroup: SubgroupMaker) -> None:
    """With ``wait_all_ranks`` rank 0 does not stop at the first one."""
    group = subgroup(range(world_size))
    if rank == 0:
        missing = ", ".join(str(peer) for peer in range(1, world_size))
        with pytest.raises(RuntimeError, match=rf"Ranks {missing} failed to pass monitoredBarrier"):
            dist.monitored_barrier(group=group, timeout=PATIENCE, wait_all_ranks=True)
    dist.barrier()


@pytest.mark.conformance(operation="monitored_barrier", feature="refusal")
@skip_when(lambda: RankEnvironment.read().backend == "gloo", "this is about the other backends")
def test_monitored_barrier_is_refused() -> None:
    """A backend without a monitored barrier says so, instead of hanging."""
    with pytest.raises((RuntimeError, ValueError), match="monitored_barrier"):
        dist.monitored_barrier(timeout=PATIENCE)
