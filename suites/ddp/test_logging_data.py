"""Logging data: what a wrapped model tells about its settings, its buckets and its passes."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import dist_debug_level, require_gpu, verify_ddp_error_logged, with_dist_debug_levels

from .branches import Branches, loss_with
from .reference import World, backward, since_torch_2_13

FLOAT_NET_BYTES = 4 * (4 * 5 + 5 + 5 * 2 + 2)


def data_of(ddp: DistributedDataParallel) -> dict[str, Any]:
    """All of it."""
    return dict(ddp._get_ddp_logging_data())


def float_net(world: World) -> nn.Module:
    """A net of 32-bit numbers."""
    return world.net().float()


def trained(world: World, ddp: DistributedDataParallel, steps: int) -> dict[str, Any]:
    """The data after some passes."""
    for _ in range(steps):
        backward(ddp, world.batch().to(next(ddp.parameters()).dtype))
    return data_of(ddp)


def test_rank_and_group(world: World, backend: str) -> None:
    """Who is talking."""
    data = data_of(DistributedDataParallel(float_net(world)))
    assert (data["rank"], data["world_size"], data["backend_name"]) == (world.rank, world.size, backend)
    assert data["module_name"] == "Sequential"


def test_settings_by_default(world: World) -> None:
    """As they are documented."""
    data = data_of(DistributedDataParallel(float_net(world)))
    assert data["broadcast_buffers"] == 1
    assert data["bucket_cap_bytes"] == 25 * 1024 * 1024
    assert (data["find_unused_parameters"], data["gradient_as_bucket_view"]) == (0, 0)
    assert not data.get("static_graph")
    assert (data["device_ids"], data["output_device"]) == ("", -1)


@since_torch_2_13
def test_settings_that_were_made(world: World) -> None:
    """Each of them."""
    options: dict[str, Any] = {"bucket_cap_mb": 2, "find_unused_parameters": True, "gradient_as_bucket_view": True}
    data = data_of(DistributedDataParallel(float_net(world), forward_sync_buffers=False, **options))
    assert data["broadcast_buffers"] == 0
    assert data["bucket_cap_bytes"] == 2 * 1024 * 1024
    assert (data["find_unused_parameters"], data["gradient_as_bucket_view"]) == (1, 1)
    assert data_of(DistributedDataParallel(float_net(world), static_graph=True))["static_graph"] == 1


@require_gpu
def test_devices(world: World) -> None:
    """Those of a model on a GPU."""
    data = data_of(DistributedDataParallel(float_net(world), device_ids=[world.device]))
    assert (data["device_ids"], data["output_device"]) == (str(world.device.index), world.device.index)


def test_parameters_are_counted(world: World) -> None:
    """Those that are trained, with their bytes and dtypes."""
    module = float_net(world)
    module[0].double()  # type: ignore[index]
    module[2].bias.requires_grad_(requires_grad=False)  # type: ignore[index]
    data = data_of(DistributedDataParallel(module))
    assert data["num_parameter_tensors"] == 3
    assert data["total_parameter_size_bytes"] == 8 * (4 * 5 + 5) + 4 * 5 * 2
    assert sorted(data["dtypes"].split(", ")) == ["double", "float"]


def test_sizes_of_buckets(world: World) -> None:
    """Before the first pass, and rebuilt."""
    ddp = DistributedDataParallel(float_net(world), bucket_cap_mb=1 / 2**20)
    assert data_of(ddp)["bucket_sizes"] == str(FLOAT_NET_BYTES)
    data = trained(world, ddp, 3)
    assert data["has_rebuilt_buckets"] == 1
    assert sorted(map(int, data["rebuilt_bucket_sizes"].split(", "))) == [8, 20, 40, 80]


def test_order_of_gradients(world: World) -> None:
    """The last layer's are ready first; logged under debugging."""
    with dist_debug_level("INFO"):
        data = trained(world, DistributedDataParallel(float_net(world)), 3)
    assert set(data["prev_iteration_grad_ready_order_indices"].split(", ")) == {"0", "1", "2", "3"}
    assert set(data["prev_iteration_grad_ready_order_indices"].split(", ")[:2]) == {"2", "3"}
    assert len(data["rebuilt_per_bucket_param_indices"].split()) == 4


def test_passes_are_counted(world: World) -> None:
    """Those before the one that was logged last, and only those that train."""
    ddp = DistributedDataParallel(float_net(world))
    assert trained(world, ddp, 3)["iteration"] == 2
    with torch.no_grad():
        ddp(world.batch().float())
    assert trained(world, ddp, 2)["iteration"] == 4


