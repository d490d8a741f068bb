"""The connection of two agents: how they meet, and JSON over TCP after a mutual proof of the job's token.

Each message is one of :mod:`allranks.agent.nodes.messages` as JSON, preceded by its length in four bytes. The leader
sends a fresh nonce. The follower answers with its own nonce and a code over both (HMAC, RFC 2104, with SHA-256), which
proves that it has the token. The leader then proves itself in the same way. The token itself is never sent. Later
messages are neither encrypted nor signed: the port must be in a private network of the nodes.

The leader opens a port until all followers have joined. Any other client gets only a nonce, must answer in time, and is
disconnected.
"""

import hmac
import json
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from allranks.agent.nodes.messages import MESSAGES, Claim, Greeting, Message, Proof
from allranks.protocol.config import AgentConfig, NodeConfig, TimeLimit
from allranks.protocol.typed_json import RecordError, decode_line, encode_line

FRAME_LIMIT = 64 << 20
"""Maximum bytes of a message between authenticated agents: the names of several hundred thousand tests."""

GREETING_LIMIT = 1 << 10
"""Maximum bytes of a message before the sender has proven that it has the token."""

_HEADER = struct.Struct("!I")
_PIECE = 1 << 16
_PIECES = 16
_NONCE_BYTES = 32


class ConnectionLostError(Exception):
    """The connection is lost; the message is a predicate of the other side, as in "is gone"."""


class NodeConnection:
    """One end of a connection; it owns the connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_dead_hosts(connection)
        self._socket = connection
        self._limit = GREETING_LIMIT
        self._rest = bytearray()
        self.ended = ""  # why no more messages can arrive, as in "is gone"; empty while they can

    def trust(self) -> None:
        """Accept longer messages: the other side has proven itself."""
        self._limit = FRAME_LIMIT

    def fileno(self) -> int:
        """The socket's descriptor, readable when data has arrived or the connection has ended."""
        return self._socket.fileno()

    def send(self, message: Message, timeout: float) -> None:
        """Send a whole message, and read incoming data meanwhile: two sides that only sent would deadlock."""
        data = encode_line(message)
        view = memoryview(_HEADER.pack(len(data)) + data)
        deadline = time.monotonic() + timeout
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait_for_room(deadline)
            except OSError as error:
                msg = "is gone"
                raise ConnectionLostError(msg) from error

    def _wait_for_room(self, deadline: float) -> None:
        events = selectors.EVENT_WRITE if self.ended else selectors.EVENT_WRITE | selectors.EVENT_READ
        ready = self._select(events, deadline)
        if not ready:
            msg = "takes nothing any more"
            raise ConnectionLostError(msg)
        if ready & selectors.EVENT_READ:
            self._pull()

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
        """Whether a whole message is buffered that :meth:`receive` has not returned yet: no descriptor signals it."""
        if len(self._rest) < _HEADER.size:
            return False
        (size,) = _HEADER.unpack_from(self._rest)
        return bool(len(self._rest) >= _HEADER.size + size)

    def receive(self) -> list[Message]:
        """The available messages, without waiting; sets `ended` if they are the last."""
        self._pull()
        messages: list[Message] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _pull(self) -> None:
        """Read available data, up to a bound: a flood must not starve other work."""
        for _ in range(_PIECES):
            try:
                data = self._socket.recv(_PIECE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.ended = self.ended or "is gone"
                return
            self._rest += data

    def _next(self) -> Message | None:
        """The next whole message; None if there is none yet."""
        if len(self._rest) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._rest)
        if size > self._limit:
            self._refuse(f"sends a message of {size} bytes")
            return None
        end = _HEADER.size + size
        if len(self._rest) < end:
            return None
        data = bytes(self._rest[_HEADER.size : end])
        del self._rest[:end]
        try:
            return decode_line(data, MESSAGES)
        except RecordError:
            self._refuse("sends what is no message")
            return None

    def _refuse(self, why: str) -> None:
        self.ended = why
        self._rest.clear()

    def end(self) -> None:
        """Shut the connection down, which the other side notices; the descriptor stays valid."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and its descriptor."""
        self._socket.close()


def _notice_dead_hosts(connection: socket.socket) -> None:
    """Make the kernel end a connection whose other host has not answered for a minute (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def make_nonce() -> str:
    """A fresh random number, as text."""
    return secrets.token_hex(_NONCE_BYTES)


def make_proof(token: str, role: str, node: int, *nonces: str) -> str:
    """The code that proves that one side has the token.

    The role is ``leader`` or ``follower``, so that neither can return the other's proof as its own.
    """
    signed = json.dumps([role, node, *nonces]).encode()
    return hmac.new(token.encode(), signed, "sha256").hexdigest()


def is_proof(given: str, token: str, role: str, node: int, *nonces: str) -> bool:
    """Whether `given` is that code; the comparison takes constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), make_proof(token, role, node, *nonces).encode())


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
    """The leading agent's port."""

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
        """Wait for the agents of the other nodes until the limit, then close the port."""
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
    """Connect a following agent to the leader, which may not be up yet."""
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

    Returns the connection to each, by node; empty if the job has one node.
    """
    post, limit = config.node_config, config.limits.limit("assembly")
    if post is None:
        return {}
    if post.node:
        return {0: reach(post, limit)}
    return NodeRendezvous(post, range(1, config.nodes)).admit(limit)
