"""Where the workers of one test meet."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.testing.environment import RankEnvironment
from allranks.testing.notices import put_up, read_when_up


class NoMeetingPointError(RuntimeError):
    """The workers of a test have no place to meet."""


@contextmanager
def meeting_point(environment: RankEnvironment, name: str) -> Iterator[str]:
    """An init method for RPC that no other test can use.

    Rank 0 opens a store on a port of the kernel's choice and tells its peers by a notice in the folder of the gang.
    Without an agent, as under torchrun, it is where MASTER_ADDR and MASTER_PORT say; torch keeps the tests apart.

    Args:
        environment: This rank's place.
        name: Of the meeting: the same on all ranks, and another for each meeting of the gang.

    Yields:
        A URL for ``init_method``; valid as long as the ``with`` lasts.

    Raises:
        NoMeetingPointError: There is no agent, and neither variable is set.
        PeerTimeoutError: Rank 0 did not come.
    """
    if environment.shared is None and environment.world_size > 1:
        yield _variables_of_torchrun()
    elif environment.rank == 0:
        # The store that RPC makes at this port, in this process, is this one: that is what multi_tenant says.
        host = _host(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, multi_tenant=True)
        url = f"tcp://{host}:{store.port}"
        if environment.shared is not None:
            put_up(_notice(environment.shared, name), url)
        yield url
        del store
    else:
        yield read_when_up(_notice(environment.shared or Path(), name), "where the RPC workers meet")


def _notice(shared: Path, name: str) -> Path:
    folder = shared / "rpc"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _host(environment: RankEnvironment) -> str:
    on_one_node = environment.local_world_size == environment.world_size
    return "127.0.0.1" if on_one_node else socket.gethostname()


def _variables_of_torchrun() -> str:
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if lacking:
        msg = (
            f"the RPC workers have no place to meet: {' and '.join(lacking)} not set, and no agent of allranks started "
            "them. Run the suite with `allranks run` or torchrun, or pass init_method= to with_rpc."
        )
        raise NoMeetingPointError(msg)
    return "env://"
