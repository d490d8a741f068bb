"""A store over all ranks of a gang, without a port that somebody else could take first."""

import socket
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.testing.barrier import DEFAULT_TIMEOUT
from allranks.testing.environment import RankEnvironment
from allranks.testing.notices import put_up, read_when_up

_TIMEOUT = timedelta(seconds=DEFAULT_TIMEOUT)


def open_store(environment: RankEnvironment, notice: Path) -> TCPStore:
    """Open a store that rank 0 serves and every rank is a client of.

    The kernel chooses the port when rank 0 binds it, and rank 0 tells it to its peers by a notice.

    Args:
        environment: This rank's place.
        notice: A file that does not exist yet, at the same path for all ranks.

    Raises:
        PeerTimeoutError: Rank 0 did not open the store in time.
    """
    if environment.rank == 0:
        host = _host(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        put_up(notice, f"{store.port} {host}")
        return store
    port, host = read_when_up(notice, "the port of the store").split(" ", maxsplit=1)
    return TCPStore(host, int(port), environment.world_size, wait_for_workers=False, timeout=_TIMEOUT)


def _host(environment: RankEnvironment) -> str:
    on_one_node = environment.local_world_size == environment.world_size
    return "127.0.0.1" if on_one_node else socket.gethostname()
