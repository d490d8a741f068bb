"""no_sync: gradients are accumulated on each rank, and averaged by the first pass after the block."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from .reference import World, assert_close, backward, copy_of, gradients, mean_gradients


def local_gradients(module: nn.Module, batches: list[Tensor]) -> list[Tensor | None]:
    """What this rank's batches add up to."""
    return mean_gradients(module, batches, over=1)


def everyones(world: World, module: nn.Module, steps: int) -> list[Tensor | None]:
    """The mean over the ranks of the sums over the steps."""
    batches = [batch for step in range(steps) for batch in world.batches(step)]
    return mean_gradients(module, batches, over=world.size)


def test_gradients_stay_local_in_the_block(world: World) -> None:
    """They are those of this rank's batches alone."""
    ddp = world.wrap(world.net())
    expected = local_gradients(ddp.module, [world.batch(step=step) for step in range(2)])
    with ddp.no_sync():
        for step in range(2):
            backward(ddp, world.batch(step=step))
    assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_first_pass_after_the_block_averages_all(world: World, *, as_view: bool) -> None:
    """What was accumulated is averaged together with the pass's own gradients."""
    ddp = world.wrap(world.net(), gradient_as_bucket_view=as_view)
    expected = everyones(world, ddp.module, 3)
    with ddp.no_sync():
        for step in range(2):
            backward(ddp, world.batch(step=step))
    backward(ddp, world.batch(step=2))
    assert_close(gradients(ddp), expected)


def test_accumulation_in_every_round(world: World) -> None:
    """Blocks and averaging passes alternate, also after the buckets were rebuilt."""
    ddp = world.wrap(world.net(), gradient_as_bucket_view=True)
    expected = everyones(world, ddp.module, 2)
    for _ in range(2):
        ddp.zero_grad()
        with ddp.no_sync():
            backward(ddp, world.batch(step=0))
        backward(ddp, world.batch(step=1))
        assert_close(gradients(ddp), expected)


def test_ranks_may_do_different_numbers_of_passes(world: World) -> None:
    """Nothing is sent in the block, so none has to wait for another."""
    ddp = world.wrap(world.net())
    shares = [world.batch(peer, step) for peer in range(world.size) for step in range(peer + 1)]
    expected = mean_gradients(ddp.module, shares, over=world.size)
    with ddp.no_sync():
        for step in range(world.rank):
            backward(ddp, world.batch(step=step))
    backward(ddp, world.batch(step=world.rank))
    assert_close(gradients(ddp), expected)


def test_block_in_a_block_does_not_end_it(world: World) -> None:
    """Only the end of the outermost one does."""
    ddp = world.wrap(world.net())
    expected = local_gradients(ddp.module, [world.batch()])
    with ddp.no_sync():
        with ddp.no_sync():
            pass
        backward(ddp, world.batch())
    assert ddp.require_backward_grad_sync
    assert_close(gradients(ddp), expected)


def test_error_ends_the_block(world: World) -> None:
    """Gradients are averaged again afterwards."""
    ddp = world.wrap(world.net())
    expected = mean_gradients(ddp.module, world.batches())

    def fail() -> None:
        msg = "planted"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="planted"), ddp.no_sync():
        fail()
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_error_of_one_rank_ends_the_block_of_that_rank(world: World) -> None:
    """Its peers do not see it, and the pass after it is averaged over all."""
    ddp = world.wrap(world.net())
    alone = copy_of(ddp.module)
    with ddp.no_sync():
        if world.rank == 0:
            with pytest.raises(RuntimeError):
                ddp(torch.zeros(1, 3, device=world.device))
    expected = mean_gradients(alone, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_forward_pass_decides(world: World) -> None:
    """A pass that began outside is averaged, though its backward pass runs inside."""
    ddp = world.wrap(world.net())
    outside = ddp(world.batch()).square().sum()
    expected = mean_gradients(ddp.module, world.batches())
    with ddp.no_sync():
        outside.backward()
    assert_close(gradients(ddp), expected)


def test_parameter_without_use_in_the_last_pass_is_averaged(world: World) -> None:
    """What the block accumulated for it is not forgotten."""

    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, batch: Tensor, *, full: bool) -> Tensor:
            output = self.always(batch)
            return output + self.sometimes(batch) if full else output  # type: ignore[no-any-return]

    def full(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch, full=True).square().sum()  # type: ignore[no-any-return]

    def part(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch, full=False).square().sum()  # type: ignore[no-any-return]

    ddp = world.wrap(Optional(), find_unused_parameters=True)
    first = mean_gradients(ddp.module, world.batches(0), full)
    second = mean_gradients(ddp.module, world.batches(1), part)
    with ddp.no_sync():
        backward(ddp, world.batch(step=0), full)
    backward(ddp, world.batch(step=1), part)
    always = [one + other for one, other in zip(first[:2], second[:2], strict=True)]  # type: ignore[operator]
    assert_close(gradients(ddp), [*always, *first[2:]])


Hook = Callable[[object, GradBucket], torch.futures.Future[Tensor]]


def doubling_hook(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Twice the mean: the callback of a future changes the result."""
    return allreduce_hook(dist.group.WORLD, bucket).then(lambda future: 2 * future.value())  # type: ignore[arg-type]


@pytest.mark.parametrize(("hook", "factor"), [(allreduce_hook, 1), (doubling_hook, 2)], ids=["allreduce", "doubling"])
def test_hook_gets_what_was_accumulated(world: World, hook: Hook, factor: int) -> None:
    """It runs once, after the block."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(None, hook)
    expected = everyones(world, ddp.module, 2)
    with ddp.no_sync():
        backward(ddp, world.batch(step=0))
    backward(ddp, world.batch(step=1))
    assert_close(gradients(ddp), [gradient * factor for gradient in expected if gradient is not None])


def test_accumulation_in_a_static_graph(world: World) -> None:
    """Once the graph was recorded."""
    ddp = DistributedDataParallel(world.net(), static_graph=True)
    expected = everyones(world, ddp.module, 2)
    backward(ddp, world.batch(step=0))
    ddp.zero_grad()
    with ddp.no_sync():
        backward(ddp, world.batch(step=0))
    backward(ddp, world.batch(step=1))
    assert_close(gradients(ddp), expected)
