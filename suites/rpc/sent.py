"""Values and functions that several test files send, and decorators for the latter."""

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.distributed import rpc

from allranks.testing import worker_name

P = ParamSpec("P")
R = TypeVar("R")


def async_execution(function: Callable[P, R]) -> Callable[P, R]:
    """The decorator of torch, with types: the caller gets what the returned future will hold."""
    decorated: Callable[P, R] = rpc.functions.async_execution(function)  # type: ignore[no-untyped-call]
    return decorated


def scripted(function: Callable[P, R]) -> Callable[P, R]:
    """A function in TorchScript, without the warning of torch that this is out of date."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        made: Callable[P, R] = torch.jit.script(function)
    return made


def worker_after(rank: int, world_size: int, steps: int = 1) -> str:
    """The worker some steps further around the circle; in a small world this can be the caller itself."""
    return worker_name((rank + steps) % world_size)


def numbers_of(rank: int) -> Tensor:
    """Numbers that no other rank sends."""
    return torch.tensor([1.0, 2.0, 3.0]) + 10 * (rank + 1)


def sparse_of(rank: int) -> Tensor:
    """A sparse tensor that no other rank sends, with one index twice: it is not coalesced."""
    values = torch.tensor([3.0, 4.0, 5.0, 6.0]) + 10 * (rank + 1)
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1, 1], [2, 0, 2, 2]]), values, (2, 3))


def same(actual: Tensor, expected: Tensor) -> bool:
    """Whether both have one shape and dtype, and equal numbers."""
    return actual.dtype == expected.dtype and torch.equal(actual, expected)


def added(one: Tensor, other: Tensor) -> Tensor:
    """A Python function with one operator in it."""
    return torch.add(one, other)


def refuse() -> None:
    """Raise an error that names the callee.

    Raises:
        ValueError: Always.
    """
    msg = f"refused by {rpc.get_worker_info().name}"
    raise ValueError(msg)
