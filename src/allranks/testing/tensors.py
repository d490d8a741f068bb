"""Helpers for tensors: ``assertEqual``, sparse tensors for reductions, and modules that save their inputs."""

import unittest
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn


class TensorEquality(unittest.TestCase):
    """A ``unittest.TestCase`` whose ``assertEqual`` and ``assertNotEqual`` compare tensors.

    Tensors, and mappings and sequences that contain tensors, are compared with :func:`torch.testing.assert_close`. The
    default tolerances depend on the dtype, NaN equals NaN, and the devices may differ. A number, or a list of numbers,
    is converted to a tensor if it is compared with one. Everything else is compared as in ``unittest.TestCase``.
    """

    def assertEqual(  # noqa: N802 - the name of unittest
        self,
        first: object,
        second: object,
        msg: object = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
    ) -> None:
        """Fail unless both values are equal.

        Args:
            first: The actual value.
            second: The expected value.
            msg: Additional text for the error message.
            atol: Absolute tolerance for tensors. If you set one tolerance, set both.
            rtol: Relative tolerance for tensors.

        Raises:
            AssertionError: The values differ.
        """
        if atol is None and not (_holds_tensor(first) or _holds_tensor(second)):
            super().assertEqual(first, second, msg)  # noqa: PT009 - unittest's own method
            return
        actual, expected = _to_tensors(first, second)
        if _are_identical(actual, expected):
            return
        try:
            torch.testing.assert_close(
                actual, expected, atol=atol, rtol=rtol, equal_nan=True, check_device=False, msg=_message_suffix(msg)
            )
        except TypeError as error:
            # assert_close raises this for types that it cannot compare with a tensor, so the values are not equal.
            raise self.failureException(self._formatMessage(_text(msg), str(error))) from None

    def assertNotEqual(self, first: object, second: object, msg: object = None) -> None:  # noqa: N802 - as above
        """Fail if both values are equal, by the rules of :meth:`assertEqual`."""
        if not (_holds_tensor(first) or _holds_tensor(second)):
            super().assertNotEqual(first, second, msg)  # noqa: PT009 - unittest's own method
            return
        try:
            self.assertEqual(first, second)  # noqa: PT009 - the method above
        except AssertionError:
            return
        raise self.failureException(self._formatMessage(_text(msg), f"{first!r} and {second!r} are equal"))


def _holds_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)


