"""Gradients: after a backward pass, every rank has the mean over all ranks' data."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from allranks.testing import SubgroupMaker, skip_if_small_world_size

from .reference import (
    World,
    assert_close,
    assert_same_on_all_ranks,
    backward,
    copy_of,
    gradients,
    mean_gradients,
    set_gradients,
    square_loss,
    values,
)


def test_gradients_are_the_mean_over_the_ranks(world: World) -> None:
    """As if one process had all the data."""
    ddp = world.wrap(world.net())
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_every_step_is_averaged(world: World) -> None:
    """The second pass has rebuilt its buckets, and the third uses them again."""
    ddp = world.wrap(world.net())
    for step in range(3):
        expected = mean_gradients(ddp.module, world.batches(step))
        ddp.zero_grad()
        backward(ddp, world.batch(step=step))
        assert_close(gradients(ddp), expected)


def test_gradients_that_were_not_cleared_are_added_to(world: World) -> None:
    """Two backward passes leave the sum of two means."""
    ddp = world.wrap(world.net())
    first, second = (mean_gradients(ddp.module, world.batches(step)) for step in range(2))
    for step in range(2):
        backward(ddp, world.batch(step=step))
    assert_close(gradients(ddp), [one + other for one, other in zip(first, second, strict=True)])  # type: ignore[operator]


@pytest.mark.parametrize("set_to_none", [True, False], ids=["to none", "to zeros"])
def test_cleared_gradients_leave_nothing_behind(world: World, *, set_to_none: bool) -> None:
    """Either way to clear them."""
    ddp = world.wrap(world.net())
    backward(ddp, world.batch())
    ddp.zero_grad(set_to_none=set_to_none)
    expected = mean_gradients(ddp.module, world.batches(1))
    backward(ddp, world.batch(step=1))
    assert_close(gradients(ddp), expected)


Optimizing = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """Gradient descent with momentum."""
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def adam(module: nn.Module) -> torch.optim.Optimizer:
    """Adam, whose state depends on all gradients before."""
    return torch.optim.Adam(module.parameters(), lr=0.05)


@pytest.mark.parametrize("optimizing", [sgd, adam])
def test_training_is_that_of_one_process_with_all_data(world: World, optimizing: Optimizing) -> None:
    """The parameters go the same way, step by step, and are the same on all ranks to the last bit."""
    ddp, alone = world.wrap(world.net()), world.net()
    alone.load_state_dict(ddp.module.state_dict())
    optimizer, reference = optimizing(ddp), optimizing(alone)
    for step in range(3):
        set_gradients(alone, mean_gradients(alone, world.batches(step)))
        reference.step()
        optimizer.zero_grad()
        backward(ddp, world.batch(step=step))
        optimizer.step()
    assert_close(values(ddp), values(alone), rtol=1e-9)
    assert_same_on_all_ranks(values(ddp))


@skip_if_small_world_size(2)
def test_batches_of_different_sizes_count_by_rank(world: World) -> None:
    """The mean is over ranks, not over rows."""
    ddp = world.wrap(world.net())
    expected = mean_gradients(ddp.module, [world.batch(peer, rows=peer + 1) for peer in range(world.size)])
    backward(ddp, world.batch(rows=world.rank + 1))
    assert_close(gradients(ddp), expected)


def test_frozen_parameters_have_no_gradient(world: World) -> None:
    """The others have their mean."""
    module = world.net()
    next(module.parameters()).requires_grad = False
    ddp = world.wrap(module)
    expected = mean_gradients(module, world.batches())
    assert expected[0] is None
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_parameters_of_several_dtypes(world: World) -> None:
    """Each dtype has buckets of its own."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Linear(4, 4).to(torch.float64)
            self.narrow = nn.Linear(4, 2).to(torch.float32)

        def forward(self, batch: Tensor) -> Tensor:
            return self.narrow(self.wide(batch).float())  # type: ignore[no-any-return]

    ddp = torch.nn.parallel.DistributedDataParallel(Mixed().to(world.device))
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_16_bits(world: World, dtype: torch.dtype) -> None:
    """They are reduced in their own dtype."""
    parameter = nn.Module()
    parameter.weight = nn.Parameter(torch.ones(8, device=world.device, dtype=dtype))
    parameter.forward = lambda scale: parameter.weight * scale
    ddp = torch.nn.parallel.DistributedDataParallel(parameter)
    ddp(world.rank + 1.0).sum().backward()
    mean = torch.full((8,), world.mean_rank() + 1, device=world.device, dtype=dtype)
    assert_close(gradients(ddp), [mean], rtol=4 * torch.finfo(dtype).eps)


