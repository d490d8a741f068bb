"""The object collectives: anything that can be pickled, of any size."""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from allranks.testing import skip_if_small_world_size

from .tensors import assert_equal

# Under NCCL the objects travel by way of the GPU, and the device fixture is what skips where there is none.
pytestmark = [pytest.mark.conformance(operation="all_gather_object"), pytest.mark.usefixtures("device")]


@dataclass(frozen=True)
class Checkpoint:
    """Something that a training script might pass around."""

    owner: int
    shards: tuple[str, ...]


def checkpoint(rank: int) -> Checkpoint:
    """A rank's checkpoint: the higher the rank, the larger the pickle."""
    return Checkpoint(owner=rank, shards=tuple(f"shard-{rank}-{number}" for number in range(5 * rank)))


def test_all_gather_of_objects_of_unequal_size(rank: int, world_size: int) -> None:
    """Element r of the list is rank r's object."""
    gathered: list[object] = [None] * world_size
    dist.all_gather_object(gathered, checkpoint(rank))
    assert gathered == [checkpoint(peer) for peer in range(world_size)]


def test_all_gather_of_different_types(rank: int, world_size: int) -> None:
    """The ranks need not agree on what they send, and None is an object too."""
    zoo = [None, {"rank": 1}, [2.5, "two"], b"three"]
    gathered: list[object] = ["blank"] * world_size
    dist.all_gather_object(gathered, zoo[rank % len(zoo)])
    assert gathered == [zoo[peer % len(zoo)] for peer in range(world_size)]


def test_all_gather_of_objects_that_hold_tensors(rank: int, world_size: int) -> None:
    """A tensor inside an object arrives with its dtype and shape."""
    gathered: list[dict[str, torch.Tensor]] = [{}] * world_size
    dist.all_gather_object(gathered, {"weight": torch.full((2, 2), rank + 1, dtype=torch.bfloat16)})
    assert_equal(
        [state["weight"] for state in gathered],
        [torch.full((2, 2), peer + 1, dtype=torch.bfloat16) for peer in range(world_size)],
    )


@pytest.mark.conformance(operation="broadcast_object_list")
def test_broadcast_replaces_every_element_of_the_list(rank: int, world_size: int) -> None:
    """The lists must have the same length; their elements need not be alike."""
    last = world_size - 1
    objects: list[object] = [checkpoint(rank), rank, None if rank == last else "blank"]
    dist.broadcast_object_list(objects, src=last)
    assert objects == [checkpoint(last), last, None]


@pytest.mark.conformance(operation="gather_object")
def test_gather_at_any_destination(rank: int, world_size: int) -> None:
    """Only the destination gets a list."""
    for destination in range(world_size):
        gathered: list[object] | None = [None] * world_size if rank == destination else None
        dist.gather_object(checkpoint(rank), gathered, dst=destination)
        if rank == destination:
            assert gathered == [checkpoint(peer) for peer in range(world_size)]


@pytest.mark.conformance(operation="scatter_object_list")
def test_scatter_from_any_source(rank: int, world_size: int) -> None:
    """Element r of the source's list goes to rank r."""
    for source in range(world_size):
        received: list[object] = [None]
        objects = [(source, checkpoint(peer)) for peer in range(world_size)] if rank == source else None
        dist.scatter_object_list(received, objects, src=source)
        assert received == [(source, checkpoint(rank))]


@pytest.mark.conformance(operation="send_object_list", ranks="some")
@skip_if_small_world_size(2)
def test_send_and_receive(rank: int, world_size: int) -> None:
    """The receiver's list is filled, and it learns who sent."""
    last = world_size - 1
    if rank == last:
        dist.send_object_list([checkpoint(last), "and more"], dst=0)
    elif rank == 0:
        received: list[object] = [None, None]
        assert dist.recv_object_list(received, src=last) == last
        assert received == [checkpoint(last), "and more"]
