"""all_reduce: every rank ends up with the reduction over all ranks."""

import math

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
    COMPLEX,
    FLOATING,
    INTEGRAL,
    MAX,
    MIN,
    PRODUCT,
    REAL,
    SUM,
    Reduction,
    assert_close,
    assert_equal,
    dtype_name,
    payload,
    term,
    terms,
)

pytestmark = pytest.mark.conformance(operation="all_reduce")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_sum(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Booleans add up to whether any is true."""
    tensor = term(rank, dtype=dtype, device=device)
    dist.all_reduce(tensor)
    assert_equal(tensor, SUM.of(terms(world_size, dtype=dtype, device=device)))


@pytest.mark.conformance(feature="AVG")
@pytest.mark.parametrize("dtype", [*FLOATING, *COMPLEX], ids=dtype_name)
def test_average(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """The average is over the ranks."""
    tensor = term(rank, dtype=dtype, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert_close(tensor, AVG.of(terms(world_size, dtype=dtype, device=device)))


@pytest.mark.conformance(feature="{reduction}")
@pytest.mark.parametrize("dtype", REAL, ids=dtype_name)
@pytest.mark.parametrize("reduction", [PRODUCT, MIN, MAX], ids=str)
def test_product_and_extremes(
    rank: int, world_size: int, device: torch.device, reduction: Reduction, dtype: torch.dtype
) -> None:
    """Of booleans, the product and the minimum are whether all are true."""
    tensor = term(rank, dtype=dtype, device=device)
    dist.all_reduce(tensor, op=reduction.op)
    assert_equal(tensor, reduction.of(terms(world_size, dtype=dtype, device=device)))


@pytest.mark.conformance(feature="{reduction}")
@skip_unsupported("bitwise reduction", on=["nccl"])
@pytest.mark.parametrize("dtype", [*INTEGRAL, torch.bool], ids=dtype_name)
@pytest.mark.parametrize("reduction", [BAND, BOR, BXOR], ids=str)
def test_bitwise(rank: int, world_size: int, device: torch.device, reduction: Reduction, dtype: torch.dtype) -> None:
    """The bits of integers are reduced one by one."""
    tensor = term(rank, dtype=dtype, device=device)
    dist.all_reduce(tensor, op=reduction.op)
    assert_equal(tensor, reduction.of(terms(world_size, dtype=dtype, device=device)))


def test_tensor_without_dimensions(rank: int, world_size: int, device: torch.device) -> None:
    """A single number, such as a loss, is a tensor too."""
    tensor = torch.tensor(2.0**rank, device=device)
    dist.all_reduce(tensor)
    assert_equal(tensor, torch.tensor(2.0**world_size - 1, device=device))


def test_only_the_slice_is_written(rank: int, world_size: int, device: torch.device) -> None:
    """A view into a larger buffer leaves the rest of the buffer alone."""
    buffer = torch.full((5,), rank + 1, device=device)
    dist.all_reduce(buffer[1:3])
    total = world_size * (world_size + 1) // 2
    own = rank + 1
    assert_equal(buffer, torch.tensor([own, total, total, own, own], device=device))


@pytest.mark.conformance(feature="not contiguous")
@skip_unsupported("all_reduce of a tensor that is not contiguous", on=["nccl"])
def test_transposed_tensor(rank: int, world_size: int, device: torch.device) -> None:
    """The elements are paired by index, not by where they lie in memory."""
    storage = payload(rank, count=6, device=device).reshape(2, 3)
    dist.all_reduce(storage.t())
    parts = [payload(peer, count=6, device=device).reshape(2, 3) for peer in range(world_size)]
    assert_equal(storage, SUM.of(parts))


def test_large_tensor(rank: int, world_size: int, device: torch.device) -> None:
    """A megabyte is cut into chunks, each of which must find its place."""
    tensor = torch.arange(1 << 18, device=device) * (rank + 1)
    dist.all_reduce(tensor)
    assert_equal(tensor, torch.arange(1 << 18, device=device) * (world_size * (world_size + 1) // 2))


@pytest.mark.conformance(dtype="int64")
def test_integers_beyond_the_precision_of_doubles(rank: int, world_size: int, device: torch.device) -> None:
    """64-bit integers are added as integers: the sum is odd, and no double of that size is."""
    tensor = torch.tensor([2**53 + 1 if rank == 0 else 2**53], device=device)
    dist.all_reduce(tensor)
    assert_equal(tensor, torch.tensor([world_size * 2**53 + 1], device=device))


def test_not_a_number_spreads_to_every_rank(rank: int, world_size: int, device: torch.device) -> None:
    """One rank's NaN or infinity must not be lost, nor touch the elements beside it."""
    tensor = torch.tensor([math.nan, math.inf, 1.0] if rank == world_size - 1 else [1.0, 1.0, 1.0], device=device)
    dist.all_reduce(tensor)
    assert_equal(tensor, torch.tensor([math.nan, math.inf, float(world_size)], device=device))


def test_reduced_again_the_result_counts_once_for_each_rank(rank: int, world_size: int, device: torch.device) -> None:
    """The second all_reduce starts from what the first one left."""
    tensor = term(rank, device=device)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    assert_equal(tensor, world_size * SUM.of(terms(world_size, device=device)))


@pytest.mark.conformance(operation="all_reduce_coalesced")
@pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced:FutureWarning")
def test_several_tensors_at_once(rank: int, world_size: int, device: torch.device) -> None:
    """The tensors of one call may differ in shape."""
    tensors = [payload(rank, count=count, device=device) for count in (1, 3)]
    dist.all_reduce_coalesced(tensors)
    assert_equal(
        tensors,
        [SUM.of([payload(peer, count=count, device=device) for peer in range(world_size)]) for count in (1, 3)],
    )
