"""Unused parameters: found by the graph, they are left alone or averaged with what other ranks have."""

import pytest
import torch
from torch import Tensor, nn

from allranks.testing import skip_if_small_world_size

from .branches import Branches, Pair, first_loss, loss_with
from .reference import (
    Loss,
    World,
    assert_close,
    assert_same,
    backward,
    copy_of,
    gradients,
    mean_gradients,
)


def mean_over_ranks(model: nn.Module, world: World, losses: list[Loss]) -> list[Tensor | None]:
    """The mean where each rank has a loss of its own; a parameter that a rank does not use counts as zeros there."""
    copy = copy_of(model)
    for peer, loss in enumerate(losses):
        backward(copy, world.batch(peer), loss)
    return [None if gradient is None else gradient / world.size for gradient in gradients(copy)]


def test_parameters_that_no_rank_uses_have_no_gradient(world: World) -> None:
    """They are not given zeros."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    expected = mean_gradients(ddp.module, world.batches(), loss_with("left"))
    assert expected[4:] == [None, None]
    backward(ddp, world.batch(), loss_with("left"))
    assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_gradients_that_no_rank_touches_stay_as_they_were(world: World, *, as_view: bool) -> None:
    """What the last pass left in them is not averaged again."""
    ddp = world.wrap(Branches(), find_unused_parameters=True, gradient_as_bucket_view=as_view)
    first = mean_gradients(ddp.module, world.batches(), loss_with("left right"))
    second = mean_gradients(ddp.module, world.batches(), loss_with("left"))
    backward(ddp, world.batch(), loss_with("left right"))
    backward(ddp, world.batch(), loss_with("left"))
    assert_close(gradients(ddp)[:4], [one + other for one, other in zip(first[:4], second[:4], strict=True)])  # type: ignore[operator]
    assert_close(gradients(ddp)[4:], first[4:])


@skip_if_small_world_size(2)
def test_parameter_that_some_ranks_use_is_averaged_on_all(world: World) -> None:
    """A rank that does not use it counts as zeros, and gets the mean like the others."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    losses = [loss_with("left" if peer == world.size - 1 else "") for peer in range(world.size)]
    expected = mean_over_ranks(ddp.module, world, losses)
    backward(ddp, world.batch(), losses[world.rank])
    assert_close(gradients(ddp), expected)


@skip_if_small_world_size(2)
def test_each_rank_may_use_another_branch(world: World) -> None:
    """Together they use all of them."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    losses = [loss_with(("left", "right")[peer % 2]) for peer in range(world.size)]
    expected = mean_over_ranks(ddp.module, world, losses)
    backward(ddp, world.batch(), losses[world.rank])
    assert_close(gradients(ddp), expected)


def test_use_may_change_from_step_to_step(world: World) -> None:
    """The graph is searched in each pass, also after the buckets were rebuilt."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    for step, use in enumerate(["left right", "left", "", "right", "left right"]):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss_with(use))
        backward(ddp, world.batch(step=step), loss_with(use))
        assert_close(gradients(ddp), expected)


def test_output_that_the_loss_leaves_out(world: World) -> None:
    """The parameters behind it were used in the forward pass, and have no gradient all the same."""
    ddp = world.wrap(Pair(), find_unused_parameters=True)
    expected = mean_gradients(ddp.module, world.batches(), first_loss)
    backward(ddp, world.batch(), first_loss)
    assert expected[2:] == [None, None]
    assert_close(gradients(ddp), expected)


def test_output_that_is_detached_in_the_module(world: World) -> None:
    """No graph leads to the parameters behind it."""

    class Detached(Pair):
        def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
            first, second = super().forward(batch)
            return first, second.detach()

    ddp = world.wrap(Detached(), find_unused_parameters=True)
    expected = mean_gradients(ddp.module, world.batches(), first_loss)
    backward(ddp, world.batch(), first_loss)
    assert not ddp(world.batch())[1].requires_grad
    assert_close(gradients(ddp), expected)


def test_search_finds_nothing_unused(world: World) -> None:
    """Where all is used the result is as without the search."""
    ddp = world.wrap(world.net(), find_unused_parameters=True)
    for _ in range(2):
        expected = mean_gradients(ddp.module, world.batches())
        ddp.zero_grad()
        backward(ddp, world.batch())
        assert_close(gradients(ddp), expected)


