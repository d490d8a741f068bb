"""Optimizers that make their step within the backward pass, as soon as a gradient is averaged."""

from typing import Any

import pytest
import torch
import torch.distributed.algorithms._optimizer_overlap  # torch imports it, and FSDP with it, at the first use
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward, _get_in_backward_optimizers  # type: ignore[attr-defined, attr-defined]
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import require_accelerator

from .reference import (
    World,
    assert_close,
    assert_same_on_all_ranks,
    backward,
    copy_of,
    gradients,
    mean_gradients,
    set_gradients,
    values,
)

KINDS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.05}),
    (torch.optim.AdamW, {"lr": 0.05}),
]
each_kind = pytest.mark.parametrize(("kind", "settings"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])


def train_alone(world: World, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step in one process, on everybody's data."""
    set_gradients(module, mean_gradients(module, world.batches(step)))
    optimizer.step()


@each_kind
def test_optimizer_registered_with_the_model(
    world: World, kind: type[torch.optim.Optimizer], settings: dict[str, Any]
) -> None:
    """Its step is a part of the reduction of each bucket: the parameters go the way of one process."""
    ddp, alone = world.wrap(world.net()), world.net()
    alone.load_state_dict(ddp.module.state_dict())
    reference = kind(alone.parameters(), **settings)
    rate, others = settings["lr"], {name: value for name, value in settings.items() if name != "lr"}
    ddp._register_fused_optim(kind, rate, **others)
    for step in range(2):
        ddp.zero_grad()
        backward(ddp, world.batch(step=step))
        train_alone(world, alone, reference, step)
        assert_close(values(ddp), values(alone), rtol=1e-9)
    assert_same_on_all_ranks(values(ddp))


def test_optimizer_registered_for_some_parameters(world: World) -> None:
    """The others have their averaged gradients, and are not changed."""
    ddp = world.wrap(world.net())
    chosen = list(ddp.parameters())[:2]
    ddp._register_fused_optim(torch.optim.SGD, 0.05, optim_params=chosen)
    before, slopes = values(ddp), mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    trained = [old - 0.05 * slope for old, slope in zip(before[:2], slopes[:2], strict=True) if slope is not None]
    assert_close(values(ddp), [*trained, *before[2:]])
    assert_close(gradients(ddp), slopes)


def test_optimizer_without_a_functional_form_cannot_be_registered(world: World) -> None:
    """The message names it."""
    with pytest.raises(ValueError, match="does not have a functional"):
        world.wrap(world.net())._register_fused_optim(torch.optim.LBFGS, 0.1)


def test_registered_optimizer_is_a_hook_and_there_is_one(world: World) -> None:
    """No other hook can be registered beside it."""
    ddp = world.wrap(world.net())
    ddp._register_fused_optim(torch.optim.SGD, 0.05)
    assert "hook_then_optimizer" in str(ddp._get_ddp_logging_data()["comm_hook"])
    with pytest.raises(RuntimeError, match="can only be called once"):
        ddp._register_fused_optim(torch.optim.SGD, 0.05)


def test_optimizers_of_parameters_without_ddp(world: World) -> None:
    """The form that DDP builds on: each parameter makes its step when it has its gradient, which is then dropped."""
    module = world.net()
    before, slopes = values(module), mean_gradients(module, [world.batch()])
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.05})
    backward(module, world.batch())
    assert gradients(module) == [None] * 4
    assert len(_get_in_backward_optimizers(module)) == 4
    assert_close(
        values(module), [old - 0.05 * slope for old, slope in zip(before, slopes, strict=True) if slope is not None]
    )


@require_accelerator
@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
@each_kind
def test_optimizers_of_parameters(
    world: World, kind: type[torch.optim.Optimizer], settings: dict[str, Any], *, as_view: bool
) -> None:
    """DDP averages first, steps then, and drops the gradients."""
    module = world.net()
    alone = copy_of(module)
    reference = kind(alone.parameters(), **settings)
    _apply_optimizer_in_backward(kind, module.parameters(), settings)
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=as_view)
    for step in range(2):
        backward(ddp, world.batch(step=step))
        train_alone(world, alone, reference, step)
    assert gradients(ddp) == [None] * 4
    assert_close(values(ddp), values(alone), rtol=1e-9)


@require_accelerator
def test_optimizers_of_ignored_parameters_use_the_ranks_own_gradients(world: World) -> None:
    """DDP leaves their hooks in place."""
    module = world.net()
    names = [name for name, _ in module.named_parameters()][2:]
    before = values(module)
    slopes, own = mean_gradients(module, world.batches()), mean_gradients(module, [world.batch()])
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.05})
    ddp = DistributedDataParallel(module)
    backward(ddp, world.batch())
    used = [*slopes[:2], *own[2:]]
    assert_close(
        values(ddp), [old - 0.05 * slope for old, slope in zip(before, used, strict=True) if slope is not None]
    )
