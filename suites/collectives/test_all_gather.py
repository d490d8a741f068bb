"""all_gather: every rank ends up with every rank's tensor, in the order of the ranks."""

import pytest
import torch
import torch.distributed as dist

from allranks.testing import skip_unsupported

from .tensors import ALL_DTYPES, assert_equal, blanks, dtype_name, payload, since_torch_2_13

pytestmark = pytest.mark.conformance(operation="all_gather")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_into_a_list(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Element r of the list is rank r's tensor."""
    own = payload(rank, dtype=dtype, device=device)
    gathered = blanks(own, world_size)
    dist.all_gather(gathered, own)
    assert_equal(gathered, [payload(peer, dtype=dtype, device=device) for peer in range(world_size)])


@since_torch_2_13
@pytest.mark.conformance(operation="all_gather_single")
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_into_one_tensor(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """The ranks' tensors lie one after the other."""
    own = payload(rank, dtype=dtype, device=device)
    gathered = own.new_zeros(world_size * len(own))
    dist.all_gather_single(gathered, own)
    assert_equal(gathered, torch.cat([payload(peer, dtype=dtype, device=device) for peer in range(world_size)]))


@pytest.mark.conformance(operation="all_gather_single")
@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning")
def test_into_one_tensor_by_the_old_name(rank: int, world_size: int, device: torch.device) -> None:
    """Since torch 2.13 all_gather_into_tensor is the old name."""
    own = payload(rank, device=device)
    gathered = own.new_zeros(world_size * len(own))
    dist.all_gather_into_tensor(gathered, own)
    assert_equal(gathered, torch.cat([payload(peer, device=device) for peer in range(world_size)]))


@since_torch_2_13
@pytest.mark.conformance(operation="all_gather_single", feature="stacked")
@skip_unsupported("all_gather into a stacked tensor", on=["gloo"])
def test_into_one_stacked_tensor(rank: int, world_size: int, device: torch.device) -> None:
    """The output may have the ranks as a dimension of their own."""
    own = payload(rank, device=device)
    gathered = own.new_zeros(world_size, len(own))
    dist.all_gather_single(gathered, own)
    assert_equal(gathered, torch.stack([payload(peer, device=device) for peer in range(world_size)]))


@pytest.mark.conformance(feature="unequal lengths")
@skip_unsupported("all_gather of unequal tensors", on=["gloo"])
def test_tensors_of_unequal_length(rank: int, world_size: int, device: torch.device) -> None:
    """Rank r sends r + 1 numbers."""
    gathered = [torch.zeros(peer + 1, device=device) for peer in range(world_size)]
    dist.all_gather(gathered, payload(rank, count=rank + 1, device=device))
    assert_equal(gathered, [payload(peer, count=peer + 1, device=device) for peer in range(world_size)])


@since_torch_2_13
@pytest.mark.conformance(operation="all_gather_single")
def test_rows_of_a_matrix(rank: int, world_size: int, device: torch.device) -> None:
    """Tensors of several dimensions are put together along the first."""
    own = payload(rank, count=6, device=device).reshape(2, 3)
    gathered = own.new_zeros(2 * world_size, 3)
    dist.all_gather_single(gathered, own)
    parts = [payload(peer, count=6, device=device).reshape(2, 3) for peer in range(world_size)]
    assert_equal(gathered, torch.cat(parts))


def test_list_of_views_fills_the_buffer_behind_them(rank: int, world_size: int, device: torch.device) -> None:
    """A list of slices is how a caller avoids a copy."""
    buffer = torch.zeros(2 * world_size, 2, device=device)
    dist.all_gather([buffer[2 * peer] for peer in range(world_size)], payload(rank, count=2, device=device))
    expected = torch.zeros_like(buffer)
    for peer in range(world_size):
        expected[2 * peer] = payload(peer, count=2, device=device)
    assert_equal(buffer, expected)


def test_input_is_left_as_it_was(rank: int, world_size: int, device: torch.device) -> None:
    """What a rank sends is still its own afterwards, and what it receives is a copy."""
    own = payload(rank, device=device)
    gathered = blanks(own, world_size)
    dist.all_gather(gathered, own)
    assert_equal(gathered[rank], own)
    gathered[rank].zero_()
    assert_equal(own, payload(rank, device=device))


@pytest.mark.conformance(operation="all_gather_coalesced")
@skip_unsupported("all_gather_coalesced", on=["nccl"])
@pytest.mark.filterwarnings("ignore:.*all_gather_coalesced:FutureWarning")
def test_several_tensors_at_once(rank: int, world_size: int, device: torch.device) -> None:
    """The tensors of one call may differ in shape."""
    gathered = [[torch.zeros(count, device=device) for count in (1, 3)] for _ in range(world_size)]
    dist.all_gather_coalesced(gathered, [payload(rank, count=count, device=device) for count in (1, 3)])
    assert_equal(
        gathered,
        [[payload(peer, count=count, device=device) for count in (1, 3)] for peer in range(world_size)],
    )
