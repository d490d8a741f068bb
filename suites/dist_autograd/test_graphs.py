"""The graph that a call records: what the caller sends and receives, and the part of each worker that it reaches."""

import pytest
import torch

from allranks.testing import require_world_size

from . import engine
from .calls import Call, any_call, synchronously
from .operands import Operand, any_layout, assert_equal
from .recorded import NOTHING, Recorded, recorded
from .remote_work import add, add_at_end

any_function = pytest.mark.parametrize("function", [torch.add, add], ids=["builtin", "python"])

CALLER = Recorded(("AccumulateGrad, AccumulateGrad",), 1)
"""It sends two leaves and receives a result."""

CALLEE = Recorded(("AddBackward0(RecvRpcBackward, RecvRpcBackward)",), 1)
"""It adds what it has received, and sends the sum."""

BETWEEN = Recorded(("RecvRpcBackward", "RecvRpcBackward, RecvRpcBackward"), 2)
"""It sends on the two that it has received, and sends back the result that it receives."""


@any_layout
@any_function
@any_call
def test_caller_records_what_it_sends_and_receives(peer: str, function: Operand, call: Call, operand: Operand) -> None:
    """The gradients of what is sent go to the operands themselves; the result's gradient goes to the receiving node."""
    operands = [operand(0), operand(1)]
    with engine.context() as context:
        result = call(peer, function, operands)
        assert recorded(context) == CALLER
        (send,) = engine.sends(context)
        assert all(edge.variable is one for (edge, _), one in zip(send.next_functions, operands, strict=True))
        (receive,) = engine.receives(context)
        assert result.grad_fn == receive


@any_layout
@any_function
@any_call
def test_callee_records_its_operation(peer: str, function: Operand, call: Call, operand: Operand) -> None:
    """Between the two messages is the operation, whose operands both come from the one message."""
    with engine.context() as context:
        result = call(peer, function, [operand(0), operand(1)])
        assert synchronously(peer, recorded, [context]) == CALLEE
        assert_equal(result, operand(0) + operand(1))


@require_world_size(3)
@any_layout
@any_call
def test_each_worker_of_a_chain_records_its_part(peers: list[str], call: Call, operand: Operand) -> None:
    """The first is the caller, the last computes, and those between pass on."""
    with engine.context() as context:
        result = call(peers[0], add_at_end, [operand(0), operand(1), peers[1:]])
        parts = [synchronously(worker, recorded, [context]) for worker in peers]
        assert parts == [BETWEEN] * (len(peers) - 1) + [CALLEE]
        assert recorded(context) == CALLER
        assert_equal(result, operand(0) + operand(1))


@any_layout
@any_call
def test_chain_back_to_the_caller_records_both_its_parts(
    peer: str, own_name: str, call: Call, operand: Operand
) -> None:
    """A worker that calls itself by way of another is the first and the last of the chain in one context."""
    with engine.context() as context:
        result = call(peer, add_at_end, [operand(0), operand(1), [own_name]])
        assert recorded(context) == Recorded(CALLER.sent + CALLEE.sent, 2)
        assert synchronously(peer, recorded, [context]) == BETWEEN
        assert_equal(result, operand(0) + operand(1))


@any_layout
@any_function
@any_call
def test_nothing_is_recorded_without_gradients(peer: str, function: Operand, call: Call, operand: Operand) -> None:
    """Where no tensor requires a gradient, neither side records anything."""
    with engine.context() as context:
        call(peer, function, [operand(number, requires_grad=False) for number in range(2)])
        assert recorded(context) == NOTHING
        assert synchronously(peer, recorded, [context]) == NOTHING


@any_layout
@any_call
def test_list_of_tensors_is_recorded(rank: int, world_size: int, peer: str, call: Call, operand: Operand) -> None:
    """Of the tensors in a container, those that require a gradient are recorded, in order."""
    tensors = [operand(number, requires_grad=number % 2 == 0) for number in range(7)]
    with engine.context() as context:
        assert_equal(call(peer, torch.stack, [tensors]), torch.stack(tensors))
        (send,) = engine.sends(context)
        leaves = [edge.variable for edge, _ in send.next_functions]
        assert [id(leaf) for leaf in leaves] == [id(tensor) for tensor in tensors[::2]]
        assert engine.known_workers(context) == {(rank + 1) % world_size}
