"""The functions that the tests call on other workers."""

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed import rpc
from torch.distributed.rpc import RRef

from . import engine
from .calls import LIMIT, wait_for

_held: dict[object, Tensor] = {}
"""Tensors that this worker keeps for its callers, by context or another key that only one caller has."""


def add(first: Tensor, second: Tensor) -> Tensor:
    """The sum, by a function in Python."""
    return first + second


F = TypeVar("F", bound=Callable[..., Any])


def scripted(function: F) -> F:
    """The function in TorchScript, without torch's warning that this has no future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled: F = torch.jit.script(function)
    return compiled


@scripted
def scripted_add(first: Tensor, second: Tensor) -> Tensor:
    """The sum, by a function in TorchScript."""
    return torch.add(first, second)


def add_at_end(first: Tensor, second: Tensor, path: Sequence[str]) -> Tensor:
    """The sum, by the last worker of a path; each calls the next."""
    if not path:
        return first + second
    result: Tensor = rpc.rpc_sync(path[0], add_at_end, args=(first, second, path[1:]))
    return result


def assert_forgotten(context: int, workers: Sequence[str]) -> None:
    """The workers lose the context; asked without one."""
    for worker in workers:
        wait_for(partial(_is_forgotten, worker, context), f"{worker} forgets the context")


def _is_forgotten(worker: str, context: int) -> bool:
    return not rpc.rpc_sync(worker, engine.knows, args=(context,))


def hold(key: object, tensor: Tensor) -> Tensor:
    """Keep a tensor for later calls, and return it."""
    _held[key] = tensor
    return tensor


def held(key: object) -> Tensor:
    """The tensor of that key, given back."""
    return _held.pop(key)


def own_leaf(key: object, like: Tensor) -> Tensor:
    """A tensor of this worker that requires a gradient, with the numbers of ``like``."""
    return hold(key, like.detach().clone().requires_grad_())


def gradient_of_held(context: int, key: object) -> Tensor:
    """The gradient in the context of the tensor of that key, which is given back."""
    return engine.get_gradients(context)[held(key)]


def leaf(like: Tensor) -> Tensor:
    """A new tensor that requires a gradient, with the numbers of ``like``: the value of a reference."""
    return like.detach().clone().requires_grad_()


def gradient_of_reference(context: int, reference: RRef[Any]) -> Tensor:
    """The gradient in the context of the value that this worker owns."""
    return engine.get_gradients(context)[reference.local_value()]


def add_to_own(reference: RRef[Any], tensor: Tensor) -> Tensor:
    """The sum with a value that this worker owns."""
    result: Tensor = reference.local_value() + tensor
    return result


def have_owner_add(owner: str, reference: RRef[Any], tensor: Tensor) -> Tensor:
    """The sum with a value that another worker owns, computed there."""
    result: Tensor = rpc.rpc_sync(owner, add_to_own, args=(reference, tensor))
    return result


_faults: set[object] = set()


def plan_fault(key: object) -> None:
    """Let the backward passes through ``faulty`` fail on this worker, for that key."""
    _faults.add(key)


def heal(key: object) -> None:
    """Let them pass from now on."""
    _faults.discard(key)


class _Faulty(Function):
    """The identity; its backward pass fails while a fault is planned."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, key: object) -> Tensor:  # noqa: ANN401 - as torch calls it
        ctx.key = key
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - as torch calls it
        if ctx.key in _faults:
            msg = "the planned fault"
            raise ValueError(msg)
        return gradients[0], None


def faulty(tensor: Tensor, key: object) -> Tensor:
    """The same numbers; see ``plan_fault``."""
    result: Tensor = _Faulty.apply(tensor, key)  # type: ignore[no-untyped-call]
    return result


def add_faultily(first: Tensor, second: Tensor, key: object) -> Tensor:
    """The sum, through ``faulty``."""
    return faulty(first, key) + second


_releases: dict[object, threading.Event] = {}


def _release_of(key: object) -> threading.Event:
    return _releases.setdefault(key, threading.Event())  # atomic: two threads get the same event


def leaf_when_released(key: object, like: Tensor) -> Tensor:
    """A tensor that requires a gradient, once another call has released it."""
    assert _release_of(key).wait(LIMIT), "no call released the value"
    return leaf(like)


def release(key: object) -> None:
    """Let ``leaf_when_released`` return."""
    _release_of(key).set()
