"""Mixed precision: computing and reducing with fewer bits than the parameters have."""

import pytest
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from allranks.testing import require_accelerator, require_backend_in

from .reference import World, assert_close, assert_same_on_all_ranks, backward, gradients, mean_gradients, values

HALF = torch.bfloat16
ERROR = 16 * torch.finfo(HALF).eps


def float_net(world: World) -> nn.Module:
    """A net of 32-bit numbers."""
    return world.net().float()


def float_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The loss in 32 bits, whatever the model puts out."""
    squares: Tensor = model(batch.float()).float().square().sum()
    return squares


def cast_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The loss of a forward pass that multiplies in 16 bits."""
    with torch.autocast(batch.device.type, dtype=HALF):
        output = model(batch.float())
    squares: Tensor = output.float().square().sum()
    return squares


@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_autocast_around_the_model(world: World, *, as_view: bool) -> None:
    """The module computes in 16 bits, gradients and their mean have 32."""
    ddp = DistributedDataParallel(float_net(world), gradient_as_bucket_view=as_view)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), cast_loss)
        backward(ddp, world.batch(step=step), cast_loss)
        assert_close(gradients(ddp), expected, rtol=1e-4)


def test_autocast_within_the_model(world: World) -> None:
    """Around its forward method."""

    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = float_net(world)

        def forward(self, batch: Tensor) -> Tensor:
            with torch.autocast(batch.device.type, dtype=HALF):
                output: Tensor = self.net(batch)
            assert output.dtype == HALF
            return output

    ddp = DistributedDataParallel(Casting())
    expected = mean_gradients(ddp.module, world.batches(), float_loss)
    backward(ddp, world.batch(), float_loss)
    assert_close(gradients(ddp), expected, rtol=1e-4)


def test_scaled_loss(world: World) -> None:
    """The scaler divides the averaged gradients by what it multiplied the loss with."""
    ddp = DistributedDataParallel(float_net(world))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = GradScaler(world.device.type, init_scale=1024.0)
    before, slopes = values(ddp), mean_gradients(ddp.module, world.batches(), float_loss)
    scaler.scale(float_loss(ddp, world.batch())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_close(
        values(ddp),
        [old - 0.05 * slope for old, slope in zip(before, slopes, strict=True) if slope is not None],
        rtol=1e-5,
    )


def test_infinite_gradient_of_one_rank_stops_the_step_of_all(world: World) -> None:
    """The mean is infinite on every rank, so all of them lower the scale and keep their parameters."""
    ddp = DistributedDataParallel(float_net(world))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = GradScaler(world.device.type, init_scale=1024.0)
    before = values(ddp)
    loss = float_loss(ddp, world.batch()) * (float("inf") if world.rank == 0 else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_close(values(ddp), before)
    assert scaler.get_scale() == 512


def test_model_of_16_bits(world: World) -> None:
    """Its gradients are reduced as they are."""
    ddp = DistributedDataParallel(world.net().to(HALF))
    expected = mean_gradients(ddp.module, world.batches(), lambda model, batch: model(batch.to(HALF)).square().sum())
    backward(ddp, world.batch(), lambda model, batch: model(batch.to(HALF)).square().sum())
    assert {parameter.grad.dtype for parameter in ddp.parameters() if parameter.grad is not None} == {HALF}
    assert_close(gradients(ddp), expected, rtol=ERROR)


@require_backend_in("nccl")  # the hook reads gloo's result before its stream has written it (torch 2.11, two ranks)
@require_accelerator
@pytest.mark.parametrize("set_to_none", [True, False], ids=["to none", "to zeros"])
@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_ddps_own_mixed_precision(world: World, *, as_view: bool, set_to_none: bool) -> None:
    """Inputs and parameters are cast for the pass; parameters and gradients have 32 bits behind it."""
    half = _MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16)
    ddp = DistributedDataParallel(
        float_net(world), device_ids=[world.device], mixed_precision=half, gradient_as_bucket_view=as_view
    )
    alone = float_net(world)
    for step in range(3):
        alone.load_state_dict(ddp.module.state_dict())
        expected = mean_gradients(alone, world.batches(step), float_loss)
        ddp.zero_grad(set_to_none=set_to_none)
        backward(ddp, world.batch(step=step), float_loss)
        assert {parameter.dtype for parameter in ddp.parameters()} == {torch.float32}
        assert_close(gradients(ddp), expected, rtol=0.02)
        assert_same_on_all_ranks([gradient for gradient in gradients(ddp) if gradient is not None])


@require_accelerator
def test_ddps_own_mixed_precision_casts_inputs_and_buffers(world: World) -> None:
    """Floating-point ones; the module sees them."""
    seen: list[torch.dtype] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, batch: Tensor, number: Tensor) -> Tensor:
            seen.extend((batch.dtype, number.dtype, self.layer.weight.dtype, self.scale.dtype))  # type: ignore[arg-type]
            return self.layer(batch) * self.scale  # type: ignore[no-any-return]

    half = _MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16)
    ddp = DistributedDataParallel(Looking().to(world.device), device_ids=[world.device], mixed_precision=half)
    ddp(world.batch().float(), torch.ones(1, dtype=torch.int64, device=world.device)).sum().backward()
    assert seen == [torch.float16, torch.int64, torch.float16, torch.float16]


@require_accelerator
def test_ddps_own_mixed_precision_leaves_ignored_parameters_alone(world: World) -> None:
    """They compute with the bits they have."""
    seen: list[torch.dtype] = []

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, batch: Tensor) -> Tensor:
            seen.extend((self.layer.weight.dtype, self.other.weight.dtype))
            return self.other(self.layer(batch).float())  # type: ignore[no-any-return]

    module = Partly().to(world.device)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["other.weight", "other.bias"])
    half = _MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16)
    ddp = DistributedDataParallel(module, device_ids=[world.device], mixed_precision=half)
    backward(ddp, world.batch(), float_loss)
    assert seen == [torch.float16, torch.float32]


def test_training_under_autocast_keeps_the_ranks_equal(world: World) -> None:
    """Parameters have 32 bits, and are the same on all ranks after some steps."""
    ddp = DistributedDataParallel(float_net(world))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(2):
        optimizer.zero_grad()
        backward(ddp, world.batch(step=step), cast_loss)
        optimizer.step()
    assert {parameter.dtype for parameter in ddp.parameters()} == {torch.float32}
    assert_same_on_all_ranks(values(ddp))
