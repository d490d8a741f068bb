"""Sparse tensors to reduce, and what their sum over all ranks is."""

from dataclasses import dataclass
from typing import NamedTuple

import torch


class SparseReduction(NamedTuple):
    """One case of a sparse reduction.

    Attributes:
        inputs: What this rank reduces, COO tensors of one shape, in order.
        outputs: The sum over all ranks of each, coalesced. All are equal.
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

    A rank's tensor has ``rank + 1`` entries of the value ``rank + 1``, at the first places of its first sparse
    dimension and at place 0 of the others. So any two ranks have an entry in common and no two have the same entries,
    and a sum that leaves out a rank, or counts one twice, is another. With several inputs, input ``i`` of rank ``r``
    is what rank ``r * num_inputs + i`` of so many more ranks would have.

    gloo of torch 2.13, measured: right for float32, float64, bfloat16 and integers; an error for float16 and bool;
    for **complex** types wrong and silent. Complex cases are made all the same, for backends that do better.

    Args:
        rank: This rank.
        world_size: How many ranks reduce.
        num_inputs: How many tensors each rank has.
        dtype: Of the values. Sums are exact as long as the type holds the sum of 1 to ``world_size * num_inputs``.
        device: Where the tensors are.

    Returns:
        The cases, the same on all ranks but for the inputs.
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
    """The sum, made dense on the way: adding sparse tensors of some types is not implemented."""
    first = tensors[0]
    total = torch.stack([tensor.to_dense() for tensor in tensors]).sum(0, dtype=first.dtype)
    return total.to_sparse(first.sparse_dim()).coalesce()
