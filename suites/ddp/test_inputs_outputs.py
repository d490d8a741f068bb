"""Inputs and outputs: what goes into the module and comes out of it is as it is without the wrapper."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from .branches import Pair
from .reference import World, assert_close, assert_same, backward, copy_of, gradients, mean_gradients


class Rows(NamedTuple):
    """Two tensors with names."""

    left: Tensor
    right: Tensor


@dataclass
class Record:
    """Two tensors and a number."""

    left: Tensor
    right: Tensor
    factor: int = 2


class Product(nn.Module):
    """Two layers, whose outputs are multiplied."""

    def __init__(self) -> None:
        """Two layers from 4 numbers to 2."""
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def of(self, left: Tensor, right: Tensor) -> Tensor:
        """The layers' outputs, multiplied."""
        return self.first(left) * self.second(right)  # type: ignore[no-any-return]


class OfTuple(Product):
    """Takes one argument that is unpacked."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        """The product."""
        left, right = pair
        return self.of(left, right)


class OfNames(Product):
    """Takes one argument that has the tensors as attributes."""

    def forward(self, pair: Rows | Record) -> Tensor:
        """The product."""
        return self.of(pair.left, pair.right)


class OfDict(Product):
    """Takes one argument that has the tensors under keys, one of them in a list."""

    def forward(self, pair: dict[str, Any]) -> Tensor:
        """The product."""
        return self.of(pair["left"], pair["right"][0])


class OfKeywords(Product):
    """Takes the tensors by name, and a number."""

    def forward(self, left: Tensor, *, right: Tensor, factor: float = 1) -> Tensor:
        """The product."""
        return self.of(left, right) * factor


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        (OfTuple, lambda left, right: (left, right)),
        (OfTuple, lambda left, right: [left, right]),
        (OfTuple, Rows),
        (OfNames, Rows),
        (OfNames, Record),
        (OfDict, lambda left, right: {"left": left, "right": [right]}),
        (OfDict, lambda left, right: OrderedDict(left=left, right=(right, None))),
    ],
    ids=["tuple", "list", "unpacked namedtuple", "namedtuple", "dataclass", "dict", "ordered dict"],
)
def test_inputs_in_a_container(world: World, kind: type[nn.Module], pack: Callable[[Tensor, Tensor], Any]) -> None:
    """The module gets the container as it was passed."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(pack(batch, batch + 1)).sum()  # type: ignore[no-any-return]

    ddp = world.wrap(kind())
    expected = mean_gradients(ddp.module, world.batches(), loss)
    backward(ddp, world.batch(), loss)
    assert_close(gradients(ddp), expected)


def test_inputs_by_keyword(world: World) -> None:
    """Tensors and other values alike."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch, right=batch + 1, factor=0.5).sum()  # type: ignore[no-any-return]

    ddp = world.wrap(OfKeywords())
    expected = mean_gradients(ddp.module, world.batches(), loss)
    backward(ddp, world.batch(), loss)
    assert_close(gradients(ddp), expected)


def test_inputs_keep_their_identity(world: World) -> None:
    """A module on a CPU, or one without ``device_ids``, gets the very objects."""

    class Keeping(Product):
        def forward(self, pair: Rows) -> Tensor:
            self.kept = pair
            return self.of(*pair)

    ddp = world.wrap(Keeping())
    rows = Rows(world.batch(), world.batch())
    ddp(rows)
    assert ddp.module.kept is rows


def test_packed_sequence(world: World) -> None:
    """Rows of different lengths, as recurrent layers take them."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 3)

        def forward(self, rows: PackedSequence) -> Tensor:
            output, _ = self.layer(rows)
            return output.data  # type: ignore[no-any-return]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        rows = pack_padded_sequence(torch.stack([batch, batch + 1], dim=1), torch.tensor([3, 2]))
        return model(rows).square().sum()  # type: ignore[no-any-return]

    ddp = world.wrap(Recurrent())
    expected = mean_gradients(ddp.module, world.batches(), loss)
    backward(ddp, world.batch(), loss)
    assert_close(gradients(ddp), expected, rtol=1e-9)


class GivesNamed(Pair):
    """Both outputs in a named tuple."""

    def forward(self, batch: Tensor) -> Rows:
        """Both outputs."""
        return Rows(*super().forward(batch))


