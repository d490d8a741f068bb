"""Static graph: what the first pass used is what every pass uses."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from allranks.testing import skip_if_small_world_size

from .branches import Branches, Pair, loss_with
from .reference import World, assert_close, backward, gradients, mean_gradients


def test_every_pass_is_averaged(world: World) -> None:
    """The first, in which the graph is recorded, and those after it."""
    ddp = world.wrap(world.net(), static_graph=True)
    for step in range(3):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_unused_parameters_are_found_by_the_first_pass(world: World) -> None:
    """No search is needed later."""
    ddp = world.wrap(Branches(), static_graph=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss_with("left"))
        backward(ddp, world.batch(step=step), loss_with("left"))
        assert_close(gradients(ddp), expected)


@skip_if_small_world_size(2)
def test_ranks_may_use_different_parameters(world: World) -> None:
    """As long as each rank always uses the same ones."""

    class ByRank(Branches):
        def forward(self, batch: Tensor, use: str = "left right") -> Tensor:
            return super().forward(batch, use.split()[world.rank % 2])

    class AnyRank(Branches):
        pass

    ddp, alone = world.wrap(ByRank(), static_graph=True), world.place(AnyRank())
    alone.load_state_dict(ddp.module.state_dict())
    for step in range(2):
        ddp.zero_grad()
        alone.zero_grad()
        for peer in range(world.size):
            backward(alone, world.batch(peer, step), loss_with(("left", "right")[peer % 2]))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), [gradient / world.size for gradient in gradients(alone) if gradient is not None])


@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_parameter_used_many_times_by_reentrant_checkpoints(world: World, *, as_view: bool) -> None:
    """Each recomputation differentiates the layer anew: the graph says how often."""

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, batch: Tensor) -> Tensor:
            once = checkpoint(self.layer, batch.requires_grad_(), use_reentrant=True)
            return checkpoint(self.layer, once, use_reentrant=True)  # type: ignore[no-any-return]

    ddp = world.wrap(Recomputed(), static_graph=True, gradient_as_bucket_view=as_view)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_module_run_several_times_before_one_backward_pass(world: World) -> None:
    """The forward passes of a step are one graph."""

    def twice(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) * model(batch + 1)).sum()  # type: ignore[no-any-return]

    ddp = world.wrap(world.net(), static_graph=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), twice)
        backward(ddp, world.batch(step=step), twice)
        assert_close(gradients(ddp), expected)


def test_parameter_used_outside_of_the_forward_pass(world: World) -> None:
    """The loss may take a parameter of the module directly."""

    def penalized(model: nn.Module, batch: Tensor) -> Tensor:
        parameters = list(model.parameters())
        return model(batch).square().sum() + parameters[0].square().sum()  # type: ignore[no-any-return]

    ddp = world.wrap(world.net(), static_graph=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), penalized)
        backward(ddp, world.batch(step=step), penalized)
        assert_close(gradients(ddp), expected)


def test_graph_that_changes_is_an_error(world: World) -> None:
    """A parameter that the first pass used, and the third does not."""
    ddp = world.wrap(Branches(), static_graph=True)
    for _ in range(2):
        backward(ddp, world.batch(), loss_with("left right"))
    backward(ddp, world.batch(), loss_with("left"))
    with pytest.raises(RuntimeError, match="our training graph has changed in this iteration"):
        ddp(world.batch())


def test_graph_that_grows_is_an_error(world: World) -> None:
    """A parameter that the first pass did not use has no place in the buckets' count."""
    ddp = world.wrap(Branches(), static_graph=True)
    for _ in range(2):
        backward(ddp, world.batch(), loss_with("left"))
    with pytest.raises(RuntimeError, match="our training graph has changed in this iteration"):
        backward(ddp, world.batch(), loss_with("left right"))


def test_set_after_construction(world: World) -> None:
    """The private setter does what the argument does."""
    ddp = world.wrap(Branches())
    ddp._set_static_graph()
    assert ddp.static_graph
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss_with("right"))
        backward(ddp, world.batch(step=step), loss_with("right"))
        assert_close(gradients(ddp), expected)


def test_set_twice_is_warned_of(world: World) -> None:
    """It is set already."""
    ddp = world.wrap(world.net(), static_graph=True)
    with pytest.warns(UserWarning, match="no need to set it again"):
        ddp._set_static_graph()


def test_set_beside_the_search_is_warned_of(world: World) -> None:
    """A static graph needs no search for unused parameters."""
    with pytest.warns(UserWarning, match="will detect unused parameters automatically"):
        world.wrap(world.net(), static_graph=True, find_unused_parameters=True)


def test_set_after_training_began_is_an_error(world: World) -> None:
    """The first pass has to be recorded."""
    ddp = world.wrap(world.net())
    backward(ddp, world.batch())
    with pytest.raises(RuntimeError, match="should be called before training loop starts"):
        ddp._set_static_graph()


def test_output_in_nested_containers(world: World) -> None:
    """The structure of the output comes back as it was."""

    class Nested(Pair):
        def forward(self, batch: Tensor) -> dict[str, object]:  # type: ignore[override]
            first, second = super().forward(batch)
            return {"pair": (first, [second]), "rows": len(batch), "plain": batch}

    def product(model: nn.Module, batch: Tensor) -> Tensor:
        output = model(batch)
        first, (second,) = output["pair"]
        assert output["rows"] == len(batch)
        assert output["plain"] is batch
        return (first * second).sum()  # type: ignore[no-any-return]

    ddp = world.wrap(Nested(), static_graph=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), product)
        backward(ddp, world.batch(step=step), product)
        assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("static_graph", [False, True], ids=["plain", "static graph"])
def test_tensor_made_in_the_forward_pass_may_be_the_loss(world: World, *, static_graph: bool) -> None:
    """A leaf that the module makes and returns has a gradient of its own, which is not averaged."""

    class Fresh(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
            leaf = torch.full((2,), float(world.rank), dtype=batch.dtype, device=batch.device, requires_grad=True)
            return self.layer(batch), leaf

    def product(model: nn.Module, batch: Tensor) -> Tensor:
        output, leaf = model(batch)
        return (output + leaf).square().sum()  # type: ignore[no-any-return]

    ddp = world.wrap(Fresh(), static_graph=static_graph)
    sums = [
        mean_gradients(ddp.module, [batch], lambda model, batch, peer=peer: (model(batch)[0] + peer).square().sum())  # type: ignore[misc]
        for peer, batch in enumerate(world.batches())
    ]
    expected = [torch.stack(list(parts)).sum(0) / world.size for parts in zip(*sums, strict=True)]
    backward(ddp, world.batch(), product)
    assert_close(gradients(ddp), expected)


def test_graph_that_could_be_static_is_recognized(world: World) -> None:
    """A model of always the same graph could be, one with a changing graph could not."""
    steady = world.wrap(Branches(), find_unused_parameters=True)
    changing = world.wrap(Branches(), find_unused_parameters=True)
    for use in ("left", "right", "left right", ""):
        for ddp, uses in ((steady, "left"), (changing, use)):
            ddp.zero_grad()
            backward(ddp, world.batch(), loss_with(uses))
    assert steady.reducer._ddp_graph_static()  # type: ignore[attr-defined]
    assert not changing.reducer._ddp_graph_static()  # type: ignore[attr-defined]
