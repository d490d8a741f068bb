"""The connection of two agents: the handshake, and JSON over TCP.

A message is one of :mod:`allranks.agent.nodes.messages` as JSON, preceded by its length in four bytes. In the handshake
the leader sends a fresh nonce. The follower answers with its own nonce and a code over both (HMAC, RFC 2104, with
SHA-256), which proves that it has the job's token. The leader then proves itself in the same way. The token itself is
never sent. Later messages are neither encrypted nor signed: the port must be in a private network of the nodes.

The leader listens until all followers have connected. Any other client only gets a nonce, and is disconnected when it
sends a wrong proof or none in time.
"""

import hmac
import json
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from allranks.agent.nodes.messages import MESSAGES, Challenge, FollowerProof, LeaderProof, Message
from allranks.protocol.config import AgentConfig, NodeConfig, TimeLimit
from allranks.protocol.typed_json import RecordError, decode_line, encode_line

FRAME_LIMIT = 64 << 20
"""Maximum bytes of a message between authenticated agents: the names of several hundred thousand tests."""

UNTRUSTED_LIMIT = 1 << 10
"""Maximum bytes of a message from a peer that has not been authenticated."""

_HEADER = struct.Struct("!I")
_CHUNK = 1 << 16
_MAX_CHUNKS = 16
_NONCE_BYTES = 32


class ConnectionLostError(Exception):
    """The connection is lost; the message is a predicate of the other side, as in "is gone"."""


class NodeConnection:
    """One end of a connection; it owns the connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _enable_keepalive(connection)
        self._socket = connection
        self._limit = UNTRUSTED_LIMIT
        self._buffer = bytearray()
        self.ended = ""  # why no more messages can arrive, as in "is gone"; empty while they can

    def trust(self) -> None:
        """Accept long messages: the other side has been authenticated."""
        self._limit = FRAME_LIMIT

    def fileno(self) -> int:
        """The socket's descriptor, readable when data has arrived or the connection has ended."""
        return self._socket.fileno()

    def send(self, message: Message, timeout: float) -> None:
        """Send a whole message, reading incoming data meanwhile: two sides that only sent would deadlock."""
        data = encode_line(message)
        view = memoryview(_HEADER.pack(len(data)) + data)
        deadline = time.monotonic() + timeout
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait_until_writable(deadline)
            except OSError as error:
                msg = "is gone"
                raise ConnectionLostError(msg) from error

    def _wait_until_writable(self, deadline: float) -> None:
        events = selectors.EVENT_WRITE if self.ended else selectors.EVENT_WRITE | selectors.EVENT_READ
        ready = self._select(events, deadline)
        if not ready:
            msg = "no longer reads its messages"
            raise ConnectionLostError(msg)
        if ready & selectors.EVENT_READ:
            self._fill_buffer()

    def wait(self, deadline: float) -> bool:
        """Wait until data has arrived or the connection has ended; False if `deadline` (monotonic) passed first."""
        return bool(self._select(selectors.EVENT_READ, deadline))

    def _select(self, events: int, deadline: float) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, events)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        return ready[0][1] if ready else 0

    @property
    def has_message(self) -> bool:
        """Whether a whole message is buffered, which no selector reports."""
        if len(self._buffer) < _HEADER.size:
            return False
        (size,) = _HEADER.unpack_from(self._buffer)
        return bool(len(self._buffer) >= _HEADER.size + size)

    def receive(self) -> list[Message]:
        """Return the messages that have arrived, without waiting; sets `ended` if they are the last."""
        self._fill_buffer()
        messages: list[Message] = []
        while (message := self._next_message()) is not None:
            messages.append(message)
        return messages

    def _fill_buffer(self) -> None:
        """Read a bounded amount of data: a flood must not starve other work."""
        for _ in range(_MAX_CHUNKS):
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.ended = self.ended or "is gone"
                return
            self._buffer += data

    def _next_message(self) -> Message | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._buffer)
        if size > self._limit:
            self._reject(f"sent a message of {size} bytes")
            return None
        end = _HEADER.size + size
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            return decode_line(data, MESSAGES)
        except RecordError:
            self._reject("sent an invalid message")
            return None

    def _reject(self, why: str) -> None:
        self.ended = why
        self._buffer.clear()

    def end(self) -> None:
        """Shut the connection down, which the other side notices; the descriptor stays valid."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and its descriptor."""
        self._socket.close()


