"""Gradients of CUDA tensors: their devices, and the work of a GPU that is not done yet when they are sent."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.nn import Linear, Module, Sequential

from allranks.testing import (
    RankEnvironment,
    TensorPipe,
    require_gpu,
    require_gpu_per_rank,
    require_world_size,
    with_rpc,
    worker_name,
)

from . import engine
from .calls import Call, any_call, synchronously
from .operands import assert_equal, assert_gradients, assert_same_gradients, dense, local_gradients, total


def on_gpu(number: int, device: torch.device) -> Tensor:
    """A leaf on the rank's GPU."""
    return dense(number).detach().to(device).requires_grad_()


@require_gpu
def test_pass_on_one_gpu(device: torch.device) -> None:
    """A graph without any call has its gradients in the context, on their GPU."""
    operands = on_gpu(0, device), on_gpu(1, device)
    with engine.context() as context:
        engine.backward(context, [total(operands[0] * operands[1])])
        assert_gradients(context, operands, local_gradients(operands[0] * operands[1], operands))


def hop(way: Call, peer: str, on_cpu: Tensor, on_device: Tensor, calls: int) -> Tensor:
    """A value that goes to a worker by way of the CPU and back to the GPU, as often as there are calls."""
    value = way(peer, torch.add, (on_cpu, on_cpu))
    for _ in range(calls):
        moved = value.to(on_device.device) * on_device
        value = way(peer, torch.add, (moved.cpu(), on_cpu))
    return value  # type: ignore[no-any-return]


@require_gpu
@any_call
@pytest.mark.parametrize("repetition", range(3))
def test_pass_from_cpu_to_gpu_and_on(peer: str, device: torch.device, call: Call, repetition: int) -> None:
    """The root is on the CPU, and the graph goes on over GPU and other workers."""
    operands = dense(repetition), on_gpu(repetition + 1, device)
    assert_same_gradients(lambda way: hop(way, peer, *operands, calls=2), call, *operands)


@require_gpu
@any_call
@pytest.mark.parametrize("repetition", range(3))
def test_pass_from_a_root_on_a_gpu(peer: str, device: torch.device, call: Call, repetition: int) -> None:
    """The root is on the GPU, and the graph goes on over the CPU and other workers."""
    operands = dense(repetition), on_gpu(repetition + 1, device)
    assert_same_gradients(lambda way: hop(way, peer, *operands, calls=1).to(device) + operands[1], call, *operands)


class MappedTensorPipe:
    """TensorPipe with a map from the rank's GPU to that of each other rank: all ranks are on one node."""

    def __init__(self) -> None:
        self._plain = TensorPipe()

    @property
    def backend(self) -> Any:  # noqa: ANN401 - torch makes its enumeration at run time
        """That of TensorPipe."""
        return self._plain.backend

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as above
        """Those of TensorPipe, and the maps."""
        options = self._plain.options(init_method, timeout)
        environment = RankEnvironment.read()
        for rank in range(environment.world_size):
            if rank != environment.rank:
                options.set_device_map(worker_name(rank), {environment.local_rank: rank})
        return options


@require_world_size(2)
@require_gpu_per_rank
@with_rpc(agent=MappedTensorPipe())
def test_gradients_come_back_to_their_gpu(peer: str, device: torch.device) -> None:
    """A pass uses the map of devices the other way round."""
    operands = on_gpu(0, device), on_gpu(1, device)
    with engine.context() as context:
        result = synchronously(peer, torch.mul, operands)
        assert result.device == device
        engine.backward(context, [total(result)])
        assert_gradients(context, operands, local_gradients(operands[0] * operands[1], operands))


class Doubles(Module):
    """A stage of a model on another worker."""

    def forward(self, batch: Tensor) -> Tensor:
        """Twice the batch."""
        return batch * 2


@require_world_size(2)
@require_gpu_per_rank
@with_rpc(agent=MappedTensorPipe())
def test_pass_waits_for_the_streams_of_both_gpus(peer: str, device: torch.device) -> None:
    """A gradient of ten million numbers is whole, though each GPU computes while the workers go on."""
    stage = rpc.remote(peer, Doubles)
    for factor in range(1, 11):
        batch = torch.ones(1000, 10000, device=device, requires_grad=True)
        with engine.context() as context:
            loss = stage.rpc_sync().forward(batch).sum() * factor
            engine.backward(context, [loss])
            gradient = engine.get_gradients(context)[batch]
        assert_equal(gradient, torch.full_like(batch, 2.0 * factor).detach())


class Stage(Module):
    """A layer on the GPU of its worker."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer.to(torch.device("cuda", RankEnvironment.read().local_rank))

    def forward(self, batch: Tensor) -> Tensor:
        """The layer's result."""
        result: Tensor = self.layer(batch)
        return result

    def gradients(self, context: int) -> list[Tensor]:
        """Those of weight and bias."""
        found = engine.get_gradients(context)
        return [found[parameter].cpu() for parameter in self.layer.parameters()]


@require_world_size(2)
@require_gpu_per_rank
@with_rpc(agent=MappedTensorPipe())
def test_model_over_all_gpus_has_the_gradients_of_one(rank: int, peers: list[str], device: torch.device) -> None:
    """A layer on each other worker: the first worker's pass waits for the streams of all."""
    if rank > 0:
        return
    layers = [Linear(1000, 1000) for _ in peers]
    stages = [rpc.remote(peer, Stage, args=(layer,)) for peer, layer in zip(peers, layers, strict=True)]
    batch = torch.rand(2000, 1000).to(device)
    Sequential(*layers).to(device)(batch).sum().backward()
    with engine.context() as context:
        result = batch
        for stage in stages:
            result = stage.rpc_sync().forward(result)
        engine.backward(context, [result.sum()])
        found = [stage.rpc_sync().gradients(context) for stage in stages]
    for layer, gradients in zip(layers, found, strict=True):
        for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
            assert parameter.grad is not None
            assert torch.allclose(gradient, parameter.grad.cpu(), rtol=1e-4)
