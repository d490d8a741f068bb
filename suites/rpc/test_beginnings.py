"""How worlds begin: their backends, and what init_rpc refuses. Each test has a world of its own, or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # TCPStore is public, but not exported for mypy
    TCPStore,
    rpc,
)
from torch.distributed.rpc import WorkerInfo  # type: ignore[attr-defined]  # as TCPStore

from allranks.testing import FileBarrier, TensorPipe, initialize_pg, with_rpc, worker_name

from .callees import Call, in_each_mode, own_rank

pytestmark = [
    pytest.mark.require_world_size(2),
    # torch warns about itself: its agent compares device maps over a backend without a group.
    pytest.mark.filterwarnings("ignore:You are using a Backend :UserWarning"),
]

Options = Callable[[str], Any]


@pytest.fixture
def options(shared_tmp_path: Path) -> Options:
    """``options("name")``: those of TensorPipe, with a rendezvous of that name."""

    def make(name: str) -> Any:  # noqa: ANN401 - torch does not export its type
        return TensorPipe().options(f"file://{shared_tmp_path / name}", 60.0)

    return make


def _init(name: str, rank: int, world_size: int, options: object) -> None:
    backend = TensorPipe().backend
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        name, backend=backend, rank=rank, world_size=world_size, rpc_backend_options=options
    )


@with_rpc(setup_rpc=False)
def test_a_world_in_which_all_have_one_name_is_refused(
    rank: int, world_size: int, store: TCPStore, options: Options
) -> None:
    """By each worker, when they have exchanged their names."""
    with pytest.raises(RuntimeError, match="is not unique"):
        rpc._init_rpc_backend(  # type: ignore[no-untyped-call]  # noqa: SLF001 - the part of init_rpc that takes a store
            backend=TensorPipe().backend,
            store=store,
            name="the_same",
            rank=rank,
            world_size=world_size,
            rpc_backend_options=options("unused"),
        )


@with_rpc(setup_rpc=False)
def test_a_worker_cannot_have_the_name_of_another(rank: int, world_size: int, options: Options) -> None:
    """The last takes the name of the first: all of them refuse that world."""
    with pytest.raises(RuntimeError, match="is not unique"):
        _init(worker_name(rank % (world_size - 1)), rank, world_size, options("workers"))


@with_rpc(setup_rpc=False)
def test_a_world_that_is_up_is_not_made_again(
    rank: int, world_size: int, options: Options, file_barrier: FileBarrier
) -> None:
    """The first one goes on."""
    _init(worker_name(rank), rank, world_size, options("workers"))
    file_barrier()
    with pytest.raises(RuntimeError, match="is already initialized"):
        _init(worker_name(rank), rank, world_size, options("again"))
    callee = (rank + 1) % world_size
    assert rpc.rpc_sync(worker_name(callee), own_rank) == callee
    rpc.shutdown()


@with_rpc(setup_rpc=False)
def test_a_process_group_alone_is_no_world_for_references(rank: int, world_size: int, shared_tmp_path: Path) -> None:
    """A model that trains over a process group has no references to its parameters."""
    initialize_pg(f"file://{shared_tmp_path / 'group'}", rank, world_size)
    numbers = torch.full((2,), rank + 1)
    dist.all_reduce(numbers)
    assert numbers.tolist() == 2 * [world_size * (world_size + 1) // 2]
    for parameter in torch.nn.Linear(3, 4).parameters():
        with pytest.raises(RuntimeError, match="Current RPC agent is not set"):
            rpc.RRef(parameter)
    dist.destroy_process_group()


def _difference(left: Tensor, right: Tensor) -> list[int]:
    numbers: list[int] = (left - right).tolist()
    return numbers


@in_each_mode
@with_rpc(setup_rpc=False)
def test_a_world_of_one_worker_calls_itself(call: Call, rank: int, options: Options) -> None:
    """While the other ranks have none."""
    if rank == 0:
        _init("me", 0, 1, options("alone"))
        assert call("me", _difference, torch.full((2,), 5), torch.full((2,), 3)) == [2, 2]
        rpc.shutdown()


class _Agent:
    """What a backend of our own makes instead of an agent.

    Args:
        arguments: What the backend was given.
    """

    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401 - whatever torch hands over
        self.arguments = arguments

    def get_worker_infos(self) -> list[WorkerInfo]:
        """Torch asks for all names."""
        return [WorkerInfo(worker_name(rank), rank) for rank in range(self.arguments["world_size"])]


@with_rpc(setup_rpc=False)
def test_a_backend_of_our_own_makes_the_agent(
    rank: int, world_size: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be registered once, and is given what init_rpc was."""
    started: list[_Agent] = []
    monkeypatch.setattr(rpc.api, "_set_and_start_rpc_agent", started.append)
    register = rpc.backend_registry.register_backend
    backend = register("our_own", dict, _Agent)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match=r"^RPC backend our_own: already registered$"):
        register("our_own", dict, _Agent)  # type: ignore[no-untyped-call]
    given = options("workers")
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        worker_name(rank), backend=backend, rank=rank, world_size=world_size, rpc_backend_options=given
    )
    (agent,) = started
    expected = {"name": worker_name(rank), "rank": rank, "world_size": world_size, "rpc_backend_options": given}
    assert {key: agent.arguments[key] for key in expected} == expected
