"""Workers: their names, numbers and infos."""

import pickle

import pytest
from torch.distributed import rpc

pytestmark = pytest.mark.require_world_size(2)


def test_a_worker_knows_itself(rank: int, names: list[str]) -> None:
    """Without a name, the info is the caller's own."""
    info = rpc.get_worker_info()
    assert (info.name, info.id) == (names[rank], rank)


def test_a_worker_knows_its_peers(next_rank: int, peer: str) -> None:
    """By name."""
    info = rpc.get_worker_info(peer)
    assert (info.name, info.id) == (peer, next_rank)


def test_an_info_survives_pickling(next_rank: int, peer: str) -> None:
    """So it can be an argument of a call."""
    info = pickle.loads(pickle.dumps(rpc.get_worker_info(peer)))  # noqa: S301 - our own bytes
    assert (info.name, info.id) == (peer, next_rank)
