"""The RPC world that the tests of a file share, and the workers around each rank."""

from collections.abc import Iterator

import pytest

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


@pytest.fixture(scope="session")
def own_name(rank: int) -> str:
    """The name of this rank's worker."""
    return worker_name(rank)


@pytest.fixture(scope="session")
def peers(rank: int, world_size: int) -> list[str]:
    """The names of all other workers, beginning with the next one around the circle."""
    return [worker_name((rank + step) % world_size) for step in range(1, world_size)]


@pytest.fixture(scope="session")
def peer(peers: list[str]) -> str:
    """The name of the next rank's worker."""
    return peers[0]