def test_complex_parameters(world: World) -> None:
    """Their gradients are complex, and so is the mean."""

    class Phase(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex128))

        def forward(self, batch: Tensor) -> Tensor:
            return torch.view_as_real(batch * self.turn * (1 + 2j))

    ddp = torch.nn.parallel.DistributedDataParallel(Phase().to(world.device))
    copy = copy_of(ddp.module)
    for batch in world.batches():
        backward(copy, batch)
    backward(ddp, world.batch())
    (actual,), (total,) = gradients(ddp), gradients(copy)
    assert actual is not None
    assert total is not None
    assert_close([torch.view_as_real(actual)], [torch.view_as_real(total / world.size)])


def test_parameter_without_elements(world: World) -> None:
    """A layer with no outputs has a gradient of its shape, and disturbs no other."""

    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.full, self.empty = nn.Linear(4, 2), nn.Linear(4, 0)

        def forward(self, batch: Tensor) -> Tensor:
            return torch.cat([self.full(batch), self.empty(batch)], dim=1)

    ddp = world.wrap(Empty())
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_parameters_with_other_strides(world: World) -> None:
    """The elements of a kernel in channels-last order find their places again."""
    module = world.place(nn.Conv2d(2, 3, 2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = [batch.reshape(-1, 2, 3, 3) for batch in world.batches(rows=9)]
    ddp = world.wrap(module)
    expected = mean_gradients(module, images)
    backward(ddp, images[world.rank])
    assert_close(gradients(ddp), expected)


def test_shared_parameter_is_reduced_once(world: World) -> None:
    """It has the sum of the gradients of its uses, averaged over the ranks."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, batch: Tensor) -> Tensor:
            return self.second(self.first(batch).tanh())  # type: ignore[no-any-return]

    ddp = world.wrap(Tied())
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert len(expected) == 3
    assert_close(gradients(ddp), expected)


def test_module_used_twice_in_a_forward_pass(world: World) -> None:
    """Its parameters are ready when the last of the uses has been differentiated."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, batch: Tensor) -> Tensor:
            return self.layer(self.layer(batch).tanh())  # type: ignore[no-any-return]

    ddp = world.wrap(Twice())
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_two_models_in_one_loss(world: World) -> None:
    """Each reduces its own gradients, whichever becomes ready first."""
    first, second = world.wrap(world.net()), world.wrap(nn.Linear(4, 2))
    both = nn.ModuleList([first.module, second.module])

    def loss(models: nn.Module, batch: Tensor) -> Tensor:
        one, other = list(models)  # type: ignore[call-overload]
        product: Tensor = (one(batch) * other(batch)).sum()
        return product

    expected = mean_gradients(both, world.batches(), loss)
    loss([first, second], world.batch()).backward()  # type: ignore[arg-type]
    assert_close(gradients(both), expected)


def test_one_model_after_another(world: World) -> None:
    """The output of one is the input of the other, so gradients flow through both."""
    first, second = world.wrap(world.net()), world.wrap(nn.Linear(2, 2))
    both = nn.Sequential(first.module, second.module)
    expected = mean_gradients(both, world.batches())
    second(first(world.batch())).square().sum().backward()
    assert_close(gradients(both), expected)


def test_gradient_of_the_input_stays_local(world: World) -> None:
    """Only parameters are averaged."""
    ddp = world.wrap(world.net())
    batch, own = world.batch().requires_grad_(), world.batch().requires_grad_()
    backward(copy_of(ddp.module), own)
    backward(ddp, batch)
    assert_close([batch.grad], [own.grad])


def test_hook_of_a_parameter_sees_the_local_gradient(world: World) -> None:
    """The mean is formed after it."""
    ddp = world.wrap(world.net())
    alone = copy_of(ddp.module)
    backward(alone, world.batch())
    seen: list[Tensor | None] = []
    next(ddp.parameters()).register_hook(lambda gradient: seen.append(gradient.clone()))
    backward(ddp, world.batch())
    assert_close(seen, gradients(alone)[:1])


def test_retained_graph_is_differentiated_again(world: World) -> None:
    """Only a forward pass makes the reducer ready: the second backward pass adds this rank's own gradients."""
    ddp = world.wrap(world.net())
    alone = copy_of(ddp.module)
    backward(alone, world.batch())
    expected = mean_gradients(ddp.module, world.batches())
    loss = square_loss(ddp, world.batch())
    loss.backward(retain_graph=True)
    assert_close(gradients(ddp), expected)
    loss.backward()
    assert_close(gradients(ddp), [mean + own for mean, own in zip(expected, gradients(alone), strict=True)])  # type: ignore[operator]


def test_graph_of_the_gradients_can_be_made(world: World) -> None:
    """With ``create_graph`` the input's gradient is differentiated a second time, and the parameters are averaged."""
    ddp = world.wrap(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))

    def penalty(model: nn.Module, batch: Tensor) -> Tensor:
        leaf = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(leaf).sum(), leaf, create_graph=True)
        return slope.square().sum() + square_loss(model, batch) * 0

    expected = mean_gradients(ddp.module, world.batches(), penalty)
    backward(ddp, world.batch(), penalty)
    assert_close(gradients(ddp), expected, rtol=1e-9)


