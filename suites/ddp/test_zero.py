"""ZeroRedundancyOptimizer: each rank keeps the state of its share of the parameters, and updates it for all."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer

from allranks.testing import SubgroupMaker, skip_if_small_world_size

from .reference import (
    World,
    assert_close,
    assert_same_on_all_ranks,
    backward,
    mean_gradients,
    set_gradients,
    values,
)
from .sharded import SETTINGS, Reference, step_on, zero


@pytest.mark.parametrize(
    ("kind", "as_view"),
    [*((kind, False) for kind in SETTINGS), (torch.optim.Adam, True)],
    ids=[*(kind.__name__ for kind in SETTINGS), "bucket view"],
)
def test_training_is_that_of_the_whole_optimizer(
    world: World, kind: type[torch.optim.Optimizer], *, as_view: bool
) -> None:
    """Step by step, and all ranks have the same parameters to the last bit."""
    ddp = world.wrap(world.net())
    reference = Reference(world, ddp.module, kind)
    optimizer = zero(ddp, kind, parameters_as_bucket_view=as_view)
    for step in range(2):
        step_on(ddp, optimizer, world.batch(step=step))
        reference.step(step)
    assert_close(values(ddp), values(reference.model), rtol=1e-9)
    assert_same_on_all_ranks(values(ddp))


def test_every_parameter_belongs_to_one_rank(world: World) -> None:
    """Together the shares are all, and none is in two of them."""
    ddp = world.wrap(world.net())
    optimizer = zero(ddp)
    shares = [share[0]["params"] for share in optimizer._partition_parameters()]  # type: ignore[attr-defined]
    assert len(shares) == world.size
    assert sorted(id(one) for share in shares for one in share) == sorted(id(one) for one in ddp.parameters())


def test_state_is_kept_for_the_ranks_own_share_alone(world: World) -> None:
    """Which is what it saves memory by."""
    ddp = world.wrap(world.net())
    optimizer = zero(ddp)
    step_on(ddp, optimizer, world.batch())
    own = optimizer._partition_parameters()[world.rank][0]["params"]  # type: ignore[attr-defined]
    assert {id(one) for one in optimizer.optim.state} == {id(one) for one in own}


def test_shares_are_of_about_the_same_size(world: World) -> None:
    """The largest parameters are dealt out first, each to the rank that has least."""
    module = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in (1, 1, 2, 2, 3, 3, 8)])
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    sizes = [sum(one.numel() for one in share[0]["params"]) for share in optimizer._partition_parameters()]  # type: ignore[attr-defined]
    assert sum(sizes) == 20
    assert max(sizes) <= max(8, -(-20 // world.size) + 1)


def test_parameters_are_those_of_their_owner_after_a_step(world: World) -> None:
    """Even where the gradients were not averaged: the owner decides."""
    model = world.net()
    optimizer = zero(model, torch.optim.SGD)
    set_gradients(model, mean_gradients(model, [world.batch()]))
    before = values(model)
    shares = optimizer._partition_parameters()  # type: ignore[attr-defined]
    owners = {id(one): rank for rank, share in enumerate(shares) for one in share[0]["params"]}
    expected = []
    for number, parameter in enumerate(model.parameters()):
        slope = mean_gradients(model, [world.batch(owners[id(parameter)])])[number]
        assert slope is not None
        expected.append(before[number] - 0.05 * slope)
    optimizer.step()
    assert_close(values(model), expected)


def test_learning_rate_may_change(world: World) -> None:
    """In the groups of the optimizer, where schedulers change it."""
    ddp = world.wrap(world.net())
    reference = Reference(world, ddp.module, torch.optim.SGD)
    optimizer = zero(ddp, torch.optim.SGD)
    for step, rate in enumerate([0.1, 0.01]):
        optimizer.param_groups[0]["lr"] = reference.optimizer.param_groups[0]["lr"] = rate
        step_on(ddp, optimizer, world.batch(step=step))
        reference.step(step)
    assert_close(values(ddp), values(reference.model), rtol=1e-9)


def test_groups_with_settings_of_their_own(world: World) -> None:
    """Each group is divided among the ranks."""
    ddp = world.wrap(world.net())
    reference = Reference(world, ddp.module)

    def groups(model: nn.Module) -> list[dict[str, Any]]:
        first, *rest = model.parameters()
        return [{"params": [first], "lr": 0.5}, {"params": rest}]

    optimizer = ZeroRedundancyOptimizer(groups(ddp), torch.optim.SGD, lr=0.05)
    reference.optimizer = torch.optim.SGD(groups(reference.model), lr=0.05)
    for step in range(2):
        step_on(ddp, optimizer, world.batch(step=step))
        reference.step(step)
    assert_close(values(ddp), values(reference.model), rtol=1e-9)


def test_group_added_later(world: World) -> None:
    """Its parameters are dealt out, too."""
    ddp = world.wrap(world.net())
    reference = Reference(world, ddp.module)
    first, *rest = ddp.parameters()
    optimizer = ZeroRedundancyOptimizer([first], torch.optim.SGD, lr=0.05)
    optimizer.add_param_group({"params": rest, "lr": 0.2})
    one, *others = reference.model.parameters()
    reference.optimizer = torch.optim.SGD([{"params": [one]}, {"params": others, "lr": 0.2}], lr=0.05)  # type: ignore[arg-type]
    for step in range(2):
        step_on(ddp, optimizer, world.batch(step=step))
        reference.step(step)
    assert_close(values(ddp), values(reference.model), rtol=1e-9)


def test_frozen_parameter_that_is_thawed_is_trained(world: World) -> None:
    """The buckets are built again for it."""
    model = world.net()
    first = next(model.parameters())
    first.requires_grad = False
    optimizer = zero(model, torch.optim.SGD, parameters_as_bucket_view=True)
    first.requires_grad = True
    expected = mean_gradients(model, world.batches())
    before = values(model)
    set_gradients(model, expected)
    optimizer.step()
    assert_close(
        values(model), [old - 0.05 * slope for old, slope in zip(before, expected, strict=True) if slope is not None]
    )


def test_closure_gives_the_loss(world: World) -> None:
    """It is evaluated by the local optimizer."""
    ddp = world.wrap(world.net())
    optimizer = zero(ddp, torch.optim.SGD)

    def closure() -> float:
        optimizer.zero_grad()
        loss = ddp(world.batch()).square().sum()
        loss.backward()
        return float(loss.detach())

    with torch.no_grad():
        wanted = float(ddp.module(world.batch()).square().sum())
    assert optimizer.step(closure) == pytest.approx(wanted)
    assert_same_on_all_ranks(values(ddp))


@pytest.mark.parametrize("target", ["first", "last"])
def test_state_is_gathered_on_one_rank(world: World, target: str) -> None:
    """It is that of the whole optimizer; the other ranks have none."""
    ddp = world.wrap(world.net())
    reference = Reference(world, ddp.module)
    optimizer = zero(ddp)
    for step in range(2):
        step_on(ddp, optimizer, world.batch(step=step))
        reference.step(step)
    to = 0 if target == "first" else world.size - 1
    optimizer.consolidate_state_dict(to=to)
    if world.rank != to:
        with pytest.raises(RuntimeError, match="has not been consolidated on this rank"):
            optimizer.state_dict()
        return
    ours, whole = optimizer.state_dict()["state"], reference.optimizer.state_dict()["state"]
    assert ours.keys() == whole.keys()
    for number in whole:
        for name in ("exp_avg", "exp_avg_sq"):
            assert_close([ours[number][name].cpu()], [whole[number][name].cpu()], rtol=1e-9)


def test_gathered_state_loaded_by_all_goes_on(world: World) -> None:
    """A new optimizer takes its share of it."""
    ddp = world.wrap(world.net())
    reference = Reference(world, ddp.module)
    optimizer = zero(ddp)
    step_on(ddp, optimizer, world.batch(step=0))
    reference.step(0)
    optimizer.consolidate_state_dict(to=0)
    saved: list[Any] = [optimizer.state_dict() if world.rank == 0 else None]
    dist.broadcast_object_list(saved, src=0, device=world.device)
    loaded = zero(ddp)
    loaded.load_state_dict(saved[0])
    step_on(ddp, loaded, world.batch(step=1))
    reference.step(1)
    assert_close(values(ddp), values(reference.model), rtol=1e-9)


class MeanHook(JoinHook):
    """Answers for :class:`Mean` with zeros, and keeps the result."""

    def __init__(self, mean: "Mean") -> None:
        """Answer for this one."""
        self.mean = mean

    def main_hook(self) -> None:
        """A peer goes on."""
        self.mean.model.zero_grad()
        self.mean.reduce()


class Mean(Joinable):
    """Averages the gradients of a model, also for ranks that are done: DDP's own join does not give them any."""

    def __init__(self, world: World, model: nn.Module) -> None:
        """Of this model."""
        super().__init__()
        self.world, self.model = world, model

    def __call__(self) -> None:
        """One step's."""
        Join.notify_join_context(self)
        self.reduce()

    def reduce(self) -> None:
        """Average over all ranks; what has no gradient counts as zeros."""
        for parameter in self.model.parameters():
            slope = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(slope)
            parameter.grad = slope / self.world.size

    def join_hook(self, **_: Any) -> JoinHook:  # noqa: ANN401 - torch's signature
        """What answers for it."""
        return MeanHook(self)

    @property
    def join_device(self) -> torch.device:
        """Where the gradients are."""
        return self.world.device

    @property
    def join_process_group(self) -> Any:  # noqa: ANN401 - torch's signature
        """All ranks."""
        return dist.group.WORLD


