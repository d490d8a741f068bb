"""scatter: each rank ends up with its own element of one rank's list."""

import pytest
import torch
import torch.distributed as dist

from .tensors import ALL_DTYPES, assert_equal, dtype_name, payload

pytestmark = pytest.mark.conformance(operation="scatter")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_each_rank_gets_its_element(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Element r of the list goes to rank r; the other ranks pass no list."""
    expected = payload(rank, dtype=dtype, device=device)
    received = torch.zeros_like(expected)
    elements = [payload(peer, dtype=dtype, device=device) for peer in range(world_size)]
    dist.scatter(received, elements if rank == 0 else None, src=0)
    assert_equal(received, expected)


def test_any_rank_can_be_the_source(rank: int, world_size: int, device: torch.device) -> None:
    """The source is an argument, and not always rank 0."""
    for source in range(world_size):
        received = torch.zeros(4, device=device)
        elements = [payload(peer, device=device) + 100 * source for peer in range(world_size)]
        dist.scatter(received, elements if rank == source else None, src=source)
        assert_equal(received, payload(rank, device=device) + 100 * source)


def test_rows_of_a_matrix(rank: int, world_size: int, device: torch.device) -> None:
    """The elements may be views into one tensor."""
    matrix = torch.arange(3.0 * world_size, device=device).reshape(world_size, 3) + 1
    received = torch.zeros(3, device=device)
    dist.scatter(received, list(matrix.unbind(0)) if rank == 0 else None, src=0)
    assert_equal(received, matrix[rank])
