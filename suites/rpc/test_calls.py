"""Calls: what runs on the callee, with which arguments, and what comes back."""

import operator
import queue

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import worker_name

from .callees import Account, Call, call_sync, in_each_mode, own_rank, weigh

pytestmark = pytest.mark.require_world_size(2)

_TIMEOUT = 60.0


@in_each_mode
def test_a_builtin_operator_adds_two_tensors(call: Call, rank: int, peer: str) -> None:
    """Their size differs by rank, too."""
    side = rank + 1
    total = call(peer, torch.add, torch.full((side, side), rank), torch.full((side, side), 10))
    assert total.tolist() == side * [side * [rank + 10]]


@in_each_mode
def test_a_builtin_operator_takes_a_number(call: Call, rank: int, peer: str) -> None:
    """A number stays one: it is not made a tensor of its dtype."""
    total = call(peer, torch.add, torch.ones(2, dtype=torch.float32), rank)
    assert (total.tolist(), total.dtype) == (2 * [rank + 1.0], torch.float32)


@in_each_mode
def test_a_builtin_operator_has_a_result_of_another_size(call: Call, rank: int, world_size: int, peer: str) -> None:
    """The indices of all but one number."""
    numbers = torch.ones(world_size)
    numbers[rank] = 0
    indices = call(peer, torch.nonzero, numbers)
    assert indices.tolist() == [[index] for index in range(world_size) if index != rank]


def test_calls_in_a_row_have_their_own_results(rank: int, peer: str) -> None:
    """Each waits for the one before."""
    results = [rpc.rpc_sync(peer, torch.add, args=(torch.full((2,), number), rank)) for number in range(20)]
    assert [result.tolist() for result in results] == [2 * [number + rank] for number in range(20)]


@in_each_mode
def test_a_function_of_python_runs(call: Call, rank: int, peer: str) -> None:
    """One that is written in C."""
    assert call(peer, min, rank + 2, rank, rank + 1) == rank


@in_each_mode
def test_a_function_of_the_suite_runs_on_the_callee(call: Call, next_rank: int, peer: str) -> None:
    """Not on the caller."""
    assert call(peer, own_rank) == next_rank


@in_each_mode
def test_arguments_are_given_by_keyword(call: Call, rank: int, peer: str) -> None:
    """In another order than in the signature, and beside one by position."""
    assert call(peer, weigh, rank, third=rank + 2, second=rank + 1) == rank + 10 * (rank + 1) + 100 * (rank + 2)


@in_each_mode
def test_a_function_that_returns_nothing_returns_none(call: Call, peer: str) -> None:
    """None is a result, not the lack of one."""
    assert call(peer, Account(1).deposit, 2) is None


@in_each_mode
def test_a_class_is_called_on_the_callee(call: Call, rank: int, peer: str) -> None:
    """Its object comes back as a copy."""
    account = call(peer, Account, rank)
    assert type(account) is Account
    assert account.balance == rank


@in_each_mode
def test_a_method_takes_its_object_along(call: Call, rank: int, peer: str) -> None:
    """The state that it has at the caller."""
    assert call(peer, Account(rank).after, 5) == rank + 5


def test_a_method_changes_the_copy_of_its_object_only(rank: int, peer: str) -> None:
    """What the callee changes does not come back."""
    account = Account(rank)
    assert rpc.rpc_sync(peer, account.deposit, args=(5,)) is None
    assert account.balance == rank


@in_each_mode
def test_a_class_method_runs(call: Call, rank: int, peer: str) -> None:
    """With its class."""
    assert call(peer, Account.charged, rank) == rank - 3


@in_each_mode
def test_a_static_method_runs(call: Call, rank: int, peer: str) -> None:
    """Without an object."""
    assert call(peer, Account.doubled, rank + 1) == 2 * rank + 2


def test_two_calls_in_flight_have_their_own_results(rank: int, peer: str) -> None:
    """Waited for in the other order."""
    first = rpc.rpc_async(rpc.get_worker_info(peer), Account.doubled, args=(rank + 1,))
    second = rpc.rpc_async(rpc.get_worker_info(peer), max, args=(rank, 7))
    assert (second.wait(), first.wait()) == (7, 2 * rank + 2)


@in_each_mode
def test_a_function_of_python_takes_and_returns_tensors(call: Call, rank: int, peer: str) -> None:
    """Arguments in their order."""
    result = call(peer, operator.sub, torch.full((2, 2), rank), torch.full((2, 2), 10))
    assert result.tolist() == 2 * [2 * [rank - 10]]


def test_a_hundred_calls_in_flight_have_their_own_results(rank: int, peer: str) -> None:
    """Tensors of a hundred sizes, the first of which is empty."""
    futures = [rpc.rpc_async(peer, operator.add, args=(torch.full((side,), side), rank)) for side in range(100)]
    results = torch.futures.wait_all(futures)
    assert [result.tolist() for result in results] == [side * [side + rank] for side in range(100)]


def _nothing(number: int) -> int:
    return number


def test_hundreds_of_calls_to_one_worker_at_once(rank: int, peer: str) -> None:
    """Many more than it has threads."""
    futures = [rpc.rpc_async(peer, _nothing, args=(1000 * rank + number,)) for number in range(400)]
    assert torch.futures.wait_all(futures) == [1000 * rank + number for number in range(400)]


def _work(tensor: torch.Tensor) -> torch.Tensor:
    for _ in range(100):
        tensor = tensor * 2 - tensor
    return tensor.sum()


def test_many_calls_that_compute_at_once(rank: int, peer: str) -> None:
    """Twenty that keep a worker's threads busy with operators."""
    futures = [rpc.rpc_async(peer, _work, args=(torch.full((100, 100), rank + number),)) for number in range(20)]
    sums = [int(total) for total in torch.futures.wait_all(futures)]
    assert sums == [10_000 * (rank + number) for number in range(20)]


_letters: queue.Queue[int] = queue.Queue()


def _leave(letter: int) -> None:
    _letters.put(letter)


def test_a_call_comes_from_the_worker_that_made_it(rank: int, world_size: int, peer: str) -> None:
    """Every worker leaves its rank with the next one."""
    rpc.rpc_sync(peer, _leave, args=(rank,))
    assert _letters.get(timeout=_TIMEOUT) == (rank - 1) % world_size
    assert _letters.empty()


def _called_back(to: str, number: int) -> tuple[int, torch.Tensor]:
    return own_rank(), rpc.rpc_sync(to, torch.add, args=(torch.full((2,), number), 1))


@in_each_mode
def test_a_callee_calls_its_caller_back(call: Call, rank: int, next_rank: int, names: list[str], peer: str) -> None:
    """While the caller waits for the callee."""
    callee, result = call(peer, _called_back, names[rank], rank)
    assert (callee, result.tolist()) == (next_rank, 2 * [rank + 1])


def _passed_on(origin: int, hops: int, world_size: int) -> None:
    if hops:
        rpc.rpc_async(worker_name((own_rank() + 1) % world_size), _passed_on, args=(origin, hops - 1, world_size))
    else:
        call_sync(origin, _leave, own_rank())


def test_a_chain_of_calls_goes_on_after_each_has_returned(rank: int, world_size: int) -> None:
    """Nobody waits for the next hop, and the last one is found all the same."""
    _passed_on(rank, 20, world_size)
    assert _letters.get(timeout=_TIMEOUT) == (rank + 20) % world_size
