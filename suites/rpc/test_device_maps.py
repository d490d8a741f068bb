"""Device maps: where tensors of a GPU arrive, and which maps are refused. Each test has a world of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc

from allranks.testing import FileBarrier, require_gpu, require_gpus, rpc_world, worker_name

from .cuda_agents import MappedTensorPipe, Place, device_at
from .own_workers import is_up, join, left_at_the_end
from .sent import numbers_of, same

STRAIGHT: Mapping[Place, Place] = {0: 0, 1: 1}
CROSSED: Mapping[Place, Place] = {0: 1, 1: 0}
ROTATED: Mapping[Place, Place] = {0: 1, 1: 2, 2: 3, 3: 0}

two_gpus = pytest.mark.require_gpus(2)

both_ways = pytest.mark.parametrize("steps", [1, 0], ids=["peer", "self"])
"""A call to the next worker, and one to the caller itself."""


@pytest.fixture(autouse=True)
def _world() -> None:
    """No world for the file, unlike in the other files: here each test makes its own."""


def sum_at(one: Tensor, other: Tensor, place: Place) -> tuple[str, str, Tensor]:
    """Where the arguments arrived, and their sum at a place."""
    return str(one.device), str(other.device), one.to(device_at(place)) + other.to(device_at(place))


def places_of_four(numbers: Tensor) -> list[Tensor]:
    """One tensor on each of four GPUs, made from one on the CPU."""
    assert numbers.device.type == "cpu"
    return [(numbers + place).to(device_at(place)) for place in range(4)]


def mix_devices(numbers: Tensor) -> Tensor:
    """Add what cannot be added."""
    return numbers.cpu() + numbers.cuda()


def check_sum(
    rank: int, callee: str, sources: tuple[Place, Place], result: Place, places: Mapping[Place, Place]
) -> None:
    """Call, and check where both arguments arrived, and where and with which numbers the result did."""
    one, other = numbers_of(rank).to(device_at(sources[0])), torch.full((3,), 5.0).to(device_at(sources[1]))
    *arrived, total = rpc.rpc_sync(callee, sum_at, args=(one, other, result))
    assert arrived == [str(device_at(places[source])) for source in sources]
    back = {there: here for here, there in places.items()}
    assert total.device == device_at(back[result])
    assert same(total.cpu(), numbers_of(rank) + 5)


@pytest.mark.isolation("test")  # torch 2.11 aborts if a process's first world used no GPU and its second one does
@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("cpu", "cpu"),
        pytest.param("cpu", 0, marks=pytest.mark.require_gpu),
        pytest.param("cpu", 1, marks=two_gpus),
        pytest.param(0, "cpu", marks=pytest.mark.require_gpu),
        pytest.param(1, "cpu", marks=two_gpus),
        pytest.param(0, 0, marks=pytest.mark.require_gpu),
        pytest.param(1, 1, marks=two_gpus),
        pytest.param(0, 1, marks=two_gpus),
        pytest.param(1, 0, marks=two_gpus),
    ],
)
def test_map_of_one_device(rank: int, peer: str, here: Place, there: Place) -> None:
    """Both arguments arrive where the map says, and the result comes back where they were."""
    with rpc_world(agent=MappedTensorPipe(maps={peer: {here: there}})):
        check_sum(rank, peer, (here, here), there, {here: there})


@require_gpus(2)
@both_ways
@pytest.mark.parametrize("sources_and_result", [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)], ids=str)
@pytest.mark.parametrize("places", [STRAIGHT, CROSSED], ids=["straight", "crossed"])
def test_map_of_two_devices(
    rank: int, world_size: int, places: Mapping[Place, Place], sources_and_result: tuple[int, int, int], steps: int
) -> None:
    """Arguments from both devices, and a result on either."""
    callee = worker_name((rank + steps) % world_size)
    with rpc_world(agent=MappedTensorPipe(maps={callee: places})):
        check_sum(rank, callee, sources_and_result[:2], sources_and_result[2], places)


def both_results(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The sum where the first argument is not, and the difference where it is."""
    assert (one.device, other.device) == (device_at(1), device_at(0))
    return one.to(other.device) + other, one - other.to(one.device)


@require_gpus(2)
@both_ways
def test_results_on_several_devices(rank: int, world_size: int, steps: int) -> None:
    """Each result of one call comes back by the map."""
    callee = worker_name((rank + steps) % world_size)
    with rpc_world(agent=MappedTensorPipe(maps={callee: CROSSED})):
        arguments = numbers_of(rank).to(device_at(0)), torch.full((3,), 5.0).to(device_at(1))
        total, difference = rpc.rpc_sync(callee, both_results, args=arguments)
        assert (total.device, difference.device) == (device_at(1), device_at(0))
        assert same(total.cpu(), numbers_of(rank) + 5)
        assert same(difference.cpu(), numbers_of(rank) - 5)


