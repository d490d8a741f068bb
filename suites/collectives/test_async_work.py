"""Work handles: what an asynchronous collective returns."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from .tensors import SUM, assert_equal, blanks, payload, since_torch_2_13, term, terms

pytestmark = pytest.mark.conformance(operation="all_reduce", mode="async")

Outcome = Tensor | list[Tensor] | None
"""What a collective leaves on one rank: None where the result is another rank's."""

Case = tuple[dist.Work, Outcome, Outcome]
"""The handle of a collective, what it writes to, and what will be there."""


def everyones(world_size: int, device: torch.device) -> list[Tensor]:
    """Every rank's payload."""
    return [payload(rank, device=device) for rank in range(world_size)]


def start_broadcast(rank: int, world_size: int, device: torch.device) -> Case:
    """Broadcast from the last rank."""
    tensor = payload(rank, device=device)
    return dist.broadcast(tensor, src=world_size - 1, async_op=True), tensor, payload(world_size - 1, device=device)


def start_all_reduce(rank: int, world_size: int, device: torch.device) -> Case:
    """Sum up over all ranks."""
    tensor = payload(rank, device=device)
    return dist.all_reduce(tensor, async_op=True), tensor, SUM.of(everyones(world_size, device))


def start_reduce(rank: int, world_size: int, device: torch.device) -> Case:
    """Sum up for rank 0."""
    tensor = payload(rank, device=device)
    work = dist.reduce(tensor, dst=0, async_op=True)
    return work, tensor if rank == 0 else None, SUM.of(everyones(world_size, device)) if rank == 0 else None


def start_all_gather(rank: int, world_size: int, device: torch.device) -> Case:
    """Gather into lists."""
    gathered = blanks(payload(rank, device=device), world_size)
    work = dist.all_gather(gathered, payload(rank, device=device), async_op=True)
    return work, gathered, everyones(world_size, device)


def start_all_gather_single(rank: int, world_size: int, device: torch.device) -> Case:
    """Gather into one tensor."""
    gathered = torch.zeros(4 * world_size, device=device)
    work = dist.all_gather_single(gathered, payload(rank, device=device), async_op=True)
    return work, gathered, torch.cat(everyones(world_size, device))


def start_gather(rank: int, world_size: int, device: torch.device) -> Case:
    """Gather at rank 0."""
    gathered = blanks(payload(rank, device=device), world_size) if rank == 0 else None
    work = dist.gather(payload(rank, device=device), gathered, dst=0, async_op=True)
    return work, gathered, everyones(world_size, device) if rank == 0 else None


def start_scatter(rank: int, world_size: int, device: torch.device) -> Case:
    """Scatter from rank 0."""
    received = torch.zeros(4, device=device)
    work = dist.scatter(received, everyones(world_size, device) if rank == 0 else None, src=0, async_op=True)
    return work, received, payload(rank, device=device)


def start_reduce_scatter(rank: int, world_size: int, device: torch.device) -> Case:
    """Reduce lists."""
    received = torch.zeros(4, device=device)
    work = dist.reduce_scatter(received, everyones(world_size, device), async_op=True)
    return work, received, world_size * payload(rank, device=device)


def start_reduce_scatter_single(rank: int, world_size: int, device: torch.device) -> Case:
    """Reduce one tensor."""
    received = torch.zeros(4, device=device)
    work = dist.reduce_scatter_single(received, torch.cat(everyones(world_size, device)), async_op=True)
    return work, received, world_size * payload(rank, device=device)


def start_all_to_all(rank: int, world_size: int, device: torch.device) -> Case:
    """Exchange lists."""
    received = blanks(payload(rank, device=device), world_size)
    work = dist.all_to_all(received, everyones(world_size, device), async_op=True)
    return work, received, [payload(rank, device=device)] * world_size


def start_all_to_all_single(rank: int, world_size: int, device: torch.device) -> Case:
    """Exchange parts of one tensor."""
    received = torch.zeros(4 * world_size, device=device)
    work = dist.all_to_all_single(received, torch.cat(everyones(world_size, device)), async_op=True)
    return work, received, payload(rank, device=device).repeat(world_size)


