"""The tensors that the ranks exchange, and the exact comparison of what arrived."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGRAL = (torch.uint8, torch.int8, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
REAL = (*FLOATING, *INTEGRAL, torch.bool)
ALL_DTYPES = (*REAL, *COMPLEX)

since_torch_2_13 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="torch 2.13 introduced what it tests"
)


def dtype_name(dtype: torch.dtype) -> str:
    """The part of a test's id that names a dtype."""
    return str(dtype).removeprefix("torch.")


def payload(rank: int, *, device: torch.device, dtype: torch.dtype = torch.float32, count: int = 4) -> Tensor:
    """``count`` numbers that no other rank sends, none of which is a blank tensor's zero (bool: not all of which)."""
    if dtype == torch.bool:
        return torch.tensor([bool((rank + 1) >> bit & 1) for bit in range(count)], device=device)
    numbers = torch.arange(count, device=device) + 10 * (rank + 1)
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double()).to(dtype)
    return numbers.to(dtype)


def digits(rank: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Three numbers that no shorter dtype holds, and that no other rank sends."""
    if dtype.is_floating_point:
        sign = 1 if rank % 2 else -1
        return torch.tensor([1 / 3, 2 / 3, 4 / 3], device=device, dtype=dtype) * (sign << rank)
    largest = torch.full((3,), torch.iinfo(dtype).max, device=device, dtype=dtype)
    return largest - torch.arange(3, device=device).to(dtype) - 3 * rank


def blanks(like: Tensor, count: int) -> list[Tensor]:
    """``count`` tensors of zeros to receive into."""
    return [torch.zeros_like(like) for _ in range(count)]


def term(rank: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a rank puts into a reduction: numbers so small that 16 bits hold every sum and product of eight ranks.

    The first rank's numbers are those of no result over two ranks or more, whatever the reduction.
    """
    numbers = torch.tensor([rank % 2 + 1, rank % 3 + 1, 3 - rank % 2, rank % 4], device=device)
    if dtype == torch.bool:
        return numbers > 1
    if dtype.is_complex:
        return torch.complex(numbers.double(), -numbers.double()).to(dtype)
    return numbers.to(dtype)


def terms(world_size: int, *, device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What each rank puts into a reduction, by rank."""
    return [term(rank, device=device, dtype=dtype) for rank in range(world_size)]


@dataclass(frozen=True)
class Reduction:
    """A reduce op, and our own way to work out its result.

    Args:
        op: torch's name for it.
        fold: Takes the ranks' tensors, stacked in dimension 0 and in the widest dtype of their kind, to the result.
    """

    op: dist.ReduceOp.RedOpType
    fold: Callable[[Tensor], Tensor]

    def __str__(self) -> str:
        """The part of a test's id that names the op."""
        return self.op.name

    def of(self, parts: Sequence[Tensor]) -> Tensor:
        """The result over ``parts``, one tensor from each rank, in their dtype."""
        dtype = parts[0].dtype
        return self.fold(torch.stack(list(parts)).to(_widest(dtype))).to(dtype)


def _widest(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.int64


def _fold_pairs(function: Callable[[Tensor, Tensor], Tensor], stacked: Tensor) -> Tensor:
    return reduce(function, stacked.unbind(0))


SUM = Reduction(dist.ReduceOp.SUM, partial(torch.sum, dim=0))
AVG = Reduction(dist.ReduceOp.AVG, partial(torch.mean, dim=0))
PRODUCT = Reduction(dist.ReduceOp.PRODUCT, partial(torch.prod, dim=0))
MIN = Reduction(dist.ReduceOp.MIN, partial(torch.amin, dim=0))
MAX = Reduction(dist.ReduceOp.MAX, partial(torch.amax, dim=0))
BAND = Reduction(dist.ReduceOp.BAND, partial(_fold_pairs, torch.bitwise_and))
BOR = Reduction(dist.ReduceOp.BOR, partial(_fold_pairs, torch.bitwise_or))
BXOR = Reduction(dist.ReduceOp.BXOR, partial(_fold_pairs, torch.bitwise_xor))


def assert_equal(actual: Tensor | Sequence[object] | None, expected: Tensor | Sequence[object] | None) -> None:
    """The tensors, or lists of tensors, have the same shape, dtype, device and numbers, to the last bit."""
    _compare(actual, expected, rtol=0)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Like :func:`assert_equal`, but within the rounding of the dtype: backends do not round an average alike."""
    _compare(actual, expected, rtol=4 * torch.finfo(expected.dtype).eps)


# Not torch.testing.assert_close: its first call imports DTensor and sympy, most of a second for each rank of each file.
def _compare(actual: object, expected: object, rtol: float) -> None:
    if isinstance(expected, Sequence):
        assert isinstance(actual, Sequence), f"{actual} is no list"
        assert len(actual) == len(expected), f"{len(actual)} tensors, not {len(expected)}"
        for one, other in zip(actual, expected, strict=True):
            _compare(one, other, rtol)
    elif isinstance(expected, Tensor):
        assert isinstance(actual, Tensor), f"{actual} is no tensor"
        assert (actual.shape, actual.dtype, actual.device) == (expected.shape, expected.dtype, expected.device)
        assert torch.isclose(actual, expected, rtol=rtol, atol=0, equal_nan=True).all(), f"{actual} is not {expected}"
    else:
        assert actual is expected


def everyone(value: T) -> list[T]:
    """What each rank holds, by rank: a collective of all ranks, for tests that compare ranks with each other."""
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
