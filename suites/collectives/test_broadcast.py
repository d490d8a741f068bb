"""broadcast: one rank's tensor becomes everyone's."""

import pytest
import torch
import torch.distributed as dist

from allranks.testing import skip_unsupported

from .tensors import ALL_DTYPES, FLOATING, INTEGRAL, assert_equal, digits, dtype_name, payload

pytestmark = pytest.mark.conformance(operation="broadcast")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_every_rank_gets_the_last_ranks_tensor(
    rank: int, world_size: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Each dtype arrives bit by bit."""
    tensor = payload(rank, dtype=dtype, device=device)
    dist.broadcast(tensor, src=world_size - 1)
    assert_equal(tensor, payload(world_size - 1, dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGRAL], ids=dtype_name)
def test_every_bit_arrives(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Numbers that need all the digits of their dtype: none may travel in a shorter one."""
    tensor, expected = (digits(peer, dtype=dtype, device=device) for peer in (rank, world_size - 1))
    dist.broadcast(tensor, src=world_size - 1)
    assert_equal(tensor, expected)


def test_any_rank_can_be_the_source(rank: int, world_size: int, device: torch.device) -> None:
    """The source is an argument, and not always rank 0."""
    for source in range(world_size):
        tensor = payload(rank, device=device)
        dist.broadcast(tensor, src=source)
        assert_equal(tensor, payload(source, device=device))


def test_tensor_without_dimensions(rank: int, device: torch.device) -> None:
    """A single number is a tensor too."""
    tensor = torch.tensor(rank + 1.5, device=device)
    dist.broadcast(tensor, src=0)
    assert_equal(tensor, torch.tensor(1.5, device=device))


def test_tensor_of_several_dimensions(rank: int, world_size: int, device: torch.device) -> None:
    """The order of the elements survives."""
    tensor = payload(rank, count=24, device=device).reshape(2, 3, 4)
    dist.broadcast(tensor, src=world_size - 1)
    assert_equal(tensor, payload(world_size - 1, count=24, device=device).reshape(2, 3, 4))


def test_only_the_slice_is_written(rank: int, world_size: int, device: torch.device) -> None:
    """A view into a larger buffer leaves the rest of the buffer alone."""
    buffer = payload(rank, count=6, device=device)
    dist.broadcast(buffer[2:4], src=world_size - 1)
    expected = payload(rank, count=6, device=device)
    expected[2:4] = payload(world_size - 1, count=6, device=device)[2:4]
    assert_equal(buffer, expected)


@pytest.mark.conformance(feature="not contiguous")
@skip_unsupported("broadcast of a tensor that is not contiguous", on=["nccl"])
def test_transposed_tensor(rank: int, world_size: int, device: torch.device) -> None:
    """The elements land where the strides say, not where they lie in memory."""
    storage = payload(rank, count=6, device=device).reshape(2, 3)
    dist.broadcast(storage.t(), src=world_size - 1)
    assert_equal(storage, payload(world_size - 1, count=6, device=device).reshape(2, 3))


def test_large_tensor(rank: int, world_size: int, device: torch.device) -> None:
    """A megabyte takes another path through a backend than a few bytes."""
    tensor = torch.arange(1 << 18, dtype=torch.float32, device=device) + rank
    dist.broadcast(tensor, src=world_size - 1)
    assert_equal(tensor, torch.arange(1 << 18, dtype=torch.float32, device=device) + (world_size - 1))
