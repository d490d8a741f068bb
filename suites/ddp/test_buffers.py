"""Buffers: rank 0's are sent with each forward pass, unless that is switched off or done by a hook."""

from collections.abc import Mapping

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel.distributed import _BufferCommHookLocation

from .reference import World, assert_close, assert_same, backward, gradients, mean_gradients, since_torch_2_13

Buffers = Mapping[str, Tensor]

pytestmark = pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")


class Tally(nn.Module):
    """A layer, and a buffer that each forward pass shows and then raises by 1."""

    count: Tensor

    def __init__(self, world: World) -> None:
        """Begin with the number of this rank, plus 1."""
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("count", torch.tensor([world.rank + 1.0]))
        self.seen: list[Tensor] = []

    def forward(self, batch: Tensor) -> Tensor:
        """The layer's output."""
        self.seen.append(self.count.clone())
        self.count += 1
        return self.layer(batch)  # type: ignore[no-any-return]


def shift(module: nn.Module, world: World) -> None:
    """Make the buffers of the ranks differ again."""
    count = module.get_buffer("count")
    count += 10 * world.rank


def test_forward_pass_uses_the_buffers_of_rank_0(world: World) -> None:
    """They are sent before the module runs."""
    ddp = world.wrap(Tally(world), init_sync=True)
    shift(ddp.module, world)
    ddp(world.batch())
    assert_same(ddp.module.seen, [world.numbers(1, peer=0)])


def test_buffers_are_sent_again_with_each_forward_pass(world: World) -> None:
    """What the ranks did to their own in between is lost, but for rank 0."""
    ddp = world.wrap(Tally(world), init_sync=True)
    for _ in range(2):
        shift(ddp.module, world)
        backward(ddp, world.batch())
    assert_same(ddp.module.seen, [world.numbers(1, peer=0) + step for step in range(2)])


def test_forward_passes_without_gradients_send_buffers_once(world: World) -> None:
    """After one, the next has nothing new to send: evaluation needs no peers."""
    ddp = world.wrap(Tally(world), init_sync=True)
    with torch.no_grad():
        ddp(world.batch())
        shift(ddp.module, world)
        for _ in range(world.rank):
            ddp(world.batch())
    assert not ddp.will_sync_module_buffers()
    assert len(ddp.module.seen) == world.rank + 1
    assert_same(ddp.module.seen[1:2], [world.numbers(1, peer=0) + 1 + 10 * world.rank][: world.rank])


@since_torch_2_13
def test_switched_off_each_rank_keeps_its_buffers(world: World) -> None:
    """``forward_sync_buffers=False``: sent at construction only."""
    ddp = world.wrap(Tally(world), init_sync=True, forward_sync_buffers=False)
    shift(ddp.module, world)
    backward(ddp, world.batch())
    assert_same(ddp.module.seen, [world.numbers(1, peer=0) + 10 * world.rank])


def test_switched_off_by_the_old_name_construction_sends_none_either(world: World) -> None:
    """``broadcast_buffers=False`` leaves the buffers of a rank to it from the start."""
    ddp = world.wrap(Tally(world), init_sync=True, broadcast_buffers=False)
    backward(ddp, world.batch())
    assert_same(ddp.module.seen, [world.numbers(1)])


@since_torch_2_13
@pytest.mark.parametrize("enabled", [True, False])
def test_old_name_is_deprecated(world: World, *, enabled: bool) -> None:
    """And still has its effect, and its attribute."""
    with pytest.warns(FutureWarning, match="`broadcast_buffers` is deprecated"):
        ddp = world.wrap(Tally(world), init_sync=True, broadcast_buffers=enabled)
    assert ddp.broadcast_buffers is enabled
    assert ddp.forward_sync_buffers is enabled


@since_torch_2_13
def test_new_name_wins_over_the_old_one(world: World) -> None:
    """Both given, the old one is ignored with a warning."""
    with pytest.warns(FutureWarning, match="Both `broadcast_buffers` and `forward_sync_buffers`"):
        ddp = world.wrap(Tally(world), init_sync=True, broadcast_buffers=True, forward_sync_buffers=False)
    assert not ddp.will_sync_module_buffers()


@since_torch_2_13
def test_new_name_alone_does_not_warn(world: World, recwarn: pytest.WarningsRecorder) -> None:
    """It is what the warning recommends."""
    world.wrap(Tally(world), init_sync=True, forward_sync_buffers=True)
    assert not [warning for warning in recwarn if "broadcast_buffers" in str(warning.message)]


