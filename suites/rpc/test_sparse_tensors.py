"""Sparse tensors in calls, in references, and in what workers make of them for each other."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc

from .callees import Call, call_async, call_remote, call_sync, in_each_mode
from .sent import same, sparse_of, worker_after

pytestmark = pytest.mark.usefixtures("sparse_invariants")


def same_sparse(actual: Any, expected: Tensor) -> bool:  # noqa: ANN401 - what a call returned
    """Whether both are sparse, and equal once each index is there once."""
    return bool(
        isinstance(actual, Tensor)
        and actual.is_sparse
        and same(actual.coalesce().indices(), expected.coalesce().indices())
        and same(actual.coalesce().values(), expected.coalesce().values())
    )


def total(one: Tensor, two: Tensor, three: Tensor) -> Tensor:
    """Add three tensors."""
    return one + two + three


def total_of_list(tensors: Sequence[Tensor]) -> Tensor:
    """Add all tensors of a list."""
    result = tensors[0]
    for tensor in tensors[1:]:
        result = result + tensor
    return result


def fetch_and_add(reference: Any, tensor: Tensor) -> Tensor:  # noqa: ANN401 - references have no types for mypy
    """Fetch from the owner, and add."""
    result: Tensor = reference.to_here() + tensor
    return result


def fetch_both(one: Any, other: Any) -> Tensor:  # noqa: ANN401 - as above
    """Fetch two, and add them."""
    result: Tensor = one.to_here() + other.to_here()
    return result


def ask_back(caller: str, rank: int) -> Tensor:
    """Let the caller add."""
    return rpc.rpc_sync(caller, torch.add, args=(sparse_of(rank), sparse_of(rank)))  # type: ignore[no-any-return]


def fetch_from_third(third: str, rank: int) -> Tensor:
    """Leave a sum with a third worker, and fetch it."""
    return rpc.remote(third, torch.add, args=(sparse_of(rank), sparse_of(rank))).to_here()  # type: ignore[no-any-return]


def leave_two_with_third(third: str, rank: int) -> tuple[Any, Any]:
    """Leave two sums with a third worker, and hand on the references to them."""
    tensor = sparse_of(rank)
    return rpc.remote(third, torch.add, args=(tensor, tensor)), rpc.remote(third, torch.mul, args=(tensor, 5))


def much_work(tensor: Tensor) -> Tensor:
    """Many small operators; a hundredth of the tensor remains."""
    for number in range(1, 100):
        tensor = tensor * number
        tensor = tensor / (number + 1)
    return tensor


@in_each_mode
@pytest.mark.parametrize("coalesced", [False, True], ids=["uncoalesced", "coalesced"])
def test_callee_is_given_by_its_number(rank: int, next_rank: int, call: Call, *, coalesced: bool) -> None:
    """Sparse tensors of either kind arrive and come back."""
    tensor = sparse_of(rank).coalesce() if coalesced else sparse_of(rank)
    assert same_sparse(call(next_rank, torch.add, tensor, tensor), tensor * 2)


def test_entries_survive_the_way(rank: int, peer: str) -> None:
    """They come back in their order, also two of one index."""
    for tensor in (sparse_of(rank), sparse_of(rank).coalesce()):
        back = rpc.rpc_sync(peer, total_of_list, args=([tensor],))
        assert same(back._indices(), tensor._indices())  # noqa: SLF001 - the public ones want coalesced tensors
        assert same(back._values(), tensor._values())  # noqa: SLF001 - as above


def test_reference_to_ones_own_worker(rank: int) -> None:
    """A Python function runs here, and its result is fetched from here."""
    tensor = sparse_of(rank)
    assert same_sparse(call_remote(rpc.get_worker_info().name, total, tensor, tensor, tensor), tensor * 3)


@pytest.mark.parametrize("steps", [0, 1], ids=["self", "peer"])
@pytest.mark.parametrize("call", [call_async, call_remote], ids=["call", "reference"])
def test_own_reference_is_an_argument(rank: int, world_size: int, call: Call, steps: int) -> None:
    """A reference to a tensor that this worker owns, for a call to another or to itself."""
    tensor = sparse_of(rank)
    mine = rpc.remote(rpc.get_worker_info(), total, args=(tensor, tensor, tensor))
    assert same_sparse(call(worker_after(rank, world_size, steps), fetch_and_add, mine, tensor), tensor * 4)


def test_many_calls_one_after_another(rank: int, peer: str) -> None:
    """Each has tensors of its own."""
    for number in range(20):
        tensor = sparse_of(rank) * (number + 1)
        assert same_sparse(rpc.rpc_sync(peer, torch.add, args=(tensor, tensor)), tensor * 2)


@pytest.mark.parametrize("times", [1, 2])
def test_workers_wait_for_one_that_is_busy(rank: int, world_size: int, names: list[str], times: int) -> None:
    """All wait for rank 0, and answer it meanwhile: first the one next to it, then the last."""
    tensor = sparse_of(rank)
    answers = []
    if rank == 0:
        for name in (names[1], names[world_size - 1]):
            answers += torch.futures.wait_all([rpc.rpc_async(name, much_work, args=(tensor,)) for _ in range(10)])
    for _ in range(times):
        rpc.api._wait_all_workers(60)  # noqa: SLF001 - the first step of a shutdown
    assert len(answers) == (20 if rank == 0 else 0)
    assert all(torch.allclose(answer.to_dense(), tensor.to_dense() / 100) for answer in answers)


def test_tensors_in_a_list(rank: int, peer: str) -> None:
    """A container with sparse tensors is an argument as any."""
    tensors = [sparse_of(rank), sparse_of(rank) * 3]
    assert same_sparse(rpc.rpc_sync(peer, total_of_list, args=(tensors,)), sparse_of(rank) * 4)


def test_callee_asks_the_caller_back(rank: int, peer: str) -> None:
    """A call within a call, back to where it began."""
    me = rpc.get_worker_info().name
    assert same_sparse(rpc.rpc_sync(peer, ask_back, args=(me, rank)), sparse_of(rank) * 2)


def test_many_heavy_calls_at_once(rank: int, peer: str) -> None:
    """Each is answered with its own tensor."""
    sent = [sparse_of(rank) * (number + 1) for number in range(20)]
    futures = [rpc.rpc_async(peer, much_work, args=(tensor,)) for tensor in sent]
    for tensor, answer in zip(sent, torch.futures.wait_all(futures), strict=True):
        assert torch.allclose(answer.to_dense(), tensor.to_dense() / 100)


def test_result_is_fetched_from_its_owner(rank: int, peer: str) -> None:
    """A builtin operator leaves it there."""
    assert same_sparse(call_remote(peer, torch.add, sparse_of(rank), sparse_of(rank)), sparse_of(rank) * 2)


def test_owner_has_its_value_at_hand(rank: int) -> None:
    """A reference that a worker has to its own object gives the object without a copy."""
    mine = rpc.remote(rpc.get_worker_info(), torch.add, args=(sparse_of(rank), sparse_of(rank)))
    mine.to_here()
    assert mine.local_value() is mine.local_value()
    assert same_sparse(mine.local_value(), sparse_of(rank) * 2)


@pytest.mark.parametrize("function", [torch.add, total], ids=["builtin", "python"])
def test_many_references_at_once(rank: int, peer: str, function: Call) -> None:
    """Each is to its own result."""
    sent = [sparse_of(rank) * (number + 1) for number in range(10)]
    count = 2 if function is torch.add else 3
    references = [rpc.remote(peer, function, args=(tensor,) * count) for tensor in sent]
    for tensor, reference in zip(sent, references, strict=True):
        assert same_sparse(reference.to_here(), tensor * count)


@pytest.mark.parametrize(
    ("user", "call"), [(1, call_remote), (2, call_remote), (1, call_sync)], ids=["on_owner", "on_third", "in_a_call"]
)
def test_references_are_arguments(rank: int, world_size: int, peer: str, user: int, call: Call) -> None:
    """Two objects of the peer, added by that peer or by a third worker."""
    tensor = sparse_of(rank)
    one = rpc.remote(peer, total, args=(tensor, tensor, tensor))
    other = rpc.remote(peer, torch.mul, args=(tensor, 4))
    assert same_sparse(call(worker_after(rank, world_size, user), fetch_both, one, other), tensor * 7)


def test_callee_fetches_from_a_third_worker(rank: int, world_size: int, peer: str) -> None:
    """The result of a remote call within a remote call."""
    third = worker_after(rank, world_size, 2)
    assert same_sparse(call_remote(peer, fetch_from_third, third, rank), sparse_of(rank) * 2)


@pytest.mark.parametrize("count", [1, 20], ids=["one", "many"])
def test_reference_to_references(rank: int, world_size: int, peer: str, count: int) -> None:
    """The callee's references to a third worker's objects are fetched, and then the objects."""
    third = worker_after(rank, world_size, 2)
    pairs = [rpc.remote(peer, leave_two_with_third, args=(third, rank)) for _ in range(count)]
    for pair in pairs:
        doubled, fivefold = pair.to_here()
        assert same_sparse(doubled.to_here(), sparse_of(rank) * 2)
        assert same_sparse(fivefold.to_here(), sparse_of(rank) * 5)
