"""The ranks' models and data, and what training over everybody's data in one process comes to."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

# DistributedDataParallel imports it when the first one is made: seconds, and here they are spent once for all ranks.
import torch._dynamo.utils
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DTYPE = torch.float64
"""Of models and data: what a wrong sum differs by is far beyond its rounding."""

since_torch_2_13 = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="torch 2.13 introduced what it tests"
)

Loss = Callable[[nn.Module, Tensor], Tensor]
"""What a rank derives from a model and its batch."""


@dataclass(frozen=True)
class World:
    """The ranks of a test, seen from one of them.

    Args:
        rank: This rank.
        size: The number of ranks.
        device: Where this rank's tensors are.
    """

    rank: int
    size: int
    device: torch.device

    def batch(self, peer: int | None = None, step: int = 0, rows: int = 3) -> Tensor:
        """The rows of 4 numbers that a rank, by default this one, trains on in a step; no two batches are equal."""
        return _rows(1 + step * self.size + (self.rank if peer is None else peer), rows).to(self.device, copy=True)

    def batches(self, step: int = 0, rows: int = 3) -> list[Tensor]:
        """Every rank's batch."""
        return [self.batch(peer, step, rows) for peer in range(self.size)]

    def place(self, module: nn.Module) -> nn.Module:
        """The module on this rank's device, in our dtype."""
        return module.to(self.device, DTYPE)

    def net(self) -> nn.Module:
        """Two layers, with the same parameters on every rank."""
        return self.place(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))

    def wrap(self, module: nn.Module, **options: Any) -> DistributedDataParallel:  # noqa: ANN401 - those of the class
        """The module, moved to this rank's device and made data parallel.

        The ranks' models are equal by their seed, so construction sends nothing, unless ``init_sync`` asks for it.
        """
        return DistributedDataParallel(self.place(module), **{"init_sync": False, **options})

    def mean_rank(self) -> float:
        """What the average of all ranks' numbers comes to."""
        return (self.size - 1) / 2

    def numbers(self, *shape: int, peer: int | None = None) -> Tensor:
        """A tensor that is full of a rank's number plus 1, by default this one's."""
        return torch.full(shape, float((self.rank if peer is None else peer) + 1), dtype=DTYPE, device=self.device)


@cache
def _rows(seed: int, rows: int) -> Tensor:
    return torch.rand(rows, 4, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


def square_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """A loss that every parameter of a model has a part in."""
    loss: Tensor = model(batch).square().sum()
    return loss


def copy_of(module: nn.Module) -> nn.Module:
    """The same parameters and buffers, without gradients and without the hooks of data parallelism."""
    copy = deepcopy(module)
    for parameter in copy.parameters():
        parameter.grad = None
    return copy


def gradients(module: nn.Module) -> list[Tensor | None]:
    """The gradient of each parameter, None where there is none."""
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in module.parameters()]


def mean_gradients(
    module: nn.Module, batches: Sequence[Tensor], loss: Loss = square_loss, *, over: int | None = None
) -> list[Tensor | None]:
    """What data parallelism has to leave on every rank: the mean of the gradients that each batch gives.

    Args:
        module: Stays as it is.
        batches: One for each rank that takes part.
        loss: The loss of one batch.
        over: What the sum is divided by; by default the number of batches.
    """
    count = len(batches) if over is None else over
    key = _key(module, batches) if loss is square_loss else None
    sums = _KNOWN.get(key)
    if sums is None:
        copy = copy_of(module)
        for batch in batches:
            loss(copy, batch).backward()
        sums = gradients(copy)
        if key is not None:
            _KNOWN[key] = sums
    return [None if gradient is None else gradient / count for gradient in sums]


# Most tests need the same few gradients of one small net, and work them out in 1.2 ms for four ranks, more than a pass
# takes. So a process keeps them, by all that they follow from: layers, parameters and batches. A look-up takes 0.07 ms.
_KNOWN: dict[Any, list[Tensor | None]] = {}


def _key(module: nn.Module, batches: Sequence[Tensor]) -> Any:  # noqa: ANN401 - a key
    """Equal where the gradients of the square loss are; None for modules that may follow from more."""
    if type(module) is not nn.Sequential or not {type(layer) for layer in module} <= {nn.Linear, nn.Tanh}:
        return None
    layers = tuple(str(layer) for layer in module)
    parameters = tuple((parameter.requires_grad, _bits(parameter)) for parameter in module.parameters())
    return layers, parameters, tuple(map(_bits, batches))


def _bits(tensor: Tensor) -> tuple[torch.dtype, torch.device, torch.Size, bytes]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.detach().cpu().view(torch.uint8).numpy().tobytes()


def set_gradients(module: nn.Module, wanted: Sequence[Tensor | None]) -> None:
    """Give each parameter a gradient."""
    for parameter, gradient in zip(module.parameters(), wanted, strict=True):
        parameter.grad = gradient


def backward(model: nn.Module, batch: Tensor, loss: Loss = square_loss) -> None:
    """One forward and backward pass."""
    loss(model, batch).backward()


def values(module: nn.Module) -> list[Tensor]:
    """The values of the parameters."""
    return [parameter.detach().clone() for parameter in module.parameters()]


def assert_same(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """The tensors are equal to the last bit: for what was copied, and not computed."""
    for one, other in _pairs(actual, expected):
        assert torch.equal(one, other), f"{one} is not {other}"


def assert_close(
    actual: Sequence[Tensor | None], expected: Sequence[Tensor | None], *, rtol: float | None = None
) -> None:
    """The tensors are equal within the rounding of their dtype: the order in which a sum is formed is the backend's.

    Args:
        actual: What the test got.
        expected: What it has to be; None where there must be no tensor.
        rtol: The error that is allowed, as a part of the largest expected number; by default 64 times the dtype's own.
    """
    for one, other in _pairs(actual, expected):
        error = 64 * torch.finfo(other.dtype).eps if rtol is None else rtol
        scale = float(other.abs().max()) if other.numel() else 0.0
        assert ((one - other).abs() <= error * scale).all(), f"{one} is not {other}"


# Not torch.testing.assert_close: its first call imports DTensor and sympy, most of a second for each rank.
def _pairs(actual: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> Iterator[tuple[Tensor, Tensor]]:
    assert len(actual) == len(expected), f"{len(actual)} tensors, not {len(expected)}"
    for one, other in zip(actual, expected, strict=True):
        if one is None or other is None:
            assert one is other, f"{one} is not {other}"
        else:
            assert (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
            yield one.detach(), other.detach()


def assert_same_on_all_ranks(tensors: Sequence[Tensor]) -> None:
    """This rank has the tensors of rank 0, to the last bit: a collective of all ranks."""
    flat = torch.cat([tensor.detach().reshape(-1).to(DTYPE) for tensor in tensors])
    first = flat.clone()
    dist.broadcast(first, src=0)
    assert_same([flat], [first])
