"""How worlds end: a graceful shutdown waits for work that is still under way. Each test ends a world of its own."""

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import FileBarrier, with_rpc, worker_name

from .callees import count, counted, own_rank

pytestmark = pytest.mark.require_world_size(2)

_CALLS = 30


def _work(tensor: torch.Tensor) -> int:
    for _ in range(100):
        tensor = tensor * 2 - tensor
    count("work")
    return own_rank() + int(tensor.sum())


def _drive(world_size: int) -> None:
    """Give work to one worker after the other, each of which has nothing to do but wait for its end."""
    for callee in range(1, world_size):
        futures = [rpc.rpc_async(worker_name(callee), _work, args=(torch.ones(100, 100),)) for _ in range(_CALLS)]
        assert torch.futures.wait_all(futures) == _CALLS * [callee + 10_000]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@with_rpc(clean_shutdown=False)
def test_waiting_for_all_workers_lasts_until_the_last_has_no_work(
    times: int, rank: int, world_size: int, file_barrier: FileBarrier
) -> None:
    """Those without work of their own serve the others as they wait."""
    file_barrier()
    if rank == 0:
        _drive(world_size)
    for _ in range(times):
        rpc.api._wait_all_workers()  # noqa: SLF001 - torch has no public name for it
    assert counted("work") == (0 if rank == 0 else _CALLS)
    # One that leaves must not fail the last messages of the others.
    file_barrier()


@with_rpc
def test_a_shutdown_waits_for_uneven_work(rank: int, world_size: int, file_barrier: FileBarrier) -> None:
    """One worker has calls to make, and the others none."""
    file_barrier()
    if rank == 0:
        _drive(world_size)
    rpc.shutdown()
    assert counted("work") == (0 if rank == 0 else _CALLS)


def _passed_on(hops: int, world_size: int) -> None:
    if hops:
        rpc.rpc_async(worker_name((own_rank() + 1) % world_size), _passed_on, args=(hops - 1, world_size))
    else:
        count("ends")


@with_rpc
def test_a_shutdown_waits_for_a_chain_of_calls(world_size: int) -> None:
    """Each call of the chain has returned when the next is made, and nobody waits for the last."""
    _passed_on(20, world_size)
    rpc.shutdown()
    assert counted("ends") == 1


@with_rpc
def test_no_call_is_made_after_a_shutdown(rank: int, world_size: int) -> None:
    """It worked before."""
    peer = worker_name((rank + 1) % world_size)
    assert rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), rank)).tolist() == 2 * [rank + 1.0]
    rpc.shutdown()
    with pytest.raises(RuntimeError, match=r"^RPC has not been initialized"):
        rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), rank))