STARTERS: dict[str, Callable[[int, int, torch.device], Case]] = {
    "broadcast": start_broadcast,
    "all_reduce": start_all_reduce,
    "reduce": start_reduce,
    "all_gather": start_all_gather,
    "all_gather_single": start_all_gather_single,
    "gather": start_gather,
    "scatter": start_scatter,
    "reduce_scatter": start_reduce_scatter,
    "reduce_scatter_single": start_reduce_scatter_single,
    "all_to_all": start_all_to_all,
    "all_to_all_single": start_all_to_all_single,
}

SINCE_TORCH_2_13 = ("all_gather_single", "reduce_scatter_single", "all_to_all")
"""torch 2.13 named the first two, and brought the last one to gloo."""


@pytest.mark.conformance(operation="{operation}")
@pytest.mark.parametrize(
    "operation",
    [pytest.param(name, marks=since_torch_2_13) if name in SINCE_TORCH_2_13 else name for name in STARTERS],
)
def test_result_is_there_after_the_wait(rank: int, world_size: int, device: torch.device, operation: str) -> None:
    """Every collective has an asynchronous form."""
    work, actual, expected = STARTERS[operation](rank, world_size, device)
    work.wait()
    assert_equal(actual, expected)


def test_handle_is_completed_after_the_wait(rank: int, world_size: int, device: torch.device) -> None:
    """On a GPU the wait is one of the stream, and the work is done when the device is."""
    work, actual, expected = start_all_reduce(rank, world_size, device)
    work.wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    assert work.is_completed()
    assert_equal(actual, expected)


def test_waiting_twice_does_nothing_more(rank: int, world_size: int, device: torch.device) -> None:
    """The collective is not run again."""
    work, actual, expected = start_all_reduce(rank, world_size, device)
    work.wait()
    work.wait()
    assert_equal(actual, expected)


@pytest.mark.conformance(operation="broadcast", mode="sync")
def test_synchronous_call_returns_no_handle(rank: int, world_size: int, device: torch.device) -> None:
    """There is nothing left to wait for."""
    tensor = payload(rank, device=device)
    assert dist.broadcast(tensor, src=world_size - 1) is None
    assert_equal(tensor, payload(world_size - 1, device=device))


@pytest.mark.conformance(feature="many in flight")
def test_many_in_flight_waited_for_in_reverse(rank: int, world_size: int, device: torch.device) -> None:
    """The handles are independent: each stands for its own collective."""
    tensors = [term(rank, device=device) * (number + 1) for number in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    result = SUM.of(terms(world_size, device=device))
    assert_equal(tensors, [result * (number + 1) for number in range(8)])


@since_torch_2_13
@pytest.mark.conformance(operation="several collectives")
def test_different_collectives_in_flight(rank: int, world_size: int, device: torch.device) -> None:
    """The ranks start them in the same order, which is all that is asked."""
    cases = [start(rank, world_size, device) for start in STARTERS.values()]
    for work, _, _ in cases:
        work.wait()
    for _, actual, expected in cases:
        assert_equal(actual, expected)


@pytest.mark.conformance(feature="future")
def test_future_holds_the_result(rank: int, world_size: int, device: torch.device) -> None:
    """The future's value is the list of the tensors that were written."""
    tensor = payload(rank, device=device)
    value = dist.all_reduce(tensor, async_op=True).get_future().wait()
    expected = SUM.of(everyones(world_size, device))
    assert_equal(value, [expected])
    assert_equal(tensor, expected)


@pytest.mark.conformance(feature="future")
def test_future_takes_a_callback(rank: int, world_size: int, device: torch.device) -> None:
    """What is chained to the future sees the reduced tensor: so does data parallelism divide its gradients."""
    work = dist.all_reduce(payload(rank, device=device), async_op=True)
    scaled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    assert_equal(scaled, 2 * SUM.of(everyones(world_size, device)))
