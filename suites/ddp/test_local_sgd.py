"""Local SGD: gradients averaged over all ranks at first, later over few, while parameters are averaged now and then."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import SubgroupMaker

from .reference import (
    World,
    assert_close,
    assert_same_on_all_ranks,
    backward,
    gradients,
    mean_gradients,
    set_gradients,
    values,
)


def test_gradients_are_averaged_over_all_at_first_and_over_the_sub_group_later(
    world: World, own_group: dist.ProcessGroup
) -> None:
    """The first step is warm-up."""
    ddp = world.wrap(world.net())
    state = PostLocalSGDState(None, own_group, start_localSGD_iter=1)
    ddp.register_comm_hook(state, post_localSGD_hook)
    for step in range(2):
        ddp.zero_grad()
        batches = world.batches(step) if step < 1 else [world.batch(step=step)]
        expected = mean_gradients(ddp.module, batches)
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_gradients_are_averaged_over_pairs_later(world: World, subgroup: SubgroupMaker) -> None:
    """Neighbours keep together; a last rank without a neighbour is alone."""
    pairs = [list(range(first, min(first + 2, world.size))) for first in range(0, world.size, 2)]
    groups = [subgroup(pair) for pair in pairs]
    mine = world.rank // 2
    ddp = world.wrap(world.net())
    state = PostLocalSGDState(None, groups[mine], start_localSGD_iter=0)
    ddp.register_comm_hook(state, post_localSGD_hook)
    expected = mean_gradients(ddp.module, [world.batch(peer) for peer in pairs[mine]])
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_gradients_are_left_alone_later_if_that_was_asked_for(world: World, own_group: dist.ProcessGroup) -> None:
    """No communication after the warm-up."""
    ddp = world.wrap(world.net())
    state = PostLocalSGDState(None, own_group, start_localSGD_iter=1, post_local_gradient_allreduce=False)
    ddp.register_comm_hook(state, post_localSGD_hook)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches() if step == 0 else [world.batch()])
        backward(ddp, world.batch())
        assert_close(gradients(ddp), expected)


def test_steps_are_counted_once_for_all_buckets(world: World, own_group: dist.ProcessGroup) -> None:
    """By the last bucket; local steps are not counted."""
    ddp = world.wrap(nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)]), bucket_cap_mb=0.0001)
    state = PostLocalSGDState(None, own_group, start_localSGD_iter=2)
    ddp.register_comm_hook(state, post_localSGD_hook)
    counted = []
    for step in range(4):
        backward(ddp, world.batch(step=step))
        counted.append(state.iter)
    assert counted == [1, 2, 2, 2]


def local_model(world: World, own_group: dist.ProcessGroup) -> DistributedDataParallel:
    """A model whose gradients are never averaged."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(PostLocalSGDState(None, own_group, start_localSGD_iter=0), post_localSGD_hook)
    return ddp


def apart(world: World, module: nn.Module) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    """Each rank's model and optimizer, in one process."""
    models = [world.net() for _ in range(world.size)]
    for model in models:
        model.load_state_dict(module.state_dict())
    return [(model, sgd(model)) for model in models]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Gradient descent with momentum, which is not averaged."""
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def train_apart(world: World, models: list[tuple[nn.Module, torch.optim.Optimizer]], step: int) -> None:
    """One step of each, on its own batch."""
    for peer, (model, optimizer) in enumerate(models):
        set_gradients(model, mean_gradients(model, [world.batch(peer, step)]))
        optimizer.step()


def average(models: list[nn.Module]) -> None:
    """Give all of them the mean of their parameters."""
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([parameter.detach() for parameter in same]).mean(0)
            for parameter in same:
                parameter.copy_(mean)


def test_optimizer_averages_parameters_once_a_period(world: World, own_group: dist.ProcessGroup) -> None:
    """In between each rank goes its own way."""
    ddp = local_model(world, own_group)
    models = apart(world, ddp.module)
    optimizer = PostLocalSGDOptimizer(sgd(ddp), PeriodicModelAverager(period=2, warmup_steps=1))
    for step in range(4):
        optimizer.zero_grad()
        backward(ddp, world.batch(step=step))
        optimizer.step()
        train_apart(world, models, step)
        if step in (1, 3):
            average([model for model, _ in models])
            assert_same_on_all_ranks(values(ddp))
        assert_close(values(ddp), values(models[world.rank][0]), rtol=1e-9)


def test_optimizer_hands_on_to_the_one_it_wraps(world: World, own_group: dist.ProcessGroup) -> None:
    """Groups, state and form are those of the local optimizer."""
    ddp = local_model(world, own_group)
    inner = sgd(ddp)
    optimizer = PostLocalSGDOptimizer(inner, PeriodicModelAverager(period=2))
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert repr(optimizer) == repr(inner)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, device=world.device))]})
    assert len(inner.param_groups) == 2


def test_optimizers_state_has_the_averagers_step(world: World, own_group: dist.ProcessGroup) -> None:
    """Loaded, the period goes on where it was, without a second warm-up."""
    ddp = local_model(world, own_group)
    optimizer = PostLocalSGDOptimizer(sgd(ddp), PeriodicModelAverager(period=4, warmup_steps=10))
    for step in range(2):
        backward(ddp, world.batch(step=step))
        optimizer.step()
    saved = optimizer.state_dict()
    assert saved["step"] == 2
    loaded = PostLocalSGDOptimizer(sgd(ddp), PeriodicModelAverager(period=4, warmup_steps=10))
    loaded.load_state_dict(saved)
    assert loaded.averager.step == 2
    buffers = [state["momentum_buffer"] for state in loaded.state.values()]
    assert_close(buffers, [state["momentum_buffer"] for state in optimizer.state.values()])


def test_state_without_a_step_is_warned_of(world: World, own_group: dist.ProcessGroup) -> None:
    """The averager begins anew."""
    ddp = local_model(world, own_group)
    optimizer = PostLocalSGDOptimizer(sgd(ddp), PeriodicModelAverager(period=4))
    optimizer.averager.step = 7
    with pytest.warns(UserWarning, match="does not contain a step counter"):
        optimizer.load_state_dict(sgd(ddp).state_dict())
    assert optimizer.averager.step == 0


def parameters(world: World) -> list[nn.Parameter]:
    """Two parameters full of this rank's number, with gradients."""
    full = [nn.Parameter(world.numbers(3)), nn.Parameter(world.numbers(2, 2) * 2)]
    for parameter in full:
        parameter.grad = torch.zeros_like(parameter)
    return full


