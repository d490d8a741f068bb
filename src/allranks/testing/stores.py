"""Stores over all ranks of a gang, on ports that no other process can take first."""

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
    """Create a store, or join one.

    A master without a port gets one from the kernel when it binds, so no other process can take it first; it is in
    ``store.port``. If clients must know the port before the master is up, use :func:`reserved_port`.

    Args:
        addr: The host of the master.
        world_size: The number of ranks that will use the store, including the master.
        is_master: Whether this process serves the store.
        timeout: Time limit to connect, to wait for workers, and of each ``get`` and ``wait`` of the store.
        wait_for_workers: Whether to return only when all ranks have joined.
        use_libuv: Whether the master serves with libuv or with the older single-threaded server.
        port: The master's port; for a master, 0 means a port that the kernel chooses.

    Raises:
        ValueError: A client has no port; or a master would wait for clients that cannot know its port.
        torch.distributed.DistError: The port is taken, or the master or some workers did not come in time.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

    if port == 0 and not is_master:
        msg = "a client must know the port of its master: pass port="
        raise ValueError(msg)
    if port == 0 and world_size > 1 and wait_for_workers:
        msg = (
            f"a master that waits for {world_size - 1} clients, on a port that it chooses itself, "
            "would wait in vain: get the port from reserved_port(), or pass wait_for_workers=False and tell the "
            "clients store.port"
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
    """A TCP port of this host that the kernel gives to no other process within the ``with``.

    A store can serve on it. Leave the ``with`` when the master is up.

    Yields:
        The port.
    """
    from allranks.agent.rendezvous import hold_port  # here: most sessions load nothing of the agent

    with hold_port() as held:
        yield int(held.getsockname()[1])


_TIMEOUT = timedelta(seconds=DEFAULT_TIMEOUT)


def open_store(environment: RankEnvironment, notice: Path) -> "TCPStore":
    """Open a store that rank 0 serves and every rank uses.

    The kernel chooses the port when rank 0 binds it, and rank 0 publishes it in a file. Other ranks get a
    :class:`PeerTimeoutError` if it is not opened in time. The file does not exist yet.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not exported for mypy

    if environment.rank == 0:
        host = host_of(environment)
        store = TCPStore(host, 0, environment.world_size, is_master=True, wait_for_workers=False, timeout=_TIMEOUT)
        publish(notice, f"{store.port} {host}")
        return store
    port, host = read_published(notice, "the port of the store").split(" ", maxsplit=1)
    return TCPStore(host, int(port), environment.world_size, wait_for_workers=False, timeout=_TIMEOUT)


def host_of(environment: RankEnvironment) -> str:
    """The host by which all ranks of the gang reach this one."""
    on_one_node = environment.local_world_size == environment.world_size
    return "127.0.0.1" if on_one_node else socket.gethostname()
