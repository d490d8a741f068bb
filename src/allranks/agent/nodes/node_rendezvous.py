"""How the agents of a job meet: the leader opens a port until all followers have joined.

Any other client gets only a nonce, must answer in time, and is disconnected.
"""

import selectors
import socket
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

from allranks.agent.nodes.connection import (
    ConnectionLostError,
    NodeConnection,
    is_proof,
    make_nonce,
    make_proof,
)
from allranks.agent.nodes.messages import Claim, Greeting, Message, Proof
from allranks.protocol.config import AgentConfig, NodeConfig, TimeLimit

_Answer = TypeVar("_Answer", Greeting, Proof)

PROOF_TIMEOUT = 5.0
"""Seconds that a client gets for its proof."""

_MOST_STRANGERS = 64
_FIRST_RETRY, _LAST_RETRY = 0.05, 1.0


class NodesError(Exception):
    """The agents of a job cannot work together."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text  # further details; may be empty


@dataclass(frozen=True, eq=False)
class _Stranger:
    """A connected client that has not proven itself yet."""

    connection: NodeConnection
    nonce: str
    deadline: float


class NodeRendezvous:
    """The leading agent's port.

    Raises:
        NodesError: The agent cannot listen on the port.
    """

    def __init__(self, post: NodeConfig, followers: Collection[int]) -> None:
        self._post = post
        self._absent = set(followers)
        self._met: dict[int, NodeConnection] = {}
        self._strangers: list[_Stranger] = []
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = _listen(post)
        except OSError as error:
            msg = f"The leading agent cannot listen at {post.leader}:{post.port}: {error}."
            raise NodesError(msg) from error
        self._selector.register(self._listener, selectors.EVENT_READ)

    def admit(self, limit: TimeLimit) -> dict[int, NodeConnection]:
        """Wait for the agents of the other nodes until the limit, then close the port.

        Raises:
            NodesError: An agent has not joined in time.
        """
        deadline = time.monotonic() + limit.seconds
        try:
            while self._absent and (remaining := deadline - time.monotonic()) > 0:
                self._look(remaining)
        finally:
            self._close()
        if self._absent:
            for connection in self._met.values():
                connection.close()
            raise _absent(self._absent, self._post, limit)
        return self._met

    def _look(self, remaining: float) -> None:
        now = time.monotonic()
        timeout = min([remaining, *(stranger.deadline - now for stranger in self._strangers)])
        for key, _ in self._selector.select(max(0.0, timeout)):
            if key.data is None:
                self._open()
            else:
                self._receive(key.data)
        for stranger in self._expired():
            self._turn_away(stranger)

    def _expired(self) -> list[_Stranger]:
        now = time.monotonic()
        return [stranger for stranger in self._strangers if stranger.deadline <= now]

    def _open(self) -> None:
        """Accept a client and send it a nonce; if too many are unproven, drop the oldest."""
        try:
            client, _ = self._listener.accept()
        except OSError:
            # The client has disconnected already.
            return
        stranger = _Stranger(NodeConnection(client), make_nonce(), time.monotonic() + PROOF_TIMEOUT)
        self._strangers.append(stranger)
        self._selector.register(stranger.connection, selectors.EVENT_READ, stranger)
        if self._send(stranger, Greeting(nonce=stranger.nonce)) and len(self._strangers) > _MOST_STRANGERS:
            self._turn_away(self._strangers[0])

    def _send(self, stranger: _Stranger, message: Message) -> bool:
        try:
            stranger.connection.send(message, 0.0)
        except ConnectionLostError:
            self._turn_away(stranger)
            return False
        return True

    def _receive(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers:
            return
        for message in stranger.connection.receive()[:1]:
            if isinstance(message, Claim) and self._is_awaited(stranger, message):
                proof = make_proof(self._post.token, "leader", message.node, stranger.nonce, message.nonce)
                if self._send(stranger, Proof(proof=proof)):
                    self._meet(stranger, message.node)
            else:
                self._turn_away(stranger)
            return
        if stranger.connection.ended:
            self._turn_away(stranger)

    def _is_awaited(self, stranger: _Stranger, claim: Claim) -> bool:
        nonces = stranger.nonce, claim.nonce
        return is_proof(claim.proof, self._post.token, "follower", claim.node, *nonces) and claim.node in self._absent

    def _meet(self, stranger: _Stranger, node: int) -> None:
        self._forget(stranger)
        stranger.connection.trust()
        self._absent.discard(node)
        self._met[node] = stranger.connection

    def _turn_away(self, stranger: _Stranger) -> None:
        if stranger in self._strangers:
            self._forget(stranger)
            stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.connection)

    def _close(self) -> None:
        for stranger in [*self._strangers]:
            self._turn_away(stranger)
        self._selector.close()
        self._listener.close()


def _listen(post: NodeConfig) -> socket.socket:
    [family, kind, protocol, _, address] = next(_addresses(post, socket.AI_PASSIVE))
    listener = socket.socket(family, kind, protocol)
    try:
        # The creator of the job may reserve the port for us: bound, but not listening.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _addresses(post: NodeConfig, flags: int) -> Iterator[tuple[int, int, int, str, tuple[str, int]]]:
    found = socket.getaddrinfo(post.leader, post.port, type=socket.SOCK_STREAM, flags=flags)
    return iter(found)  # type: ignore[arg-type]


def _absent(nodes: Collection[int], post: NodeConfig, limit: TimeLimit) -> NodesError:
    agents = f"agent of node {min(nodes)}" if len(nodes) == 1 else f"agents of nodes {_listed(nodes)}"
    return NodesError(
        f"The {agents} did not connect within {limit.words()}. "
        f"Check that every agent runs and can reach {post.leader}:{post.port}."
    )


def _listed(nodes: Collection[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))


def reach(post: NodeConfig, limit: TimeLimit) -> NodeConnection:
    """Connect a following agent to the leader, which may not be up yet.

    Raises:
        NodesError: The leader did not open its port in time, or one of the two does not have the token.
    """
    deadline = time.monotonic() + limit.seconds
    connection = NodeConnection(_connect(post, deadline, limit))
    try:
        _greet(connection, post, deadline)
    except NodesError:
        connection.close()
        raise
    connection.trust()
    return connection


def _connect(post: NodeConfig, deadline: float, limit: TimeLimit) -> socket.socket:
    pause = _FIRST_RETRY
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            return socket.create_connection((post.leader, post.port), timeout=remaining)
        except OSError:
            # Poll: another host gets no signal when the leader opens its port.
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, _LAST_RETRY)
    msg = (
        f"The leading agent could not be reached at {post.leader}:{post.port} within {limit.words()}. "
        "Check that it runs, and that this node can reach that port."
    )
    raise NodesError(msg)


def _greet(connection: NodeConnection, post: NodeConfig, deadline: float) -> None:
    theirs, mine = _answer(connection, deadline, Greeting).nonce, make_nonce()
    proof = make_proof(post.token, "follower", post.node, theirs, mine)
    try:
        connection.send(Claim(node=post.node, nonce=mine, proof=proof), max(0.0, deadline - time.monotonic()))
    except ConnectionLostError as error:
        raise _turned_away() from error
    answer = _answer(connection, deadline, Proof)
    if not is_proof(answer.proof, post.token, "leader", post.node, theirs, mine):
        msg = (
            f"The process that listens at {post.leader}:{post.port} is not the leading agent of this job: it does "
            "not have the job's token. Stop it, and run the job again."
        )
        raise NodesError(msg)


def _answer(connection: NodeConnection, deadline: float, kind: type[_Answer]) -> _Answer:
    while not connection.ended:
        if messages := connection.receive():
            if not isinstance(messages[0], kind):
                break
            return messages[0]
        if not connection.wait(deadline):
            break
    raise _turned_away()


def _turned_away() -> NodesError:
    return NodesError("The leading agent rejected the connection of this agent.")


def meet(config: AgentConfig) -> dict[int, NodeConnection]:
    """Connect to the other agents of a job: a follower to its leader, the leader to its followers.

    Returns:
        The connection to each, by node; empty if the job has one node.

    Raises:
        NodesError: An agent did not come in time, or could not be authenticated.
    """
    post, limit = config.post, config.limits.limit("assembly")
    if post is None:
        return {}
    if post.node:
        return {0: reach(post, limit)}
    return NodeRendezvous(post, range(1, config.nodes)).admit(limit)
