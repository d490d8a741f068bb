"""Backward passes that fail or wait: the error names its worker, and the next pass is none the worse."""

import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from . import engine
from .calls import LIMIT, Call, any_call, in_a_thread, in_background, name_of, synchronously
from .operands import assert_gradients, assert_same_gradients, dense, local_gradients, total
from .remote_work import add, add_faultily, assert_forgotten, faulty, heal, held, hold, plan_fault

FAULT = "the planned fault"


def assert_works(peer: str) -> None:
    """A pass in a new context has its gradients."""
    operands = dense(0), dense(1)
    assert_same_gradients(lambda way: way(peer, add, operands), synchronously, *operands)


@any_call
def test_error_on_the_caller_deep_in_a_pass(rank: int, peers: list[str], call: Call) -> None:
    """Gradients travel through other workers before the caller fails: its own number is in the error."""
    key = f"{rank} {name_of(call)}"
    plan_fault(key)
    operands = dense(0), dense(1)
    with engine.context() as context:
        result = faulty((operands[0] + operands[1]) * operands[0], key)
        for worker in (peers * 3)[:3]:
            result = call(worker, torch.mul, (result, operands[1]))
        with pytest.raises(RuntimeError, match=f"Error on Node {rank}: .*{FAULT}"):
            engine.backward(context, [total(result)])
    assert_works(peers[0])


def add_faultily_elsewhere(first: Tensor, second: Tensor, worker: str, key: object) -> Tensor:
    """Have another worker add."""
    product = first * second
    result: Tensor = product + synchronously(worker, add_faultily, (product, second, key))
    return result


@any_call
def test_error_on_the_last_worker_of_a_chain(rank: int, peers: list[str], call: Call) -> None:
    """It comes back by way of the worker between."""
    key = f"{rank} {name_of(call)}"
    synchronously(peers[-1], plan_fault, (key,))
    with engine.context() as context:
        result = call(peers[0], add_faultily_elsewhere, (dense(0), dense(1), peers[-1], key))
        with pytest.raises(RuntimeError, match=FAULT):
            engine.backward(context, [total(result)])
    assert_works(peers[0])


def test_passes_after_failed_ones(rank: int, peer: str) -> None:
    """In the same context: the failed passes leave no gradient, and those after them add up."""
    operands = dense(0), dense(1)
    synchronously(peer, plan_fault, (rank,))
    with engine.context() as context:
        root = total(synchronously(peer, add_faultily, (*operands, rank)))
        for _ in range(20):
            with pytest.raises(RuntimeError, match=FAULT):
                engine.backward(context, [root], retain_graph=True)
        assert_gradients(context, [], [])
        synchronously(peer, heal, (rank,))
        for _ in range(20):
            engine.backward(context, [root], retain_graph=True)
        assert_gradients(context, operands, local_gradients(operands[0] + operands[1], operands, passes=20))


def keep_the_sum(first: Tensor, second: Tensor, key: object) -> None:
    """Add, and return nothing."""
    hold(key, first + second)


def pass_over_held(context: int, key: object) -> None:
    """A backward pass from a tensor of this worker."""
    engine.backward(context, [total(held(key))])


class Signals(Function):
    """The identity; its backward pass signals that it runs."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, event: threading.Event) -> Tensor:  # noqa: ANN401 - as torch calls it
        """The same numbers."""
        ctx.event = event
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - as torch calls it
        """Set the event."""
        ctx.event.set()
        return gradients[0], None


def test_pass_waits_for_the_gradients_of_all_that_was_sent(peer: str) -> None:
    """It does not end where a call's result is not used, until the called worker sends gradients after all."""
    operands, begun = (dense(0), dense(1)), threading.Event()
    with engine.context() as context:
        synchronously(peer, keep_the_sum, (*operands, context))
        root = total(Signals.apply(operands[0] * operands[1], begun))  # type: ignore[no-untyped-call]
        waiting = in_background(partial(engine.backward, context, [root]))
        assert begun.wait(LIMIT)
        for _ in range(50):
            synchronously(peer, engine.knows, (context,))
        has_ended = waiting.done()
        synchronously(peer, pass_over_held, (context, context))
        waiting.result(LIMIT)
        assert not has_ended
        result = operands[0] * operands[1] + operands[0] + operands[1]
        assert_gradients(context, operands, local_gradients(result, operands))


class ReleasesContext(Function):
    """The identity; its backward pass ends the context that it runs in."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, context: int, peer: str) -> Tensor:  # noqa: ANN401 - as torch calls it
        """The same numbers."""
        ctx.end = (context, peer)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - as torch calls it
        """End the context on this worker and on its peer."""
        context, peer = ctx.end
        engine.release_context(context)
        # A thread without a context asks: a call in the context would make it anew.
        in_a_thread(partial(assert_forgotten, context, [peer]))
        return gradients[0], None, None


def test_context_that_ends_during_its_pass(peer: str) -> None:
    """The pass fails, as the called worker has no such context any more; neither worker crashes."""

    def fail() -> None:
        context = engine.new_context()
        result = synchronously(peer, torch.add, (dense(0), dense(1)))
        root = total(ReleasesContext.apply(result, context, peer))  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {context}"):
            engine.backward(context, [root])

    in_a_thread(fail)  # whose context cannot be ended a second time
    assert_works(peer)
