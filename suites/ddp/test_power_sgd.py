"""PowerSGD: gradients sent as products of two thin matrices, with what was lost added to the next step."""

import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    _orthogonalize,
    batched_powerSGD_hook,
    powerSGD_hook,
)

from allranks.testing import skip_when

from .reference import DTYPE, World, assert_close, assert_same, assert_same_on_all_ranks, gradients


def is_batched_form_broken() -> bool:
    """Whether this torch's helper refuses what the batched hook gives it, as that of 2.13 does."""
    try:
        _orthogonalize(torch.ones(2, 1))
    except AssertionError:
        return True
    return False


batched = skip_when(is_batched_form_broken, "this torch's batched PowerSGD fails on the shape of its own matrix")


class Matrix(nn.Module):
    """One square matrix, whose gradient is what it is called with."""

    def __init__(self, size: int = 12) -> None:
        """Begin with zeros."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size, size))

    def forward(self, factors: Tensor) -> Tensor:
        """The sum of the products."""
        return (self.weight * factors).sum()


def flat(world: World, peer: int, step: int = 0, size: int = 12) -> Tensor:
    """A matrix of rank 1: all ranks have the same columns, each with another factor, so the mean has rank 1 too."""
    generator = torch.Generator().manual_seed(step)
    column, row = (torch.rand(size, generator=generator, dtype=DTYPE) + 0.5 for _ in range(2))
    return (torch.outer(column, row) * (peer + 1)).to(world.device)


def full(world: World, peer: int, size: int = 12) -> Tensor:
    """A matrix of full rank."""
    generator = torch.Generator().manual_seed(peer)
    return torch.rand(size, size, generator=generator, dtype=DTYPE).to(world.device)


def mean_flat(world: World, step: int = 0) -> Tensor:
    """The mean over the ranks."""
    return torch.stack([flat(world, peer, step) for peer in range(world.size)]).mean(0)


def mean_full(world: World) -> Tensor:
    """The mean over the ranks."""
    return torch.stack([full(world, peer) for peer in range(world.size)]).mean(0)


@pytest.mark.parametrize("hook", [powerSGD_hook, batched_powerSGD_hook])
def test_plain_average_until_compression_begins(world: World, hook: object) -> None:
    """Even of what has no low rank."""
    ddp = world.wrap(Matrix())
    ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), hook)  # type: ignore[arg-type]
    for _ in range(2):
        ddp.zero_grad()
        ddp(full(world, world.rank)).backward()
        assert_close(gradients(ddp), [mean_full(world)])


def finds_low_rank(world: World, hook: object) -> None:
    """In plain steps and in compressed ones."""
    ddp = world.wrap(Matrix())
    ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), hook)  # type: ignore[arg-type]
    for _ in range(4):
        ddp.zero_grad()
        ddp(flat(world, world.rank)).backward()
        assert_close(gradients(ddp), [mean_flat(world)], rtol=1e-9)


def test_mean_of_low_rank_is_found_exactly(world: World) -> None:
    """A product of two columns holds it."""
    finds_low_rank(world, powerSGD_hook)


@batched
def test_mean_of_low_rank_is_found_exactly_by_the_batched_form(world: World) -> None:
    """It compresses a whole bucket, which is one matrix here."""
    finds_low_rank(world, batched_powerSGD_hook)


def test_enough_columns_hold_any_matrix(world: World) -> None:
    """With as many as the matrix has, nothing is lost."""
    ddp = world.wrap(Matrix())
    state = PowerSGDState(None, matrix_approximation_rank=12, start_powerSGD_iter=2, min_compression_rate=0)
    ddp.register_comm_hook(state, powerSGD_hook)
    for _ in range(3):
        ddp.zero_grad()
        ddp(full(world, world.rank)).backward()
    assert_close(gradients(ddp), [mean_full(world)], rtol=1e-6)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_what_was_lost_is_added_to_the_next_step(world: World, *, warm: bool) -> None:
    """The sum of what was sent and what is still owed is the sum of all means."""
    ddp = world.wrap(Matrix())
    state = PowerSGDState(None, start_powerSGD_iter=2, warm_start=warm)
    ddp.register_comm_hook(state, powerSGD_hook)
    steps, sent = 4, torch.zeros(12, 12, dtype=DTYPE, device=world.device)
    for _ in range(steps):
        ddp.zero_grad()
        ddp(full(world, world.rank)).backward()
        sent += ddp.module.weight.grad
    owed = state.error_dict[0].view(12, 12).clone()
    torch.distributed.all_reduce(owed)
    assert owed.abs().max() > 0.01
    assert_close([sent + owed / world.size], [steps * mean_full(world)], rtol=1e-6)
    assert bool(state.p_memory_dict) is warm


def test_without_feedback_nothing_is_owed(world: World) -> None:
    """Then compression may begin with the first step."""
    ddp = world.wrap(Matrix())
    state = PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    ddp.register_comm_hook(state, powerSGD_hook)
    ddp(flat(world, world.rank)).backward()
    assert state.error_dict == {}
    assert_close(gradients(ddp), [mean_flat(world)], rtol=1e-9)


def test_compressed_gradients_are_the_same_on_all_ranks(world: World) -> None:
    """Though each rank multiplies the matrices itself: the random ones come from one seed."""
    ddp = world.wrap(Matrix())
    ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    for _ in range(3):
        ddp.zero_grad()
        ddp(full(world, world.rank)).backward()
    assert_same_on_all_ranks([gradient for gradient in gradients(ddp) if gradient is not None])


def test_small_parameters_are_sent_whole(world: World) -> None:
    """A vector is not worth a product: it is averaged plainly beside the matrix."""

    class WithBias(Matrix):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(12))

        def forward(self, factors: Tensor) -> Tensor:
            return super().forward(factors) + (self.bias * factors[0]).sum()

    ddp = world.wrap(WithBias())
    ddp.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    for _ in range(4):
        ddp.zero_grad()
        ddp(flat(world, world.rank)).backward()
    assert_close(gradients(ddp), [mean_flat(world), mean_flat(world)[0]], rtol=1e-9)


def test_matrices_of_one_shape_can_be_compressed_together(world: World) -> None:
    """With the result that each has alone."""
    ddp = world.wrap(nn.ModuleList([Matrix(), Matrix()]))
    ddp.module.forward = lambda one, other: ddp.module[0](one) + ddp.module[1](other)
    state = PowerSGDState(None, start_powerSGD_iter=2, batch_tensors_with_same_shape=True)
    ddp.register_comm_hook(state, powerSGD_hook)
    for _ in range(4):
        ddp.zero_grad()
        ddp(flat(world, world.rank), flat(world, world.rank, 1)).backward()
    assert_close(gradients(ddp), [mean_flat(world), mean_flat(world, 1)], rtol=1e-9)


def test_rate_of_compression_is_counted(world: World) -> None:
    """Elements before and after: 144 of the matrix become 24."""
    ddp = world.wrap(Matrix())
    state = PowerSGDState(None, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook)
    assert state.compression_stats() == (0, 0, 0)
    for _ in range(4):
        ddp(flat(world, world.rank)).backward()
    assert state.compression_stats() == (6, 288, 48)
    assert state.iter == 4


def test_compression_over_a_group(world: World, own_group: torch.distributed.ProcessGroup) -> None:
    """The state has the group: here each rank's own."""
    ddp = world.wrap(Matrix())
    ddp.register_comm_hook(PowerSGDState(own_group, start_powerSGD_iter=2), powerSGD_hook)
    for _ in range(4):
        ddp.zero_grad()
        ddp(flat(world, world.rank)).backward()
    assert_close(gradients(ddp), [flat(world, world.rank)], rtol=1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"use_error_feedback": False}, {"warm_start": False}], ids=["plain", "no feedback", "cold"]
)
def test_too_early_a_start_is_refused(options: dict[str, bool]) -> None:
    """What is kept from step to step must not be kept over the rebuilding of the buckets."""
    with pytest.raises(ValueError, match="`start_powerSGD_iter` > 1"):
        PowerSGDState(None, start_powerSGD_iter=1, **options)


def test_pickled_state_goes_on_where_it_was(world: World, distributed_log: pytest.LogCaptureFixture) -> None:
    """All but the group, which is the default group again; both ways say so in a log."""
    ddp = world.wrap(Matrix())
    state = PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=2)
    ddp.register_comm_hook(state, powerSGD_hook)
    for _ in range(3):
        ddp(full(world, world.rank)).backward()
    loaded = pickle.loads(pickle.dumps(state))  # noqa: S301 - our own
    assert "Process group is not serializable" in distributed_log.text
    assert "Process group will be set to a default group" in distributed_log.text
    assert loaded.process_group is torch.distributed.group.WORLD
    assert (loaded.iter, loaded.matrix_approximation_rank) == (3, 2)
    assert_same([loaded.q_memory_dict[0]], [state.q_memory_dict[0]])
    other = world.wrap(Matrix())
    other.register_comm_hook(loaded, powerSGD_hook)
    for model in (ddp, other):
        model.zero_grad()
        model(full(world, world.rank)).backward()
    assert_close(gradients(other), gradients(ddp))