def _are_identical(first: object, second: object) -> bool:
    """Whether two tensors are identical. This is an optimization: the first call of ``assert_close`` takes a second."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    is_strided = first.layout == second.layout == torch.strided
    return is_strided and first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _to_tensors(first: object, second: object) -> tuple[object, object]:
    """Both values; if one is a tensor and the other is numeric, the other is converted to a tensor."""
    if isinstance(first, torch.Tensor) and not isinstance(second, torch.Tensor):
        return first, _like(second, first)
    if isinstance(second, torch.Tensor) and not isinstance(first, torch.Tensor):
        return _like(first, second), second
    return first, second


def _like(value: object, tensor: torch.Tensor) -> object:
    if isinstance(value, int | float | complex | list | tuple) and not _holds_tensor(value):
        return torch.tensor(value, dtype=tensor.dtype, device=tensor.device)
    return value


def _text(msg: object) -> str | None:
    return None if msg is None else str(msg)


def _message_suffix(msg: object) -> Callable[[str], str] | None:
    return None if msg is None else lambda text: f"{text}\n{msg}"


class SparseReduction(NamedTuple):
    """One test case for a sparse all-reduce.

    Attributes:
        inputs: The tensors that this rank reduces, in order: COO tensors of the same shape.
        outputs: The expected result for each input, a coalesced COO tensor: the sum over all ranks. All are equal.
    """

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    sparse_dims: int
    dense_dims: int


_LAYOUTS = (
    *(_Layout(sparse_dims=dims, dense_dims=0) for dims in (1, 2, 3)),
    *(_Layout(sparse_dims=1, dense_dims=dims) for dims in (1, 2, 3)),
)


def sparse_reduction_cases(
    rank: int,
    world_size: int,
    num_inputs: int = 1,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[SparseReduction]:
    """Test cases for the sum of sparse tensors over all ranks.

    There are six cases: one, two or three sparse dimensions without dense dimensions, and one sparse dimension with
    one, two or three dense dimensions.

    The tensor of rank ``r`` has ``r + 1`` entries with the value ``r + 1``, at the first indices of its first sparse
    dimension and at index 0 of the others. Any two ranks have entries in common, but no two ranks have the same
    entries, so a sum that omits a rank, or counts one twice, is wrong. With several inputs, input ``i`` of rank ``r``
    is the tensor that rank ``r * num_inputs + i`` would have with one input.

    With torch 2.13, gloo computes correct sums for float32, float64, bfloat16 and integers, raises an error for float16
    and bool, and silently computes **wrong** sums for complex numbers.

    Args:
        rank: This rank, from 0.
        world_size: The number of ranks.
        num_inputs: The number of tensors per rank.
        dtype: The dtype of the values. Sums are exact if it can represent the sum of 1 to ``world_size * num_inputs``.
        device: The device of the tensors.

    Returns:
        The cases in a fixed order; on all ranks, the outputs are the same.
    """
    total = world_size * num_inputs

    def case(layout: _Layout) -> SparseReduction:
        def make(index: int) -> torch.Tensor:
            return _sparse(index, total, layout, dtype, device)

        inputs = [make(rank * num_inputs + i) for i in range(num_inputs)]
        return SparseReduction(inputs, [_sum([make(index) for index in range(total)]) for _ in inputs])

    return [case(layout) for layout in _LAYOUTS]


def _sparse(index: int, total: int, layout: _Layout, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    entries = index + 1
    indices = torch.zeros((layout.sparse_dims, entries), dtype=torch.int64, device=device)
    indices[0] = torch.arange(entries, device=device)
    dense = [2] * layout.dense_dims
    values = torch.full([entries, *dense], index + 1, dtype=dtype, device=device)
    shape = [total] * layout.sparse_dims + dense
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def _sum(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum, computed with dense tensors, because torch cannot add sparse tensors of every dtype."""
    first = tensors[0]
    total = torch.stack([tensor.to_dense() for tensor in tensors]).sum(0, dtype=first.dtype)
    return total.to_sparse(first.sparse_dim()).coalesce()


ForwardInputs = MutableMapping[nn.Module, torch.Tensor]
"""The last input of each module."""

_WIDTH = 100


class SaveForwardInputsModule(nn.Module):
    """A linear layer that saves its last input, for example to check mixed precision under FSDP.

    Args:
        forward_inputs: A mapping in which each input is stored, with this module as the key.
        cast_forward_inputs: Whether to cast the input to the dtype of the weight, after storing it.

    Attributes:
        l: The layer, with 100 input and 100 output features.
    """

    def __init__(self, forward_inputs: ForwardInputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.l = nn.Linear(_WIDTH, _WIDTH)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Store ``x``, and apply the layer."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.l(x.to(self.l.weight.dtype) if self.cast_forward_inputs else x)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two :class:`SaveForwardInputsModule` in sequence; the model also saves its own input.

    Args:
        forward_inputs: A mapping in which the three inputs are stored, with the model and its modules as keys.
        cast_forward_inputs: Passed to both modules.

    Attributes:
        c1: The first module.
        c2: The second module.
    """

    def __init__(self, forward_inputs: ForwardInputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Store ``x``, and apply both modules."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.c2(self.c1(x))
        return result


def saved_dtypes(forward_inputs: Mapping[nn.Module, torch.Tensor]) -> dict[nn.Module, torch.dtype]:
    """The dtype of each saved input.

    Args:
        forward_inputs: The mapping that was passed to :class:`SaveForwardInputsModel` or its modules.

    Returns:
        The dtypes, by module.
    """
    return {module: saved.dtype for module, saved in forward_inputs.items()}
