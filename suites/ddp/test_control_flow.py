"""Control flow: which layers run may depend on the step, the data and the rank."""

import pytest
import torch
from torch import Tensor, nn

from allranks.testing import skip_if_small_world_size

from .branches import Branches, loss_with
from .reference import Loss, World, assert_close, backward, copy_of, gradients, mean_gradients


class Odd(nn.Module):
    """A second layer for every odd pass."""

    def __init__(self) -> None:
        """Two layers."""
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, batch: Tensor, number: int) -> Tensor:
        """One layer, or both."""
        output: Tensor = self.first(batch)
        return self.second(output) if number % 2 else output


def numbered(number: int) -> Loss:
    """The loss of :class:`Odd` in a pass."""

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        squares: Tensor = model(batch, number).square().sum()
        return squares

    return loss


@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_layer_of_every_other_step(world: World, *, as_view: bool) -> None:
    """With the search for unused parameters, all ranks alike."""
    ddp = world.wrap(Odd(), find_unused_parameters=True, gradient_as_bucket_view=as_view)
    for step in range(3):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), numbered(step))
        backward(ddp, world.batch(step=step), numbered(step))
        assert_close(gradients(ddp), expected)


@skip_if_small_world_size(2)
def test_layer_of_every_other_rank_and_step(world: World) -> None:
    """In each step some ranks use it and some do not."""
    ddp = world.wrap(Odd(), find_unused_parameters=True)
    for step in range(2):
        ddp.zero_grad()
        alone = copy_of(ddp.module)
        for peer in range(world.size):
            backward(alone, world.batch(peer, step), numbered(step + peer))
        backward(ddp, world.batch(step=step), numbered(step + world.rank))
        assert_close(gradients(ddp), [gradient / world.size for gradient in gradients(alone) if gradient is not None])


def test_branch_by_the_data(world: World) -> None:
    """What a rank's own numbers decide needs no agreement."""

    class ByData(Branches):
        def forward(self, batch: Tensor, use: str = "left right") -> Tensor:
            return super().forward(batch, use.split()[int(batch.sum() * 1000) % 2])

    ddp = world.wrap(ByData(), find_unused_parameters=True)
    for step in range(3):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_number_of_rounds_by_rank(world: World) -> None:
    """A layer that runs once on one rank and three times on another."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, batch: Tensor, rounds: int) -> Tensor:
            for _ in range(rounds):
                batch = self.layer(batch).tanh()
            return batch

    ddp = world.wrap(Loop())
    alone = copy_of(ddp.module)
    for peer in range(world.size):
        alone(world.batch(peer), 1 + peer % 3).square().sum().backward()
    ddp(world.batch(), 1 + world.rank % 3).square().sum().backward()
    assert_close(gradients(ddp), [gradient / world.size for gradient in gradients(alone) if gradient is not None])


@skip_if_small_world_size(2)
def test_layers_run_in_another_order_on_each_rank(world: World) -> None:
    """Buckets are reduced in an order that all ranks agree on, whatever becomes ready first."""

    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

        def forward(self, batch: Tensor, first: int) -> Tensor:
            for number in range(3):
                batch = self.layers[(first + number) % 3](batch).tanh()
            return batch

    ddp = world.wrap(Ordered(), bucket_cap_mb=0.0001)
    for step in range(2):
        ddp.zero_grad()
        alone = copy_of(ddp.module)
        for peer in range(world.size):
            alone(world.batch(peer, step), peer).square().sum().backward()
        ddp(world.batch(step=step), world.rank).square().sum().backward()
        assert_close(gradients(ddp), [gradient / world.size for gradient in gradients(alone) if gradient is not None])


@skip_if_small_world_size(2)
def test_forward_pass_that_fails_on_all_ranks_can_be_repeated(world: World) -> None:
    """Nothing was sent but the buffers, of which there are none."""
    ddp = world.wrap(world.net())
    with pytest.raises(RuntimeError):
        ddp(torch.zeros(1, 3, device=world.device))
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_forward_pass_without_a_backward_pass_is_followed_by_another(world: World) -> None:
    """An output that is thrown away, on all ranks."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    ddp(world.batch(), "left")
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss_with("right"))
        backward(ddp, world.batch(step=step), loss_with("right"))
        assert_close(gradients(ddp), expected)


def test_layers_frozen_and_thawed_between_models(world: World) -> None:
    """What is to be trained is fixed when a model is wrapped; wrapped again, it has other gradients."""
    module = world.net()
    first = next(module.parameters())
    first.requires_grad = False
    backward(world.wrap(module), world.batch())
    assert first.grad is None
    module.zero_grad()
    first.requires_grad = True
    expected = mean_gradients(module, world.batches())
    backward(world.wrap(module), world.batch())
    assert_close(gradients(module), expected)
