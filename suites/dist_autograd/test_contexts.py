"""Contexts: their ids, the workers that they reach, and their end on all of these."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from allranks.testing import FileBarrier, get_function_event

from . import engine
from .calls import LIMIT, Call, any_call, in_a_thread, in_background, synchronously, wait_for
from .operands import Operand, any_layout, assert_same_gradients, dense, total
from .remote_work import add, add_at_end, assert_forgotten

RANK_BITS = 48
"""A context's id has the worker's number above these bits, and counts below."""


def test_id_begins_with_the_workers_number(rank: int) -> None:
    """So two workers never make the same id, however many contexts they have."""
    with engine.context() as context:
        assert context >> RANK_BITS == rank
    assert engine.greatest_id() == (rank << RANK_BITS) + 2**RANK_BITS - 1


def test_context_is_known_until_its_end() -> None:
    """Each has an id of its own, by which it can be found within its block and not after."""
    contexts = []
    for _ in range(20):
        with engine.context() as context:
            assert engine.knows(context)
            contexts.append(context)
    assert len(set(contexts)) == len(contexts)
    assert not any(engine.knows(context) for context in contexts)


def test_second_context_in_a_thread_is_refused() -> None:
    """Contexts do not nest."""
    with (
        engine.context(),
        pytest.raises(RuntimeError, match="Already have an autograd context id"),
        engine.context(),
    ):
        pass


def test_threads_have_contexts_of_their_own() -> None:
    """A thread has none of another thread's, and can make one meanwhile."""

    def make_one() -> int:
        with engine.context() as inner:
            return inner

    with engine.context() as outer:
        assert in_a_thread(make_one) != outer
        assert engine.current_context() == outer


@pytest.mark.parametrize("requires_grad", [True, False], ids=["with_gradients", "without_gradients"])
def test_called_workers_are_recorded(rank: int, world_size: int, peers: list[str], requires_grad: bool) -> None:
    """The context engine.knows every worker that it has to tell of its end, and not itself."""
    operands = [dense(number, requires_grad=requires_grad) for number in range(2)]
    with engine.context() as context:
        for done, peer in enumerate(peers, start=1):
            synchronously(peer, add, operands)
            assert engine.known_workers(context) == {(rank + step) % world_size for step in range(1, done + 1)}


def assert_ends_everywhere(function: Callable[..., Any], arguments: tuple[object, ...], workers: list[str]) -> None:
    """Each worker that takes part in a call loses the context after its end."""
    with engine.context() as context:
        for worker in workers:
            synchronously(worker, function, arguments)
    assert not engine.knows(context)
    assert_forgotten(context, workers)


@any_layout
@pytest.mark.parametrize("requires_grad", [True, False], ids=["with_gradients", "without_gradients"])
def test_context_of_tensors_ends_everywhere(peers: list[str], operand: Operand, requires_grad: bool) -> None:
    """With or without gradients: the called worker may have had some of its own to return."""
    operands = (operand(0, requires_grad=requires_grad), operand(1, requires_grad=requires_grad))
    assert_ends_everywhere(torch.add, operands, peers)


def test_context_without_tensors_ends_everywhere(peers: list[str]) -> None:
    """A call of numbers takes the context along, too."""
    with engine.context() as context:
        assert all(synchronously(peer, engine.knows, (context,)) for peer in peers)
    assert_ends_everywhere(add, (1, 2), peers)


@any_layout
def test_context_of_a_nested_call_ends_everywhere(peers: list[str], own_name: str, operand: Operand) -> None:
    """A worker that was called by a called worker learns of the end by that one."""
    path = [*peers[1:], own_name]
    with engine.context() as context:
        synchronously(peers[0], add_at_end, (operand(0), operand(1), path))
    assert_forgotten(context, peers)


@any_call
def test_call_that_fails_within_a_context(peer: str, call: Call) -> None:
    """The error of the called operator arrives, and a later context is none the worse."""
    first, second = dense(0), dense(1)
    with engine.context(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        call(peer, torch.matmul, (first, torch.ones(6, 6, requires_grad=True)))
    assert_same_gradients(lambda way: way(peer, torch.matmul, (first, second)), call, first, second)


class CountsPasses(Function):
    """The identity; its backward pass notes how many passes are under way on this worker."""

    counts: list[int] = []  # noqa: RUF012 - a note from torch's thread to the test

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ANN401, ARG004 - as torch calls it
        """The same numbers."""
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401, ARG004 - as torch calls it
        """Note the number of passes."""
        CountsPasses.counts.append(number("num_current_backward_passes"))
        return gradients[0]


def number(name: str) -> int:
    """A number of torch's own count on this worker."""
    return int(engine.debug_info()[name])


def test_debug_info_counts_contexts_and_passes(peers: list[str], world_size: int, file_barrier: FileBarrier) -> None:
    """Those of all workers that reach this one, while they last."""
    CountsPasses.counts.clear()
    file_barrier()  # all contexts of earlier tests have ended where they began
    wait_for(lambda: number("num_autograd_contexts") == 0, "they end here")
    file_barrier()
    with engine.context() as context:
        result = dense(0)
        for peer in peers:
            result = synchronously(peer, add, (result, dense(1)))
        result = synchronously(peers[0], add, (CountsPasses.apply(result), dense(1)))  # type: ignore[no-untyped-call]
        engine.backward(context, [total(result)])
        assert 1 <= number("num_autograd_contexts") <= world_size
    assert len(CountsPasses.counts) == 1
    assert 1 <= CountsPasses.counts[0] <= world_size
    file_barrier()
    assert set(engine.debug_info()) == {"num_current_backward_passes", "num_autograd_contexts"}
    wait_for(lambda: number("num_current_backward_passes") == 0, "all passes end")
    wait_for(lambda: number("num_autograd_contexts") == 0, "all contexts end")
    file_barrier()  # the next test makes contexts


def test_profiler_shows_a_backward_pass(peer: str) -> None:
    """It has the pass, and within it what it sent and what it received."""
    with engine.context() as context:
        root = total(synchronously(peer, torch.add, (dense(0), dense(1))))
        with torch.autograd.profiler.profile() as profile:
            engine.backward(context, [root])
    whole = get_function_event(profile.function_events, "torch::distributed::autograd::backward")
    for part in ("SendRpcBackward", "RecvRpcBackward"):
        event = get_function_event(profile.function_events, part)
        assert event.count == 1
        assert event.cpu_time_total < whole.cpu_time_total


def test_threads_have_gradients_of_their_own(rank: int, peers: list[str]) -> None:
    """Many passes at once through one worker do not mix."""
    target = "worker0" if rank else peers[0]

    def work(seed: int) -> None:
        def compute(call: Call) -> Tensor:
            first = call(target, torch.add, (operands[0], operands[1]))
            second = call(target, torch.mul, (operands[1], first))
            return call(target, torch.matmul, (first, second)) + second  # type: ignore[no-any-return]

        operands = [dense(seed), dense(seed + 1)]
        assert_same_gradients(compute, synchronously, *operands)

    for working in [in_background(partial(work, seed)) for seed in range(12)]:
        working.result(LIMIT)
