"""Communication hooks: functions that reduce a bucket in DDP's place."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from allranks.testing import skip_when

from .branches import Branches, loss_with
from .reference import World, assert_close, assert_same, backward, gradients, mean_gradients, since_torch_2_13

BUILTIN = dist.BuiltinCommHookType  # type: ignore[attr-defined]


def done(value: Tensor) -> Future[Tensor]:
    """A future that has its value."""
    future: Future[Tensor] = Future()
    future.set_result(value)
    return future


def test_result_of_the_hook_is_the_gradient(world: World) -> None:
    """Whatever it is: here twice this rank's own, without any communication."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(None, lambda state, bucket: done(2 * bucket.buffer()))  # noqa: ARG005
    own = mean_gradients(ddp.module, [world.batch()])
    backward(ddp, world.batch())
    assert_close(gradients(ddp), [2 * gradient for gradient in own if gradient is not None])


def test_state_is_handed_to_the_hook(world: World) -> None:
    """The same object each time, which may gather what it likes."""
    ddp = world.wrap(world.net())
    seen: list[int] = []

    def count(state: list[int], bucket: GradBucket) -> Future[Tensor]:
        state.append(bucket.index())
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(seen, count)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)
    assert seen == [0, 0]


def test_bucket_tells_what_is_in_it(world: World) -> None:
    """The parameters, a view of each gradient, its place in the order, and whether it is the last."""
    ddp = world.wrap(nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)]), bucket_cap_mb=0.00001)
    seen: list[tuple[int, bool]] = []

    def look(_: object, bucket: GradBucket) -> Future[Tensor]:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            assert any(parameter is one for one in ddp.parameters())
            assert gradient.shape == parameter.shape
            assert gradient.untyped_storage().data_ptr() == bucket.buffer().untyped_storage().data_ptr()
        seen.append((bucket.index(), bucket.is_last()))
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(None, look)
    for step in range(2):
        seen.clear()
        backward(ddp, world.batch(step=step))
    assert seen == [(0, False), (1, False), (2, True)]


def test_buffer_can_be_replaced(world: World) -> None:
    """A hook may put another tensor into the bucket."""
    ddp = world.wrap(world.net())

    def replace(_: object, bucket: GradBucket) -> Future[Tensor]:
        bucket.set_buffer(bucket.buffer() * 3)
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(None, replace)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), [3 * gradient for gradient in expected if gradient is not None])


@pytest.mark.parametrize("as_view", [False, True], ids=["copied", "bucket view"])
def test_averaging_hook_is_as_no_hook(world: World, *, as_view: bool) -> None:
    """It is one of torch's own, here with the default group."""
    ddp = world.wrap(world.net(), gradient_as_bucket_view=as_view)
    ddp.register_comm_hook(None, allreduce_hook)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_averaging_hook_with_a_group(world: World, own_group: dist.ProcessGroup) -> None:
    """The group is its state: here each rank's own, so that nothing is averaged."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(own_group, allreduce_hook)
    expected = mean_gradients(ddp.module, [world.batch()])
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_hook_that_does_nothing_leaves_the_ranks_own(world: World) -> None:
    """It is for measuring what the reduction costs."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(None, noop_hook)
    expected = mean_gradients(ddp.module, [world.batch()])
    backward(ddp, world.batch())
    assert_same(gradients(ddp), expected)


@pytest.mark.parametrize(
    "kind",
    [DDPCommHookType.ALLREDUCE, DDPCommHookType.POWER_SGD, DDPCommHookType.BATCHED_POWER_SGD],
    ids=lambda kind: kind.name,
)
def test_hook_by_its_name(world: World, kind: DDPCommHookType) -> None:
    """PowerSGD averages plainly in the first thousand steps."""
    ddp = world.wrap(world.net())
    register_ddp_comm_hook(kind, ddp)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_hook_in_cpp_for_averaging(world: World) -> None:
    """The one that needs no Python."""
    ddp = world.wrap(world.net())
    ddp._register_builtin_comm_hook(BUILTIN.ALLREDUCE)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step))
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_hook_beside_unused_parameters(world: World) -> None:
    """Theirs stay untouched."""
    ddp = world.wrap(Branches(), find_unused_parameters=True)
    ddp.register_comm_hook(None, allreduce_hook)
    expected = mean_gradients(ddp.module, world.batches(), loss_with("left"))
    backward(ddp, world.batch(), loss_with("left"))
    assert_close(gradients(ddp), expected)


def test_hook_beside_a_static_graph(world: World) -> None:
    """From the first pass on."""
    ddp = world.wrap(Branches(), static_graph=True)
    ddp.register_comm_hook(None, allreduce_hook)
    for step in range(2):
        ddp.zero_grad()
        expected = mean_gradients(ddp.module, world.batches(step), loss_with("left"))
        backward(ddp, world.batch(step=step), loss_with("left"))
        assert_close(gradients(ddp), expected)


