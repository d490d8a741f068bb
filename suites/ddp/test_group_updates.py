"""Groups that change under a model, and failures after which it is used again."""

import pytest
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

from allranks.testing import SubgroupMaker, skip_if_small_world_size

from .reference import World, assert_close, backward, gradients, mean_gradients


class Failing(Function):
    """Passes its input through, and fails in the backward pass."""

    @staticmethod
    def forward(_: object, batch: Tensor) -> Tensor:
        """The input."""
        return batch.clone()

    @staticmethod
    def backward(_: object, gradient: Tensor) -> Tensor:
        """Always an error."""
        msg = f"planted for a gradient of {tuple(gradient.shape)}"
        raise RuntimeError(msg)


class MayFail(nn.Module):
    """Two layers, with the failure between them if it is asked for."""

    def __init__(self) -> None:
        """Two layers."""
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, batch: Tensor, *, fail: bool = False) -> Tensor:
        """The second layer's output."""
        hidden = self.first(batch)
        return self.second(Failing.apply(hidden) if fail else hidden)  # type: ignore[no-any-return]


def fail(model: nn.Module, world: World) -> None:
    """A pass whose backward pass ends halfway."""
    with pytest.raises(RuntimeError, match="planted for a gradient"):
        model(world.batch(), fail=True).sum().backward()


def test_after_a_failed_backward_pass_the_next_forward_pass_fails(world: World) -> None:
    """The reduction of the failed one is unfinished."""
    ddp = world.wrap(MayFail())
    fail(ddp, world)
    with pytest.raises(RuntimeError, match="Expected to have finished reduction in the prior iteration"):
        ddp(world.batch())


def test_model_of_a_failed_pass_can_be_wrapped_again(world: World) -> None:
    """Once the hooks of the first wrapper are gone."""
    module = world.place(MayFail())
    first = world.wrap(module)
    fail(first, world)
    first._remove_autograd_hooks()
    module.zero_grad()
    expected = mean_gradients(module, world.batches())
    backward(world.wrap(module), world.batch())
    assert_close(gradients(module), expected)


def test_update_of_the_group_ends_a_failed_pass(world: World) -> None:
    """With the same group: training goes on as if the pass had not been."""
    ddp = world.wrap(MayFail(), find_unused_parameters=True)
    fail(ddp, world)
    ddp._update_process_group(dist.group.WORLD)
    ddp.zero_grad()
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


@skip_if_small_world_size(2)
def test_group_can_shrink_and_grow(world: World, subgroup: SubgroupMaker) -> None:
    """Gradients are averaged over those that are in it."""
    fewer = list(range(1, world.size))
    group = subgroup(fewer)
    ddp = world.wrap(MayFail(), find_unused_parameters=True)
    backward(ddp, world.batch())
    if world.rank in fewer:
        ddp._update_process_group(group)
        for step in range(2):
            ddp.zero_grad()
            expected = mean_gradients(ddp.module, [world.batch(peer, step) for peer in fewer])
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)
    ddp._update_process_group(dist.group.WORLD)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_update_builds_the_buckets_again(world: World) -> None:
    """All ranks of the new group do it in the same pass."""
    ddp = world.wrap(world.net())
    for step in range(2):
        backward(ddp, world.batch(step=step))
    assert ddp._has_rebuilt_buckets
    ddp._update_process_group(dist.group.WORLD)
    assert not ddp._has_rebuilt_buckets
    ddp.zero_grad()
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


@skip_if_small_world_size(2)
def test_rank_outside_of_the_new_group_keeps_the_old_one(world: World, subgroup: SubgroupMaker) -> None:
    """The update has no effect on it but that the buckets will be rebuilt."""
    group = subgroup([0])
    ddp = world.wrap(world.net())
    before = ddp.process_group
    ddp._update_process_group(group)
    assert (ddp.process_group is before) is (world.rank != 0)
