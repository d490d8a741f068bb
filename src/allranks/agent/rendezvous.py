"""The rendezvous of a gang's ranks.

``file`` uses a new path. ``env`` and ``tcp`` use a reserved port: the agent binds it with SO_REUSEADDR and never
listens, so the kernel assigns it to no other process, while rank 0's store, which sets the same option, can still bind
and listen on it. The agent keeps the socket until all ranks have joined.

Process groups that a suite creates itself by ``env://`` use a port each. The ranks of a gang may create one group after
another, for each class or each test. With one port for all, a rank that is ahead would connect to the store of the
previous group, which its peer is about to close (measured: half of all second groups of a class hang or fail). All
ranks create the same groups, so they use the ports in the same order.
"""

import os
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import Any

from allranks.agent import clock
from allranks.protocol.config import PORTS, AgentConfig


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """The rendezvous of one gang."""

    url: str  # ``init_method`` of ``init_process_group``
    environment: dict[str, str] = field(default_factory=dict)
    held: Sequence[socket.socket] = ()

    def release(self) -> None:
        """Release the ports: all ranks have joined, or the gang has ended."""
        for port in self.held:
            port.close()


OWN_GROUPS = 8
"""Number of ports for the groups that a suite creates itself: when a port is reused, its previous store is gone."""


def make_rendezvous(config: AgentConfig, shared: Path, *, groups: int = 1) -> Rendezvous:
    """A new rendezvous for the cell's init method, with a port for each of several consecutive process groups."""
    if config.init_method == "file":
        return Rendezvous(url=f"file://{shared}/rendezvous-{uuid.uuid4().hex}")
    held = [hold_port() for _ in range(groups)]
    port, *others = (socket_.getsockname()[1] for socket_ in held)
    # Also set for tcp: suites read them to create stores of their own.
    environment = {"MASTER_ADDR": config.master_addr, "MASTER_PORT": str(port)}
    if others:
        environment[PORTS] = ",".join(map(str, (port, *others)))
    match config.init_method:
        case "env":
            return Rendezvous(url="env://", environment=environment, held=held)
        case "tcp":
            return Rendezvous(url=f"tcp://{config.master_addr}:{port}", environment=environment, held=held)
    held[0].close()
    msg = f"init method {config.init_method!r} is not one of env, tcp, file"
    raise ValueError(msg)


def hold_port(port: int = 0, host: str = "") -> socket.socket:
    """Reserve a port (by default a free one) until the returned socket is closed.

    It is bound with SO_REUSEADDR and does not listen, so a store, which sets the same option, can use the port.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held


_STORE_TIMEOUT = 1.0
"""Seconds to wait for a store; after that, torch's own client waits for it."""


def wait_for_store(port: int) -> None:
    """Wait briefly until a store listens on a port of this host.

    The store is ready within milliseconds, but torch's client (2.13) sleeps for up to 0.5 s if it connects too early.
    Once the store listens, the port can no longer be bound; connecting to it instead would add an unexpected client.
    """
    deadline = clock.monotonic() + _STORE_TIMEOUT
    while clock.monotonic() < deadline:
        try:
            hold_port(port).close()
        except OSError:
            return
        clock.sleep(0.001)


_PORT = "MASTER_PORT"


def rotate_ports() -> None:
    """Make ``env://`` use the next port each time, unless the suite has set a port itself."""
    ports = os.environ.pop(PORTS, "").split(",")
    # torch rejects a second handler for the same scheme, and has no public way to replace one.
    handlers = getattr(import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    if ports[0] and "env" in handlers:
        handlers["env"] = _rotating(handlers["env"], ports)


def _rotating(handler: Callable[..., Iterator[Any]], ports: list[str]) -> Callable[..., Iterator[Any]]:
    next_ports = cycle(ports)

    def handle(*arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - torch's
        if os.environ.get(_PORT) != ports[0]:
            yield from handler(*arguments, **options)
            return
        results = handler(*arguments, **options)
        os.environ[_PORT] = next(next_ports)
        try:
            # The handler is a generator: it reads the variable now.
            first = next(results)
        finally:
            os.environ[_PORT] = ports[0]
        yield first
        yield from results

    return handle
