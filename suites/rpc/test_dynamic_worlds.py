"""Dynamic worlds: workers join without telling how many there will be."""

from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import FileBarrier, TensorPipe, changed_variables, worker_name

from .own_workers import join, left_at_the_end
from .sent import numbers_of, same


@pytest.fixture(autouse=True)
def _world() -> None:
    """No world for the file, unlike in the other files: here each test makes its own."""


def come(rank: int, folder: Path, world_size: int | None = None) -> None:
    """Become a worker; of a dynamic world, if no world size is given."""
    agent = TensorPipe()
    options = agent.options(f"file://{folder}/world", 60)
    join(worker_name(rank), rank, world_size, backend=agent.backend, rpc_backend_options=options)


def test_workers_come_and_go_in_any_order(rank: int, shared_tmp_path: Path, file_barrier: FileBarrier) -> None:
    """None waits for the others, and each knows itself."""
    with left_at_the_end():
        come(rank, shared_tmp_path)
        assert rpc.get_worker_info().id == rank
        file_barrier()
        rpc.shutdown()


def test_new_worker_calls_an_older_one(rank: int, shared_tmp_path: Path, file_barrier: FileBarrier) -> None:
    """It knows all that were there."""
    with left_at_the_end():
        if rank == 0:
            come(rank, shared_tmp_path)
        file_barrier()
        if rank > 0:
            come(rank, shared_tmp_path)
            assert same(rpc.rpc_sync(worker_name(0), torch.add, args=(numbers_of(rank), 1)), numbers_of(rank) + 1)
        file_barrier()
        rpc.shutdown()


def test_older_worker_calls_a_new_one(
    rank: int, world_size: int, shared_tmp_path: Path, file_barrier: FileBarrier
) -> None:
    """It has been told of all that came later."""
    with left_at_the_end():
        if rank == 0:
            come(rank, shared_tmp_path)
        file_barrier()
        if rank > 0:
            come(rank, shared_tmp_path)
        file_barrier()
        if rank == 0:
            for peer in range(1, world_size):
                assert rpc.rpc_sync(worker_name(peer), rpc.get_worker_info).id == peer
                assert same(
                    rpc.rpc_sync(worker_name(peer), torch.add, args=(numbers_of(peer), 1)), numbers_of(peer) + 1
                )
        file_barrier()
        rpc.shutdown()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("file:///nowhere/world", "rank parameter missing"),
        ("tcp://127.0.0.1:23456", "rank parameter missing"),
        ("env://", "environment variable RANK expected"),
    ],
    ids=["file", "tcp", "env"],
)
def test_worker_needs_a_rank(rank: int, method: str, message: str) -> None:
    """Whatever the init method, only the environment could tell it instead."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=method)
    with changed_variables({"RANK": None}), pytest.raises(ValueError, match=message):
        join(worker_name(rank), -1, backend=TensorPipe().backend, rpc_backend_options=options)


def test_world_of_a_fixed_size_takes_no_more(
    rank: int, world_size: int, shared_tmp_path: Path, file_barrier: FileBarrier
) -> None:
    """All but the last rank make a world of their number; the last one cannot join it."""
    last = world_size - 1
    with left_at_the_end():
        if rank < last:
            come(rank, shared_tmp_path, world_size=last)
        file_barrier()
        if rank == last:
            with pytest.raises(RuntimeError, match="mixes statically and dynamically"):
                come(rank, shared_tmp_path)
        file_barrier()
        if rank < last:
            rpc.shutdown()
