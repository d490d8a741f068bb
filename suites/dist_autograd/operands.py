"""The tensors that the tests send, dense and sparse, and the exact comparison of gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from . import engine
from .calls import Call, locally, name_of

Operand = Callable[..., Tensor]


def dense(number: int, *, requires_grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    """A matrix of integers from -2 to 2, different for each number."""
    entries = (torch.arange(9) * (number + 2) + number) % 5 - 2
    return entries.reshape(3, 3).to(dtype).requires_grad_(requires_grad)


def sparse(number: int, *, requires_grad: bool = True, dtype: torch.dtype = torch.float32) -> Tensor:
    """A sparse matrix with an entry that is there twice, and values that are different for each number."""
    positions = torch.tensor([[0, 1, 1, 2], [2, 0, 0, 2]])
    values = torch.tensor([number + 1, 2, -number, 3], dtype=dtype)
    return torch.sparse_coo_tensor(positions, values, (3, 3), check_invariants=True).requires_grad_(requires_grad)


any_layout = pytest.mark.parametrize("operand", [dense, sparse], ids=name_of)


def total(tensor: Tensor) -> Tensor:
    """The sum of all entries: a root for a backward pass."""
    return torch.sparse.sum(tensor) if tensor.is_sparse else tensor.sum()


def assert_equal(actual: object, expected: Tensor) -> None:
    """The same layout, shape, dtype, device and numbers, to the last bit."""
    assert isinstance(actual, Tensor), f"{actual} is no tensor"
    kinds = [(each.layout, each.shape, each.dtype, each.device) for each in (actual, expected)]
    assert kinds[0] == kinds[1]
    assert torch.equal(_plain(actual), _plain(expected)), f"{actual} is not {expected}"


def _plain(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    return detached.to_dense() if detached.is_sparse else detached


def local_gradients(result: Tensor, tensors: Sequence[Tensor], passes: int = 1) -> list[Tensor | None]:
    """What ``passes`` backward passes of torch's own autograd add up to; None where no gradient arrives."""
    needing = [tensor for tensor in tensors if tensor.requires_grad]
    found: Any = torch.autograd.grad(total(result), needing, allow_unused=True)
    by_tensor: Mapping[int, Tensor | None] = {id(tensor): each for tensor, each in zip(needing, found, strict=True)}
    gradients = [by_tensor.get(id(tensor)) for tensor in tensors]
    return [None if each is None else each * passes for each in gradients]


def assert_gradients(context: int, tensors: Sequence[Tensor], expected: Sequence[Tensor | None]) -> None:
    """The context has these gradients on this worker, and no others."""
    found = engine.get_gradients(context)
    for tensor, gradient in zip(tensors, expected, strict=True):
        if gradient is None:
            assert tensor not in found, f"there is a gradient for {tensor}"
        else:
            assert_equal(found.get(tensor), gradient)
    assert len(found) == sum(each is not None for each in expected)


def assert_same_gradients(compute: Callable[[Call], Tensor], call: Call, *tensors: Tensor) -> None:
    """A function of ``tensors`` has the same gradients with calls of other workers as without."""
    expected = local_gradients(compute(locally), tensors)
    with engine.context() as context:
        engine.backward(context, [total(compute(call))])
        assert_gradients(context, tensors, expected)
