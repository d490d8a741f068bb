"""References as arguments and results: users hand them on, and each use reaches the owner's object."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc

from allranks.testing import worker_name

from .callees import Call, in_each_mode, own_rank, weigh

pytestmark = pytest.mark.require_world_size(2)


def _plus(reference: "rpc.RRef[Tensor]", number: int) -> tuple[int, list[int]]:
    numbers: list[int] = (reference.to_here() + number).tolist()
    return own_rank(), numbers


@in_each_mode
@pytest.mark.parametrize("distance", [0, 1], ids=["self", "peer"])
def test_a_callee_uses_a_reference_to_an_object_of_its_caller(
    call: Call, distance: int, rank: int, world_size: int
) -> None:
    """The callee fetches it from there, also if caller, callee and owner are one."""
    callee = (rank + distance) % world_size
    reference = rpc.remote(rank, weigh, args=(torch.full((2,), rank), 1, 3))
    assert call(callee, _plus, reference, 1000) == (callee, 2 * [rank + 1310])


def test_two_calls_at_once_use_one_reference(rank: int, next_rank: int, peer: str) -> None:
    """One in flight while another is waited for."""
    reference = rpc.remote(rank, weigh, args=(torch.full((2,), rank), 1, 3))
    future = rpc.rpc_async(peer, _plus, args=(reference, 1000))
    assert rpc.rpc_sync(peer, _plus, args=(reference, 2000)) == (next_rank, 2 * [rank + 2310])
    assert future.wait() == (next_rank, 2 * [rank + 1310])


def _difference(left: "rpc.RRef[Tensor]", right: "rpc.RRef[Tensor]") -> tuple[int, list[int]]:
    numbers: list[int] = (left.to_here() - right.to_here()).tolist()
    return own_rank(), numbers


@in_each_mode
@pytest.mark.parametrize("distance", [1, 2], ids=["owner", "third"])
def test_a_callee_uses_two_references_to_objects_of_one_owner(
    call: Call, distance: int, rank: int, world_size: int, peer: str
) -> None:
    """The owner itself, or a third worker that becomes a user of both."""
    callee = (rank + distance) % world_size
    left = rpc.remote(peer, torch.add, args=(torch.full((2,), 10 * rank), 5))
    right = rpc.remote(peer, weigh, args=(torch.full((2,), rank), 0, 0))
    assert call(callee, _difference, left, right) == (callee, 2 * [9 * rank + 5])


def _two_references(owner: str, number: int) -> tuple["rpc.RRef[Tensor]", "rpc.RRef[Tensor]"]:
    first, second = (rpc.remote(owner, torch.add, args=(torch.full((2,), number), step)) for step in (1, 2))
    return first, second


@pytest.mark.parametrize("count", [1, 20])
def test_a_reference_to_references(count: int, rank: int, names: list[str], peer: str) -> None:
    """Fetching it makes the caller a user of what its owner only refers to, once or many times at a time."""
    third = (rank + 2) % len(names)
    outer = [rpc.remote(peer, _two_references, args=(names[third], rank + 10 * number)) for number in range(count)]
    for number, reference in enumerate(outer):
        first, second = reference.to_here()
        assert {first.owner().id, second.owner().id} == {third}
        assert first.to_here().tolist() == 2 * [rank + 10 * number + 1]
        assert second.to_here().tolist() == 2 * [rank + 10 * number + 2]


def _forwarded(reference: "rpc.RRef[Tensor]", hops: int, world_size: int) -> Any:  # noqa: ANN401 - nested so deep
    if hops == 0:
        return own_rank(), reference.to_here()
    following = worker_name((own_rank() + 1) % world_size)
    return [rpc.remote(following, _forwarded, args=(reference, hops - 1, world_size))]


def test_a_reference_is_forwarded_from_worker_to_worker(rank: int, world_size: int, peer: str) -> None:
    """Eight times: each hop leaves a reference to what the next one returns."""
    reference = rpc.remote(peer, torch.add, args=(torch.full((2,), rank), 1))
    result = _forwarded(reference, 8, world_size)
    for _ in range(8):
        assert len(result) == 1
        result = result[0].to_here()
    assert (result[0], result[1].tolist()) == ((rank + 8) % world_size, 2 * [rank + 1])
