"""Batch normalization: statistics of the rank's own rows, or of everybody's with SyncBatchNorm."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import require_gpu, skip_if_small_world_size, skip_when

from .reference import World, assert_close, assert_same, backward, gradients, mean_gradients, since_torch_2_13

ROWS = 4


def normalized(world: World) -> nn.Module:
    """A layer before and behind a normalization."""
    # No bias in front: its gradient would be zero, or what rounding makes of that.
    return world.place(nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2)))


def statistics(module: nn.Module) -> list[Tensor]:
    """The mean and the variance that were gathered."""
    norm = next(child for child in module.modules() if isinstance(child, nn.modules.batchnorm._BatchNorm))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return [norm.running_mean.clone(), norm.running_var.clone()]


def test_gradients_with_the_ranks_own_statistics(world: World) -> None:
    """Each rank normalizes its own rows; the gradients are averaged as ever."""
    ddp = world.wrap(normalized(world))
    expected = mean_gradients(ddp.module, world.batches(rows=ROWS))
    backward(ddp, world.batch(rows=ROWS))
    assert_close(gradients(ddp), expected, rtol=1e-9)


def test_running_statistics_are_those_of_rank_0(world: World) -> None:
    """From the next forward pass on."""
    ddp = world.wrap(normalized(world))
    alone = deepcopy(ddp.module)
    for step in range(2):
        alone(world.batch(0, step, ROWS))
        backward(ddp, world.batch(step=step, rows=ROWS))
    ddp.eval()
    ddp(world.batch(rows=ROWS))
    assert_close(statistics(ddp), statistics(alone), rtol=1e-9)


@since_torch_2_13
def test_running_statistics_may_be_the_ranks_own(world: World) -> None:
    """Without the broadcast of buffers, and without another pass after the last one."""
    ddp = world.wrap(normalized(world), forward_sync_buffers=False)
    alone = deepcopy(ddp.module)
    for step in range(2):
        alone(world.batch(step=step, rows=ROWS))
        backward(ddp, world.batch(step=step, rows=ROWS))
    assert_close(statistics(ddp), statistics(alone), rtol=1e-9)


def test_batches_are_counted(world: World) -> None:
    """The counter of the normalization is a buffer of integers."""
    ddp = world.wrap(normalized(world))
    for step in range(2):
        backward(ddp, world.batch(step=step, rows=ROWS))
    assert int(ddp.module[1].num_batches_tracked) == 2


def test_evaluation_does_not_change_the_statistics(world: World) -> None:
    """And needs no peers once the buffers were sent."""
    ddp = world.wrap(normalized(world))
    backward(ddp, world.batch(rows=ROWS))
    with torch.no_grad():
        ddp.eval()
        ddp(world.batch(rows=ROWS))
        before = statistics(ddp)
        for step in range(world.rank):
            ddp(world.batch(step=step, rows=ROWS))
    assert_same(statistics(ddp), before)


@since_torch_2_13
def test_several_forward_passes_before_one_backward_pass(world: World) -> None:
    """The statistics that a pass saved are not lost to the broadcast of the next one."""

    def twice(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) * model(batch + batch.square())).sum()  # type: ignore[no-any-return]

    ddp = world.wrap(normalized(world))
    expected = mean_gradients(ddp.module, world.batches(rows=ROWS), twice)
    backward(ddp, world.batch(rows=ROWS), twice)
    assert_close(gradients(ddp), expected, rtol=1e-9)


def test_normalization_without_parameters(world: World) -> None:
    """Nothing to train in it, and still buffers to send."""
    ddp = world.wrap(nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3, affine=False)))
    expected = mean_gradients(ddp.module, world.batches(rows=ROWS), lambda model, batch: model(batch)[:, 0].exp().sum())
    backward(ddp, world.batch(rows=ROWS), lambda model, batch: model(batch)[:, 0].exp().sum())
    assert_close(gradients(ddp), expected, rtol=1e-9)


@skip_when(torch.cuda.is_available, "the error is about modules on the CPU")
def test_synchronized_normalization_on_the_cpu_is_refused(world: World) -> None:
    """SyncBatchNorm has no implementation there."""
    module = nn.SyncBatchNorm.convert_sync_batchnorm(normalized(world))
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        DistributedDataParallel(module)


def test_conversion_keeps_parameters_and_statistics(world: World) -> None:
    """Every normalization of a module is replaced, whatever its dimensions."""
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm2d(2)), nn.Linear(2, 2))
    module[0].running_mean.fill_(world.rank)  # type: ignore[operator]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    kinds = [type(child) for child in converted.modules() if isinstance(child, nn.modules.batchnorm._BatchNorm)]
    assert kinds == [nn.SyncBatchNorm, nn.SyncBatchNorm]
    assert_same(statistics(converted)[:1], [torch.full((3,), float(world.rank))])
    assert converted.state_dict().keys() == module.state_dict().keys()


def synchronized(world: World) -> nn.Module:
    """The same layers, normalized over all ranks."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(normalized(world))  # type: ignore[no-any-return]


