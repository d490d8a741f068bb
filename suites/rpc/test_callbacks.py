"""Futures of calls, and what is chained to them."""

from collections.abc import Callable
from concurrent import futures as threads
from functools import partial
from threading import Event

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from .callees import Call, in_each_mode
from .sent import numbers_of, refuse, same, worker_after

ATTEMPT = 60.0
"""Seconds that a test waits for its own callback."""


def sum_of_three(one: Tensor, two: Tensor, three: Tensor) -> Tensor:
    """No callback: it wants three arguments."""
    return one + two + three


def test_callback_gets_the_finished_future(rank: int, peer: str) -> None:
    """Its result is there in the callback, and still there for the caller."""
    seen: threads.Future[Tensor] = threads.Future()
    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    future.then(lambda done: seen.set_result(done.wait() + 1))
    assert same(seen.result(ATTEMPT), numbers_of(rank) + 2)
    assert same(future.wait(), numbers_of(rank) + 1)


def test_callback_with_too_many_parameters_fails_its_own_future(rank: int, peer: str) -> None:
    """The call itself is not harmed."""
    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    chained = future.then(sum_of_three)
    assert same(future.wait(), numbers_of(rank) + 1)
    with pytest.raises(RuntimeError, match="missing 2 required positional arguments"):
        chained.wait()


def test_callback_that_takes_the_future_for_its_value_fails(rank: int, peer: str) -> None:
    """A callback gets a future, which cannot be added to."""
    chained = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1)).then(lambda future: future + 1)
    with pytest.raises(RuntimeError, match="unsupported operand type"):
        chained.wait()


def test_future_takes_many_callbacks(rank: int, peer: str) -> None:
    """Each has a future of its own."""

    def plus(number: int, future: Future[Tensor]) -> Tensor:
        return future.wait() + number

    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    chained = [future.then(partial(plus, number)) for number in range(10)]
    for number, each in enumerate(chained):
        assert same(each.wait(), numbers_of(rank) + 1 + number)


def test_callbacks_form_a_chain(rank: int, peer: str) -> None:
    """Each works on the result of the one before."""
    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    for _ in range(20):
        future = future.then(lambda done: done.wait() * 2 - done.wait() + 1)
    assert same(future.wait(), numbers_of(rank) + 21)


def test_callback_may_call_again(rank: int, peer: str) -> None:
    """A callback can wait for a call of its own."""

    def add_once_more(future: Future[Tensor]) -> Tensor:
        again = rpc.rpc_async(peer, torch.add, args=(future.wait(), 1))
        return again.then(lambda done: done.wait() + 1).wait()  # type: ignore[no-any-return]

    chained = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1)).then(add_once_more)
    assert same(chained.wait(), numbers_of(rank) + 3)


def test_callback_sees_the_error_and_may_raise_another(peer: str) -> None:
    """The chained future has the callback's error, not the call's."""

    def raise_another(future: Future[None]) -> None:
        with pytest.raises(ValueError, match=f"refused by {peer}"):
            future.wait()
        msg = "the callback's own"
        raise RuntimeError(msg)

    chained = rpc.rpc_async(peer, refuse).then(raise_another)
    with pytest.raises(RuntimeError, match="the callback's own"):
        chained.wait()


def test_callback_must_be_callable(rank: int, peer: str) -> None:
    """None is refused at once, and the call goes on."""
    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    with pytest.raises(TypeError, match="incompatible function arguments"):
        future.then(None)
    assert same(future.wait(), numbers_of(rank) + 1)


def test_done_callback_runs(rank: int, peer: str) -> None:
    """It has no future of its own, and gets the finished one."""
    seen: list[Tensor] = []
    has_run = Event()

    def note(future: Future[Tensor]) -> None:
        seen.append(future.wait())
        has_run.set()

    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    future.add_done_callback(note)
    assert has_run.wait(ATTEMPT)
    assert same(seen[0], numbers_of(rank) + 1)
    assert same(future.wait(), numbers_of(rank) + 1)


def test_finished_future_takes_no_second_result(rank: int, peer: str) -> None:
    """It keeps the first."""
    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    future.wait()
    with pytest.raises(RuntimeError, match="can only be marked completed once"):
        future.set_result(1)
    assert same(future.wait(), numbers_of(rank) + 1)


@in_each_mode
def test_future_cannot_be_an_argument(peer: str, call: Call) -> None:
    """A future belongs to its process, whatever the way to call."""
    with pytest.raises(RuntimeError, match=r"Can not pickle torch\.futures\.Future"):
        call(peer, repr, Future())


def test_waited_for_future_is_done(rank: int, peer: str) -> None:
    """Its value is there without a wait."""
    future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), 1))
    future.wait()
    assert future.done()
    assert same(future.value(), numbers_of(rank) + 1)


def test_failed_future_is_done(peer: str) -> None:
    """An error ends a call as a result does."""
    future = rpc.rpc_async(peer, refuse)
    with pytest.raises(ValueError, match=f"refused by {peer}"):
        future.wait()
    assert future.done()


def add_and_set_a_threads_future(to: str, one: Tensor, other: int) -> Tensor:
    """Fill a future of ``concurrent.futures`` by a callback."""
    result: threads.Future[Tensor] = threads.Future()
    rpc.rpc_async(to, torch.add, args=(one, other)).then(lambda done: result.set_result(done.wait() * 2))
    return result.result(ATTEMPT)


def add_and_set_a_torch_future(to: str, one: Tensor, other: int) -> Tensor:
    """Fill a future of torch by a callback."""
    result: Future[Tensor] = Future()
    rpc.rpc_async(to, torch.add, args=(one, other)).then(lambda done: result.set_result(done.wait() * 2))
    return result.wait()


def add_in_nested_callbacks(to: str, one: Tensor, other: int) -> Tensor:
    """Call again in a callback, and fill a future of torch by that call's own callback."""
    result: Future[Tensor] = Future()

    def double(done: Future[Tensor]) -> None:
        twice = rpc.rpc_async(to, torch.mul, args=(done.wait(), 2))
        twice.then(lambda last: result.set_result(last.wait()))

    rpc.rpc_async(to, torch.add, args=(one, other)).then(double)
    return result.wait()


@pytest.mark.parametrize(
    "function",
    [add_and_set_a_threads_future, add_and_set_a_torch_future, add_in_nested_callbacks],
    ids=lambda function: function.__name__,
)
def test_called_function_may_chain_callbacks(
    rank: int, world_size: int, peer: str, function: Callable[[str, Tensor, int], Tensor]
) -> None:
    """It calls a third worker, and answers with what a callback made of the result."""
    third = worker_after(rank, world_size, 2)
    assert same(rpc.rpc_sync(peer, function, args=(third, numbers_of(rank), 1)), (numbers_of(rank) + 1) * 2)
