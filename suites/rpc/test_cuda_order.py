"""The order of a GPU's work over calls and references: what arrives is what a slow stream was to write.

The callee's work begins with a long delay on the device, so that a result which is read too early is wrong. Each device
of this file's world is mapped to itself; ``test_cuda_order_crossed.py`` has the same tests with each mapped to another.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from allranks.testing import RpcWorld, require_gpu, rpc_world

from .cuda_agents import MappedTensorPipe, Place, device_at
from .sent import async_execution, numbers_of, same, worker_after

new_stream: Any = torch.cuda.Stream  # torch gives it no types

CYCLES = 500_000_000
"""Work of a GPU that lasts longer than all that the host does meanwhile."""


@pytest.fixture(scope="module")
def device_map() -> Mapping[Place, Place]:
    """Where the callee gets what is on a device here, whoever calls whom."""
    return {device: device for device in range(min(torch.cuda.device_count(), 2))}


@pytest.fixture(scope="module")
def world_of_file(names: list[str], device_map: Mapping[Place, Place]) -> Iterator[RpcWorld]:
    """A world with these maps between all workers, also from each to itself, which names its devices."""
    agent = MappedTensorPipe(maps=dict.fromkeys(names, device_map), devices=range(len(device_map)))
    with rpc_world(agent=agent) as world:
        yield world


every_device = pytest.mark.parametrize("device", [0, pytest.param(1, marks=pytest.mark.require_gpus(2))])


def on(device: int, rank: int) -> Tensor:
    """This rank's numbers on a GPU."""
    return numbers_of(rank).to(device_at(device))


def is_there(actual: Tensor, device: Place, expected: Tensor) -> bool:
    """Whether a tensor is on a GPU, with these numbers."""
    return actual.device == device_at(device) and same(actual.cpu(), expected)


def delay(device: torch.device) -> None:
    """Keep the current stream of a device busy."""
    with torch.cuda.device(device):
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no public way


def slow_sum(one: Tensor, other: Tensor) -> Tensor:
    """Add on a stream of the function's own, and make the current stream wait for that."""
    current, own = torch.cuda.current_stream(one.device), new_stream(one.device)
    own.wait_stream(current)
    with torch.cuda.stream(own):
        delay(one.device)
        result = one + other
    current.wait_stream(own)
    for tensor, user in ((one, own), (other, own), (result, current)):
        tensor.record_stream(user)
    return result


def slow_sum_of_three(third: str, one: Tensor, two: Tensor, three: Tensor) -> Tensor:
    """Let a third worker add the first two, and add the last."""
    return slow_sum(rpc.rpc_sync(third, slow_sum, args=(one, two)), three)


def slow_part(device: int, number: int) -> Tensor:
    """A view on a part of a larger tensor that is written late."""
    where = device_at(device)
    with torch.cuda.stream(torch.cuda.current_stream(where)):
        delay(where)
        return (torch.ones(1000, 200, device=where) * number).split(100)[0]  # type: ignore[no-any-return,no-untyped-call]


@async_execution
def fill_later(tensor: Tensor) -> Future[Tensor]:
    """Answer with a future whose tensor another stream writes."""
    own = new_stream(tensor.device)
    own.wait_stream(torch.cuda.current_stream(tensor.device))
    with torch.cuda.stream(own):
        delay(tensor.device)
        tensor += 5
        future: Future[Tensor] = Future(devices=[tensor.device])
        future.set_result(tensor)
    return future


@async_execution
def add_later(third: str, one: Tensor, two: Tensor, three: Tensor) -> Future[Tensor]:
    """Let a third worker add the first two, and add the last in a callback."""

    def add(future: Future[Tensor]) -> Tensor:
        delay(three.device)
        return future.value() + three

    return rpc.rpc_async(third, torch.add, args=(one, two)).then(add)  # type: ignore[no-any-return]


def fetch(reference: Any) -> Tensor:  # noqa: ANN401 - references have no types for mypy
    """Fetch from the owner, and hand on."""
    tensor: Tensor = reference.to_here()
    return tensor


def slow_copy(device: int, numbers: Tensor) -> Tensor:
    """Make a tensor on a GPU from one on the CPU."""
    delay(device_at(device))
    return numbers.to(device_at(device)) + 1


class SlowModel:
    """Multiplies on one GPU, late.

    Args:
        device: The GPU.
    """

    def __init__(self, device: int) -> None:
        self.factor = torch.tensor(3.0, device=device_at(device))
        # Neither of them can be pickled: the object never travels.
        self.lock = threading.Lock()
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def forward(self, tensor: Tensor) -> Tensor:
        """Multiply."""
        with self.lock:
            delay(tensor.device)
            result = tensor * self.factor
            self.event.record(torch.cuda.current_stream(tensor.device))
        return result

    def forward_of(self, reference: Any) -> Tensor:  # noqa: ANN401 - as above
        """Fetch, and multiply."""
        return self.forward(reference.to_here())


@require_gpu
@every_device
def test_result_of_a_stream_of_the_callee(rank: int, peer: str, device: int) -> None:
    """The answer waits for the stream that makes it."""
    result = rpc.rpc_sync(peer, slow_sum, args=(on(device, rank), on(device, rank)))
    assert is_there(result, device, numbers_of(rank) * 2)


@require_gpu
@every_device
def test_results_of_many_streams_of_the_callee(rank: int, peer: str, device: int) -> None:
    """Each answer waits for its own."""
    futures = [
        rpc.rpc_async(peer, slow_sum, args=(on(device, rank), on(device, rank) * number)) for number in range(20)
    ]
    for number, future in enumerate(futures):
        assert is_there(future.wait(), device, numbers_of(rank) * (1 + number))


