"""Ignored parameters and delayed ones: what DDP leaves to others, or reduces in one piece at the end."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .reference import (
    DTYPE,
    World,
    assert_close,
    assert_same,
    assert_same_on_all_ranks,
    backward,
    gradients,
    mean_gradients,
    values,
)


class Marked(nn.Module):
    """Two layers and two buffers, full of the rank's number."""

    def __init__(self, world: World) -> None:
        """Fill in the number of this rank, plus 1."""
        super().__init__()
        self.ours, self.theirs = nn.Linear(4, 3), nn.Linear(3, 2)
        self.register_buffer("sent", torch.zeros(2))
        self.register_buffer("kept", torch.zeros(2))
        with torch.no_grad():
            for tensor in (*self.parameters(), *self.buffers()):
                tensor.fill_(world.rank + 1)

    def forward(self, batch: Tensor) -> Tensor:
        """The second layer's output."""
        return self.theirs(self.ours(batch))  # type: ignore[no-any-return]


IGNORED = ["theirs.weight", "theirs.bias", "kept"]


def ignoring(world: World, **options: Any) -> DistributedDataParallel:  # noqa: ANN401 - those of the class
    """The model, whose second layer and second buffer are ignored."""
    module = Marked(world)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, IGNORED)
    return world.wrap(module, init_sync=True, **options)


def test_they_are_not_sent_at_construction(world: World) -> None:
    """Each rank keeps its own."""
    ddp = ignoring(world)
    ours, theirs = values(ddp)[:2], values(ddp)[2:]
    assert_same(ours, [world.numbers(3, 4, peer=0), world.numbers(3, peer=0)])
    assert_same(theirs, [world.numbers(2, 3), world.numbers(2)])


def test_ignored_buffers_are_never_sent(world: World) -> None:
    """The others are, with each forward pass."""
    ddp = ignoring(world)
    ddp.module.sent += 10 * world.rank
    ddp(world.batch())
    assert_same([ddp.module.sent, ddp.module.kept], [world.numbers(2, peer=0), world.numbers(2)])


def test_their_gradients_stay_local(world: World) -> None:
    """The others are averaged over all ranks, whose ignored parameters may differ."""
    ddp = ignoring(world)
    own = mean_gradients(ddp.module, [world.batch()])
    parts = []
    for peer in range(world.size):
        module = ddp.module
        before = [parameter.detach().clone() for parameter in module.theirs.parameters()]
        with torch.no_grad():
            for parameter in module.theirs.parameters():
                parameter.fill_(peer + 1)
        parts.append(mean_gradients(module, [world.batch(peer)])[:2])
        with torch.no_grad():
            for parameter, old in zip(module.theirs.parameters(), before, strict=True):
                parameter.copy_(old)
    mean = [torch.stack(list(same)).mean(0) for same in zip(*parts, strict=True)]
    for _ in range(2):
        ddp.zero_grad()
        backward(ddp, world.batch())
        assert_close(gradients(ddp), [*mean, *own[2:]])


def test_they_may_be_unused(world: World) -> None:
    """No search is needed for what is not reduced."""

    class Half(Marked):
        def forward(self, batch: Tensor) -> Tensor:
            return self.ours(batch)  # type: ignore[no-any-return]

    module = Half(world)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, IGNORED)
    ddp = world.wrap(module, init_sync=True)
    for _ in range(2):
        expected = mean_gradients(ddp.module, world.batches())
        ddp.zero_grad()
        backward(ddp, world.batch())
        assert_close(gradients(ddp), expected)


def test_parameters_that_are_managed_can_be_listed(world: World) -> None:
    """Without the ignored ones."""
    ddp = ignoring(world)
    managed = list(DistributedDataParallel._get_data_parallel_params(ddp.module))
    assert [id(one) for one in managed] == [id(one) for one in ddp.module.ours.parameters()]


def test_all_ignored_is_nothing_to_train(world: World) -> None:
    """And is refused."""
    module = Marked(world)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        module, [name for name, _ in module.named_parameters()]
    )
    with pytest.raises(RuntimeError, match="doesn't have any parameter that requires a gradient"):
        world.wrap(module)


def test_they_are_in_the_state(world: World) -> None:
    """Ignored by the reduction, not by saving and loading."""
    ddp = ignoring(world)
    assert {f"module.{name}" for name in IGNORED} <= ddp.state_dict().keys()


def delayed(world: World, names: list[str]) -> DistributedDataParallel:
    """A net of which some parameters are reduced in one piece, when the first layer's weight has its gradient."""
    net = world.net().to(torch.float32)
    chosen = [(name, parameter) for name, parameter in net.named_parameters() if name in names]
    return DistributedDataParallel(
        net,
        device_ids=[world.device] if world.device.type == "cuda" else None,  # the buffer is made there
        delay_all_reduce_named_params=chosen,
        param_to_hook_all_reduce=net[0].weight,  # type: ignore[index]
    )


def half_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The loss in 32 bits, which the buffer of delayed gradients has."""
    squares: Tensor = model(batch.float()).square().sum()
    return squares


@pytest.mark.parametrize("missing", ["delay_all_reduce_named_params", "param_to_hook_all_reduce"])
def test_delayed_parameters_and_the_one_to_wait_for_go_together(world: World, missing: str) -> None:
    """One without the other is refused."""
    net = world.net()
    options: dict[str, Any] = {
        "delay_all_reduce_named_params": list(net.named_parameters())[:1],
        "param_to_hook_all_reduce": net[0].weight,  # type: ignore[index]
    }
    del options[missing]
    with pytest.raises(ValueError, match="need to be set at the same time"):
        DistributedDataParallel(net, **options)


def test_delayed_parameters_begin_as_those_of_rank_0(world: World) -> None:
    """They are sent at construction, though the reducer ignores them."""
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(world.device)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.fill_(world.rank + 1)
    chosen = [(name, parameter) for name, parameter in layers.named_parameters() if name.startswith("1.")]
    ddp = DistributedDataParallel(
        layers,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        delay_all_reduce_named_params=chosen,
        param_to_hook_all_reduce=layers[0].weight,
    )
    assert_same([value.to(DTYPE) for value in values(ddp)[2:]], [world.numbers(2, 2, peer=0), world.numbers(2, peer=0)])


def test_delayed_gradients_share_one_buffer(world: World) -> None:
    """They are its views, one behind the other."""
    ddp = delayed(world, ["2.weight", "2.bias"])
    backward(ddp, world.batch(), half_loss)
    weight, bias = ddp.module[2].parameters()
    assert weight.grad is not None
    assert bias.grad is not None
    assert weight.grad.untyped_storage().data_ptr() == bias.grad.untyped_storage().data_ptr()
    assert ddp._delay_grad_buffer is not None
    assert ddp._delay_grad_buffer.numel() == weight.numel() + bias.numel()


def test_delayed_gradients_are_averaged_with_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, in every step; the reduction is only started by the backward pass, so the test waits for it."""
    works: list[dist.Work] = []
    all_reduce = dist.all_reduce

    def kept(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - those of the function
        works.append(all_reduce(*args, **kwargs))

    monkeypatch.setattr(dist, "all_reduce", kept)
    ddp = delayed(world, ["2.weight", "2.bias"])
    for step in range(2):
        expected = mean_gradients(ddp.module, world.batches(step), half_loss)
        ddp.zero_grad()
        backward(ddp, world.batch(step=step), half_loss)
        works.pop().wait()
        assert_close(gradients(ddp), expected, rtol=1e-4)
    assert_same_on_all_ranks([gradient for gradient in gradients(ddp) if gradient is not None])
