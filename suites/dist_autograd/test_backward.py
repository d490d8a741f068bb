"""Backward passes: the gradients are those of the same function without calls."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from . import engine
from .calls import Call, any_call, locally, synchronously
from .operands import (
    Operand,
    any_layout,
    assert_equal,
    assert_gradients,
    assert_same_gradients,
    dense,
    local_gradients,
    sparse,
    total,
)
from .remote_work import add, add_at_end, gradient_of_held, own_leaf, scripted_add


@any_layout
@any_call
@pytest.mark.parametrize("function", [torch.add, add, scripted_add], ids=["builtin", "python", "script"])
def test_operands_of_a_call(peer: str, function: Operand, call: Call, operand: Operand) -> None:
    """Both operands get their gradients, whatever the function is written in."""
    operands = operand(0), operand(1)
    assert_same_gradients(lambda way: way(peer, function, operands), call, *operands)


@any_layout
@any_call
def test_operands_of_a_call_to_oneself(own_name: str, call: Call, operand: Operand) -> None:
    """A worker is a peer of its own."""
    operands = operand(0), operand(1)
    assert_same_gradients(lambda way: way(own_name, torch.add, operands), call, *operands)


@any_layout
@any_call
def test_gradient_attributes_are_left_alone(peer: str, call: Call, operand: Operand) -> None:
    """A pass writes into its context, and never into ``grad``."""
    operands = operand(0), operand(1)
    with engine.context() as context:
        root = total(call(peer, torch.add, operands))
        engine.backward(context, [root], retain_graph=True)
        assert [one.grad for one in operands] == [None, None]
        total(operands[0] + operands[1]).backward()  # type: ignore[no-untyped-call]
        before = [one.grad.clone() for one in operands if one.grad is not None]
        engine.backward(context, [root])
        for one, gradient in zip(operands, before, strict=True):
            assert_equal(one.grad, gradient)


def assert_same_after_round_trips(
    peers: list[str], call: Call, make: Callable[..., Tensor], products: Sequence[Callable[..., Tensor]]
) -> None:
    """Compute with tensors of one kind in turn on all peers, and multiply stacks of them and the result by itself."""
    needing, plain = [make(number) for number in range(3)], [make(number, requires_grad=False) for number in (3, 4)]

    of_stacks, of_result = products

    def compute(way: Call) -> Tensor:
        workers = itertools.cycle(peers)
        value = way(next(workers), torch.add, (needing[0], plain[0]))
        value = way(next(workers), torch.mul, (needing[1], value))
        first = way(next(workers), torch.stack, ([plain[1], value],))
        second = way(next(workers), torch.stack, ([needing[2], value],))
        value = way(next(workers), of_stacks, (first, second))
        return way(next(workers), of_result, (value, value))  # type: ignore[no-any-return]

    assert_same_gradients(compute, call, *needing, *plain)


@any_call
def test_round_trips_to_all_workers(peers: list[str], call: Call) -> None:
    """Results of some workers are operands of others, and some are used twice."""
    assert_same_after_round_trips(peers, call, dense, (torch.bmm, torch.matmul))


@any_call
def test_round_trips_of_sparse_tensors(peers: list[str], call: Call) -> None:
    """The same with sparse tensors, as far as these can be multiplied."""
    assert_same_after_round_trips(peers, call, sparse, (torch.mul, torch.mul))


@any_call
def test_operands_of_different_shapes(peers: list[str], call: Call) -> None:
    """Shapes change on the way there, and back."""
    shapes = [(4, 6), (6, 5), (5, 7), (7, 9)]
    tensors = [
        (torch.arange(rows * columns) % 3 - 1.0).reshape(rows, columns).requires_grad_(number % 2 == 0)
        for number, (rows, columns) in enumerate(shapes)
    ]

    def compute(way: Call) -> Tensor:
        value = way(peers[0], torch.matmul, tensors[:2])
        return way(peers[-1], torch.linalg.multi_dot, ([value, *tensors[2:]],))  # type: ignore[no-any-return]

    assert_same_gradients(compute, call, *tensors)


@any_call
def test_operand_that_the_result_does_not_use(peers: list[str], call: Call) -> None:
    """What was sent and not used has the gradient that it has without calls: zeros where it was stacked."""
    tensors = [dense(number) for number in range(3)]

    def compute(way: Call) -> Tensor:
        stacked = way(peers[0], torch.stack, (tensors,))
        return way(peers[-1], torch.matmul, (stacked.narrow(0, 0, 1), stacked.narrow(0, 2, 1)))  # type: ignore[no-any-return]

    assert_same_gradients(compute, call, *tensors)


@any_call
def test_some_of_several_results(peers: list[str], call: Call) -> None:
    """A call may return several tensors, of which the loss need not use all."""
    tensor = (torch.arange(20) % 5 - 2.0).reshape(10, 2).requires_grad_()

    def compute(way: Call) -> Tensor:
        pieces = way(peers[0], torch.split, (tensor, 2))
        return way(peers[-1], torch.linalg.multi_dot, ([pieces[0], pieces[2], pieces[4]],))  # type: ignore[no-any-return]

    assert_same_gradients(compute, call, tensor)


@any_layout
@any_call
def test_operands_of_different_dtypes(peer: str, call: Call, operand: Operand) -> None:
    """Each gradient has the dtype of its tensor, and not that of the sum."""
    operands = operand(0, dtype=torch.float32), operand(1, dtype=torch.float64)
    assert_same_gradients(lambda way: way(peer, torch.add, operands), call, *operands)


def entangle(first: Tensor, second: Tensor) -> Tensor:
    """A result whose gradient takes many steps."""
    third = linear(first, second)
    fourth = linear(second, third)
    return torch.linalg.multi_dot([first, second, third, fourth])  # type: ignore[no-any-return]


@any_call
def test_function_of_many_steps(peer: str, call: Call) -> None:
    """All that a Python function does on the other worker has its gradients."""
    operands = dense(0, dtype=torch.float64), dense(1, dtype=torch.float64)
    assert_same_gradients(lambda way: way(peer, entangle, operands), call, *operands)


def mix(first: Tensor, second: Tensor, way: Call, worker: str) -> Tensor:
    """A product of sums and products, one of which another worker adds."""
    product, both = first * second, first + second
    result: Tensor = product * both * way(worker, add, (product, both))
    return result


@any_layout
@any_call
def test_call_within_a_call(peers: list[str], call: Call, operand: Operand) -> None:
    """A called function calls another worker on, and uses what it sent itself as well."""
    operands = operand(0), operand(1)
    assert_same_gradients(lambda way: way(peers[0], mix, (*operands, way, peers[-1])), call, *operands)


def multiply_if_plain(first: Tensor, second: Tensor) -> Tensor:
    """The product, if the second operand needs no gradient here, else the difference."""
    return first - second if second.requires_grad else first * second


@any_layout
@any_call
def test_callee_sees_which_operands_need_gradients(peer: str, call: Call, operand: Operand) -> None:
    """Only those that do get one."""
    operands = operand(0), operand(1, requires_grad=False)
    with engine.context() as context:
        result = call(peer, multiply_if_plain, operands)
        assert_equal(result.coalesce() if result.is_sparse else result, _product(*operands))
        engine.backward(context, [total(result)])
        assert [one.requires_grad for one in operands] == [True, False]
        assert_gradients(context, operands, local_gradients(operands[0] * operands[1], operands))


def _product(first: Tensor, second: Tensor) -> Tensor:
    product = (first * second).detach()
    return product.coalesce() if product.is_sparse else product


@any_call
def test_several_roots(peers: list[str], call: Call) -> None:
    """Their gradients add up."""
    operands = dense(0), dense(1)

    def roots(way: Call) -> list[Tensor]:
        functions: list[Callable[..., Any]] = [torch.add, torch.mul, torch.sub, torch.matmul]
        return [
            total(way(peer, function, operands))
            for peer, function in zip(itertools.cycle(peers), functions, strict=False)
        ]

    expected = local_gradients(torch.stack(roots(locally)), operands)
    with engine.context() as context:
        engine.backward(context, roots(call))
        assert_gradients(context, operands, expected)


def test_pass_without_any_call() -> None:
    """A graph of this worker alone has its gradients in the context, too."""
    operands = dense(0), dense(1)
    with engine.context() as context:
        engine.backward(context, [total(operands[0] * operands[1])])
        assert_gradients(context, operands, local_gradients(operands[0] * operands[1], operands))


@any_call
def test_tensor_of_the_callee(peer: str, call: Call) -> None:
    """A tensor that a worker has and returns gets its gradient there, though the caller sent none."""
    with engine.context() as context:
        result = call(peer, own_leaf, (context, dense(0, requires_grad=False)))
        engine.backward(context, [total(result * 3)])
        assert_gradients(context, [], [])
        assert_equal(synchronously(peer, gradient_of_held, (context, context)), torch.full((3, 3), 3.0))


def test_two_passes_add_up(peer: str) -> None:
    """In one context, gradients accumulate."""
    operands = dense(0), dense(1)
    with engine.context() as context:
        root = total(synchronously(peer, torch.matmul, operands))
        engine.backward(context, [root], retain_graph=True)
        engine.backward(context, [root])
        assert_gradients(context, operands, local_gradients(operands[0] @ operands[1], operands, passes=2))


@any_layout
def test_two_passes_through_a_chain_add_up(peers: list[str], own_name: str, operand: Operand) -> None:
    """Gradients accumulate behind a nested call as well."""
    operands = operand(0), operand(1)
    with engine.context() as context:
        root = total(synchronously(peers[0], add_at_end, (*operands, [*peers[1:], own_name])))
        engine.backward(context, [root], retain_graph=True)
        engine.backward(context, [root])
        assert_gradients(context, operands, local_gradients(operands[0] + operands[1], operands, passes=2))


@any_layout
def test_many_passes_over_one_graph(peer: str, operand: Operand) -> None:
    """A graph that is retained can be passed again and again."""
    operands = operand(0), operand(1)
    with engine.context() as context:
        root = total(synchronously(peer, torch.add, operands))
        for _ in range(100):
            engine.backward(context, [root], retain_graph=True)
        assert_gradients(context, operands, local_gradients(operands[0] + operands[1], operands, passes=100))


@any_call
def test_hook_of_a_tensor_changes_its_gradient(peer: str, call: Call) -> None:
    """What a hook returns is what the context has."""
    operands = dense(0), dense(1)
    expected = local_gradients(operands[0] @ operands[1], operands)
    operands[0].register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    assert expected[0] is not None
    with engine.context() as context:
        engine.backward(context, [total(call(peer, torch.matmul, operands))])
        assert_gradients(context, operands, [expected[0] * 2, expected[1]])


@any_call
def test_hooks_after_accumulation_run_once_each(peer: str, call: Call) -> None:
    """All hooks of the node that accumulates a gradient run, in order."""
    tensor = dense(0)
    accumulate: Any = (tensor + tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    ran: list[str] = []
    for name in ("first", "second", "third"):
        accumulate.register_hook(lambda *_, name=name: ran.append(name))
    with engine.context() as context:
        engine.backward(context, [total(call(peer, torch.add, (tensor, tensor)))])
        assert ran == ["first", "second", "third"]
        assert_gradients(context, [tensor], [torch.full((3, 3), 2.0)])
