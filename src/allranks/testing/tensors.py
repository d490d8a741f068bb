"""Tensors in tests: ``assertEqual``, sparse tensors to reduce, and modules that save their inputs."""

import unittest
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn


class TensorEquality(unittest.TestCase):
    """A ``unittest.TestCase`` whose ``assertEqual`` and ``assertNotEqual`` compare tensors.

    Tensors, and mappings and sequences that contain tensors, are compared with :func:`torch.testing.assert_close`:
    within the tolerances of their types, NaN equal to NaN, on any device. A number, or a list of numbers, is converted
    to a tensor's type to be compared with it. Everything else is compared as unittest does.
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
        """Fail unless both are equal.

        Args:
            first: The actual value.
            second: The expected value.
            msg: Further text for the error.
            atol: Absolute tolerance for tensors; give both or none.
            rtol: Relative tolerance for tensors.
        """
        if atol is None and not (_holds_tensor(first) or _holds_tensor(second)):
            super().assertEqual(first, second, msg)  # noqa: PT009 - this is unittest's own
            return
        actual, expected = _alike(first, second)
        if _is_same(actual, expected):
            return
        try:
            torch.testing.assert_close(
                actual, expected, atol=atol, rtol=rtol, equal_nan=True, check_device=False, msg=_with_words(msg)
            )
        except TypeError as error:
            # assert_close raises this for types that it cannot compare with a tensor: they are never equal to one.
            raise self.failureException(self._formatMessage(_text(msg), str(error))) from None

    def assertNotEqual(self, first: object, second: object, msg: object = None) -> None:  # noqa: N802 - as above
        """Fail if both are equal."""
        if not (_holds_tensor(first) or _holds_tensor(second)):
            super().assertNotEqual(first, second, msg)  # noqa: PT009 - this is unittest's own
            return
        try:
            self.assertEqual(first, second)  # noqa: PT009 - this is the method above
        except AssertionError:
            return
        raise self.failureException(self._formatMessage(_text(msg), f"{first!r} and {second!r} are equal"))


def _holds_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)


def _is_same(first: object, second: object) -> bool:
    """Whether two tensors are identical: a shortcut, because the first ``assert_close`` takes a second to import."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    is_plain = first.layout == second.layout == torch.strided
    return is_plain and first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _alike(first: object, second: object) -> tuple[object, object]:
    """Both values, converted to tensors if one is a tensor and the other is numeric."""
    if isinstance(first, torch.Tensor) and not isinstance(second, torch.Tensor):
        return first, _like(second, first)
    if isinstance(second, torch.Tensor) and not isinstance(first, torch.Tensor):
        return _like(first, second), second
    return first, second


def _like(value: object, tensor: torch.Tensor) -> object:
    if isinstance(value, int | float | complex | list | tuple) and not _holds_tensor(value):
        return torch.tensor(value, dtype=tensor.dtype, device=tensor.device)
    return value


def _text(words: object) -> str | None:
    return None if words is None else str(words)


def _with_words(words: object) -> Callable[[str], str] | None:
    return None if words is None else lambda text: f"{text}\n{words}"


class SparseReduction(NamedTuple):
    """One case of a sparse reduction.

    Attributes:
        inputs: The tensors that this rank reduces, in order: COO tensors of one shape.
        outputs: The sum of each over all ranks, coalesced. All are equal.
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
    """Cases for a sum over sparse tensors: one to three sparse dimensions, and none to three dense ones.

    A rank's tensor has ``rank + 1`` entries of the value ``rank + 1``, at the first indices of its first sparse
    dimension and at index 0 of the others. So any two ranks share an entry, but no two have the same entries, and a sum
    that omits a rank, or counts one twice, is different. With several inputs, input ``i`` of rank ``r`` is the tensor
    that rank ``r * num_inputs + i`` would have in a world that many times larger.

    gloo of torch 2.13, measured: correct for float32, float64, bfloat16 and integers; an error for float16 and bool;
    silently wrong for **complex** types. Complex cases are created all the same, for backends that do better.

    Args:
        rank: This rank.
        world_size: The number of ranks.
        num_inputs: The number of tensors per rank.
        dtype: The type of the values. Sums are exact if it can represent the sum of 1 to ``world_size * num_inputs``.
        device: The device of the tensors.

    Returns:
        The cases, equal on all ranks except for the inputs.
    """
    total = world_size * num_inputs

    def case(layout: _Layout) -> SparseReduction:
        def make(place: int) -> torch.Tensor:
            return _sparse(place, total, layout, dtype, device)

        inputs = [make(rank * num_inputs + i) for i in range(num_inputs)]
        return SparseReduction(inputs, [_sum([make(place) for place in range(total)]) for _ in inputs])

    return [case(layout) for layout in _LAYOUTS]


def _sparse(place: int, total: int, layout: _Layout, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    entries = place + 1
    indices = torch.zeros((layout.sparse_dims, entries), dtype=torch.int64, device=device)
    indices[0] = torch.arange(entries, device=device)
    dense = [2] * layout.dense_dims
    values = torch.full([entries, *dense], place + 1, dtype=dtype, device=device)
    shape = [total] * layout.sparse_dims + dense
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


def _sum(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum, computed densely: adding sparse tensors of some types is not implemented."""
    first = tensors[0]
    total = torch.stack([tensor.to_dense() for tensor in tensors]).sum(0, dtype=first.dtype)
    return total.to_sparse(first.sparse_dim()).coalesce()


ForwardInputs = MutableMapping[nn.Module, torch.Tensor]
"""The last input of each module."""

_WIDTH = 100


class SaveForwardInputsModule(nn.Module):
    """A linear layer that saves its input.

    Args:
        forward_inputs: Gets the input under this module.
        cast_forward_inputs: Cast the input to the type of the weight, after it was saved.

    Attributes:
        l: The layer, of 100 features.
    """

    def __init__(self, forward_inputs: ForwardInputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.l = nn.Linear(_WIDTH, _WIDTH)
        self.forward_inputs = forward_inputs
        self.cast_forward_inputs = cast_forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Save ``x``, and apply the layer."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.l(x.to(self.l.weight.dtype) if self.cast_forward_inputs else x)
        return result


class SaveForwardInputsModel(nn.Module):
    """Two :class:`SaveForwardInputsModule`, one after the other; saves its own input, too.

    Args:
        forward_inputs: Gets the three inputs, each under its module.
        cast_forward_inputs: As of both modules.

    Attributes:
        c1: The first module.
        c2: The second one.
    """

    def __init__(self, forward_inputs: ForwardInputs, cast_forward_inputs: bool) -> None:
        super().__init__()
        self.c1 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.c2 = SaveForwardInputsModule(forward_inputs, cast_forward_inputs)
        self.forward_inputs = forward_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Save ``x``, and apply both modules."""
        self.forward_inputs[self] = x
        result: torch.Tensor = self.c2(self.c1(x))
        return result


def saved_dtypes(forward_inputs: Mapping[nn.Module, torch.Tensor]) -> dict[nn.Module, torch.dtype]:
    """The type of each saved input, by module."""
    return {module: saved.dtype for module, saved in forward_inputs.items()}