def test_sampled_passes_are_counted(world: World) -> None:
    """Behind the first ten, every fourth is measured."""
    ddp = DistributedDataParallel(float_net(world))
    ddp._set_ddp_runtime_logging_sample_rate(4)
    assert trained(world, ddp, 15)["iteration"] == 12


def test_rate_of_samples_is_positive(world: World) -> None:
    """Another is refused, and the refusal is logged."""
    ddp = DistributedDataParallel(float_net(world))
    with pytest.raises(ValueError, match="should be equal or greater than 1"):
        ddp._set_ddp_runtime_logging_sample_rate(0)
    verify_ddp_error_logged(ddp, "DDP runtime logging sample rate should be equal or greater than 1")


def test_times_are_measured(world: World) -> None:
    """In order: forward, backward, the first reduction and its end."""
    data = trained(world, DistributedDataParallel(float_net(world)), 4)
    for name in ("avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time"):
        assert data[name] > 0
    moments = [
        "forward_compute_time_start",
        "backward_compute_time_start",
        "backward_comm_time_start",
        "backward_comm_time_end",
    ]
    assert sorted(moments, key=lambda name: int(data[name])) == moments
    assert data["avg_backward_compute_comm_overlap_time"] <= data["avg_backward_comm_time"]


def test_unused_parameters_are_counted(world: World) -> None:
    """In bytes, of the last pass that was measured."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    for _ in range(3):
        backward(ddp, world.batch(), loss_with("left"))
    assert data_of(ddp)["unused_parameter_size"] == 8 * (4 * 2 + 2)


@with_dist_debug_levels(["OFF", "INFO", "DETAIL"])
def test_debug_level_is_that_of_construction(world: World) -> None:
    """As the variable has it."""
    data = data_of(DistributedDataParallel(float_net(world)))
    assert data["torch_distributed_debug"] == os.environ["TORCH_DISTRIBUTED_DEBUG"]


def test_environment_is_logged(world: World) -> None:
    """The variables of the rendezvous, *N/A* where there are none."""
    data = data_of(DistributedDataParallel(float_net(world)))
    assert data["master_port"] == os.environ.get("MASTER_PORT", "N/A")
    assert data["master_addr"] == os.environ.get("MASTER_ADDR", "N/A")
    assert data["cuda_visible_devices"] == os.environ.get("CUDA_VISIBLE_DEVICES", "N/A")
    if dist.get_backend() == "gloo":
        assert data["gloo_num_threads"] == 2
        assert data["gloo_socket_ifname"] == os.environ.get("GLOO_SOCKET_IFNAME", "N/A")


def test_error_of_construction_has_no_log_to_go_to(world: World) -> None:
    """An error before the reducer exists is only raised."""
    with pytest.raises(ValueError, match="device_ids can only be None"):
        DistributedDataParallel(float_net(world), device_ids=[0, 1])


def test_error_later_is_in_the_log(world: World) -> None:
    """With its class and message."""
    ddp = DistributedDataParallel(float_net(world))
    with pytest.raises(TypeError, match="must be callable"):
        ddp.register_comm_hook(None, 1)  # type: ignore[arg-type]
    verify_ddp_error_logged(ddp, "Communication hook must be callable")
    assert data_of(ddp)["has_error"] == 1


def test_names_of_parameters_are_kept_under_debugging(world: World) -> None:
    """By their number in the reducer's list, without frozen and ignored ones."""
    module = Branches()
    module.left.requires_grad_(requires_grad=False)
    with dist_debug_level("INFO"):
        ddp = world.wrap(module)
    parameters, _ = ddp._build_params_for_reducer()
    assert ddp._build_debug_param_to_name_mapping(parameters) == {
        0: "trunk.weight",
        1: "trunk.bias",
        2: "right.weight",
        3: "right.bias",
    }


def test_name_of_a_shared_parameter_is_one_of_its_names(world: World) -> None:
    """It stands in the reducer's list once."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    ddp = world.wrap(module)
    parameters, _ = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    assert sorted(names.values()) == ["0.bias", "1.bias", "1.weight"]


def test_parameter_that_is_not_the_modules_is_an_error(world: World) -> None:
    """The list and the module have to fit."""
    ddp = world.wrap(world.net())
    parameters, _ = ddp._build_params_for_reducer()
    with pytest.raises(ValueError, match="mapping to cover all parameters"):
        ddp._build_debug_param_to_name_mapping([*parameters, nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match="found in module parameters, but not DDP parameters"):
        ddp._build_debug_param_to_name_mapping(parameters[:-1])
