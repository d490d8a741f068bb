"""Construction: all ranks begin with the model of rank 0, or learn why they cannot."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.utils import _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import SubgroupMaker, require_gpu, skip_if_small_world_size, skip_when

from .reference import World, assert_close, assert_same, backward, gradients, mean_gradients, values

on_cpu_only = skip_when(torch.cuda.is_available, "the message is about modules on the CPU")


class Counting(nn.Module):
    """A layer and two buffers, one of integers, all of them full of the rank's number."""

    def __init__(self, world: World) -> None:
        """Fill in the number of this rank, plus 1."""
        super().__init__()
        self.layer = nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.fill_(world.rank + 1)
        self.register_buffer("mean", torch.full((3,), float(world.rank + 1)))
        self.register_buffer("count", torch.tensor(world.rank + 1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        return self.layer(batch)  # type: ignore[no-any-return]


def test_parameters_begin_as_those_of_rank_0(world: World) -> None:
    """Whatever the other ranks made of them."""
    ddp = world.wrap(Counting(world), init_sync=True)
    assert_same(values(ddp), [world.numbers(2, 4, peer=0), world.numbers(2, peer=0)])


def test_buffers_begin_as_those_of_rank_0(world: World) -> None:
    """Floating-point numbers and integers alike."""
    module = world.wrap(Counting(world), init_sync=True).module
    assert_same([module.mean], [world.numbers(3, peer=0)])
    assert int(module.count) == 1


def test_without_initial_sync_each_rank_keeps_its_own(world: World) -> None:
    """``init_sync=False`` sends nothing."""
    ddp = world.wrap(Counting(world), init_sync=False)
    assert_same(values(ddp), [world.numbers(2, 4), world.numbers(2)])
    assert int(ddp.module.count) == world.rank + 1


def test_gradients_are_averaged_without_initial_sync_too(world: World) -> None:
    """The models begin equal by their seed."""
    ddp = world.wrap(world.net(), init_sync=False)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_frozen_parameters_begin_as_those_of_rank_0_too(world: World) -> None:
    """They are not reduced, but they are part of the model."""
    module = Counting(world)
    module.layer.bias.requires_grad = False
    assert_same(values(world.wrap(module, init_sync=True)), [world.numbers(2, 4, peer=0), world.numbers(2, peer=0)])


@skip_if_small_world_size(2)
def test_another_number_of_parameters_is_an_error_on_every_rank(world: World, subgroup: SubgroupMaker) -> None:
    """It names both numbers before any parameter is sent."""
    group = subgroup(range(world.size))
    layers = [nn.Linear(4, 4, bias=False) for _ in range(1 if world.rank == 0 else 2)]
    with pytest.raises(RuntimeError, match=r"same model across all ranks.*has [12] params.*inconsistent [12] params"):
        world.wrap(nn.Sequential(*layers), init_sync=True, process_group=group)


@skip_if_small_world_size(2)
def test_another_shape_is_an_error_that_names_the_parameter(world: World, subgroup: SubgroupMaker) -> None:
    """The ranks whose shapes differ from those of rank 0 report it; rank 0 has nothing to compare with."""
    group = subgroup(range(world.size))
    layer = world.place(nn.Linear(4, 2 if world.rank == 0 else 3))
    parameters = list(layer.parameters())
    if world.rank == 0:
        _verify_param_shape_across_processes(group, [*parameters])
    else:
        with pytest.raises(RuntimeError, match=r"\[3, 4\].*not to match sizes of the same param in process 0"):
            world.wrap(layer, init_sync=True, process_group=group)


@pytest.mark.parametrize(
    "module", [nn.Tanh(), nn.Linear(2, 2).requires_grad_(requires_grad=False)], ids=["no parameters", "frozen"]
)
def test_module_without_anything_to_train_is_refused(world: World, module: nn.Module) -> None:
    """There would be nothing to reduce, ever."""
    with pytest.raises(RuntimeError, match="doesn't have any parameter that requires a gradient"):
        world.wrap(copy.deepcopy(module))


def test_module_with_uninitialized_parameters_is_refused(world: World) -> None:
    """A lazy layer has no shape that could be compared."""
    with pytest.raises(RuntimeError, match="uninitialized parameters"):
        DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)).to(world.device))


