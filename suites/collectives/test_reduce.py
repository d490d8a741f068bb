"""reduce: one rank ends up with the reduction over all ranks. What the others are left with is not specified."""

import pytest
import torch
import torch.distributed as dist

from allranks.testing import skip_unsupported

from .tensors import (
    ALL_DTYPES,
    AVG,
    BAND,
    BOR,
    BXOR,
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Reduction,
    assert_close,
    assert_equal,
    dtype_name,
    term,
    terms,
)

pytestmark = pytest.mark.conformance(operation="reduce")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_sum_reaches_the_destination(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Each dtype adds up exactly."""
    tensor = term(rank, dtype=dtype, device=device)
    dist.reduce(tensor, dst=0)
    if rank == 0:
        assert_equal(tensor, SUM.of(terms(world_size, dtype=dtype, device=device)))


@pytest.mark.conformance(feature="{reduction}")
@pytest.mark.parametrize("reduction", [PRODUCT, MIN, MAX], ids=str)
def test_product_and_extremes(rank: int, world_size: int, device: torch.device, reduction: Reduction) -> None:
    """The op decides how the ranks' numbers come together."""
    tensor = term(rank, device=device)
    dist.reduce(tensor, dst=0, op=reduction.op)
    if rank == 0:
        assert_equal(tensor, reduction.of(terms(world_size, device=device)))


@pytest.mark.conformance(feature="AVG")
def test_average(rank: int, world_size: int, device: torch.device) -> None:
    """The average is over the ranks."""
    tensor = term(rank, device=device)
    dist.reduce(tensor, dst=0, op=dist.ReduceOp.AVG)
    if rank == 0:
        assert_close(tensor, AVG.of(terms(world_size, device=device)))


@pytest.mark.conformance(feature="{reduction}")
@skip_unsupported("bitwise reduction", on=["nccl"])
@pytest.mark.parametrize("reduction", [BAND, BOR, BXOR], ids=str)
def test_bitwise(rank: int, world_size: int, device: torch.device, reduction: Reduction) -> None:
    """The bits of integers are reduced one by one."""
    tensor = term(rank, dtype=torch.int64, device=device)
    dist.reduce(tensor, dst=0, op=reduction.op)
    if rank == 0:
        assert_equal(tensor, reduction.of(terms(world_size, dtype=torch.int64, device=device)))


def test_any_rank_can_be_the_destination(rank: int, world_size: int, device: torch.device) -> None:
    """The destination is an argument, and not always rank 0."""
    for destination in range(world_size):
        tensor = term(rank, device=device)
        dist.reduce(tensor, dst=destination)
        if rank == destination:
            assert_equal(tensor, SUM.of(terms(world_size, device=device)))


def test_tensor_without_dimensions(rank: int, world_size: int, device: torch.device) -> None:
    """A single number is a tensor too."""
    tensor = torch.tensor(2.0**rank, device=device)
    dist.reduce(tensor, dst=world_size - 1)
    if rank == world_size - 1:
        assert_equal(tensor, torch.tensor(2.0**world_size - 1, device=device))
