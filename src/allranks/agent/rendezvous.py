"""The rendezvous of a gang's ranks.

``file`` gets a path that never existed before. ``env`` and ``tcp`` get a reserved port: the agent binds
it with SO_REUSEADDR and never listens, so the kernel assigns it to no other process, while rank 0's
store, which sets the same option, can still bind and listen on it. The agent keeps the socket until
every rank has joined.
"""

import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    """A fresh rendezvous of the cell's init method.

    Args:
        config: The job.
        shared: The folder that the ranks share.
        groups: The number of ports for process groups that the ranks make one after the other.

    Raises:
        ValueError: The init method is none of ``env``, ``tcp``, ``file``.
    """
    if config.init_method == "file":
        return Rendezvous(url=f"file://{shared}/rendezvous-{uuid.uuid4().hex}")
    held = [_hold_port() for _ in range(groups)]
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


def _hold_port(port: int = 0) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", port))
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
            _hold_port(port).close()
        except OSError:
            return
        clock.sleep(0.001)