def _enable_keepalive(connection: socket.socket) -> None:
    """Make the kernel end a connection whose other host has not answered for a minute (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def make_nonce() -> str:
    """Return a fresh random number, as text."""
    return secrets.token_hex(_NONCE_BYTES)


def make_proof(token: str, role: str, node: int, *nonces: str) -> str:
    """Return the code that proves possession of the token.

    The role is ``leader`` or ``follower``, so that neither side can reuse the other's proof.
    """
    signed = json.dumps([role, node, *nonces]).encode()
    return hmac.new(token.encode(), signed, "sha256").hexdigest()


def is_proof(given: str, token: str, role: str, node: int, *nonces: str) -> bool:
    """Compare `given` with :func:`make_proof`, in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), make_proof(token, role, node, *nonces).encode())


PROOF_TIMEOUT = 5.0
"""Seconds within which a client must send its proof."""

_MAX_CLIENTS = 64
_FIRST_RETRY, _LAST_RETRY = 0.05, 1.0


class NodesError(Exception):
    """The agents of a job cannot work together."""


@dataclass(frozen=True, eq=False)
class _Client:
    """A client that has not been authenticated yet."""

    connection: NodeConnection
    nonce: str
    deadline: float


class FollowerListener:
    """The leader's port, open until all followers have connected."""

    def __init__(self, config: NodeConfig, followers: Collection[int]) -> None:
        self._config = config
        self._missing = set(followers)
        self._connections: dict[int, NodeConnection] = {}
        self._clients: list[_Client] = []
        self._selector = selectors.DefaultSelector()
        try:
            self._listener = _listen(config)
        except OSError as error:
            msg = f"The lead agent cannot listen at {config.leader}:{config.port}: {error}."
            raise NodesError(msg) from error
        self._selector.register(self._listener, selectors.EVENT_READ)

    def accept_all(self, limit: TimeLimit) -> dict[int, NodeConnection]:
        """Wait for the agents of the other nodes until the limit, then close the port."""
        deadline = time.monotonic() + limit.seconds
        try:
            while self._missing and (remaining := deadline - time.monotonic()) > 0:
                self._wait(remaining)
        finally:
            self._close()
        if self._missing:
            for connection in self._connections.values():
                connection.close()
            raise _missing_agents(self._missing, self._config, limit)
        return self._connections

    def _wait(self, remaining: float) -> None:
        now = time.monotonic()
        timeout = min([remaining, *(client.deadline - now for client in self._clients)])
        for key, _ in self._selector.select(max(0.0, timeout)):
            if key.data is None:
                self._accept()
            else:
                self._receive(key.data)
        now = time.monotonic()
        for client in [client for client in self._clients if client.deadline <= now]:
            self._disconnect(client)

    def _accept(self) -> None:
        """Accept a client and send it a nonce; if too many clients are pending, disconnect the oldest."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # The client has disconnected already.
            return
        client = _Client(NodeConnection(connection), make_nonce(), time.monotonic() + PROOF_TIMEOUT)
        self._clients.append(client)
        self._selector.register(client.connection, selectors.EVENT_READ, client)
        if self._send(client, Challenge(nonce=client.nonce)) and len(self._clients) > _MAX_CLIENTS:
            self._disconnect(self._clients[0])

    def _send(self, client: _Client, message: Message) -> bool:
        try:
            client.connection.send(message, 0.0)
        except ConnectionLostError:
            self._disconnect(client)
            return False
        return True

    def _receive(self, client: _Client) -> None:
        if client not in self._clients:
            return
        for message in client.connection.receive()[:1]:
            if isinstance(message, FollowerProof) and self._is_follower(client, message):
                proof = make_proof(self._config.token, "leader", message.node, client.nonce, message.nonce)
                if self._send(client, LeaderProof(proof=proof)):
                    self._forget(client)
                    client.connection.trust()
                    self._missing.discard(message.node)
                    self._connections[message.node] = client.connection
            else:
                self._disconnect(client)
            return
        if client.connection.ended:
            self._disconnect(client)

    def _is_follower(self, client: _Client, message: FollowerProof) -> bool:
        nonces = client.nonce, message.nonce
        is_valid = is_proof(message.proof, self._config.token, "follower", message.node, *nonces)
        return is_valid and message.node in self._missing

    def _disconnect(self, client: _Client) -> None:
        if client in self._clients:
            self._forget(client)
            client.connection.close()

    def _forget(self, client: _Client) -> None:
        self._clients.remove(client)
        self._selector.unregister(client.connection)

    def _close(self) -> None:
        for client in [*self._clients]:
            self._disconnect(client)
        self._selector.close()
        self._listener.close()


def _listen(config: NodeConfig) -> socket.socket:
    [family, kind, protocol, _, address], *_ = socket.getaddrinfo(
        config.leader, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listener = socket.socket(family, kind, protocol)
    try:
        # The creator of the job may reserve the port for this agent: bound, but not listening.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _missing_agents(nodes: Collection[int], config: NodeConfig, limit: TimeLimit) -> NodesError:
    numbers = ", ".join(map(str, sorted(nodes)))
    agents = f"agent of node {numbers}" if len(nodes) == 1 else f"agents of nodes {numbers}"
    return NodesError(
        f"The {agents} did not connect within {limit.words()}. "
        f"Check that every agent runs and can reach {config.leader}:{config.port}."
    )


def connect_to_leader(config: NodeConfig, limit: TimeLimit) -> NodeConnection:
    """Connect a follower to the leader, which may not be listening yet."""
    deadline = time.monotonic() + limit.seconds
    connection = NodeConnection(_connect(config, deadline, limit))
    try:
        _shake_hands(connection, config, deadline)
    except NodesError:
        connection.close()
        raise
    connection.trust()
    return connection


def _connect(config: NodeConfig, deadline: float, limit: TimeLimit) -> socket.socket:
    pause = _FIRST_RETRY
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            return socket.create_connection((config.leader, config.port), timeout=remaining)
        except OSError:
            # Poll: another host gets no signal when the leader opens its port.
            time.sleep(min(pause, remaining))
            pause = min(2 * pause, _LAST_RETRY)
    msg = (
        f"The lead agent could not be reached at {config.leader}:{config.port} within {limit.words()}. "
        "Check that it runs, and that this node can reach that port."
    )
    raise NodesError(msg)


def _shake_hands(connection: NodeConnection, config: NodeConfig, deadline: float) -> None:
    theirs, mine = _receive(connection, deadline, Challenge).nonce, make_nonce()
    proof = make_proof(config.token, "follower", config.node, theirs, mine)
    message = FollowerProof(node=config.node, nonce=mine, proof=proof)
    try:
        connection.send(message, max(0.0, deadline - time.monotonic()))
    except ConnectionLostError as error:
        raise _rejected() from error
    answer = _receive(connection, deadline, LeaderProof)
    if not is_proof(answer.proof, config.token, "leader", config.node, theirs, mine):
        msg = (
            f"The process that listens at {config.leader}:{config.port} is not the lead agent of this job: it does "
            "not have the job's token. Stop it, and run the job again."
        )
        raise NodesError(msg)


_Kind = TypeVar("_Kind", Challenge, LeaderProof)


def _receive(connection: NodeConnection, deadline: float, kind: type[_Kind]) -> _Kind:
    while not connection.ended:
        if messages := connection.receive():
            if not isinstance(messages[0], kind):
                break
            return messages[0]
        if not connection.wait(deadline):
            break
    raise _rejected()


def _rejected() -> NodesError:
    return NodesError("The lead agent rejected the connection of this agent.")


def connect_nodes(config: AgentConfig) -> dict[int, NodeConnection]:
    """Connect a follower to the leader, or the leader to all followers.

    Returns:
        The connection to each, by node; empty if the job has one node.
    """
    node, limit = config.node_config, config.limits.limit("assembly")
    if node is None:
        return {}
    if node.node:
        return {0: connect_to_leader(node, limit)}
    return FollowerListener(node, range(1, config.nodes)).accept_all(limit)