def test_module_on_several_kinds_of_devices_is_refused(world: World) -> None:
    """All parameters are on CPUs, or all are on GPUs."""
    module = nn.Sequential(nn.Linear(2, 2, device=world.device), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ValueError, match="same type of devices"):
        DistributedDataParallel(module)


def test_several_device_ids_are_refused(world: World) -> None:
    """A process has one replica."""
    with pytest.raises(ValueError, match="device_ids can only be None or contain a single element"):
        world.wrap(world.net(), device_ids=[0, 1])


@on_cpu_only
@pytest.mark.parametrize(
    "options", [{"device_ids": [0]}, {"output_device": 1}], ids=lambda options: next(iter(options))
)
def test_devices_of_a_module_on_the_cpu_are_refused(world: World, options: dict[str, object]) -> None:
    """They are of GPUs; an empty list is taken for none."""
    with pytest.raises(ValueError, match="device_ids and output_device arguments only work with"):
        world.wrap(world.net(), **options)
    assert world.wrap(world.net(), device_ids=[]).device_ids is None


@require_gpu
def test_inputs_are_moved_to_the_device_of_the_replica(world: World) -> None:
    """``device_ids`` names it."""
    ddp = world.wrap(world.net(), device_ids=[world.device])
    assert ddp(world.batch().cpu()).device == world.device


def test_group_and_mesh_together_are_refused(world: World, process_group: dist.ProcessGroup) -> None:
    """They would be two answers to one question."""
    mesh = DeviceMesh.from_group(process_group, world.device.type)
    with pytest.raises(RuntimeError, match="both process_group and device_mesh"):
        world.wrap(world.net(), process_group=process_group, device_mesh=mesh)


def test_mesh_of_one_dimension_gives_the_group(world: World, process_group: dist.ProcessGroup) -> None:
    """The gradients are averaged over the ranks of the mesh."""
    mesh = DeviceMesh.from_group(process_group, world.device.type)
    ddp = world.wrap(world.net(), device_mesh=mesh)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert ddp.process_group is process_group
    assert_close(gradients(ddp), expected)


def test_argument_that_checks_the_reduction_is_deprecated(world: World) -> None:
    """It has no effect any more."""
    with pytest.warns(FutureWarning, match="check_reduction"):
        world.wrap(world.net(), check_reduction=True)


def test_copied_by_pickle_the_model_still_averages(world: World) -> None:
    """The group and the reducer are not in the pickle: the copy makes its own."""
    ddp = world.wrap(world.net())
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    expected = mean_gradients(ddp.module, world.batches())
    backward(loaded, world.batch())
    assert_close(gradients(loaded), expected)
    assert gradients(ddp) == [None] * 4


def test_pickle_of_a_model_on_a_sub_group_is_refused(world: World, subgroup: SubgroupMaker) -> None:
    """Only the default group can be found again by the process that loads it."""
    ddp = world.wrap(world.net(), process_group=subgroup(range(world.size)))
    with pytest.raises(RuntimeError, match="only supported when using DDP with the default process group"):
        torch.save(ddp, io.BytesIO())


def test_state_has_the_wrapped_modules_names(world: World) -> None:
    """Behind the prefix ``module.``, without which it is the state of the bare module."""
    ddp = world.wrap(world.net())
    bare = ddp.module.state_dict()
    assert ddp.state_dict().keys() == {f"module.{name}" for name in bare}
    other = world.wrap(world.net())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(ddp.state_dict())
    assert_same(values(other), values(ddp))


def test_state_loaded_from_a_file_of_rank_0_is_every_ranks(world: World) -> None:
    """What one rank saves is loaded by all of them, and training goes on from there."""
    ddp = world.wrap(world.net())
    saved: list[object] = [None]
    if world.rank == 0:
        saved = [{name: tensor.cpu() * 2 for name, tensor in ddp.state_dict().items()}]
    dist.broadcast_object_list(saved, src=0, device=world.device)
    wanted = [2 * value for value in values(ddp)]
    ddp.load_state_dict(saved[0])  # type: ignore[arg-type]
    assert_same(values(ddp), wanted)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_mode_of_training_reaches_the_module(world: World) -> None:
    """``eval`` and ``train`` of the wrapper are those of the wrapped."""
    ddp = world.wrap(nn.Sequential(nn.Linear(4, 2), nn.Dropout()))
    ddp.eval()
    assert not any(module.training for module in ddp.modules())
    ddp.train()
    assert all(module.training for module in ddp.modules())
