"""all_reduce of sparse tensors: the ranks' tensors are added, whatever indices each of them has."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from allranks.testing import skip_unsupported

from .tensors import assert_equal, dtype_name

pytestmark = pytest.mark.conformance(operation="all_reduce", feature="sparse")


def sparse(indices: Tensor, values: Tensor, size: tuple[int, ...]) -> Tensor:
    """A COO tensor whose invariants are checked."""
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=True)


def diagonal(rank: int, sparse_dims: int, dense_dims: int, device: torch.device) -> Tensor:
    """A tensor with one entry of the rank's own and one that it shares with the next rank."""
    positions = torch.tensor([rank, rank + 1], device=device).repeat(sparse_dims, 1)
    values = torch.full((2, *(3,) * dense_dims), rank + 1.0, device=device)
    return sparse(positions, values, (16,) * sparse_dims + (3,) * dense_dims)


def total(parts: list[Tensor]) -> Tensor:
    """The sum, worked out densely."""
    return torch.stack([part.to_dense() for part in parts]).sum(0)


@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
@pytest.mark.parametrize("dense_dims", [0, 1, 2])
@pytest.mark.parametrize("sparse_dims", [1, 2, 3])
def test_any_number_of_dimensions(
    rank: int, world_size: int, device: torch.device, sparse_dims: int, dense_dims: int
) -> None:
    """Entries at the same index add up, be they numbers or dense blocks."""
    tensor = diagonal(rank, sparse_dims, dense_dims, device)
    dist.all_reduce(tensor)
    parts = [diagonal(peer, sparse_dims, dense_dims, device) for peer in range(world_size)]
    assert_equal(tensor.to_dense(), total(parts))


@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
def test_indices_are_the_union(rank: int, world_size: int, device: torch.device) -> None:
    """An index that two ranks have is there once."""
    tensor = diagonal(rank, 1, 0, device)
    dist.all_reduce(tensor)
    assert_equal(tensor.coalesce().indices(), torch.arange(world_size + 1, device=device).unsqueeze(0))


@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
def test_unequal_numbers_of_entries(rank: int, world_size: int, device: torch.device) -> None:
    """Rank r has r entries: the first rank has none at all."""
    ones = [
        sparse(torch.arange(peer, device=device).unsqueeze(0), torch.ones(peer, device=device), (world_size,))
        for peer in range(world_size)
    ]
    tensor = ones[rank].clone()
    dist.all_reduce(tensor)
    assert_equal(tensor.to_dense(), torch.arange(world_size - 1.0, -1.0, -1.0, device=device))


@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
def test_entries_that_are_there_twice(rank: int, world_size: int, device: torch.device) -> None:
    """A rank's tensor need not be coalesced."""
    tensor = sparse(torch.tensor([[0, 0]], device=device), torch.tensor([rank + 1, 10], device=device), (2,))
    dist.all_reduce(tensor)
    expected = world_size * (world_size + 1) // 2 + 10 * world_size
    assert_equal(tensor.to_dense(), torch.tensor([expected, 0], device=device))
    assert tensor.is_coalesced()


@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float64], ids=dtype_name)
def test_dtypes(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """The sum has the dtype of the entries."""
    value = torch.tensor([rank + 1], device=device).to(dtype)
    tensor = sparse(torch.tensor([[1]], device=device), value, (2,))
    dist.all_reduce(tensor)
    assert_equal(tensor.to_dense()[1], torch.tensor(world_size * (world_size + 1) // 2, device=device).to(dtype))


@pytest.mark.conformance(mode="async")
@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
def test_asynchronously(rank: int, world_size: int, device: torch.device) -> None:
    """The sum is there once the handle was waited for."""
    tensor = diagonal(rank, 1, 1, device)
    dist.all_reduce(tensor, async_op=True).wait()
    assert_equal(tensor.to_dense(), total([diagonal(peer, 1, 1, device) for peer in range(world_size)]))


@skip_unsupported("all_reduce of sparse tensors", on=["nccl"])
def test_other_reductions_are_refused(rank: int, device: torch.device) -> None:
    """What is not stored is not zero to a maximum: only sums are defined."""
    with pytest.raises(RuntimeError, match="sparse"):
        dist.all_reduce(diagonal(rank, 1, 0, device), op=dist.ReduceOp.MAX)
