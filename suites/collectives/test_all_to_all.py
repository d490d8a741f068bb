"""all_to_all: each rank sends a part of its own to each rank."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from allranks.testing import skip_unsupported

from .tensors import ALL_DTYPES, assert_equal, dtype_name, payload, since_torch_2_13

pytestmark = pytest.mark.conformance(operation="all_to_all")


def note(sender: int, receiver: int, world_size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """What ``sender`` has for ``receiver``: the sender's name and then the receiver's."""
    return torch.cat([payload(party, count=3, dtype=dtype, device=device) for party in (sender, receiver + world_size)])


def letter(sender: int, receiver: int, device: torch.device) -> Tensor:
    """What ``sender`` has for ``receiver``: as many numbers as the two ranks add up to, and one."""
    return torch.full((sender + receiver + 1,), 100.0 * (sender + 1) + receiver, device=device)


@pytest.mark.conformance(operation="all_to_all_single")
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_equal_parts_of_one_tensor(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Part s of what rank r receives is part r of what rank s sent."""
    sent = torch.cat([note(rank, peer, world_size, device, dtype) for peer in range(world_size)])
    received = torch.zeros_like(sent)
    dist.all_to_all_single(received, sent)
    assert_equal(received, torch.cat([note(peer, rank, world_size, device, dtype) for peer in range(world_size)]))


@pytest.mark.conformance(operation="all_to_all_single", feature="unequal splits")
def test_unequal_parts_of_one_tensor(rank: int, world_size: int, device: torch.device) -> None:
    """The splits say how much goes where."""
    peers = range(world_size)
    received = torch.zeros(sum(peer + rank + 1 for peer in peers), device=device)
    splits = [peer + rank + 1 for peer in peers]
    dist.all_to_all_single(received, torch.cat([letter(rank, peer, device) for peer in peers]), splits, splits)
    assert_equal(received, torch.cat([letter(peer, rank, device) for peer in peers]))


@pytest.mark.conformance(operation="all_to_all_single", feature="unequal splits")
def test_everything_goes_to_one_rank(rank: int, world_size: int, device: torch.device) -> None:
    """A split may be zero."""
    last = world_size - 1
    received = torch.zeros(2 * world_size if rank == last else 0, device=device)
    output_splits = [2 if rank == last else 0] * world_size
    input_splits = [2 if peer == last else 0 for peer in range(world_size)]
    dist.all_to_all_single(received, payload(rank, count=2, device=device), output_splits, input_splits)
    everything = torch.cat([payload(peer, count=2, device=device) for peer in range(world_size)])
    assert_equal(received, everything if rank == last else torch.zeros(0, device=device))


@pytest.mark.conformance(operation="all_to_all_single", feature="unequal splits")
def test_unequal_numbers_of_rows(rank: int, world_size: int, device: torch.device) -> None:
    """The splits count rows, not elements."""
    peers = range(world_size)
    sent = torch.cat([letter(rank, peer, device) for peer in peers]).unsqueeze(1).repeat(1, 3)
    splits = [peer + rank + 1 for peer in peers]
    received = torch.zeros(sum(splits), 3, device=device)
    dist.all_to_all_single(received, sent, splits, splits)
    assert_equal(received, torch.cat([letter(peer, rank, device) for peer in peers]).unsqueeze(1).repeat(1, 3))


@pytest.mark.conformance(operation="all_to_all_single")
def test_blocks_of_a_matrix_are_transposed(rank: int, world_size: int, device: torch.device) -> None:
    """With one row for each rank, all_to_all is the transposition of the matrix that the ranks hold together."""
    received = torch.zeros(world_size, device=device)
    dist.all_to_all_single(received, 100.0 * (rank + 1) + torch.arange(world_size, device=device))
    assert_equal(received, 100.0 * (torch.arange(world_size, device=device) + 1) + rank)


@since_torch_2_13
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_lists_of_tensors(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Element s of what rank r receives is element r of what rank s sent."""
    sent = [note(rank, peer, world_size, device, dtype) for peer in range(world_size)]
    received = [torch.zeros_like(part) for part in sent]
    dist.all_to_all(received, sent)
    assert_equal(received, [note(peer, rank, world_size, device, dtype) for peer in range(world_size)])


@pytest.mark.conformance(feature="unequal lengths")
@skip_unsupported("all_to_all of unequal tensors", on=["gloo"])
def test_lists_of_unequal_tensors(rank: int, world_size: int, device: torch.device) -> None:
    """The tensors of a list may differ in length."""
    peers = range(world_size)
    received = [torch.zeros_like(letter(peer, rank, device)) for peer in peers]
    dist.all_to_all(received, [letter(rank, peer, device) for peer in peers])
    assert_equal(received, [letter(peer, rank, device) for peer in peers])
