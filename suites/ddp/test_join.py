"""Join: ranks that run out of data answer for those that go on."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.join import Join

from allranks.testing import skip_if_small_world_size

from .branches import Branches, loss_with
from .reference import (
    World,
    assert_close,
    assert_same,
    assert_same_on_all_ranks,
    backward,
    gradients,
    mean_gradients,
    set_gradients,
    since_torch_2_13,
    values,
)

pytestmark = pytest.mark.filterwarnings("ignore:You passed find_unused_parameters")


def steps_of(rank: int) -> int:
    """Rank 0 has one batch, and the others have two."""
    return min(rank, 1) + 1


def active(world: World, step: int) -> list[Tensor]:
    """The batches of those that are not done."""
    return [world.batch(peer, step) for peer in range(world.size) if step < steps_of(peer)]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Plain gradient descent."""
    return torch.optim.SGD(module.parameters(), lr=0.05)


@pytest.mark.parametrize("by_initial", [True, False], ids=["by all ranks", "by those that go on"])
def test_gradients_are_averaged_over(world: World, *, by_initial: bool) -> None:
    """All ranks, of which those that are done count as zeros, or only those that still have data."""
    ddp = world.wrap(world.net())
    with ddp.join(divide_by_initial_world_size=by_initial):
        for step in range(steps_of(world.rank)):
            batches = active(world, step)
            expected = mean_gradients(ddp.module, batches, over=world.size if by_initial else len(batches))
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["plain", "bucket view"])
def test_all_end_with_the_model_of_the_last(world: World, options: dict[str, bool]) -> None:
    """It was trained on everybody's data."""
    ddp, alone = world.wrap(world.net(), **options), world.net()
    alone.load_state_dict(ddp.module.state_dict())
    reference = sgd(alone)
    for step in range(steps_of(world.size - 1)):
        set_gradients(alone, mean_gradients(alone, active(world, step), over=world.size))
        reference.step()
    optimizer = sgd(ddp)
    with ddp.join():
        for step in range(steps_of(world.rank)):
            optimizer.zero_grad()
            backward(ddp, world.batch(step=step))
            optimizer.step()
    assert_close(values(ddp), values(alone), rtol=1e-9)
    assert_same_on_all_ranks(values(ddp))


def test_model_of_several_buckets(world: World) -> None:
    """Those that are done answer for each of them."""
    ddp = world.wrap(nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), bucket_cap_mb=0.0001)
    with ddp.join():
        for step in range(steps_of(world.rank) + 1):
            batches = [world.batch(peer, step) for peer in range(world.size) if step <= steps_of(peer)]
            expected = mean_gradients(ddp.module, batches, over=world.size)
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)


def test_ranks_with_equal_data_train_as_ever(world: World) -> None:
    """Nobody has to answer for another."""
    ddp = world.wrap(world.net())
    with ddp.join():
        for step in range(2):
            expected = mean_gradients(ddp.module, world.batches(step))
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)


def test_rank_without_any_data(world: World) -> None:
    """It answers for every pass of the others."""
    ddp = world.wrap(world.net())
    expected = mean_gradients(ddp.module, world.batches()[:-1], over=world.size)
    with ddp.join():
        if world.rank < world.size - 1:
            backward(ddp, world.batch())
            assert_close(gradients(ddp), expected)


def test_switched_off_it_does_nothing(world: World) -> None:
    """``enable=False`` for data that is known to be even."""
    ddp = world.wrap(world.net())
    with ddp.join(enable=False):
        assert not ddp._join_config.enable
        for step in range(2):
            expected = mean_gradients(ddp.module, world.batches(step))
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)


def test_trained_on_after_the_block(world: World) -> None:
    """Where the block ended, plain training goes on."""
    ddp = world.wrap(world.net())
    optimizer = sgd(ddp)
    with ddp.join():
        for step in range(steps_of(world.rank)):
            optimizer.zero_grad()
            backward(ddp, world.batch(step=step))
            optimizer.step()
    optimizer.zero_grad()
    expected = mean_gradients(ddp.module, world.batches(9))
    backward(ddp, world.batch(step=9))
    assert_close(gradients(ddp), expected)