def over_all_rows(module: nn.Module, batches: list[Tensor], world: World) -> list[Tensor | None]:
    """What one process with all the rows gets: a sum over rows, which the ranks' mean is a part of."""
    alone = deepcopy(module)
    for number, child in enumerate(alone):  # type: ignore[arg-type, var-annotated]
        if isinstance(child, nn.SyncBatchNorm):
            plain = nn.BatchNorm1d(3, affine=child.affine).to(world.device, torch.float64)
            plain.load_state_dict(child.state_dict())
            alone[number] = plain  # type: ignore[operator]
    return mean_gradients(alone, [torch.cat(batches)], over=world.size)


@require_gpu
def test_synchronized_normalization_is_over_all_rows(world: World) -> None:
    """As if one process had them."""
    ddp = world.wrap(synchronized(world))
    expected = over_all_rows(ddp.module, world.batches(rows=ROWS), world)
    backward(ddp, world.batch(rows=ROWS))
    assert_close(gradients(ddp), expected, rtol=1e-9)


@require_gpu
def test_synchronized_normalization_of_batches_of_different_sizes(world: World) -> None:
    """Each row counts alike, whichever rank has it."""
    ddp = world.wrap(synchronized(world))
    batches = [world.batch(peer, rows=2 * peer + 1) for peer in range(world.size)]
    if world.size == 1:
        batches = [world.batch(rows=ROWS)]
    expected = over_all_rows(ddp.module, batches, world)
    backward(ddp, batches[world.rank])
    assert_close(gradients(ddp), expected, rtol=1e-9)


@since_torch_2_13
@require_gpu
def test_synchronized_statistics_are_the_same_on_all_ranks(world: World) -> None:
    """Without any broadcast of buffers."""
    ddp = world.wrap(synchronized(world), forward_sync_buffers=False)
    alone = normalized(world)
    alone.load_state_dict(ddp.module.state_dict())
    backward(ddp, world.batch(rows=ROWS))
    alone(torch.cat(world.batches(rows=ROWS)))
    assert_close(statistics(ddp), statistics(alone), rtol=1e-9)


@require_gpu
def test_synchronized_normalization_in_evaluation_needs_no_peers(world: World) -> None:
    """It normalizes by the running statistics."""
    ddp = world.wrap(synchronized(world))
    backward(ddp, world.batch(rows=ROWS))
    with torch.no_grad():
        ddp.eval()
        for step in range(world.rank + 1):
            assert ddp.module(world.batch(step=step, rows=ROWS)).shape == (ROWS, 2)


@require_gpu
@skip_if_small_world_size(2)
def test_synchronized_normalization_over_a_group(world: World, own_group: torch.distributed.ProcessGroup) -> None:
    """Only the rows of the group's ranks count."""
    plain = normalized(world)
    module = nn.SyncBatchNorm.convert_sync_batchnorm(deepcopy(plain), own_group)
    expected = mean_gradients(plain, world.batches(rows=ROWS))
    ddp = world.wrap(module)
    backward(ddp, world.batch(rows=ROWS))
    assert_close(gradients(ddp), expected, rtol=1e-9)


@require_gpu
def test_synchronized_normalization_is_logged(world: World) -> None:
    """Logging data say whether a model has one."""
    assert world.wrap(synchronized(world))._get_ddp_logging_data()["has_sync_bn"] == 1
    assert world.wrap(normalized(world))._get_ddp_logging_data()["has_sync_bn"] == 0
