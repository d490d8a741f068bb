"""Ten planted races: each test passes while all ranks are as fast as its author believes, and has one line at fault."""

import os
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

WORK = 0.02
"""Seconds of work between two steps, which an author takes for granted."""


def work(times: float = 1.0) -> None:
    """Compute something, and nothing with peers."""
    time.sleep(times * WORK)


def isend(tensor: torch.Tensor, to: int, group: dist.ProcessGroup | None = None) -> dist.Work:
    """Begin to send, as a member of the group: torch returns nothing to others."""
    work = dist.isend(tensor, to, group=group)
    assert work is not None
    return work


def test_missing_barrier_before_a_file_is_read(rank: int, shared_tmp_path: Path) -> None:
    file = shared_tmp_path / "weights"
    if rank == 0:
        file.write_text("1")
    if rank == 1:
        work(2)
        assert file.read_text() == "1"


def test_tag_reused(rank: int) -> None:
    if rank == 0:
        senders = [
            threading.Thread(target=dist.send, args=(torch.full((1,), float(n)), 1), kwargs={"tag": 7}) for n in (1, 2)
        ]
        for sender in senders:
            sender.start()
            work()
        for sender in senders:
            sender.join()
    if rank == 1:
        first, second = torch.zeros(1), torch.zeros(1)
        dist.recv(first, 0, tag=7)
        dist.recv(second, 0, tag=7)
        assert (first.item(), second.item()) == (1, 2)


def test_unwaited_isend(rank: int) -> None:
    tensor = torch.ones(4)
    if rank == 0:
        sent = isend(tensor, 1)
        work()
        tensor.zero_()
        sent.wait()
    if rank == 1:
        received = torch.zeros(4)
        dist.recv(received, 0)
        assert received.sum() == 4


def test_store_key_read_before_it_is_set(rank: int) -> None:
    store, key = dist.distributed_c10d._get_default_store(), f"answer-{os.environ['ALLRANKS_SEED']}"  # noqa: SLF001
    if rank == 0:
        store.set(key, "42")
    if rank == 1:
        work(2)
        assert store.check([key])


@pytest.mark.filterwarnings("ignore:You are using a Backend")  # torch's own, of init_rpc
def test_rpc_after_a_shutdown_has_begun(rank: int) -> None:
    if rank == 2:
        return
    port = 10_000 + int(os.environ["ALLRANKS_SEED"]) % 10_000
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", rpc_timeout=2)
    name = f"worker{rank}"
    work(rank)  # rank 0 listens by then: torch's client sleeps for half a second otherwise
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)  # type: ignore[no-untyped-call]
    if rank == 0:
        assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1)).item() == 2
    else:
        work(4)
    rpc.shutdown(graceful=False)


def test_group_destroyed_while_a_peer_uses_it(rank: int) -> None:
    group = dist.new_group([0, 1])
    if rank == 0:
        sent = isend(torch.ones(1), 1, group)
        work(4)
        dist.destroy_process_group(group)
        assert sent is not None
    if rank == 1:
        dist.recv(torch.zeros(1), 0, group=group)


def test_time_out_shorter_than_a_slow_peer(rank: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=0.2))
    assert rank >= 0


def test_order_of_isends(rank: int) -> None:
    if rank == 0:
        value = torch.zeros(1)
        assert [dist.recv(value) for _ in range(2)] == [1, 2]
    elif rank == 1:
        isend(torch.ones(1), 0).wait()
    else:
        work()
        isend(torch.ones(1), 0).wait()


def test_shared_temporary_file(rank: int, shared_tmp_path: Path) -> None:
    if rank == 2:
        return
    work(4 * rank)
    file = shared_tmp_path / "scratch"
    file.write_text(str(rank))
    work(3)
    assert file.read_text() == str(rank)


def test_port_taken_twice(rank: int) -> None:
    if rank == 2:
        return
    work(4 * rank)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 20_000 + int(os.environ["ALLRANKS_SEED"]) % 10_000))
        work(3)