def test_without_gradients_the_forward_pass_sends_nothing(world: World) -> None:
    """The ranks may evaluate different numbers of batches."""
    ddp = world.wrap(world.net())
    with torch.no_grad():
        for step in range(world.rank + 1):
            assert_close([ddp(world.batch(step=step))], [ddp.module(world.batch(step=step)).detach()])
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_module_can_be_evaluated_beside_its_wrapper(world: World) -> None:
    """The bare module needs no peers; afterwards training goes on."""
    ddp = world.wrap(world.net())
    if world.rank == 0:
        with torch.no_grad():
            ddp.module(world.batch())
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)


def test_hooks_of_the_wrapper_are_called(world: World) -> None:
    """Those of forward and backward, once each, as for any module."""
    ddp = world.wrap(world.net())
    calls: list[str] = []
    ddp.register_forward_pre_hook(lambda *_: calls.append("before forward"))
    ddp.register_forward_hook(lambda *_: calls.append("after forward"))
    ddp.register_full_backward_hook(lambda *_: calls.append("after backward"))
    expected = mean_gradients(ddp.module, world.batches())
    backward(ddp, world.batch().requires_grad_())
    assert calls == ["before forward", "after forward", "after backward"]
    assert_close(gradients(ddp), expected)


@skip_if_small_world_size(2)
def test_only_the_group_takes_part(world: World, subgroup: SubgroupMaker) -> None:
    """The mean is over the last two ranks; the others have nothing to do with it."""
    members = [world.size - 2, world.size - 1]
    group = subgroup(members)
    if world.rank in members:
        ddp = world.wrap(world.net(), process_group=group)
        expected = mean_gradients(ddp.module, [world.batch(member) for member in members])
        backward(ddp, world.batch())
        assert_close(gradients(ddp), expected)


def test_every_rank_may_have_a_group_of_its_own(world: World, own_group: dist.ProcessGroup) -> None:
    """Alone, a rank keeps its gradients as they are."""
    ddp = world.wrap(world.net(), process_group=own_group)
    expected = mean_gradients(ddp.module, [world.batch()])
    backward(ddp, world.batch())
    assert_close(gradients(ddp), expected)