def test_uneven_data(world: World) -> None:
    """Ranks that are done go on updating their share."""
    model = world.net()
    reference = Reference(world, model, torch.optim.SGD)
    optimizer, average = zero(model, torch.optim.SGD), Mean(world, model)
    with Join([average, optimizer]):
        for step in range(min(world.rank, 1) + 1):
            model.zero_grad()
            backward(model, world.batch(step=step))
            average()
            optimizer.step()
    for step in range(min(world.size, 2)):
        batches = [world.batch(peer, step) for peer in range(step, world.size)]
        set_gradients(reference.model, mean_gradients(reference.model, batches, over=world.size))
        reference.optimizer.step()
    assert_close(values(model), values(reference.model), rtol=1e-9)
    assert_same_on_all_ranks(values(model))


@skip_if_small_world_size(2)
def test_sharded_over_a_group(world: World, subgroup: SubgroupMaker) -> None:
    """The last two ranks share the state, and the others have no part."""
    members = [world.size - 2, world.size - 1]
    group = subgroup(members)
    if world.rank not in members:
        return
    ddp = world.wrap(world.net(), process_group=group)
    expected = mean_gradients(ddp.module, [world.batch(member) for member in members])
    before = values(ddp)
    optimizer = zero(ddp, torch.optim.SGD, process_group=group)
    step_on(ddp, optimizer, world.batch())
    assert_close(
        values(ddp), [old - 0.05 * slope for old, slope in zip(before, expected, strict=True) if slope is not None]
    )


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ([], ValueError, "empty parameter list"),
        (torch.zeros(2), TypeError, "should be an iterable of Tensors"),
        ([torch.zeros(2), 3], TypeError, "iterable of Tensors or dicts"),
        (7, TypeError, "iterable of Tensors or dicts"),
        ([{"lr": 0.1}], ValueError, "'params' key"),
        ([torch.zeros(2), torch.zeros(2).double()], ValueError, "same dense type for all parameters"),
    ],
    ids=["none", "tensor", "number among them", "number", "no key", "two dtypes"],
)
def test_parameters_that_are_refused(parameters: Any, error: type[Exception], message: str) -> None:  # noqa: ANN401
    """Each with its reason."""
    with pytest.raises(error, match=message):
        ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)


def test_state_before_it_was_gathered_is_an_error(world: World) -> None:
    """The message has the call to make."""
    optimizer = zero(world.net())
    with pytest.raises(RuntimeError, match=rf"consolidate_state_dict\(to={world.rank}\)"):
        optimizer.state_dict()
