"""Values that other workers own: their gradients stay with the owner."""

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.distributed.rpc import RRef, rpc_async, rpc_sync
from torch.nn import EmbeddingBag

from allranks.testing import worker_name

from . import engine
from .calls import LIMIT, Call, any_call, in_background, name_of, synchronously, wait_for
from .operands import Operand, any_layout, assert_equal, dense, local_gradients, sparse, total
from .remote_work import (
    add_to_own,
    gradient_of_reference,
    have_owner_add,
    leaf,
    leaf_when_released,
    release,
    scripted,
)


def assert_gradients_on_both_sides(call: Call, owner: str, callee: str, operand: Operand) -> None:
    """The caller has the gradient of its tensor, and the owner that of its value."""
    value, tensor = operand(0), operand(1)
    expected = local_gradients(value + tensor, [value, tensor])
    with engine.context() as context:
        reference = rpc.remote(owner, leaf, args=(value.detach(),))
        if callee == owner:
            result = call(owner, add_to_own, (reference, tensor))
        else:
            result = call(callee, have_owner_add, (owner, reference, tensor))
        engine.backward(context, [total(result)])
        of_tensor = engine.get_gradients(context)[tensor]
        of_value = synchronously(owner, gradient_of_reference, (context, reference))
    for gradient, one in zip([of_value, of_tensor], expected, strict=True):
        assert one is not None
        assert_equal(gradient, one)


@any_layout
@any_call
def test_value_of_the_callee(peer: str, call: Call, operand: Operand) -> None:
    """The callee computes with its own value."""
    assert_gradients_on_both_sides(call, peer, peer, operand)


@any_layout
@any_call
def test_values_of_one_worker_for_all_others(rank: int, call: Call, operand: Operand) -> None:
    """The first worker owns a value for each of the others, and their contexts do not mix."""
    if rank > 0:
        assert_gradients_on_both_sides(call, worker_name(0), worker_name(0), operand)


@any_layout
@any_call
def test_value_of_a_third_worker(rank: int, world_size: int, peer: str, call: Call, operand: Operand) -> None:
    """The callee hands the reference to the owner; in a world of two, the owner is the caller."""
    owner = worker_name((rank + 2) % world_size)
    assert_gradients_on_both_sides(call, owner, peer, operand)


@scripted
def scripted_leaf(like: Tensor) -> Tensor:
    """A value like ``leaf``, which only a script can make for another script: it has a type there."""
    return like.detach().clone().requires_grad_()


@scripted
def scripted_add_to_own(reference: RRef[Tensor], tensor: Tensor) -> Tensor:
    """The sum with a value that the worker owns, by a function in TorchScript."""
    return torch.add(reference.to_here(), tensor)


FUNCTIONS = {"python": (leaf, add_to_own), "script": (scripted_leaf, scripted_add_to_own)}
"""What makes the server's value, and what computes with it, by a name that can be sent: a script cannot."""


def train(server: str, reference: RRef[Tensor], tensor: Tensor, kind: str) -> Tensor:
    """One step of a trainer; returns the gradient that the server has for it."""
    with engine.context() as context:
        result = rpc_sync(server, FUNCTIONS[kind][1], args=(reference, tensor))
        engine.backward(context, [total(result)])
        gradient: Tensor = rpc_sync(server, gradient_of_reference, args=(context, reference)).detach()
        return gradient


def assert_trainers_agree(server: str, trainers: list[str], operand: Operand, kind: str) -> None:
    """Each trainer's context has the whole gradient of that trainer, and nothing of the others."""
    value = operand(0)
    reference = rpc.remote(server, FUNCTIONS[kind][0], args=(value.detach(),))
    tensors = [operand(number) for number in range(1, len(trainers) + 1)]
    running = [
        rpc_async(trainer, train, args=(server, reference, tensor.detach().requires_grad_(), kind))
        for trainer, tensor in zip(trainers, tensors, strict=True)
    ]
    for trained, tensor in zip(running, tensors, strict=True):
        (expected,) = local_gradients(value + tensor, [value])
        assert expected is not None
        assert_equal(trained.wait(), expected)


@any_layout
def test_trainers_of_a_parameter_server(own_name: str, peers: list[str], operand: Operand) -> None:
    """Each worker serves a parameter to all others at the same time."""
    assert_trainers_agree(own_name, peers, operand, "python")


def test_trainers_that_call_a_script(own_name: str, peers: list[str]) -> None:
    """The same where the server computes in TorchScript."""
    assert_trainers_agree(own_name, peers, dense, "script")


def embed(reference: RRef[EmbeddingBag], *arguments: Tensor) -> Tensor:
    """What the worker's own embedding makes of it."""
    result: Tensor = reference.local_value()(*arguments)
    return result


def weight(reference: RRef[EmbeddingBag]) -> Tensor:
    """The numbers of the embedding."""
    return reference.local_value().weight.detach()  # type: ignore[no-any-return]


def gradient_of_weight(context: int, reference: RRef[EmbeddingBag]) -> Tensor:
    """The embedding's gradient in the context."""
    return engine.get_gradients(context)[reference.local_value().weight]


def test_sparse_gradients_of_an_embedding_add_up(peer: str) -> None:
    """Of the operands only the weights of the samples require a gradient; the embedding's is sparse, also twice."""
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4])
    samples = (torch.arange(8) % 3 + 1.0).requires_grad_()
    reference = rpc.remote(peer, EmbeddingBag, args=(16, 4), kwargs={"mode": "sum", "sparse": True})
    local = EmbeddingBag(16, 4, mode="sum", sparse=True, _weight=synchronously(peer, weight, (reference,)))
    for _ in range(2):
        local(indices, offsets, samples).sum().backward()
    with engine.context() as context:
        root = synchronously(peer, embed, (reference, indices, offsets, samples)).sum()
        engine.backward(context, [root], retain_graph=True)
        engine.backward(context, [root])
        gradient = synchronously(peer, gradient_of_weight, (context, reference))
    assert local.weight.grad is not None
    assert gradient.is_sparse
    assert_equal(gradient.coalesce(), local.weight.grad.coalesce())


def active_calls() -> int:
    """The number of this worker's calls that have no answer yet."""
    agent = rpc.api._get_current_rpc_agent()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way
    return int(agent.get_debug_info()["agent.client_active_calls"])


@pytest.mark.parametrize("operand", [dense, sparse], ids=name_of)
def test_value_that_is_late_has_the_context_of_who_asked(rank: int, peer: str, operand: Operand) -> None:
    """The value is made by a call outside of any context, and fetched within one before it is there."""
    key = f"{rank} {name_of(operand)}"
    value = operand(0)
    reference = rpc.remote(peer, leaf_when_released, args=(key, value.detach()))

    def release_when_asked() -> None:
        try:
            # One call makes the value, and the other asks for it.
            wait_for(lambda: active_calls() >= 2, "the value is asked for")
        finally:
            synchronously(peer, release, (key,))

    (expected,) = local_gradients(value * 1, [value])
    assert expected is not None
    with engine.context() as context:
        released = in_background(release_when_asked)
        result = reference.to_here(LIMIT)
        released.result(LIMIT)
        engine.backward(context, [total(result)])
        assert_equal(synchronously(peer, gradient_of_reference, (context, reference)), expected)