def test_future_of_a_collective_is_the_result(world: World) -> None:
    """A hook may return what it started, and chain to it."""
    ddp = world.wrap(world.net())

    def gather(_: object, bucket: GradBucket) -> Future[Tensor]:
        gathered = [torch.zeros_like(bucket.buffer()) for _ in range(world.size)]
        work = dist.all_gather(gathered, bucket.buffer(), async_op=True)
        return work.get_future().then(lambda _: torch.stack(gathered).sum(0) / world.size)  # type: ignore[no-any-return]

    ddp.register_comm_hook(None, gather)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_wrapper_around_a_hook(world: World) -> None:
    """A hook that calls another and changes its result."""
    ddp = world.wrap(world.net())

    def halving(
        hook: Callable[[object, GradBucket], Future[Tensor]],
    ) -> Callable[[object, GradBucket], Future[Tensor]]:
        def half(state: object, bucket: GradBucket) -> Future[Tensor]:
            return hook(state, bucket).then(lambda future: future.value() / 2)

        return half

    ddp.register_comm_hook(None, halving(allreduce_hook))  # type: ignore[arg-type]
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), [gradient / 2 for gradient in expected if gradient is not None])


def test_hook_has_to_be_callable(world: World) -> None:
    """A string is none."""
    with pytest.raises(TypeError, match="Communication hook must be callable"):
        world.wrap(world.net()).register_comm_hook(None, "allreduce")  # type: ignore[arg-type]


def test_annotation_of_the_bucket_is_checked(world: World) -> None:
    """Where there is one."""

    def wrong(state: object, bucket: int) -> Future[Tensor]:  # noqa: ARG001
        return done(torch.zeros(1))

    with pytest.raises(ValueError, match=r"bucket annotation should be dist\.GradBucket"):
        world.wrap(world.net()).register_comm_hook(None, wrong)


def test_annotation_of_the_result_is_checked(world: World) -> None:
    """It is a future of one tensor."""

    def wrong(state: object, bucket: GradBucket) -> int:  # noqa: ARG001
        return 0

    with pytest.raises(ValueError, match="return annotation should be torch"):
        world.wrap(world.net()).register_comm_hook(None, wrong)


def test_result_has_to_be_a_future(world: World) -> None:
    """A tensor is none; the error comes out of the backward pass."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(None, lambda state, bucket: bucket.buffer())  # noqa: ARG005
    with pytest.raises(RuntimeError, match=r"(?i)future"):
        backward(ddp, world.batch())


def test_future_has_to_hold_a_tensor(world: World) -> None:
    """A number is none."""
    ddp = world.wrap(world.net())

    def number(_: object, bucket: GradBucket) -> Future[Tensor]:
        future: Future[int] = Future()
        future.set_result(bucket.index())
        return future  # type: ignore[return-value]

    ddp.register_comm_hook(None, number)
    with pytest.raises(RuntimeError, match=r"(?i)tensor"):
        backward(ddp, world.batch())


def test_second_hook_is_refused(world: World) -> None:
    """Python's or C++'s, a model has one hook."""
    for register in (
        lambda ddp: ddp.register_comm_hook(None, noop_hook),
        lambda ddp: ddp._register_builtin_comm_hook(BUILTIN.ALLREDUCE),
    ):
        ddp = world.wrap(world.net())
        ddp.register_comm_hook(None, allreduce_hook)
        with pytest.raises(RuntimeError, match="comm_hook can only be called once"):
            register(ddp)


def test_error_in_the_hook_is_the_backward_passs(world: World) -> None:
    """Its message comes through."""
    ddp = world.wrap(world.net())

    def fail(state: object, bucket: GradBucket) -> Future[Tensor]:  # noqa: ARG001
        msg = "planted in the hook"
        raise RuntimeError(msg)

    ddp.register_comm_hook(None, fail)
    with pytest.raises(RuntimeError, match="planted in the hook"):
        backward(ddp, world.batch())


def test_name_of_the_hook_is_logged(world: World) -> None:
    """Python's by its qualified name, C++'s by its member."""
    ddp = world.wrap(world.net())
    ddp.register_comm_hook(None, allreduce_hook)
    assert ddp._get_ddp_logging_data()["comm_hook"] == "allreduce_hook"
    other = world.wrap(world.net())
    other._register_builtin_comm_hook(BUILTIN.FP16_COMPRESS)
    assert other._get_ddp_logging_data()["comm_hook"] == "BuiltinCommHookType.FP16_COMPRESS"


@since_torch_2_13
@skip_when(torch.cuda.is_available, "the error is that of a torch without CUDA")
def test_hook_for_bfloat16_needs_cuda(world: World) -> None:
    """It is refused when it is registered."""
    with pytest.raises(TypeError, match="BF16 all reduce communication hook required CUDA"):
        register_ddp_comm_hook(DDPCommHookType.BF16_COMPRESS, world.wrap(world.net()))
