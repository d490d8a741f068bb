"""ZeroRedundancyOptimizer whose steps overlap with the backward pass, by a hook of DDP."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import require_backend_in, require_gpu

from .reference import World, assert_close, backward, gradients, values
from .sharded import Reference, zero

HOOKS = [hook_with_zero_step, hook_with_zero_step_interleaved]
Hook = Callable[..., Callable[[Any, GradBucket], torch.futures.Future[Tensor]]]


@pytest.mark.parametrize("hook", HOOKS)
def test_overlap_needs_an_optimizer_made_for_it(world: World, hook: Hook) -> None:
    """An ordinary one is refused."""
    ddp = world.wrap(world.net())
    with pytest.raises(ValueError, match="`overlap_with_ddp=True`"):
        hook(allreduce_hook, ddp, zero(ddp))


@require_backend_in("gloo")
@pytest.mark.parametrize("hook", HOOKS)
def test_overlap_is_refused_on_gloo(world: World, hook: Hook) -> None:
    """Where it may hang."""
    ddp = world.wrap(world.net())
    with pytest.raises(RuntimeError, match="may meet hangs"):
        hook(allreduce_hook, ddp, zero(ddp, overlap_with_ddp=True))


def test_step_does_nothing_if_it_overlaps(world: World, distributed_log: pytest.LogCaptureFixture) -> None:
    """The hook makes the steps; a call is logged."""
    ddp = world.wrap(world.net())
    optimizer = zero(ddp, overlap_with_ddp=True)
    before = values(ddp)
    backward(ddp, world.batch())
    assert optimizer.step() is None
    assert "should not be included in the training loop" in distributed_log.text
    assert_close(values(ddp), before)


def test_overlapping_optimizer_has_one_group(world: World) -> None:
    """Another is refused."""
    optimizer = zero(world.net(), overlap_with_ddp=True)
    with pytest.raises(RuntimeError, match="supports a single parameter group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1, device=world.device, dtype=torch.float64))]})


def test_overlapping_optimizer_without_a_functional_form_is_refused(world: World) -> None:
    """The message names the class."""
    with pytest.raises(ValueError, match="no supported functional optimizer"):
        ZeroRedundancyOptimizer(world.net().parameters(), torch.optim.LBFGS, overlap_with_ddp=True)


@require_backend_in("nccl")
@require_gpu
@pytest.mark.parametrize("shard", [False, True], ids=["whole buckets", "shared buckets"])
@pytest.mark.parametrize("hook", HOOKS)
def test_overlapping_steps_are_those_of_the_whole_optimizer(world: World, hook: Hook, *, shard: bool) -> None:
    """The first two passes only set it up: the model is trained from the third on."""
    ddp = DistributedDataParallel(world.net(), gradient_as_bucket_view=True)
    reference = Reference(world, ddp.module, torch.optim.SGD)
    optimizer = zero(ddp, torch.optim.SGD, overlap_with_ddp=True)
    ddp.register_comm_hook(None, hook(allreduce_hook, ddp, optimizer, shard_buckets=shard))
    for step in range(4):
        ddp.zero_grad()
        backward(ddp, world.batch(step=step))
        if step >= 2:
            reference.step(step)
    torch.cuda.synchronize(world.device)
    assert_close(values(ddp), values(reference.model), rtol=1e-9)
    assert gradients(ddp)