class AsList(Pair):
    """Outputs in a list."""

    def forward(self, batch: Tensor) -> list[Tensor]:  # type: ignore[override]
        """Both outputs."""
        return list(super().forward(batch))


class AsDict(Pair):
    """Outputs in dictionaries, one in the other."""

    def forward(self, batch: Tensor) -> dict[int, dict[str, Tensor]]:  # type: ignore[override]
        """Both outputs."""
        first, second = super().forward(batch)
        return {0: {"a": first}, 1: {"b": second}}


@pytest.mark.parametrize("kind", [AsList, AsDict])
def test_outputs_are_found_in_containers(world: World, kind: type[Pair]) -> None:
    """The search begins at every tensor of the output."""

    def both(model: nn.Module, batch: Tensor) -> Tensor:
        output = model(batch)
        first, second = output[0], output[1]
        if isinstance(first, dict):
            first, second = first["a"], second["b"]
        return (first * second).sum()  # type: ignore[no-any-return]

    ddp = world.wrap(kind(), find_unused_parameters=True)
    expected = mean_gradients(ddp.module, world.batches(), both)
    backward(ddp, world.batch(), both)
    assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("find", [False, True], ids=["plain", "search"])
def test_shared_parameter_beside_an_unused_one(world: World, *, find: bool) -> None:
    """A layer that stands under two names is used once either of them is."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first
            self.never = nn.Linear(4, 4).requires_grad_(requires_grad=find)

        def forward(self, batch: Tensor) -> Tensor:
            return self.again(self.first(batch).tanh())  # type: ignore[no-any-return]

    ddp = world.wrap(Shared(), find_unused_parameters=find)
    expected = mean_gradients(ddp.module, world.batches())
    for _ in range(2):
        ddp.zero_grad()
        backward(ddp, world.batch())
        assert_close(gradients(ddp), expected)


def test_output_may_be_changed_in_place_behind_the_search(world: World) -> None:
    """The outputs that the search returns are copies, which can be written to."""
    ddp = world.wrap(world.net(), find_unused_parameters=True)
    expected = mean_gradients(ddp.module, world.batches(), lambda model, batch: model(batch).sum() * 2)
    output = ddp(world.batch())
    output *= 2
    output.sum().backward()
    assert_close(gradients(ddp), expected)


def test_outputs_are_not_copied_on_request(world: World) -> None:
    """Then the caller has the module's own tensors."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.kept: list[Tensor] = []

        def forward(self, batch: Tensor) -> Tensor:
            output: Tensor = self.layer(batch)
            self.kept.append(output)
            return output

    ddp = world.wrap(Keeping(), find_unused_parameters=True)
    assert ddp(world.batch()).data_ptr() != ddp.module.kept[0].data_ptr()
    other = world.wrap(Keeping(), find_unused_parameters=True)
    other._set_ddp_sink_clone(False)
    output = other(world.batch())
    assert output.data_ptr() == other.module.kept[0].data_ptr()
    expected = mean_gradients(copy_without_outputs(other.module), world.batches())
    output.square().sum().backward()
    assert_close(gradients(other), expected)


def copy_without_outputs(module: nn.Module) -> nn.Module:
    """A layer with the same parameters: tensors that are part of a graph cannot be copied."""
    layer = module.layer
    assert isinstance(layer, nn.Linear)
    return copy_of(layer)


def test_unused_parameters_can_be_left_out_of_the_reduction(world: World) -> None:
    """``skip_all_reduce_unused_params``: all ranks use the same ones, and the rest has no gradient."""
    ddp = world.wrap(Branches(), find_unused_parameters=True, skip_all_reduce_unused_params=True, bucket_cap_mb=0.00001)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss_with("right"))
        backward(ddp, world.batch(step=step), loss_with("right"))
        assert_close(gradients(ddp), expected)


def test_parameters_of_unused_layers_are_not_changed_by_an_optimizer(world: World) -> None:
    """Without a gradient there is no step, not even one by weight decay."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    before = ddp.module.right.weight.detach().clone()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, weight_decay=0.5)
    for step in range(2):
        optimizer.zero_grad()
        backward(ddp, world.batch(step=step), loss_with("left"))
        optimizer.step()
    assert_same([ddp.module.right.weight.detach()], [before])