@require_gpu
@every_device
def test_result_of_streams_of_two_workers(rank: int, world_size: int, peer: str, device: int) -> None:
    """The callee's stream works on what a third worker's stream made."""
    args = (worker_after(rank, world_size, 2), on(device, rank), on(device, rank) * 2, on(device, rank) * 3)
    assert is_there(rpc.rpc_sync(peer, slow_sum_of_three, args=args), device, numbers_of(rank) * 6)


@require_gpu
@every_device
def test_many_results_of_streams_of_two_workers(rank: int, world_size: int, peer: str, device: int) -> None:
    """Several at once."""
    third, numbers = worker_after(rank, world_size, 2), on(device, rank)
    futures = [
        rpc.rpc_async(peer, slow_sum_of_three, args=(third, numbers, numbers * number, numbers)) for number in range(5)
    ]
    for number, future in enumerate(futures):
        assert is_there(future.wait(), device, numbers_of(rank) * (2 + number))


@require_gpu
@every_device
def test_result_is_a_view(peer: str, device_map: Mapping[Place, Place], device: int) -> None:
    """What is sent is copied from a larger tensor, after that is written."""
    futures = [rpc.rpc_async(peer, slow_part, args=(device_map[device], number)) for number in range(5)]
    for number, future in enumerate(futures):
        assert is_there(future.wait(), device, torch.full((100, 200), float(number)))


@require_gpu
@every_device
def test_result_of_an_async_function_is_read_in_another_stream(rank: int, peer: str, device: int) -> None:
    """The future of the callee, and that of the call, order the streams."""
    future = rpc.rpc_async(peer, fill_later, args=(on(device, rank),))
    with torch.cuda.stream(new_stream(device_at(device))):
        assert is_there(future.wait(), device, numbers_of(rank) + 5)


@require_gpu
@every_device
def test_result_of_an_async_functions_callback(rank: int, world_size: int, peer: str, device: int) -> None:
    """A callback adds to what a third worker made."""
    args = (worker_after(rank, world_size, 2), on(device, rank), on(device, rank) * 2, on(device, rank) * 3)
    future = rpc.rpc_async(peer, add_later, args=args)
    with torch.cuda.stream(new_stream(device_at(device))):
        assert is_there(future.wait(), device, numbers_of(rank) * 6)


@require_gpu
@every_device
def test_result_is_fetched_by_a_reference(rank: int, peer: str, device_map: Mapping[Place, Place], device: int) -> None:
    """It comes back by the map, also if the arguments were on the CPU."""
    reference = rpc.remote(peer, slow_copy, args=(device_map[device], numbers_of(rank)))
    assert is_there(reference.to_here(), device, numbers_of(rank) + 1)


@require_gpu
@every_device
def test_models_result_is_fetched(rank: int, peer: str, device_map: Mapping[Place, Place], device: int) -> None:
    """A fetch waits for the stream that makes the result, as a call does."""
    model = rpc.remote(peer, SlowModel, args=(device_map[device],))
    for number in range(5):
        tensor = on(device, rank) * number
        assert is_there(model.remote().forward(tensor).to_here(), device, numbers_of(rank) * number * 3)
        assert is_there(model.rpc_sync().forward(tensor), device, numbers_of(rank) * number * 3)


@require_gpu
@every_device
def test_models_argument_is_a_reference(rank: int, peer: str, device_map: Mapping[Place, Place], device: int) -> None:
    """The callee fetches it from the caller."""
    model = rpc.remote(peer, SlowModel, args=(device_map[device],))
    for number in range(5):
        mine = rpc.RRef(on(device, rank) * number)
        assert is_there(model.remote().forward_of(mine).to_here(), device, numbers_of(rank) * number * 3)
        assert is_there(model.rpc_sync().forward_of(mine), device, numbers_of(rank) * number * 3)


@require_gpu
@every_device
def test_models_result_goes_over_a_third_worker(
    rank: int, world_size: int, peer: str, device_map: Mapping[Place, Place], device: int
) -> None:
    """The third fetches the result from the model's worker, and answers with it: by two maps, or by one to itself."""
    relay = worker_after(rank, world_size, 2)
    # The result is fetched to this device of the relay, and comes here by its map; a reference of one's own needs none.
    back = {there: here for here, there in device_map.items()}
    arrives_at = device if relay == worker_after(rank, world_size, 0) else back[device]
    model = rpc.remote(peer, SlowModel, args=(device_map[device],))
    for number in range(5):
        mine = rpc.RRef(on(device, rank) * number)
        result = rpc.remote(relay, fetch, args=(model.remote().forward_of(mine),)).to_here()
        assert is_there(result, arrives_at, numbers_of(rank) * number * 3)


@require_gpu
@every_device
def test_models_result_is_used_by_its_owner(
    rank: int, names: list[str], device_map: Mapping[Place, Place], device: int
) -> None:
    """A worker that is its own callee: the sum of the result is made after the result."""
    model = rpc.remote(names[rank], SlowModel, args=(device_map[device],))
    for number in range(5):
        result = model.rpc_sync().forward(on(device, rank) * number)
        total = rpc.RRef(result).remote().sum().to_here()
        assert total.item() == (numbers_of(rank) * number * 3).sum().item()


@require_gpu
def test_model_that_cannot_be_pickled_stays_with_its_owner(
    rank: int, peer: str, device_map: Mapping[Place, Place]
) -> None:
    """Its lock and its event are used there, by one call after another."""
    model = rpc.remote(peer, SlowModel, args=(device_map[0],))
    first = model.rpc_sync().forward(on(0, rank))
    assert is_there(model.rpc_sync().forward(first), 0, numbers_of(rank) * 9)
