"""The RPC world that the tests of a file share, and the check that each leaves it as it was."""

from collections.abc import Iterator

import pytest
import torch

from allranks.testing import RpcWorld, rpc_world, worker_name


@pytest.fixture(scope="module")
def world_of_file() -> Iterator[RpcWorld]:
    """One world for all tests of a file that have none of their own."""
    with rpc_world() as world:
        yield world


@pytest.fixture(autouse=True)
def _world(request: pytest.FixtureRequest) -> Iterator[None]:
    """The file's world, checked after each test; none for a test with ranks of its own, as ``with_rpc`` asks for."""
    isolation = request.node.get_closest_marker("isolation")
    if isolation is not None and isolation.args == ("test",):
        yield
        return
    world = request.getfixturevalue("world_of_file")
    yield
    world.check()


@pytest.fixture(scope="module")
def sparse_invariants() -> Iterator[None]:
    """Sparse tensors are checked when they are made, also on callees; torch warns if a process leaves that open."""
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        yield


@pytest.fixture(scope="session")
def next_rank(rank: int, world_size: int) -> int:
    """The rank that this rank calls: the next one, around the circle."""
    return (rank + 1) % world_size


@pytest.fixture(scope="session")
def peer(next_rank: int) -> str:
    """The name of the next rank's worker."""
    return worker_name(next_rank)


@pytest.fixture(scope="session")
def names(world_size: int) -> list[str]:
    """The names of all workers, by rank."""
    return [worker_name(rank) for rank in range(world_size)]
