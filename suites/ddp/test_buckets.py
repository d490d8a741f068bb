"""Buckets: how gradients are packed for the reduction, and how large the packs are."""

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import distributed as parallel

from .branches import Branches, loss_with
from .reference import (
    World,
    assert_close,
    backward,
    gradients,
    mean_gradients,
    since_torch_2_13,
    square_loss,
    values,
)

MIB = 1024 * 1024
FIRST = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]


def layers(count: int = 4) -> nn.Module:
    """Layers of 16 weights, 128 bytes each."""
    return nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(count)])


Sizes = list[list[int]]


def recorded_sizes(world: World, steps: int = 2, **options: Any) -> Sizes:  # noqa: ANN401 - those of the class
    """The number of elements of each bucket, in the order of their reduction, for each step."""
    sizes: Sizes = []

    def record(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        sizes[-1].append(bucket.buffer().numel())
        work = dist.all_reduce(bucket.buffer() / world.size, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    ddp = world.wrap(layers(), **options)
    ddp.register_comm_hook(None, record)
    for step in range(steps):
        sizes.append([])
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)
    return sizes


def test_small_model_is_one_bucket(world: World) -> None:
    """25 MiB hold it all."""
    assert recorded_sizes(world) == [[64], [64]]


def test_capacity_divides_the_model(world: World) -> None:
    """From the second pass on: the first has one bucket, and shows the order in which gradients become ready."""
    assert recorded_sizes(world, bucket_cap_mb=256 / MIB) == [[64], [32, 32]]


def test_parameter_larger_than_the_capacity_has_a_bucket_of_its_own(world: World) -> None:
    """It is not cut."""
    assert recorded_sizes(world, bucket_cap_mb=8 / MIB)[1:] == [[16] * 4]


def test_capacity_counts_from_the_first_pass_if_unused_parameters_are_searched(world: World) -> None:
    """Then the buckets are never rebuilt."""
    assert recorded_sizes(world, bucket_cap_mb=256 / MIB, find_unused_parameters=True) == [[32, 32]] * 2


def test_capacities_by_bucket(world: World) -> None:
    """In a list: of the first bucket that the module begins with at first, and of the first that is reduced later."""
    sizes = recorded_sizes(world, bucket_cap_mb_list=[128 / MIB, 384 / MIB])
    assert sizes == [[48, 16], [16, 48]]


def test_list_of_one_capacity_is_that_capacity(world: World) -> None:
    """For all buckets."""
    assert recorded_sizes(world, bucket_cap_mb_list=[256 / MIB]) == [[32, 32]] * 2


def test_buckets_are_rebuilt_once(world: World) -> None:
    """By the second forward pass."""
    ddp = world.wrap(layers(), bucket_cap_mb=128 / MIB)
    assert not ddp._has_rebuilt_buckets
    backward(ddp, world.batch())
    assert not ddp._has_rebuilt_buckets
    for step in range(2):
        backward(ddp, world.batch(step=step))
        assert ddp._has_rebuilt_buckets
    assert ddp._get_ddp_logging_data()["has_rebuilt_buckets"] == 1


def test_rebuilt_buckets_follow_the_order_of_use(world: World) -> None:
    """The layer that is differentiated first is reduced first, wherever it stands in the module."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(4, 3, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, batch: Tensor) -> Tensor:
            return self.last(self.first(batch))  # type: ignore[no-any-return]

    ddp = world.wrap(Backwards(), bucket_cap_mb=1 / MIB)
    order: list[int] = []

    def record(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        order.append(bucket.buffer().numel())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, record)
    backward(ddp, world.batch())
    order.clear()
    backward(ddp, world.batch())
    assert order == [12, 16]


def test_gradients_are_views_of_their_bucket(world: World) -> None:
    """With ``gradient_as_bucket_view`` those of one bucket share its memory, without they do not."""

    def storages(*, as_view: bool) -> set[int]:
        ddp = world.wrap(world.net(), gradient_as_bucket_view=as_view)
        for step in range(2):
            backward(ddp, world.batch(step=step))
        return {
            parameter.grad.untyped_storage().data_ptr() for parameter in ddp.parameters() if parameter.grad is not None
        }

    assert len(storages(as_view=True)) == 1
    assert len(storages(as_view=False)) == 4


@pytest.mark.parametrize("set_to_none", [True, False], ids=["to none", "to zeros"])
def test_views_train_like_copies(world: World, *, set_to_none: bool) -> None:
    """Step by step."""
    copied, viewed = world.wrap(world.net()), world.wrap(world.net(), gradient_as_bucket_view=True)
    viewed.load_state_dict(copied.state_dict())
    optimizers = [torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9) for ddp in (copied, viewed)]
    for step in range(3):
        for ddp, optimizer in zip((copied, viewed), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=set_to_none)
            backward(ddp, world.batch(step=step))
            optimizer.step()
    assert_close(values(viewed), values(copied), rtol=1e-9)


def test_views_cannot_be_detached_in_place(world: World) -> None:
    """They belong to the bucket; the message says so."""
    ddp = world.wrap(world.net(), gradient_as_bucket_view=True)
    backward(ddp, world.batch())
    gradient = next(ddp.parameters()).grad
    assert gradient is not None
    with pytest.raises(RuntimeError, match="gradient_as_bucket_view"):
        gradient.detach_()


def test_gradient_replaced_by_the_user_is_taken_into_the_bucket(world: World) -> None:
    """What is not a view any more is copied in and becomes one again."""
    ddp = world.wrap(world.net(), gradient_as_bucket_view=True)
    backward(ddp, world.batch())
    first = [gradient.clone() for gradient in gradients(ddp) if gradient is not None]
    for parameter, gradient in zip(ddp.parameters(), first, strict=True):
        parameter.grad = gradient.clone()
    expected = [
        one + other
        for one, other in zip(first, mean_gradients(ddp.module, world.batches(1)), strict=True)
        if other is not None
    ]
    backward(ddp, world.batch(step=1))
    assert_close(gradients(ddp), expected)


@since_torch_2_13
@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_gradients_copied_together(world: World, *, as_view: bool) -> None:
    """``batched_grad_copy`` fills a bucket at once, with the same result."""
    ddp = world.wrap(world.net(), batched_grad_copy=True, gradient_as_bucket_view=as_view)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


@since_torch_2_13
def test_gradients_copied_together_beside_unused_ones(world: World) -> None:
    """The parts of the bucket without a gradient do not disturb the others."""
    ddp = world.wrap(Branches(), batched_grad_copy=True, find_unused_parameters=True)
    for use in ("left", "right"):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(), loss_with(use))
        backward(ddp, world.batch(), loss_with(use))
        assert_close(gradients(ddp), expected)


def test_buckets_are_dropped_with_the_model(world: World) -> None:
    """A model that is wrapped again has no hooks of the first wrapper left to call."""
    module = layers()
    first = world.wrap(module)
    backward(first, world.batch())
    first._remove_autograd_hooks()
    del first
    module.zero_grad()
    expected = mean_gradients(module, world.batches())
    backward(world.wrap(module), world.batch())
    assert_close(gradients(module), expected)


def test_without_its_hooks_a_model_is_not_reduced(world: World) -> None:
    """The backward pass leaves this rank's gradients."""
    ddp = world.wrap(world.net())
    expected = mean_gradients(ddp.module, [world.batch()])
    ddp._remove_autograd_hooks()
    square_loss(ddp.module, world.batch()).backward()
    assert_close(gradients(ddp), expected)


def config(cap: float | None = None, caps: list[float] | None = None) -> "parallel._BucketCapacityConfig":
    """What DDP makes of its two arguments."""
    return parallel._BucketCapacityConfig.create(cap, caps, use_python_reducer=False)  # type: ignore[arg-type]


@since_torch_2_13
def test_first_bucket_is_smaller_by_default() -> None:
    """So that the reduction begins early; a capacity that was asked for holds for it, too."""
    default, chosen = config(), config(10)
    assert (default.bucket_bytes_cap, default.first_bucket_bytes_cap) == (25 * MIB, FIRST)
    assert (chosen.bucket_bytes_cap, chosen.first_bucket_bytes_cap) == (10 * MIB, 10 * MIB)


@since_torch_2_13
def test_list_of_capacities_wins_over_the_one() -> None:
    """The largest counts as the capacity; an empty list is none."""
    both = config(10, [5, 20])
    assert both.has_custom_per_bucket_caps
    assert (both.bucket_bytes_cap, both.per_bucket_bytes_caps) == (20 * MIB, (5 * MIB, 20 * MIB))
    assert not config(10, []).has_custom_per_bucket_caps
    assert config(10, []).bucket_cap_mb == 10


@since_torch_2_13
@pytest.mark.parametrize(
    ("static", "search", "limits"),
    [(False, False, [sys.maxsize]), (True, True, [sys.maxsize]), (False, True, [FIRST, 25 * MIB])],
    ids=["plain", "static graph", "search"],
)
def test_limits_of_the_first_pass(*, static: bool, search: bool, limits: list[int]) -> None:
    """One bucket where the buckets are rebuilt, else those of the capacity."""
    assert config().compute_bucket_size_limits(static_graph=static, find_unused_parameters=search) == (limits, [])


def test_sparse_gradients_have_buckets_of_their_own() -> None:
    """A sparse tensor cannot be packed."""
    tensors = [torch.zeros(8), torch.zeros(8), torch.zeros(8)]
    assert dist._compute_bucket_assignment_by_size(tensors, [400], [False, True, False])[0] == [[0, 2], [1]]  # type: ignore[attr-defined]


def test_assignment_keeps_dtypes_apart() -> None:
    """And fills each bucket up to its limit."""
    tensors = [torch.zeros(25), torch.zeros(25).double(), torch.zeros(25), torch.zeros(25).double()]
    assert dist._compute_bucket_assignment_by_size(tensors, [200])[0] == [[0, 2], [1], [3]]  # type: ignore[attr-defined]


def test_assignment_of_a_sparse_tensor_is_an_error() -> None:
    """Parameters are dense."""
    sparse = torch.zeros(2, 2).to_sparse()
    with pytest.raises(RuntimeError, match="No support for sparse tensors"):
        dist._compute_bucket_assignment_by_size([sparse], [400])  # type: ignore[attr-defined]