def mean(world: World) -> list[Tensor]:
    """Their mean over the ranks."""
    middle = torch.full((1,), world.mean_rank() + 1, dtype=torch.float64, device=world.device)
    return [middle.expand(3), 2 * middle.expand(2, 2)]


def test_averager_averages_at_every_period_after_the_warm_up(world: World) -> None:
    """Steps 0 and 1 are the warm-up, then every third."""
    averager = PeriodicModelAverager(period=3, warmup_steps=2)
    averaged = []
    for step in range(6):
        ours = parameters(world)
        averager.average_parameters(ours)
        is_mean = bool((ours[0] == mean(world)[0]).all())
        assert_close(ours, mean(world) if step in (2, 5) else list(parameters(world)))
        averaged.append(is_mean)
    assert averager.step == 6
    if world.size % 2 == 0:
        assert averaged == [step in (2, 5) for step in range(6)]


def test_averager_takes_the_groups_of_an_optimizer(world: World) -> None:
    """Both forms of the argument mean the same."""
    ours = parameters(world)
    optimizer = torch.optim.SGD([{"params": ours[:1]}, {"params": ours[1:], "lr": 1.0}], lr=0.5)  # type: ignore[arg-type]
    PeriodicModelAverager(period=2).average_parameters(optimizer.param_groups)
    assert_close(ours, mean(world))


def test_parameters_without_a_gradient_are_not_averaged(world: World) -> None:
    """They have not been trained."""
    ours = parameters(world)
    ours[1].grad = None
    PeriodicModelAverager(period=2).average_parameters(ours)
    assert_close(ours, [mean(world)[0], world.numbers(2, 2) * 2])


def test_averager_over_a_group(world: World, own_group: dist.ProcessGroup) -> None:
    """Here of this rank alone."""
    ours = parameters(world)
    PeriodicModelAverager(period=2, process_group=own_group).average_parameters(ours)
    assert_close(ours, list(parameters(world)))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"period": 0}, "must be a positive value"), ({"period": 2, "warmup_steps": -1}, "must be a non-negative number")],
    ids=["period", "warm-up"],
)
def test_averager_refuses(options: dict[str, int], message: str) -> None:
    """Numbers that make no sense."""
    with pytest.raises(ValueError, match=message):
        PeriodicModelAverager(**options)  # type: ignore[arg-type]


def test_period_of_one_is_warned_of() -> None:
    """Plain data parallelism would do."""
    with pytest.warns(UserWarning, match="no need to use model averaging"):
        PeriodicModelAverager(period=1)


def test_hierarchy_of_one_level_is_periodic(world: World) -> None:
    """All ranks, every second step."""
    averager = HierarchicalModelAverager({2: world.size}, warmup_steps=1)
    for step in range(5):
        ours = parameters(world)
        averager.average_parameters(ours)
        assert_close(ours, mean(world) if step in (2, 4) else list(parameters(world)))


def test_hierarchy_of_two_levels(world: World) -> None:
    """Every second step each rank alone, every fourth all of them: the larger group wins."""
    averager = HierarchicalModelAverager({2: 1, 4: world.size} if world.size > 1 else {4: 1})
    for step in range(5):
        ours = parameters(world)
        averager.average_parameters(ours)
        assert_close(ours, mean(world) if step % 4 == 0 else list(parameters(world)))
    for group in averager.period_process_group_dict.values():
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("periods", "message"),
    [({}, "must not be empty"), ({0: 1}, "minimum period"), ({2: 1000}, "must be equal to the size")],
    ids=["nothing", "period", "size"],
)
def test_hierarchy_refuses(periods: dict[int, int], message: str) -> None:
    """The last group has to be that of all ranks, and every period positive."""
    with pytest.raises(ValueError, match=message):
        HierarchicalModelAverager(periods)


def test_hierarchy_refuses_a_negative_warm_up(world: World) -> None:
    """As the periodic averager does."""
    options: dict[str, Any] = {"warmup_steps": -1}
    with pytest.raises(ValueError, match="must be a non-negative number"):
        HierarchicalModelAverager({2: world.size}, **options)
