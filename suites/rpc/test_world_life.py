"""How worlds begin and end: each test has its own, one after another in the same ranks, without references."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import rpc

from allranks.testing import (
    FileBarrier,
    TensorPipe,
    get_shutdown_error_regex,
    rpc_world,
    wait_until_node_failure,
    with_rpc,
    worker_name,
)

from .own_workers import is_up, join
from .sent import added, numbers_of, same


@pytest.fixture(autouse=True)
def _world() -> None:
    """No world for the file, unlike in the other files: here each test makes its own."""


class StrangeOptions(rpc.RpcBackendOptions):  # type: ignore[misc,name-defined]
    """Options of no backend that torch knows."""

    def __init__(self, init_method: str) -> None:
        # pybind11 wants its own constructor to be called, not super().
        rpc.RpcBackendOptions.__init__(self)  # type: ignore[attr-defined]
        self.init_method = init_method


def test_worker_leaves_without_a_message(peer: str) -> None:
    """A local shutdown does not wait for the peers, and ends RPC in this process."""
    with rpc_world():
        assert rpc.get_worker_info(peer).name == peer
        rpc.shutdown(graceful=False)
        assert not is_up()
        with pytest.raises(RuntimeError, match="RPC has not been initialized"):
            rpc.rpc_sync(peer, torch.add, args=(torch.ones(1), 1))


def test_worker_leaves_after_its_calls(rank: int, peer: str, file_barrier: FileBarrier) -> None:
    """When all are answered, each worker can leave by itself."""
    with rpc_world():
        assert same(rpc.rpc_sync(peer, torch.add, args=(numbers_of(rank), 1)), numbers_of(rank) + 1)
        file_barrier()
        rpc.shutdown(graceful=False)
    assert not is_up()


def test_call_to_a_worker_that_has_left_fails(rank: int, world_size: int, file_barrier: FileBarrier) -> None:
    """The callers get errors, again and again, and do not crash."""
    last = world_size - 1
    with rpc_world(rpc_timeout=30):
        if rank == last:
            rpc.shutdown(graceful=False)
        else:
            expected = get_shutdown_error_regex("TENSORPIPE")
            wait_until_node_failure(last, expected)
            with pytest.raises(RuntimeError, match=expected):
                rpc.rpc_async(worker_name(last), torch.add, args=(torch.ones(1), 3)).wait()
        file_barrier()
        if rank != last:
            rpc.shutdown(graceful=False)


def test_second_world_is_like_the_first(rank: int, peer: str) -> None:
    """After the shutdown of one, another begins in the same processes, and both work."""
    for number in range(2):
        with rpc_world():
            assert same(rpc.rpc_sync(peer, torch.add, args=(numbers_of(rank), number)), numbers_of(rank) + number)
            assert same(rpc.rpc_sync(peer, added, args=(numbers_of(rank), numbers_of(rank))), numbers_of(rank) * 2)
        assert not is_up()


def test_time_limit_in_the_options_is_the_default(rank: int) -> None:
    """It can be asked for."""
    with rpc_world(rpc_timeout=77.5 + rank):
        assert rpc.get_rpc_timeout() == 77.5 + rank  # type: ignore[attr-defined]


def sum_over_all(rank: int) -> float:
    """A collective of the default process group."""
    number = torch.tensor(float(rank))
    dist.all_reduce(number)
    return number.item()


@pytest.fixture
def group(store: dist.Store, rank: int, world_size: int) -> Iterator[Any]:  # type: ignore[name-defined]
    """Makes a default process group in the test, and destroys it afterwards."""

    def make() -> None:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)

    yield make
    if dist.is_initialized():
        dist.destroy_process_group()


def test_workers_beside_an_older_process_group(rank: int, world_size: int, peer: str, group: Any) -> None:  # noqa: ANN401
    """The group is there first, and both work."""
    group()
    with rpc_world():
        assert same(rpc.rpc_sync(peer, torch.add, args=(numbers_of(rank), 1)), numbers_of(rank) + 1)
        assert sum_over_all(rank) == sum(range(world_size))


def test_workers_beside_a_younger_process_group(rank: int, world_size: int, peer: str, group: Any) -> None:  # noqa: ANN401
    """The workers are there first, and both work."""
    with rpc_world():
        group()
        assert same(rpc.rpc_sync(peer, torch.add, args=(numbers_of(rank), 1)), numbers_of(rank) + 1)
        assert sum_over_all(rank) == sum(range(world_size))


def test_worker_answers_while_it_makes_a_process_group(
    rank: int,
    world_size: int,
    names: list[str],
    group: Any,  # noqa: ANN401 - a function of the fixture
) -> None:
    """Rank 0 joins the group only when all others have answered it: none of them may hold the interpreter's lock."""
    with rpc_world():
        if rank == 0:
            for number, name in enumerate(names[1:]):
                sent = numbers_of(number)
                assert same(rpc.rpc_sync(name, added, args=(sent, torch.ones(3))), sent + 1)
        group()
        assert sum_over_all(rank) == sum(range(world_size))


