"""Join for other classes than models, and the errors of a join."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from allranks.testing import SubgroupMaker, skip_if_small_world_size

from .reference import World, assert_close, backward, gradients, mean_gradients


class CounterHook(JoinHook):
    """Answers for the sum of a :class:`Counter`, and writes down what it is told."""

    def __init__(self, counter: "Counter", settings: dict[str, Any]) -> None:
        """Answer for this counter."""
        self.counter, self.settings = counter, settings

    def main_hook(self) -> None:
        """A peer goes on: take part in its collective."""
        self.counter.answered += 1
        dist.all_reduce(torch.zeros(1, device=self.counter.join_device))

    def post_hook(self, is_last_joiner: bool) -> None:
        """All are done."""
        self.counter.was_last = is_last_joiner


class Counter(Joinable):
    """Counts over all ranks with each call: a class that can join, and has nothing to do with models."""

    def __init__(self, world: World, group: dist.ProcessGroup | None = None) -> None:
        """Begin at 0."""
        super().__init__()
        self.world, self.group = world, group
        self.answered = 0
        self.was_last: bool | None = None
        self.settings: dict[str, Any] = {}

    def __call__(self) -> int:
        """How many ranks have called."""
        Join.notify_join_context(self)
        count = torch.ones(1, device=self.world.device)
        dist.all_reduce(count)
        return int(count)

    def join_hook(self, **kwargs: Any) -> JoinHook:  # noqa: ANN401 - torch's signature
        """What answers for this counter."""
        self.settings = kwargs
        return CounterHook(self, kwargs)

    @property
    def join_device(self) -> torch.device:
        """Where its numbers are."""
        return self.world.device

    @property
    def join_process_group(self) -> Any:  # noqa: ANN401 - torch's signature
        """The ranks that count."""
        return self.group or dist.group.WORLD


def test_class_of_ones_own_can_join(world: World) -> None:
    """Its hook is called once for each step of the others."""
    counter = Counter(world)
    with Join([counter]):
        counts = [counter() for _ in range(world.rank + 1)]
    assert counts == [world.size - step for step in range(world.rank + 1)]
    assert counter.answered == world.size - 1 - world.rank


def test_last_to_join_is_told_so(world: World) -> None:
    """After all are done, each learns whether it was among the last."""
    counter = Counter(world)
    with Join([counter]):
        for _ in range(world.rank + 1):
            counter()
    assert counter.was_last is (world.rank == world.size - 1)


def test_all_are_last_with_equal_data(world: World) -> None:
    """Nobody waited for anybody."""
    counter = Counter(world)
    with Join([counter]):
        counter()
    assert counter.was_last is True
    assert counter.answered == 0


def test_settings_reach_every_hook(world: World) -> None:
    """All keywords of the block are handed on."""
    counters = [Counter(world), Counter(world)]
    with Join(counters, color="blue"):  # type: ignore[arg-type]
        pass
    assert [counter.settings for counter in counters] == [{"color": "blue"}] * 2


def test_model_and_another_class_in_one_block(world: World) -> None:
    """Both are answered for in each step."""
    ddp, counter = world.wrap(world.net()), Counter(world)
    with Join([ddp, counter], divide_by_initial_world_size=False):
        for step in range(world.rank + 1):
            batches = [world.batch(peer, step) for peer in range(step, world.size)]
            expected = mean_gradients(ddp.module, batches)
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)
            assert counter() == len(batches)


def test_error_in_the_block_is_the_callers(world: World) -> None:
    """It leaves the block as it is, and no rank waits for another."""
    counter = Counter(world)

    def fail() -> None:
        counter()
        msg = "planted"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="planted"), Join([counter]):
        fail()
    assert counter.was_last is None


@skip_if_small_world_size(2)
@pytest.mark.parametrize("make", [lambda world: world.wrap(world.net()), Counter], ids=["model", "own class"])
def test_early_end_is_an_error_on_every_rank_if_asked_for(world: World, make: Callable[[World], Any]) -> None:
    """The rank that has no more data names itself, and the others learn that some rank has none."""
    joinable = make(world)
    message = "Rank 0 exhausted all inputs" if world.rank == 0 else "at least one rank that exhausted inputs"
    passes: list[int] = []

    def train() -> None:
        for step in range(world.rank + 1):
            if isinstance(joinable, nn.Module):
                backward(joinable, world.batch(step=step))
            else:
                joinable()
            passes.append(step)

    with pytest.raises(RuntimeError, match=message), Join([joinable], throw_on_early_termination=True):
        train()
    assert passes == [0]


@skip_if_small_world_size(2)
def test_trained_on_after_an_early_end(world: World) -> None:
    """The error came before anything of the step was sent, so the ranks can go on together."""
    ddp = world.wrap(world.net())

    def train() -> None:
        for step in range(world.rank + 1):
            backward(ddp, world.batch(step=step))

    with pytest.raises(RuntimeError, match="exhausted"), ddp.join(throw_on_early_termination=True):
        train()
    with ddp.join(enable=False):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(5))
        backward(ddp, world.batch(step=5))
        assert_close(gradients(ddp), expected)


def test_equal_data_is_no_early_end(world: World) -> None:
    """The block ends as without the flag."""
    ddp = world.wrap(world.net())
    with ddp.join(throw_on_early_termination=True):
        for step in range(2):
            expected = mean_gradients(ddp.module, world.batches(step))
            ddp.zero_grad()
            backward(ddp, world.batch(step=step))
            assert_close(gradients(ddp), expected)


def test_block_needs_something_to_join() -> None:
    """An empty list is refused."""
    with pytest.raises(ValueError, match="requires at least one joinable"):
        Join([])


def test_block_has_one_group(world: World, subgroup: SubgroupMaker) -> None:
    """All that join have the same ranks."""
    first, second = Counter(world), Counter(world, subgroup(range(world.size)))
    with pytest.raises(ValueError, match="multiple process groups"):
        Join([first, second])


def test_class_that_skips_the_constructor_is_named(world: World) -> None:
    """It has no settings of the block."""

    class Forgetful(Counter):
        def __init__(self, world: World) -> None:
            self.world = world

    with pytest.raises(AssertionError, match="Forgetful"):
        Forgetful(world)()
