"""The rendezvous of a gang's ranks.

``file`` gets a path that never existed before. ``env`` and ``tcp`` get a reserved port: the agent binds
it with SO_REUSEADDR and never listens, so the kernel assigns it to no other process, while rank 0's
store, which sets the same option, can still bind and listen on it. The agent keeps the socket until
every rank has joined.

Process groups that a suite makes itself by ``env://`` get a port each. The ranks of a gang may make one group after
another, for each class or each test. Under one port, a rank that is ahead would connect to the store of the last group,
which its peer is about to close (measured: half of all second groups of a class hang or fail). Every rank makes the
same groups, so all take the ports in the same order.
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

    url: str  # what ``init_process_group`` takes as ``init_method``
    environment: dict[str, str] = field(default_factory=dict)
    held: Sequence[socket.socket] = ()

    def joined(self) -> None:
        """Release the ports: every rank has joined, or the gang is gone."""
        for each in self.held:
            each.close()


OWN_GROUPS = 8
"""Ports for the groups that a suite makes itself, taken in turn: when the first is due again, its store is gone."""


def make_rendezvous(config: AgentConfig, shared: Path, *, groups: int = 1) -> Rendezvous:
    """A fresh rendezvous of the cell's init method, with ports for so many process groups, made one after the other."""
    if config.init_method == "file":
        return Rendezvous(url=f"file://{shared}/rendezvous-{uuid.uuid4().hex}")
    held = [hold_port() for _ in range(groups)]
    port, *others = (each.getsockname()[1] for each in held)
    # Both are set for tcp, too: suites read them to create stores of their own.
    environment = {"MASTER_ADDR": config.master_addr, "MASTER_PORT": str(port)}
    if others:
        environment[PORTS] = ",".join(map(str, (port, *others)))
    match config.init_method:
        case "env":
            return Rendezvous(url="env://", environment=environment, held=held)
        case "tcp":
            return Rendezvous(url=f"tcp://{config.master_addr}:{port}", environment=environment, held=held)
    held[0].close()
    msg = f"init method {config.init_method!r} is none of env, tcp, file"
    raise ValueError(msg)


def hold_port(port: int = 0, host: str = "") -> socket.socket:
    """Bind a port, a free one by default, which no other process gets until the socket is closed.

    It has SO_REUSEADDR and is never listened on, so a store, which sets the same option, can serve on it.
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
"""Seconds to wait for a store; torch's own client then waits for it."""


def wait_for_store(port: int) -> None:
    """Wait a moment until a store listens on a port of this host.

    torch's client (2.13) sleeps for up to half a second if it comes before the store does, which is ready in
    milliseconds. A port that is listened on cannot be bound any more; a connection would be a guest that the store
    knows nothing of.
    """
    deadline = clock.monotonic() + _STORE_TIMEOUT
    while clock.monotonic() < deadline:
        try:
            hold_port(port).close()
        except OSError:
            return
        clock.sleep(0.001)


_PORT = "MASTER_PORT"


def give_ports() -> None:
    """Have ``env://`` take the next port each time, unless the suite has set one itself."""
    ports = os.environ.pop(PORTS, "").split(",")
    # torch refuses to register a handler again, and has no public way to replace one.
    handlers = getattr(import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {})
    if ports[0] and "env" in handlers:
        handlers["env"] = _taking_turns(handlers["env"], ports)


def _taking_turns(handler: Callable[..., Iterator[Any]], ports: list[str]) -> Callable[..., Iterator[Any]]:
    following = cycle(ports)

    def handle(*arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - torch's
        if os.environ.get(_PORT) != ports[0]:
            yield from handler(*arguments, **options)
            return
        results = handler(*arguments, **options)
        os.environ[_PORT] = next(following)
        try:
            # The handler reads the variable when it is asked for its first result.
            first = next(results)
        finally:
            os.environ[_PORT] = ports[0]
        yield first
        yield from results

    return handle
