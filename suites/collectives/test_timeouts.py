"""Time-outs: a collective that one rank never joins ends with an error, and only its own group is lost.

Each test uses up a sub-group. NCCL has no test here: its watchdog ends the process of a collective that timed out.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from allranks.testing import SubgroupMaker, skip_if_small_world_size, skip_unsupported

from .tensors import SUM, assert_equal, payload

pytestmark = pytest.mark.conformance(operation="time-outs", group="sub")

TIMEOUT = timedelta(seconds=0.3)
"""Long enough to make a group on a busy machine, and the time that each of these tests takes."""

TIMED_OUT = "(?i)timed out|time-?out|closed by peer|reset by peer"
"""The first rank to lose patience closes its connections, and this may be what the others see."""


def all_reduce(group: dist.ProcessGroup, device: torch.device) -> None:
    """Wait in the call."""
    dist.all_reduce(torch.ones(4, device=device), group=group)


def all_reduce_later(group: dist.ProcessGroup, device: torch.device) -> None:
    """Wait for the handle."""
    dist.all_reduce(torch.ones(4, device=device), group=group, async_op=True).wait()


def barrier(group: dist.ProcessGroup, device: torch.device) -> None:  # noqa: ARG001 (all of these are called alike)
    """Wait without any tensor."""
    dist.barrier(group=group)


@skip_unsupported("collective that outlives its time-out", on=["nccl"])
@skip_if_small_world_size(2)
@pytest.mark.parametrize("collective", [all_reduce, all_reduce_later, barrier], ids=lambda each: each.__name__)
def test_collective_that_one_rank_never_joins(
    rank: int,
    world_size: int,
    device: torch.device,
    subgroup: SubgroupMaker,
    collective: Callable[[dist.ProcessGroup, torch.device], None],
) -> None:
    """Every rank that did join gets an error, and the default group still works."""
    dist.barrier()
    group = subgroup(range(world_size), timeout=TIMEOUT)
    if rank != world_size - 1:
        with pytest.raises(RuntimeError, match=TIMED_OUT):
            collective(group, device)
    # Only when all have given up may the absent rank close its connections; and it shows that the default group works.
    tensor = payload(rank, device=device)
    dist.all_reduce(tensor)
    assert_equal(tensor, SUM.of([payload(peer, device=device) for peer in range(world_size)]))


@pytest.mark.conformance(operation="time-outs", feature="recv", ranks="some")
@skip_unsupported("recv that outlives its time-out", on=["nccl"])
@skip_if_small_world_size(2)
def test_message_that_nobody_sends(rank: int, world_size: int, device: torch.device, subgroup: SubgroupMaker) -> None:
    """A receiver gives up, and what it was to receive into is as it was."""
    dist.barrier()
    group = subgroup(range(world_size), timeout=TIMEOUT)
    if rank == 0:
        tensor = payload(rank, device=device)
        with pytest.raises(RuntimeError, match=TIMED_OUT):
            dist.recv(tensor, src=world_size - 1, group=group)
        assert_equal(tensor, payload(rank, device=device))
    dist.barrier()
