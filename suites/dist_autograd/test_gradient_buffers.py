"""The memory of gradients: taken over where nobody else uses it, else copied."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import embedding_bag

from . import engine
from .operands import assert_equal


def address(gradient: Tensor) -> int:
    """Where its numbers are."""
    return (gradient._values() if gradient.is_sparse else gradient).data_ptr()  # noqa: SLF001 - values() wants coalesced ones


@dataclass
class Notes:
    """What a backward pass hands on.

    Attributes:
        with_views: Whether to keep views of the parts of a sparse gradient.
    """

    with_views: bool = False
    addresses: list[int] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)

    def take(self, gradient: Tensor) -> None:
        """Note one."""
        self.addresses.append(address(gradient))
        if self.with_views:
            self.views += [gradient._indices(), gradient._values()]  # noqa: SLF001 - as above


class Watched(Function):
    """The sum of its operands; its backward pass notes the gradient that it hands on to each of them."""

    @staticmethod
    def forward(ctx: Any, notes: Notes, *operands: Tensor) -> Tensor:  # noqa: ANN401 - as torch calls it
        """The sum."""
        ctx.notes, ctx.count = notes, len(operands)
        return torch.stack(operands).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - as torch calls it
        """Note the gradient."""
        ctx.notes.take(gradients[0])
        return None, *(gradients[0],) * ctx.count


class Expanded(Function):
    """A number; the gradient that it hands on is one number, shown at each place."""

    @staticmethod
    def forward(ctx: Any, operand: Tensor) -> Tensor:  # noqa: ANN401 - as torch calls it
        """A number."""
        ctx.shape = operand.shape
        return torch.ones(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - as torch calls it
        """The number, at each place."""
        return gradients[0].expand(ctx.shape)


class Repeated(Function):
    """The sum of two operands; the gradient that it hands on is sparse, and one entry shown many times."""

    @staticmethod
    def forward(ctx: Any, notes: Notes, first: Tensor, second: Tensor) -> Tensor:  # noqa: ANN401 - as torch calls it
        """The sum."""
        ctx.notes = notes
        return first + second

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ANN401 - as torch calls it
        """One entry, many times."""
        indices, values = torch.ones(1, 1, dtype=torch.long).expand(1, 8), torch.ones(1, 3).expand(8, 3)
        gradient = torch.sparse_coo_tensor(indices, values, gradients[0].shape, check_invariants=True)
        ctx.notes.take(gradient)
        return None, gradient, gradient


def gradients_of(root: Tensor, *tensors: Tensor, passes: int = 1) -> list[Tensor]:
    """The gradients after some passes."""
    with engine.context() as context:
        for _ in range(passes):
            engine.backward(context, [root], retain_graph=True)
        found = engine.get_gradients(context)
        return [found[tensor] for tensor in tensors]


def matrix() -> Tensor:
    """A leaf."""
    return torch.ones(10, 3, requires_grad=True)


def embedded(table: Tensor) -> Tensor:
    """A root whose gradient for the table is sparse."""
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4])
    return embedding_bag(indices, table, offsets, mode="sum", sparse=True).sum()


TIMES = torch.tensor([0, 1, 2, 1, 2, 1, 0, 0, 0, 1])
"""How often each row of the table is in that root."""


def test_gradient_for_one_tensor_is_taken_over() -> None:
    """No copy is made."""
    notes, tensor = Notes(), matrix()
    (gradient,) = gradients_of(Watched.apply(notes, tensor)[1][0], tensor)  # type: ignore[no-untyped-call]
    assert [address(gradient)] == notes.addresses


def test_gradient_for_two_tensors_is_copied() -> None:
    """Else a further pass over one of them would change the other."""
    notes, tensors = Notes(), [matrix(), matrix()]
    gradients = gradients_of(Watched.apply(notes, *tensors)[1][0], *tensors)  # type: ignore[no-untyped-call]
    assert len({*map(address, gradients), *notes.addresses}) == 3


def test_gradient_of_repeated_numbers_is_copied() -> None:
    """One that is not contiguous cannot be added to in place."""
    notes, tensors = Notes(), [matrix(), matrix()]
    gradients = gradients_of(Expanded.apply(Watched.apply(notes, *tensors)), *tensors)  # type: ignore[no-untyped-call]
    assert len({*map(address, gradients), *notes.addresses}) == 3
    assert all(one.is_contiguous() for one in gradients)


@pytest.mark.parametrize("with_views", [False, True], ids=["alone", "with_views_elsewhere"])
def test_sparse_gradient_for_one_tensor_is_taken_over(with_views: bool) -> None:
    """No copy is made, even where somebody keeps views of its indices and values."""
    notes, tensor = Notes(with_views=with_views), matrix()
    (gradient,) = gradients_of(embedded(Watched.apply(notes, tensor)), tensor)  # type: ignore[no-untyped-call]
    assert [address(gradient)] == notes.addresses
    assert len(notes.views) == (2 if with_views else 0)


def test_sparse_gradient_for_two_tensors_is_copied() -> None:
    """The copies are apart from each other, too."""
    notes, tensors = Notes(), [matrix(), matrix()]
    gradients = gradients_of(embedded(Repeated.apply(notes, *tensors)), *tensors)  # type: ignore[no-untyped-call]
    assert len({*map(address, gradients), *notes.addresses}) == 3


def test_sparse_gradients_add_up() -> None:
    """Over ten passes, in the buffer that was taken over."""
    tensor = matrix()
    (gradient,) = gradients_of(embedded(Watched.apply(Notes(), tensor)), tensor, passes=10)  # type: ignore[no-untyped-call]
    assert_equal(gradient.to_dense(), (TIMES * 10.0).unsqueeze(1).expand(10, 3))
