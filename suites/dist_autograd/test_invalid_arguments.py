"""Backward passes that torch refuses, with an error that gives the reason."""

from typing import Any

import pytest
import torch
from torch.distributed import autograd as dist_autograd

from .calls import synchronously
from .operands import dense, total

UNKNOWN = 2**47
"""No context's id: the first worker would have it after so many contexts."""


def test_unknown_context(peer: str) -> None:
    """Outside of any context, a pass finds none."""
    result = synchronously(peer, torch.add, (dense(0), dense(1)))
    with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {UNKNOWN}"):
        dist_autograd.backward(UNKNOWN, [total(result)])


@pytest.mark.parametrize("is_known", [True, False], ids=["in_a_context", "without_a_context"])
def test_roots_that_are_no_list(is_known: bool) -> None:
    """A wrong type is a TypeError."""
    unchecked: Any = dist_autograd.backward
    with dist_autograd.context() as context, pytest.raises(TypeError, match="incompatible function arguments"):
        unchecked(context if is_known else None, None)


def test_no_roots() -> None:
    """There is nothing to begin with."""
    with dist_autograd.context() as context, pytest.raises(RuntimeError, match="No tensors provided"):
        dist_autograd.backward(context, [])


def test_root_that_requires_no_gradient() -> None:
    """It has no graph."""
    with dist_autograd.context() as context, pytest.raises(RuntimeError, match="requires_grad not set on"):
        dist_autograd.backward(context, [dense(0, requires_grad=False).sum()])


def test_root_with_several_numbers() -> None:
    """A root has one number."""
    with dist_autograd.context() as context, pytest.raises(RuntimeError, match="all roots need to be scalar"):
        dist_autograd.backward(context, [dense(0) * 2])


def test_root_without_a_graph() -> None:
    """A leaf is the result of nothing."""
    with (
        dist_autograd.context() as context,
        pytest.raises(RuntimeError, match="does not have a valid gradient function"),
    ):
        dist_autograd.backward(context, [torch.ones(1, requires_grad=True)])
