"""Backward passes that torch refuses, with an error that gives the reason."""

from typing import Any

import pytest
import torch

from . import engine
from .calls import synchronously
from .operands import dense, total

UNKNOWN = 2**47
"""No context's id: the first worker would have it after so many contexts."""


def test_unknown_context(peer: str) -> None:
    """Outside of any context, a pass finds none."""
    result = synchronously(peer, torch.add, (dense(0), dense(1)))
    with pytest.raises(RuntimeError, match=f"Could not find autograd context with id: {UNKNOWN}"):
        engine.backward(UNKNOWN, [total(result)])


@pytest.mark.parametrize("is_known", [True, False], ids=["in_a_context", "without_a_context"])
def test_roots_that_are_no_list(is_known: bool) -> None:
    """A wrong type is a TypeError."""
    unchecked: Any = engine.backward
    with engine.context() as context, pytest.raises(TypeError, match="incompatible function arguments"):
        unchecked(context if is_known else None, None)


def test_no_roots() -> None:
    """There is nothing to begin with."""
    with engine.context() as context, pytest.raises(RuntimeError, match="No tensors provided"):
        engine.backward(context, [])


def test_root_that_requires_no_gradient() -> None:
    """It has no graph."""
    with engine.context() as context, pytest.raises(RuntimeError, match="requires_grad not set on"):
        engine.backward(context, [dense(0, requires_grad=False).sum()])


def test_root_with_several_numbers() -> None:
    """A root has one number."""
    with engine.context() as context, pytest.raises(RuntimeError, match="all roots need to be scalar"):
        engine.backward(context, [dense(0) * 2])


def test_root_without_a_graph() -> None:
    """A leaf is the result of nothing."""
    with (
        engine.context() as context,
        pytest.raises(RuntimeError, match="does not have a valid gradient function"),
    ):
        engine.backward(context, [torch.ones(1, requires_grad=True)])