def test_buffer_that_was_replaced_is_sent(world: World) -> None:
    """A module may assign a new tensor: the buffers are looked up at each forward pass."""
    ddp = world.wrap(Tally(world), init_sync=True)
    ddp(world.batch())
    ddp.module.count = 100 * world.numbers(1)
    ddp(world.batch())
    assert_same(ddp.module.seen[1:], [100 * world.numbers(1, peer=0)])


def test_buffers_of_several_dtypes_are_sent(world: World) -> None:
    """Each of them as it is, booleans too."""
    module = nn.Linear(4, 2)
    dtypes = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64)
    for number, dtype in enumerate(dtypes):
        module.register_buffer(
            f"buffer{number}", torch.tensor([world.rank % 2 == 0, True], device=world.device).to(dtype)
        )
    ddp = world.wrap(module, init_sync=True)
    for number in range(len(dtypes)):
        assert bool(getattr(ddp.module, f"buffer{number}").all())


@since_torch_2_13
def test_buffer_sent_during_forward_can_be_differentiated_through(world: World) -> None:
    """What the last pass saved for its backward pass stays valid, though its buffer was written to."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("scale", torch.tensor(3.0))

        def forward(self, batch: Tensor) -> Tensor:
            return self.layer(batch) * self.scale  # type: ignore[no-any-return]

    ddp = world.wrap(Scaled())
    expected = mean_gradients(ddp.module, world.batches(), lambda model, batch: model(batch).sum())
    first = ddp(world.batch()).sum()
    with torch.no_grad():
        ddp(world.batch())
    first.backward()
    assert_close(gradients(ddp), expected)


def test_no_sync_sends_no_buffers(world: World) -> None:
    """But for the first pass of the block, which follows one that synchronized."""
    ddp = world.wrap(Tally(world), init_sync=True)
    with ddp.no_sync():
        backward(ddp, world.batch())
        shift(ddp.module, world)
        backward(ddp, world.batch())
    assert_same(ddp.module.seen[1:], [world.numbers(1, peer=0) + 1 + 10 * world.rank])


def average(state: list[str], buffers: Buffers) -> None:
    """Put the mean over the ranks in place of each buffer."""
    for name, buffer in buffers.items():
        state.append(name)
        dist.all_reduce(buffer)
        buffer.div_(dist.get_world_size())


def test_hook_before_forward_replaces_the_broadcast(world: World) -> None:
    """It gets the buffers by name, and the module sees what it left."""
    ddp = world.wrap(Tally(world), init_sync=True)
    names: list[str] = []
    ddp._register_buffer_comm_hook(names, average, _BufferCommHookLocation.PRE_FORWARD)
    shift(ddp.module, world)
    ddp(world.batch())
    assert names == ["count"]
    assert_close(ddp.module.seen, [world.numbers(1, peer=0) + 10 * world.mean_rank()])


def test_hook_after_forward_is_the_default(world: World) -> None:
    """The module sees its rank's own buffers, which are synchronized behind it."""
    ddp = world.wrap(Tally(world), init_sync=True)
    names: list[str] = []
    ddp._register_buffer_comm_hook(names, average)
    shift(ddp.module, world)
    ddp(world.batch())
    assert names == ["count"]
    assert_same(ddp.module.seen, [world.numbers(1, peer=0) + 10 * world.rank])
    assert_close([ddp.module.count], [world.numbers(1, peer=0) + 10 * world.mean_rank() + 1])


def start_sum(_: object, buffers: Buffers) -> list[Future[list[Tensor]]]:
    """Sum up each buffer over the ranks, and return the futures."""
    return [dist.all_reduce(buffer, async_op=True).get_future() for buffer in buffers.values()]


def test_futures_of_a_hook_are_waited_for_by_the_backward_pass(world: World) -> None:
    """A hook may return before its collectives are done."""
    ddp = world.wrap(Tally(world), init_sync=True)
    ddp._register_buffer_comm_hook(None, start_sum)
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close([ddp.module.count], [2 * world.size * world.numbers(1, peer=0)])
    assert_close(gradients(ddp), expected)


@since_torch_2_13
def test_hook_is_not_called_where_buffers_are_not_synchronized(world: World) -> None:
    """``forward_sync_buffers=False`` is for hooks, too."""
    ddp = world.wrap(Tally(world), init_sync=True, forward_sync_buffers=False)
    names: list[str] = []
    ddp._register_buffer_comm_hook(names, average)
    ddp(world.batch())
    assert names == []


def test_hook_has_to_be_callable(world: World) -> None:
    """It is refused when it is registered."""
    ddp = world.wrap(Tally(world), init_sync=True)
    with pytest.raises(AssertionError, match="hook must be callable"):
        ddp._register_buffer_comm_hook(None, "average")  # type: ignore[arg-type]
