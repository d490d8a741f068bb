"""Profiler and execution traces: which collectives a pass makes, with their shapes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from allranks.testing import require_backend_in, skip_unsupported

from .branches import Branches, loss_with
from .reference import World, assert_close, backward, gradients, mean_gradients

not_on_the_host = skip_unsupported("profiling events on the host", on=["nccl"])


def wait_and_average(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket, and return when the work is done, not only its result there: then its event is complete."""
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    work.wait()
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.fixture
def model(world: World) -> nn.Module:
    """A model with rebuilt buckets, whose passes are all alike from now on."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(None, wait_and_average)
    for step in range(2):
        backward(ddp, world.batch(step=step))
    ddp.zero_grad()
    return ddp


def named(events: Any, name: str) -> list[Any]:  # noqa: ANN401 - torch's type has no name
    """The events of this name."""
    return [event for event in events if event.name == name]


def test_forward_pass_is_one_event(world: World, model: nn.Module) -> None:
    """With the name of the class."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        model(world.batch())
    assert len(named(profiler.events(), "DistributedDataParallel.forward")) == 1


@not_on_the_host
def test_backward_pass_has_an_all_reduce_for_its_bucket(world: World, model: nn.Module) -> None:
    """Of all elements at once, and profiling does not change the result."""
    expected = mean_gradients(model, world.batches())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        backward(model, world.batch())
    events = named(profiler.events(), "gloo:all_reduce")
    assert [event.input_shapes for event in events] == [[[37]]]
    assert_close(gradients(model), expected)


@not_on_the_host
def test_older_profiler_sees_it_too(world: World, model: nn.Module) -> None:
    """That of autograd."""
    with autograd_profile(use_device=None) as profiler:
        backward(model, world.batch())
    assert len(named(profiler.function_events, "gloo:all_reduce")) == 1


@not_on_the_host
def test_no_sync_has_no_collective(world: World, model: nn.Module) -> None:
    """Nothing is sent in the block."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler, model.no_sync():  # type: ignore[operator]
        backward(model, world.batch())
    assert named(profiler.events(), "gloo:all_reduce") == []


@not_on_the_host
def test_search_for_unused_parameters_costs_a_collective(world: World) -> None:
    """Beside the gradients, the ranks exchange which parameters they used, unless that was all of them."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    ddp.register_comm_hook(None, wait_and_average)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        backward(ddp, world.batch(), loss_with("left"))
    shapes = sorted(event.input_shapes[0][0] for event in named(profiler.events(), "gloo:all_reduce"))
    assert shapes == [6, 30]


@not_on_the_host
def test_buffers_are_a_broadcast(world: World) -> None:
    """All of one dtype in one collective, before each forward pass."""
    ddp = world.wrap(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        ddp(world.batch())
    shapes = [event.input_shapes for event in named(profiler.events(), "gloo:broadcast")]
    assert sorted(shapes) == [[[1]], [[6]]]


COLLECTIVES = {
    "all_reduce": lambda tensor, _: dist.all_reduce(tensor),
    "broadcast": lambda tensor, _: dist.broadcast(tensor, src=0),
    "reduce": lambda tensor, _: dist.reduce(tensor, dst=0),
    "all_gather": lambda tensor, size: dist.all_gather([torch.zeros_like(tensor) for _ in range(size)], tensor),
    "all_to_all": lambda tensor, size: dist.all_to_all_single(tensor.repeat(size), tensor.repeat(size)),
}


@not_on_the_host
def test_collective_is_an_event_with_its_shape(world: World) -> None:
    """Under the backend's name for it."""
    tensor = world.numbers(6)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for call in COLLECTIVES.values():
            call(tensor, world.size)
    events = profiler.events()
    for name in COLLECTIVES:
        (event,) = named(events, f"gloo:{name}")
        shape = 6 * world.size if name == "all_to_all" else 6
        assert event.input_shapes[0] in ([shape], [6]), name


@not_on_the_host
def test_collectives_in_flight_are_events_each(world: World) -> None:
    """An event ends with its collective, not with the call."""
    tensors = [world.numbers(3), world.numbers(3)]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
    events = named(profiler.events(), "gloo:all_reduce")
    assert len(events) == 2
    assert all(event.is_async for event in events)


def traced(folder: Path, world: World, model: nn.Module) -> list[dict[str, Any]]:
    """The nodes of the execution trace of one pass."""
    path = folder / f"trace-{world.rank}.json"
    observer = ExecutionTraceObserver().register_callback(str(path))
    try:
        observer.start()
        backward(model, world.batch())
        observer.stop()
    finally:
        observer.unregister_callback()
    nodes: list[dict[str, Any]] = json.loads(path.read_text())["nodes"]
    return nodes


def test_execution_trace_has_the_pass(world: World, model: nn.Module, shared_tmp_path: Path) -> None:
    """Its operators, with the wrapper's forward pass among them."""
    names = {node["name"] for node in traced(shared_tmp_path, world, model)}
    assert "DistributedDataParallel.forward" in names
    assert any(name.startswith("aten::") for name in names)


@require_backend_in("nccl")
def test_execution_trace_has_the_collectives(world: World, model: nn.Module, shared_tmp_path: Path) -> None:
    """Each with its kind, dtype and number of elements."""
    nodes = [node for node in traced(shared_tmp_path, world, model) if node["name"] == "record_param_comms"]
    attributes = [{one["name"]: one["value"] for one in node.get("attrs", [])} for node in nodes]
    reductions = [one for one in attributes if one.get("collective_name") == "allreduce"]
    assert [one["in_msg_nelems"] for one in reductions] == [37]
    assert [one["pg_size"] for one in reductions] == [world.size]


@require_backend_in("nccl")
def test_backward_pass_has_an_all_reduce_on_the_gpu(world: World, model: nn.Module) -> None:
    """In the profile of a GPU."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        backward(model, world.batch())
        torch.cuda.synchronize(world.device)
    assert named(profiler.events(), "nccl:all_reduce")