class Tally(nn.Module):
    """A layer, and a buffer that counts the passes."""

    count: Tensor

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, batch: Tensor) -> Tensor:
        """The layer's output."""
        self.count += 1
        return self.layer(batch)  # type: ignore[no-any-return]


def test_buffers_come_from_a_rank_that_goes_on(world: World) -> None:
    """Rank 0 may be done, and its buffers old: in the end all have those of the last."""
    ddp = world.wrap(Tally())
    with ddp.join():
        for step in range(steps_of(world.rank)):
            backward(ddp, world.batch(step=step))
    assert_same([ddp.module.count], [world.numbers(1, peer=steps_of(world.size - 1) - 1)])


@since_torch_2_13
def test_buffers_are_left_alone_if_that_was_asked_for(world: World) -> None:
    """``forward_sync_buffers=False`` holds for the end of the block, too."""
    ddp = world.wrap(Tally(), forward_sync_buffers=False)
    with ddp.join():
        for step in range(steps_of(world.rank)):
            backward(ddp, world.batch(step=step))
    assert_same([ddp.module.count], [world.numbers(1, peer=steps_of(world.rank) - 1)])


def test_accumulation_within_the_block(world: World) -> None:
    """Passes that do not synchronize are answered, too."""
    ddp = world.wrap(world.net())
    ones = [world.batch(peer, step) for peer in range(world.size) for step in range(2)]
    expected = mean_gradients(ddp.module, ones, over=world.size)
    with ddp.join():
        for number in range(steps_of(world.rank)):
            ddp.zero_grad()
            with ddp.no_sync():
                backward(ddp, world.batch(step=0))
            backward(ddp, world.batch(step=1))
            if number == 0:
                assert_close(gradients(ddp), expected)


def or_zeros(module: nn.Module, slopes: list[Tensor | None]) -> list[Tensor]:
    """Zeros for a parameter that has no gradient."""
    parameters = list(module.parameters())
    return [torch.zeros_like(one) if slope is None else slope for one, slope in zip(parameters, slopes, strict=True)]


def test_unused_parameters_within_the_block(world: World) -> None:
    """Those that are done agree to what the others use; what no rank uses may have zeros."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    with ddp.join():
        for step in range(steps_of(world.rank)):
            use = ("left", "right")[step % 2]
            expected = mean_gradients(ddp.module, active(world, step), loss_with(use), over=world.size)
            ddp.zero_grad()
            backward(ddp, world.batch(step=step), loss_with(use))
            assert_close(or_zeros(ddp, gradients(ddp)), or_zeros(ddp, expected))


def test_hook_of_the_gradients_within_the_block(world: World) -> None:
    """Those that are done run it on zeros."""
    ddp = world.wrap(world.net())
    calls: list[bool] = []

    def triple(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(bool(bucket.buffer().any()))
        work = dist.all_reduce(bucket.buffer() * 3, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    ddp.register_comm_hook(None, triple)
    with ddp.join():
        for step in range(steps_of(world.rank)):
            total = mean_gradients(ddp.module, active(world, step), over=1)
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), [3 * gradient for gradient in total if gradient is not None])
    assert calls == [step < steps_of(world.rank) for step in range(steps_of(world.size - 1))]


def test_two_models_in_one_block(world: World) -> None:
    """Their passes are answered in the order in which they were named."""
    first, second = world.wrap(world.net()), world.wrap(nn.Linear(4, 2))
    with Join([first, second]):
        for step in range(steps_of(world.rank)):
            for ddp in (first, second):
                expected = mean_gradients(ddp.module, active(world, step), over=world.size)
                ddp.zero_grad()
                backward(ddp, world.batch(step=step))
                assert_close(gradients(ddp), expected)
    assert_same_on_all_ranks(values(first) + values(second))


@skip_if_small_world_size(2)
def test_block_after_block(world: World) -> None:
    """A model can join again."""
    ddp = world.wrap(world.net())
    for _ in range(2):
        with ddp.join():
            for step in range(steps_of(world.rank)):
                expected = mean_gradients(ddp.module, active(world, step), over=world.size)
                ddp.zero_grad()
                backward(ddp, world.batch(step=step))
                assert_close(gradients(ddp), expected)