class OptionsAtOnce(MappedTensorPipe):
    """Gives the maps to the constructor of the options."""

    def options(self, init_method: str, timeout: float) -> Any:  # noqa: ANN401 - as of TensorPipe
        """Made in one go."""
        maps: Any = {callee: dict(places) for callee, places in self.maps.items()}
        return rpc.TensorPipeRpcBackendOptions(
            init_method=init_method,
            rpc_timeout=timeout,
            num_worker_threads=self.worker_threads,
            device_maps=maps,
        )


@require_gpus(2)
def test_map_in_the_constructor_of_the_options(rank: int, peer: str) -> None:
    """It is as good as one that was set."""
    with rpc_world(agent=OptionsAtOnce(maps={peer: CROSSED})):
        check_sum(rank, peer, (0, 1), 0, CROSSED)


@require_gpus(4)
@both_ways
def test_results_of_a_call_with_cpu_tensors(rank: int, world_size: int, steps: int) -> None:
    """The map counts for results also if no argument was on a GPU."""
    callee = worker_name((rank + steps) % world_size)
    with rpc_world(agent=MappedTensorPipe(maps={callee: ROTATED})):
        results = rpc.rpc_sync(callee, places_of_four, args=(numbers_of(rank),))
    assert [result.device.index for result in results] == [3, 0, 1, 2]
    assert all(same(result.cpu(), numbers_of(rank) + place) for place, result in enumerate(results))


@require_gpu
def test_callees_error_about_devices(rank: int, peer: str) -> None:
    """What the callee mixes up is an error of the call."""
    with (
        rpc_world(agent=MappedTensorPipe(maps={peer: {0: 0}})),
        pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"),
    ):
        rpc.rpc_sync(peer, mix_devices, args=(numbers_of(rank).to(device_at(0)),))


def begin_and_end(agent: MappedTensorPipe) -> None:
    """A world without a test."""
    with rpc_world(agent=agent):
        pass


Case = Callable[[str, int], MappedTensorPipe]

REFUSED: dict[str, tuple[int, Case, str]] = {
    "unknown_worker": (2, lambda _peer, _count: MappedTensorPipe(maps={"nobody": {0: 1}}), "invalid target node names"),
    "source_too_high": (
        1,
        lambda peer, count: MappedTensorPipe(maps={peer: {count: 0}}),
        "source devices with invalid indices",
    ),
    "target_too_high": (
        1,
        lambda peer, count: MappedTensorPipe(maps={peer: {0: count}}),
        "target devices with invalid indices",
    ),
    "many_to_one": (
        2,
        lambda peer, _count: MappedTensorPipe(maps={peer: {0: 0, 1: 0}}),
        "duplicated target devices",
    ),
    "source_not_used": (
        2,
        lambda peer, _count: MappedTensorPipe(maps={peer: {0: 0}}, devices=[1]),
        "unexpected source devices",
    ),
    "target_not_used": (
        2,
        lambda peer, _count: MappedTensorPipe(maps={peer: {0: 1}}, devices=[0]),
        "unexpected target devices",
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.require_gpus(case[0])) for name, case in REFUSED.items()]
)
def test_map_that_is_refused(peer: str, case: str) -> None:
    """All workers compare their maps when they begin, and all of them fail; the error names the worker."""
    _, agent, message = REFUSED[case]
    with pytest.raises(ValueError, match=rf"Node worker\d+ has {message}"):
        begin_and_end(agent(peer, torch.cuda.device_count()))
    assert not is_up()


@require_gpus(2)
def test_device_has_one_target(peer: str) -> None:
    """The second is refused when it is set."""
    options = MappedTensorPipe(maps={peer: {0: 1}}).options("env://", 60)
    with pytest.raises(ValueError, match="only supports 1-to-1 mapping"):
        options.set_device_map(peer, {0: 0})


@require_gpu
@pytest.mark.parametrize("places", [{-1: 0}, {0: -1}], ids=["source", "target"])
def test_device_has_no_negative_number(peer: str, places: dict[Place, Place]) -> None:
    """Neither here nor there."""
    with pytest.raises(RuntimeError, match="Device index must not be negative"):
        MappedTensorPipe(maps={peer: places}).options("env://", 60)


@require_gpus(2)
def test_dynamic_world_with_maps(rank: int, world_size: int, shared_tmp_path: Path, file_barrier: FileBarrier) -> None:
    """A worker may have maps to workers that come later, and calls them."""
    peers = [worker_name(peer) for peer in range(1, world_size)]
    agent = MappedTensorPipe(maps=dict.fromkeys(peers, CROSSED) if rank == 0 else {})

    options = agent.options(f"file://{shared_tmp_path}/world", 60)
    with left_at_the_end():
        if rank == 0:
            join(worker_name(rank), rank, rpc_backend_options=options)
        file_barrier()
        if rank > 0:
            join(worker_name(rank), rank, rpc_backend_options=options)
        file_barrier()
        if rank == 0:
            # Tensors of a GPU fail here in torch 2.13: a worker that came later has not initialized CUDA for them.
            for number, peer in enumerate(peers, start=1):
                assert same(rpc.rpc_sync(peer, torch.add, args=(numbers_of(number), 1)), numbers_of(number) + 1)
        file_barrier()
        rpc.shutdown()
