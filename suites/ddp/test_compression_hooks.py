"""Hooks that send fewer bits: 16-bit numbers, and bytes on a scale."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import (
    quantization_perchannel_hook,
    quantization_pertensor_hook,
)
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from allranks.testing import require_gpu, skip_unsupported

from .reference import World, assert_close, assert_same_on_all_ranks, backward, gradients, mean_gradients

HALF = 4 * torch.finfo(torch.float16).eps
BRAIN = 4 * torch.finfo(torch.bfloat16).eps


def float_net(world: World) -> DistributedDataParallel:
    """A model of 32-bit numbers, which is what is compressed."""
    return DistributedDataParallel(world.net().float())


def check(world: World, ddp: DistributedDataParallel, rtol: float) -> None:
    """Two steps end with the mean of all ranks, within the error of what was sent."""
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, [batch.float() for batch in world.batches(step)])
        backward(ddp, world.batch(step=step).float())
        assert_close(gradients(ddp), expected, rtol=rtol)
        assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients(ddp))
        assert_same_on_all_ranks([gradient for gradient in gradients(ddp) if gradient is not None])


def test_16_bit_hook(world: World) -> None:
    """Gradients come back with 32 bits, of which 16 have been sent."""
    ddp = float_net(world)
    register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, ddp)
    check(world, ddp, HALF)


def test_16_bit_hook_does_round(world: World) -> None:
    """Each gradient that it leaves is one of 16 bits."""
    ddp = float_net(world)
    ddp.register_comm_hook(None, fp16_compress_hook)
    backward(ddp, world.batch().float())
    for gradient in gradients(ddp):
        assert gradient is not None
        assert torch.equal(gradient, gradient.half().float())


def test_16_bit_hook_with_a_group(world: World, own_group: dist.ProcessGroup) -> None:
    """The mean is over the group: here of each rank alone."""
    ddp = float_net(world)
    ddp.register_comm_hook(own_group, fp16_compress_hook)
    expected = mean_gradients(ddp.module, [world.batch().float()])
    backward(ddp, world.batch().float())
    assert_close(gradients(ddp), expected, rtol=HALF)


def test_16_bit_hook_in_cpp(world: World) -> None:
    """With the same result."""
    ddp = float_net(world)
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)  # type: ignore[attr-defined]
    check(world, ddp, HALF)


def test_16_bit_wrapper_around_the_averaging_hook(world: World) -> None:
    """The hook in it sees 16 bits, DDP gets 32."""
    ddp = float_net(world)
    seen: list[torch.dtype] = []

    def average(_: object, bucket: GradBucket) -> Future[Tensor]:
        seen.append(bucket.buffer().dtype)
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(None, fp16_compress_wrapper(average))
    expected = mean_gradients(ddp.module, [batch.float() for batch in world.batches()])
    backward(ddp, world.batch().float())
    assert seen == [torch.float16]
    assert_close(gradients(ddp), expected, rtol=HALF)


def test_16_bit_wrapper_around_power_sgd(world: World) -> None:
    """Before compression begins it averages plainly."""
    ddp = float_net(world)
    ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=10), fp16_compress_wrapper(powerSGD_hook))
    expected = mean_gradients(ddp.module, [batch.float() for batch in world.batches()])
    backward(ddp, world.batch().float())
    assert_close(gradients(ddp), expected, rtol=HALF)


def test_bfloat16_wrapper_under_another_name(world: World) -> None:
    """The wrapped hook computes on every backend that adds up bfloat16; only its name is refused without CUDA."""
    ddp = float_net(world)
    wrapped = bf16_compress_wrapper(allreduce_hook)

    def compressing(state: object, bucket: GradBucket) -> Future[Tensor]:
        return wrapped(state, bucket)

    ddp.register_comm_hook(None, compressing)
    expected = mean_gradients(ddp.module, [batch.float() for batch in world.batches()])
    backward(ddp, world.batch().float())
    assert_close(gradients(ddp), expected, rtol=BRAIN)


@require_gpu
def test_bfloat16_hook(world: World) -> None:
    """As the 16-bit hook, with fewer digits and a wider range."""
    ddp = float_net(world)
    register_ddp_comm_hook(DDPCommHookType.BF16_COMPRESS, ddp)
    check(world, ddp, BRAIN)


# The hooks read a future of all_gather as one tensor over all ranks; gloo's holds a list of tensors.
gathers_one_tensor = skip_unsupported("future that holds all gathered tensors as one", on=["gloo"])


def byte_error(world: World, module: nn.Module) -> float:
    """What quantization may change, as part of the largest gradient: a step of the scale of each rank's own range."""
    parts = [mean_gradients(module, [batch.float()]) for batch in world.batches()]
    widest = max(float(gradient.abs().max()) for part in parts for gradient in part if gradient is not None)
    mean = mean_gradients(module, [batch.float() for batch in world.batches()])
    smallest = min(float(gradient.abs().max()) for gradient in mean if gradient is not None)
    return 2 * widest / 255 / smallest


@gathers_one_tensor
@pytest.mark.parametrize(
    "kind", [DDPCommHookType.QUANTIZE_PER_TENSOR, DDPCommHookType.QUANTIZE_PER_CHANNEL], ids=lambda kind: kind.name
)
def test_quantization_is_within_a_step_of_the_scale(world: World, kind: DDPCommHookType) -> None:
    """Bytes are gathered with the scales of all ranks, and averaged by each rank itself."""
    ddp = float_net(world)
    register_ddp_comm_hook(kind, ddp)
    expected = mean_gradients(ddp.module, [batch.float() for batch in world.batches()])
    error = byte_error(world, ddp.module)
    assert error < 0.5
    backward(ddp, world.batch().float())
    assert_close(gradients(ddp), expected, rtol=error)
    assert_same_on_all_ranks([gradient for gradient in gradients(ddp) if gradient is not None])


@gathers_one_tensor
@pytest.mark.parametrize("hook", [quantization_pertensor_hook, quantization_perchannel_hook])
def test_quantization_of_numbers_on_the_scale_is_exact(world: World, hook: object) -> None:
    """Whole numbers from 0 to 255 are bytes as they are."""

    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(512))

        def forward(self, factors: Tensor) -> Tensor:
            return self.weight * factors

    def factors(peer: int) -> Tensor:
        return (torch.arange(512, device=world.device) * (peer + 1) % 256).float()

    ddp = DistributedDataParallel(Bytes().to(world.device))
    ddp.register_comm_hook(dist.group.WORLD, hook)  # type: ignore[arg-type]
    ddp(factors(world.rank)).sum().backward()
    mean = torch.stack([factors(peer) for peer in range(world.size)]).mean(0)
    assert_close(gradients(ddp), [mean], rtol=1e-5)
