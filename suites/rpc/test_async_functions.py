"""Functions that answer with a future: the callee's thread is free until that future is done."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from .callees import Call, in_each_mode
from .sent import async_execution, numbers_of, same, worker_after

AsyncAdd = Callable[[str, Tensor, int], Future[Tensor]]


@async_execution
def add_at(to: str, numbers: Tensor, other: int) -> Future[Tensor]:
    """Pass the future of a call on."""
    return rpc.rpc_async(to, torch.add, args=(numbers, other))  # type: ignore[no-any-return]


@async_execution
def add_by_own_future(to: str, numbers: Tensor, other: int) -> Future[Tensor]:
    """Make a future, and fill it later."""
    result: Future[Tensor] = Future()
    rpc.rpc_async(to, torch.add, args=(numbers, 0)).then(lambda done: result.set_result(done.wait() + other))
    return result


@async_execution
def add_by_chain(to: str, numbers: Tensor, other: int) -> Future[Tensor]:
    """Chain a callback to a call."""
    return rpc.rpc_async(to, torch.add, args=(numbers, 0)).then(lambda done: done.wait() + other)  # type: ignore[no-any-return]


@async_execution
def add_by_another_async_function(to: str, numbers: Tensor, other: int) -> Future[Tensor]:
    """Call a function of the same kind."""
    return rpc.rpc_async(to, add_at, args=(to, numbers, 0)).then(lambda done: done.wait() + other)  # type: ignore[no-any-return]


class Adder:
    """Methods of each kind that answer with a future.

    Args:
        more: What the bound method adds besides.
    """

    def __init__(self, more: int = 0) -> None:
        self.more = more

    @staticmethod
    @async_execution
    def static_add(to: str, numbers: Tensor, other: int) -> Future[Tensor]:
        """Need neither class nor object."""
        return rpc.rpc_async(to, torch.add, args=(numbers, other))  # type: ignore[no-any-return]

    @classmethod
    @async_execution
    def class_add(cls, to: str, numbers: Tensor, other: int) -> Future[Tensor]:
        """Need the class."""
        result: Future[Tensor] = Future()
        rpc.rpc_async(to, torch.add, args=(numbers, other)).then(lambda done: result.set_result(done.wait()))
        return result

    @async_execution
    def bound_add(self, to: str, numbers: Tensor, other: int) -> Future[Tensor]:
        """Need the object."""
        return rpc.rpc_async(to, torch.add, args=(numbers, other)).then(lambda done: done.wait() + self.more)  # type: ignore[no-any-return]


@async_execution
def add_many_times(to: str, numbers: Tensor, step: int) -> Future[Tensor]:
    """Chain twenty callbacks to one call."""
    future = rpc.rpc_async(to, torch.add, args=(numbers, 0))
    for _ in range(20):
        future = future.then(lambda done: done.wait() + step)
    return future  # type: ignore[no-any-return]


@async_execution
def add_from_many_calls(to: str, numbers: Tensor, step: int) -> Future[Tensor]:
    """Start twenty calls at once, and answer when the last is back."""
    result: Future[Tensor] = Future()
    lock = Lock()
    answers: list[Tensor] = []

    def collect(done: Future[Tensor]) -> None:
        with lock:
            answers.append(done.wait())
            is_last = len(answers) == 20
        if is_last:
            result.set_result(numbers + torch.stack(answers).sum(0))

    for _ in range(20):
        rpc.rpc_async(to, torch.mul, args=(torch.ones_like(numbers), step)).then(collect)
    return result


@async_execution
def raise_at_once() -> Future[Tensor]:
    """Fail before there is a future."""
    msg = f"no future on {rpc.get_worker_info().name}"
    raise RuntimeError(msg)


@async_execution
def answer_with_a_tensor() -> Tensor:
    """Break the contract."""
    return torch.zeros(2)


def answer_with_a_future() -> Future[Tensor]:
    """Return a future without the decorator."""
    future: Future[Tensor] = Future()
    future.set_result(torch.zeros(2))
    return future


@in_each_mode
@pytest.mark.parametrize(
    "function",
    [add_at, add_by_own_future, add_by_chain, add_by_another_async_function, Adder.static_add, Adder.class_add],
    ids=lambda function: function.__name__,
)
def test_caller_gets_what_the_future_will_hold(
    rank: int, world_size: int, peer: str, call: Call, function: AsyncAdd
) -> None:
    """The callee works with a third worker."""
    third = worker_after(rank, world_size, 2)
    assert same(call(peer, function, third, numbers_of(rank), rank + 5), numbers_of(rank) + rank + 5)


@in_each_mode
def test_chain_of_many_callbacks(rank: int, world_size: int, peer: str, call: Call) -> None:
    """The answer is the last one's."""
    third = worker_after(rank, world_size, 2)
    assert same(call(peer, add_many_times, third, numbers_of(rank), rank + 3), numbers_of(rank) + 20 * (rank + 3))


@in_each_mode
def test_fan_out_to_many_calls(rank: int, world_size: int, peer: str, call: Call) -> None:
    """The answer counts each of them once."""
    third = worker_after(rank, world_size, 2)
    assert same(call(peer, add_from_many_calls, third, numbers_of(rank), rank + 3), numbers_of(rank) + 20 * (rank + 3))


def proxy_sync(proxied: rpc.RRef[Adder], method: str, *args: object) -> Any:  # noqa: ANN401 - what the method returns
    """Wait in the call of a method."""
    return getattr(proxied.rpc_sync(), method)(*args)


def proxy_later(proxied: rpc.RRef[Adder], method: str, *args: object) -> Any:  # noqa: ANN401 - as above
    """Wait for the future of a method."""
    return getattr(proxied.rpc_async(), method)(*args).wait()


def proxy_by_reference(proxied: rpc.RRef[Adder], method: str, *args: object) -> Any:  # noqa: ANN401 - as above
    """Leave the result of a method where it is, and fetch it."""
    return getattr(proxied.remote(), method)(*args).to_here()


@pytest.mark.parametrize("proxy", [proxy_sync, proxy_later, proxy_by_reference], ids=["sync", "later", "by_reference"])
@pytest.mark.parametrize("method", ["static_add", "class_add", "bound_add"])
def test_proxy_of_a_reference_knows_async_methods(
    rank: int, world_size: int, peer: str, proxy: Callable[..., Tensor], method: str
) -> None:
    """A bound method works with the owner's object."""
    third = worker_after(rank, world_size, 2)
    adder = rpc.remote(peer, Adder, args=(100,))
    more = 100 if method == "bound_add" else 0
    assert same(proxy(adder, method, third, numbers_of(rank), rank + 5), numbers_of(rank) + rank + 5 + more)


@in_each_mode
def test_error_before_there_is_a_future(peer: str, call: Call) -> None:
    """The caller gets the callee's error."""
    with pytest.raises(RuntimeError, match=f"no future on {peer}"):
        call(peer, raise_at_once)


@in_each_mode
def test_async_function_must_return_a_future(peer: str, call: Call) -> None:
    """Any other answer is an error that states the contract."""
    with pytest.raises(RuntimeError, match=r"must return a torch\.futures\.Future"):
        call(peer, answer_with_a_tensor)


@in_each_mode
def test_plain_function_cannot_return_a_future(peer: str, call: Call) -> None:
    """Without the decorator, the future itself would have to travel."""
    with pytest.raises(RuntimeError, match=r"Can not pickle torch\.futures\.Future"):
        call(peer, answer_with_a_future)
