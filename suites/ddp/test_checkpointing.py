"""Activation checkpointing: layers that run again in the backward pass."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .reference import World, assert_close, assert_same_on_all_ranks, backward, gradients, mean_gradients


class Recomputing(nn.Module):
    """A layer, behind it one that is recomputed, so many times, and one that is not used."""

    def __init__(self, times: int = 1, *, reentrant: bool) -> None:
        """Choose how it is done."""
        super().__init__()
        self.times, self.reentrant = times, reentrant
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4)

    def forward(self, batch: Tensor) -> Tensor:
        """The second layer's output."""
        again: Tensor = self.one(batch).tanh()
        for _ in range(self.times):
            again = checkpoint(self.other, again, use_reentrant=self.reentrant)
        return again


def without_spare(module: Recomputing) -> Recomputing:
    """All of its parameters are used."""
    module.spare.requires_grad_(requires_grad=False)
    return module


KINDS = pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
VIEWS = pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])


@KINDS
def test_layer_checkpointed_once(world: World, *, reentrant: bool) -> None:
    """Needs no settings."""
    ddp = world.wrap(without_spare(Recomputing(reentrant=reentrant)))
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


@VIEWS
def test_layer_checkpointed_twice_without_reentrance(world: World, *, as_view: bool) -> None:
    """Its gradient is ready when both recomputations are done."""
    ddp = world.wrap(without_spare(Recomputing(2, reentrant=False)), gradient_as_bucket_view=as_view)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_layer_checkpointed_twice_with_reentrance_is_an_error(world: World) -> None:
    """Its gradient is ready twice; the message names the cause."""
    ddp = world.wrap(without_spare(Recomputing(2, reentrant=True)))
    with pytest.raises(RuntimeError, match="Expected to mark a variable ready only once"):
        backward(ddp, world.batch())


def test_layer_checkpointed_twice_with_reentrance_in_a_static_graph(world: World) -> None:
    """The first pass shows how often the gradient becomes ready."""
    ddp = world.wrap(without_spare(Recomputing(2, reentrant=True)), static_graph=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_search_does_not_see_through_reentrance(world: World) -> None:
    """To the search, recomputed layers are unused, so their gradients come unexpectedly."""
    ddp = world.wrap(Recomputing(reentrant=True), find_unused_parameters=True)
    with pytest.raises(RuntimeError, match="Expected to mark a variable ready only once"):
        backward(ddp, world.batch())


@pytest.mark.parametrize("times", [1, 2])
def test_search_beside_checkpoints_without_reentrance(world: World, times: int) -> None:
    """The layer that is unused is found."""
    ddp = world.wrap(Recomputing(times, reentrant=False), find_unused_parameters=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        assert expected[4:] == [None, None]
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


@KINDS
def test_static_graph_with_an_unused_layer(world: World, *, reentrant: bool) -> None:
    """Either way to recompute."""
    ddp = world.wrap(Recomputing(reentrant=reentrant), static_graph=True)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


@KINDS
def test_random_numbers_are_the_same_in_the_second_run(world: World, *, reentrant: bool) -> None:
    """Dropout drops the same again, on each rank its own: the gradients fit the outputs."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, batch: Tensor) -> Tensor:
            def dropped(rows: Tensor) -> Tensor:
                return nn.functional.dropout(self.layer(rows), 0.5)

            return checkpoint(dropped, batch.detach().requires_grad_(), use_reentrant=reentrant)  # type: ignore[no-any-return]

    ddp = world.wrap(Dropping())
    torch.manual_seed(world.rank)
    output = ddp(world.batch())
    kept = (output.detach() != 0).to(output.dtype) * 2
    output.sum().backward()
    mine = kept.t() @ world.batch()
    torch.distributed.all_reduce(mine)
    assert_close(gradients(ddp), [mine / world.size])
    assert_same_on_all_ranks([gradient for gradient in gradients(ddp) if gradient is not None])
