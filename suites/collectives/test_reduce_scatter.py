"""reduce_scatter: each rank ends up with its own element of the reduction over all ranks' lists."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from allranks.testing import skip_unsupported

from .tensors import (
    AVG,
    BAND,
    BOR,
    BXOR,
    COMPLEX,
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
    since_torch_2_13,
    term,
    terms,
)

pytestmark = pytest.mark.conformance(operation="reduce_scatter")


def elements(sender: int, world_size: int, device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What ``sender`` puts in, by receiver: each receiver's share differs, by who its neighbours in the list are."""
    return [term(sender + receiver, dtype=dtype, device=device) for receiver in range(world_size)]


def share(receiver: int, world_size: int, device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What is put in for ``receiver``, by sender."""
    return terms(receiver + world_size, dtype=dtype, device=device)[receiver:]


@pytest.mark.parametrize("dtype", REAL, ids=dtype_name)
def test_sum_of_lists(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Rank r gets the sum of every rank's element r."""
    received = torch.zeros_like(term(rank, dtype=dtype, device=device))
    dist.reduce_scatter(received, elements(rank, world_size, device, dtype))
    assert_equal(received, SUM.of(share(rank, world_size, device, dtype)))


@since_torch_2_13
@pytest.mark.conformance(operation="reduce_scatter_single")
@pytest.mark.parametrize("dtype", REAL, ids=dtype_name)
def test_sum_of_tensors(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """The elements may lie one after the other in one tensor."""
    received = torch.zeros_like(term(rank, dtype=dtype, device=device))
    dist.reduce_scatter_single(received, torch.cat(elements(rank, world_size, device, dtype)))
    assert_equal(received, SUM.of(share(rank, world_size, device, dtype)))


@skip_unsupported("reduce_scatter of complex numbers", on=["nccl"])
@pytest.mark.parametrize("dtype", COMPLEX, ids=dtype_name)
def test_sum_of_complex_lists(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Both parts of a complex number are added."""
    received = torch.zeros_like(term(rank, dtype=dtype, device=device))
    dist.reduce_scatter(received, elements(rank, world_size, device, dtype))
    assert_equal(received, SUM.of(share(rank, world_size, device, dtype)))


@pytest.mark.conformance(feature="{reduction}")
@pytest.mark.parametrize("reduction", [PRODUCT, MIN, MAX], ids=str)
def test_product_and_extremes_of_lists(rank: int, world_size: int, device: torch.device, reduction: Reduction) -> None:
    """The op decides how the ranks' numbers come together."""
    received = torch.zeros_like(term(rank, device=device))
    dist.reduce_scatter(received, elements(rank, world_size, device), op=reduction.op)
    assert_equal(received, reduction.of(share(rank, world_size, device)))


@since_torch_2_13
@pytest.mark.conformance(operation="reduce_scatter_single", feature="{reduction}")
@pytest.mark.parametrize("reduction", [PRODUCT, MIN, MAX], ids=str)
def test_product_and_extremes_of_tensors(
    rank: int, world_size: int, device: torch.device, reduction: Reduction
) -> None:
    """The op decides how the ranks' numbers come together."""
    received = torch.zeros_like(term(rank, device=device))
    dist.reduce_scatter_single(received, torch.cat(elements(rank, world_size, device)), op=reduction.op)
    assert_equal(received, reduction.of(share(rank, world_size, device)))


@since_torch_2_13
@pytest.mark.conformance(operation="reduce_scatter_single", feature="AVG")
def test_average(rank: int, world_size: int, device: torch.device) -> None:
    """The average is over the ranks: this is how sharded data parallelism reduces its gradients."""
    received = torch.zeros_like(term(rank, device=device))
    dist.reduce_scatter_single(received, torch.cat(elements(rank, world_size, device)), op=dist.ReduceOp.AVG)
    assert_close(received, AVG.of(share(rank, world_size, device)))


@pytest.mark.conformance(feature="{reduction}")
@skip_unsupported("bitwise reduction", on=["nccl"])
@pytest.mark.parametrize("reduction", [BAND, BOR, BXOR], ids=str)
def test_bitwise(rank: int, world_size: int, device: torch.device, reduction: Reduction) -> None:
    """The bits of integers are reduced one by one."""
    received = torch.zeros_like(term(rank, dtype=torch.int64, device=device))
    dist.reduce_scatter(received, elements(rank, world_size, device, torch.int64), op=reduction.op)
    assert_equal(received, reduction.of(share(rank, world_size, device, torch.int64)))


@pytest.mark.conformance(feature="unequal lengths")
def test_elements_of_unequal_length(rank: int, world_size: int, device: torch.device) -> None:
    """Rank r receives r + 1 numbers."""
    received = torch.zeros(rank + 1, device=device)
    dist.reduce_scatter(received, [payload(rank, count=peer + 1, device=device) for peer in range(world_size)])
    assert_equal(received, SUM.of([payload(peer, count=rank + 1, device=device) for peer in range(world_size)]))


@pytest.mark.conformance(operation="reduce_scatter_single")
@pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor:FutureWarning")
def test_sum_of_tensors_by_the_old_name(rank: int, world_size: int, device: torch.device) -> None:
    """Since torch 2.13 reduce_scatter_tensor is the old name."""
    received = torch.zeros_like(term(rank, device=device))
    dist.reduce_scatter_tensor(received, torch.cat(elements(rank, world_size, device)))
    assert_equal(received, SUM.of(share(rank, world_size, device)))


@since_torch_2_13
@pytest.mark.conformance(operation="reduce_scatter_single")
def test_gathered_again_it_is_an_all_reduce(rank: int, world_size: int, device: torch.device) -> None:
    """A reduce_scatter and an all_gather make an all_reduce: the identity that sharded training rests on."""
    whole = torch.arange(2.0 * world_size, device=device) * (rank + 1) + 1
    piece = torch.zeros(2, device=device)
    dist.reduce_scatter_single(piece, whole)
    gathered = torch.zeros_like(whole)
    dist.all_gather_single(gathered, piece)
    factor = world_size * (world_size + 1) / 2
    assert_equal(gathered, torch.arange(2.0 * world_size, device=device) * factor + world_size)
