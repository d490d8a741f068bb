"""A meeting point for each gang that no other gang can reach.

``file`` gets a path that never existed before. ``env`` and ``tcp`` get a port that nobody else can
take: the agent binds it with SO_REUSEADDR and never listens, so the kernel gives it to no one, while
rank 0's store, which sets the same option, can still bind and listen on it. The agent keeps the
socket until every rank has joined.
"""

import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from allranks.harness.config import AgentConfig


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where the ranks of one gang meet.

    Attributes:
        url: What ``init_process_group`` takes as ``init_method``.
        environment: Variables that the ranks need for it.
    """

    url: str
    environment: dict[str, str] = field(default_factory=dict)
    held: socket.socket | None = None

    def joined(self) -> None:
        """Let go of the port: every rank has joined, or the gang is gone."""
        if self.held is not None:
            self.held.close()


def make_rendezvous(config: AgentConfig, shared: Path) -> Rendezvous:
    """A fresh rendezvous of the cell's init method.

    Raises:
        ValueError: The init method is none of ``env``, ``tcp``, ``file``.
    """
    if config.init_method == "file":
        return Rendezvous(url=f"file://{shared}/rendezvous-{uuid.uuid4().hex}")
    held = _hold_port()
    port = held.getsockname()[1]
    # Both are set for tcp too: suites read them to make stores of their own.
    environment = {"MASTER_ADDR": config.master_addr, "MASTER_PORT": str(port)}
    match config.init_method:
        case "env":
            return Rendezvous(url="env://", environment=environment, held=held)
        case "tcp":
            return Rendezvous(url=f"tcp://{config.master_addr}:{port}", environment=environment, held=held)
    held.close()
    msg = f"init method {config.init_method!r} is none of env, tcp, file"
    raise ValueError(msg)


def _hold_port() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held
