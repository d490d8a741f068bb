"""Stores for all ranks of a gang, on ports that no other process can bind first."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.testing.environment import RankEnvironment
from allranks.testing.shared_files import DEFAULT_TIMEOUT, publish, read_published

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

_FIVE_MINUTES = timedelta(minutes=5)


def create_tcp_store(  # noqa: PLR0913 - those of torch's helper, by the same names, and the port
    addr: str = "localhost",
    world_size: int = 1,
    is_master: bool = True,
    timeout: timedelta = _FIVE_MINUTES,
    *,
    wait_for_workers: bool = True,
    use_libuv: bool = True,
    port: int = 0,
) -> "TCPStore":
    """Create a ``torch.distributed.TCPStore``, or connect to one.

    With ``port=0``, the kernel chooses a free port when the master binds it, so no other process can bind it first. The
    port is in ``store.port``. If clients must know the port before the master starts, use :func:`reserved_port`.

    Args:
        addr: The host of the master.
        world_size: The number of ranks that use the store, including the master.
        is_master: Whether this process serves the store.
        timeout: Time limit for connecting, for waiting for workers, and for each ``get`` and ``wait`` of the store.
        wait_for_workers: Whether to return only after all ranks have connected.
        use_libuv: Whether the master uses the libuv server instead of the older single-threaded one.
        port: The master's port. On the master, 0 lets the kernel choose one.

    Returns:
        The store.

    Raises:
        ValueError: A client has no port, or a master would wait for clients that cannot know its port.
        torch.distributed.DistError: The port is in use, or the master or some workers did not connect in time.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

    if port == 0 and not is_master:
        msg = "a client needs the port of its master: pass port="
        raise ValueError(msg)
    if port == 0 and world_size > 1 and wait_for_workers:
        msg = (
            "the clients cannot connect, because they do not know the port that the kernel chooses: pass a "
            "port from reserved_port(), or pass wait_for_workers=False and send store.port to the clients"
        )
        raise ValueError(msg)
    return TCPStore(
        addr,
        port,
        world_size,
        is_master,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        use_libuv=use_libuv,
    )


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a TCP port of this host: during the ``with`` block, the kernel assigns it to no other process.

    A store can bind the port. End the block after the master has started.

    Yields:
        The port.
    """
    from allranks.agent.rendezvous import hold_port  # imported here because most sessions do not need the agent

    with hold_port() as held:
        yield int(held.getsockname()[1])


_TIMEOUT = timedelta(seconds=DEFAULT_TIMEOUT)


def open_store(environment: RankEnvironment, path: Path) -> "TCPStore":
    """Open a store that rank 0 serves and all ranks use.

    The kernel chooses the port when rank 0 binds it, and rank 0 publishes it in the file `path`, which must not exist
    yet.

    Raises:
        PeerTimeoutError: Rank 0 did not publish the port in time.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

    if environment.rank == 0:
        host = host_of(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        publish(path, f"{store.port} {host}")
        return store
    port, host = read_published(path, "the port of the store").split(" ", maxsplit=1)
    return TCPStore(host, int(port), environment.world_size, wait_for_workers=False, timeout=_TIMEOUT)


def host_of(environment: RankEnvironment) -> str:
    """The host name or address at which all ranks of the gang can connect to this one."""
    on_one_node = environment.local_world_size == environment.world_size
    return "127.0.0.1" if on_one_node else socket.gethostname()
