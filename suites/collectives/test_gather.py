"""gather: one rank ends up with every rank's tensor, in the order of the ranks."""

import pytest
import torch
import torch.distributed as dist

from .tensors import REAL, assert_equal, blanks, dtype_name, payload

pytestmark = pytest.mark.conformance(operation="gather")


@pytest.mark.parametrize("dtype", REAL, ids=dtype_name)
def test_destination_gets_every_tensor(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Element r of the list is rank r's tensor; the other ranks pass no list."""
    own = payload(rank, dtype=dtype, device=device)
    gathered = blanks(own, world_size) if rank == 0 else None
    dist.gather(own, gathered, dst=0)
    if rank == 0:
        assert_equal(gathered, [payload(peer, dtype=dtype, device=device) for peer in range(world_size)])


def test_any_rank_can_be_the_destination(rank: int, world_size: int, device: torch.device) -> None:
    """The destination is an argument, and not always rank 0."""
    own = payload(rank, device=device)
    for destination in range(world_size):
        gathered = blanks(own, world_size) if rank == destination else None
        dist.gather(own, gathered, dst=destination)
        if rank == destination:
            assert_equal(gathered, [payload(peer, device=device) for peer in range(world_size)])


def test_matrices(rank: int, world_size: int, device: torch.device) -> None:
    """The order of the elements survives."""
    own = payload(rank, count=6, device=device).reshape(2, 3)
    gathered = blanks(own, world_size) if rank == 0 else None
    dist.gather(own, gathered, dst=0)
    if rank == 0:
        parts = [payload(peer, count=6, device=device).reshape(2, 3) for peer in range(world_size)]
        assert_equal(gathered, parts)