def test_shutdown_tells_who_could_not_follow(
    rank: int, names: list[str], monkeypatch: pytest.MonkeyPatch, file_barrier: FileBarrier
) -> None:
    """The followers fail in the leader's last message and after it: each rank gets an error, and none waits."""
    follow = rpc.api._broadcast_to_followers  # noqa: SLF001 - what a follower does at its end

    def follow_and_fail(*args: Any) -> None:  # noqa: ANN401 - as torch calls it
        follow(*args)  # type: ignore[no-untyped-call]
        msg = "planted in the message"
        raise RuntimeError(msg)

    def fail() -> None:
        msg = f"planted on rank {rank}"
        raise RuntimeError(msg)

    # For a line of its log, torch imports all of Dynamo, seconds of a processor.
    monkeypatch.setattr(rpc.api.logger, "disabled", True)
    with rpc_world():
        file_barrier()
        if rank == 0:
            with pytest.raises(RuntimeError, match="timed out in _all_gather") as caught:
                rpc.shutdown()
            assert all(name in str(caught.value) for name in names[1:])
        else:
            # By module path: the leader sends the function's name, and the follower looks it up.
            monkeypatch.setattr(rpc.api, "_broadcast_to_followers", follow_and_fail)
            monkeypatch.setattr(rpc.api, "_delete_all_user_and_unforked_owner_rrefs", fail)
            with pytest.raises(RuntimeError, match=f"planted on rank {rank}"):
                rpc.shutdown()
        assert not is_up()
        file_barrier()


def test_decorator_keeps_what_the_test_returns(rank: int, peer: str) -> None:
    """With a world around it and without one."""

    @with_rpc(setup_rpc=False)
    def without() -> bool:
        return is_up()

    @with_rpc
    def within() -> int:
        return int(rpc.rpc_sync(peer, torch.add, args=(torch.tensor(rank), 1)))

    assert without() is False
    assert within() == rank + 1
    assert not is_up()


def test_backend_must_be_one_of_torchs(rank: int, world_size: int) -> None:
    """Its name alone is refused."""
    with pytest.raises(TypeError, match="backend must be a member of BackendType"):
        join(worker_name(rank), rank, world_size, backend="TENSORPIPE")
    assert not is_up()


def test_options_must_be_options(rank: int, world_size: int) -> None:
    """A dictionary is none."""
    with pytest.raises(TypeError, match="must be an instance of RpcBackendOptions"):
        join(
            worker_name(rank),
            rank,
            world_size,
            backend=TensorPipe().backend,
            rpc_backend_options={"init_method": "env://"},
        )
    assert not is_up()


def test_backend_cannot_be_inferred_from_strange_options(rank: int, world_size: int, shared_tmp_path: Path) -> None:
    """Without a backend, the options have to tell it."""
    with pytest.raises(TypeError, match="Could not infer backend"):
        join(worker_name(rank), rank, world_size, rpc_backend_options=StrangeOptions(f"file://{shared_tmp_path}/world"))
    assert not is_up()


def test_options_must_be_those_of_the_backend(rank: int, world_size: int, shared_tmp_path: Path) -> None:
    """TensorPipe does not start with another's."""
    strange = StrangeOptions(f"file://{shared_tmp_path}/world")
    with pytest.raises(TypeError, match="must be a `TensorPipeRpcBackendOptions`"):
        join(worker_name(rank), rank, world_size, backend=TensorPipe().backend, rpc_backend_options=strange)
    assert not is_up()