class GivesDict(Pair):
    """Both outputs under keys, one of them deeper than the other."""

    def forward(self, batch: Tensor) -> dict[str, Any]:  # type: ignore[override]
        """Both outputs."""
        left, right = super().forward(batch)
        return {"left": left, "inner": {"right": [right, "text", 3, None]}}


class GivesRecord(Pair):
    """Both outputs in a dataclass."""

    def forward(self, batch: Tensor) -> Record:  # type: ignore[override]
        """Both outputs."""
        return Record(*super().forward(batch))


def of_named(output: Rows | Record) -> tuple[Tensor, Tensor]:
    """Find the outputs, and check what is around them."""
    assert isinstance(output, Rows | Record)
    return output.left, output.right


def of_dict(output: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Find the outputs, and check what is around them."""
    right, *rest = output["inner"]["right"]
    assert rest == ["text", 3, None]
    return output["left"], right


@pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=["plain", "search", "static"]
)
@pytest.mark.parametrize(("kind", "take"), [(GivesNamed, of_named), (GivesDict, of_dict)], ids=["namedtuple", "dict"])
def test_outputs_in_a_container(
    world: World, kind: type[nn.Module], take: Callable[[Any], tuple[Tensor, Tensor]], options: dict[str, bool]
) -> None:
    """The caller gets the container with all that was in it."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        left, right = take(model(batch))
        return (left * right).sum()

    ddp = world.wrap(kind(), **options)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss)
        backward(ddp, world.batch(step=step), loss)
        assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("find", [False, True], ids=["plain", "search"])
def test_outputs_in_a_dataclass(world: World, *, find: bool) -> None:
    """The search finds them there; a static graph would not."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        left, right = of_named(model(batch))
        return (left * right).sum()

    ddp = world.wrap(GivesRecord(), find_unused_parameters=find)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss)
        backward(ddp, world.batch(step=step), loss)
        assert_close(gradients(ddp), expected)


@pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=["plain", "search", "static"]
)
def test_output_without_a_gradient_passes_unchanged(world: World, options: dict[str, bool]) -> None:
    """A tensor that the module only hands on requires no gradient behind it, and is the same object."""

    class HandsOn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, batch: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(batch), extra

    ddp = world.wrap(HandsOn(), **options)
    for _ in range(2):
        extra = world.numbers(3)
        output, passed = ddp(world.batch(), extra)
        assert passed is extra
        assert not passed.requires_grad
        output.sum().backward()


def test_module_without_inputs(world: World) -> None:
    """The parameters alone make the output."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            return self.weight * (world.rank + 1)

    ddp = world.wrap(Constant())
    ddp().sum().backward()
    assert_close(gradients(ddp), [torch.full_like(ddp.module.weight, world.mean_rank() + 1)])


def test_batch_without_rows(world: World) -> None:
    """A rank that has no data takes part with zeros."""
    ddp = world.wrap(world.net())
    batches = [world.batch(peer, rows=0 if peer == 0 else 3) for peer in range(world.size)]
    expected = mean_gradients(ddp.module, batches)
    backward(ddp, batches[world.rank])
    assert_close(gradients(ddp), expected)


def test_parameters_given_to_a_stateless_call(world: World) -> None:
    """Other tensors in place of the parameters, by name: the module's own have no gradient and stay as they are."""
    ddp = world.wrap(nn.Linear(4, 2))
    others = {name: torch.full_like(value, 2.0, requires_grad=True) for name, value in ddp.named_parameters()}
    before = [parameter.detach().clone() for parameter in ddp.parameters()]
    output = torch.func.functional_call(ddp, others, world.batch())
    assert_close([output], [world.batch().sum(1, keepdim=True).expand(-1, 2) * 2 + 2])
    output.sum().backward()
    assert gradients(ddp) == [None, None]
    assert_same([parameter.detach() for parameter in ddp.parameters()], before)
    assert all(other.grad is not None for other in others.values())


def test_output_may_be_used_by_part(world: World) -> None:
    """A loss of some elements has gradients of zeros for the others, on every rank another one."""

    def column(number: int) -> Callable[[nn.Module, Tensor], Tensor]:
        return lambda model, batch: model(batch)[:, number % 2].sum()

    ddp = world.wrap(nn.Linear(4, 2))
    alone = copy_of(ddp.module)
    for peer in range(world.size):
        backward(alone, world.batch(peer), column(peer))
    backward(ddp, world.batch(), column(world.rank))
    assert_close(gradients(ddp), [gradient / world.size for gradient in gradients(alone) if gradient is not None])
