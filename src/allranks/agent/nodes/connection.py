"""The connection of two agents: JSON over TCP, after a mutual proof of the job's token.

Each message is one of :mod:`allranks.agent.nodes.messages` as JSON, preceded by its length in four bytes. The leader
sends a fresh nonce. The follower answers with its own nonce and a code over both (HMAC, RFC 2104, with SHA-256), which
proves that it has the token. The leader then proves itself in the same way. The token itself is never sent. Later
messages are neither encrypted nor signed: the port must be in a private network of the nodes.
"""

import hmac
import json
import secrets
import selectors
import socket
import struct
import time
from contextlib import suppress

from allranks.agent.nodes.messages import MESSAGES, Message
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
        """Send a whole message, and read incoming data meanwhile: two sides that only sent would deadlock.

        Raises:
            ConnectionLostError: The other side is gone, or reads no more data.
        """
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

    Args:
        token: The job's token.
        role: ``leader`` or ``follower``, so that neither can return the other's proof as its own.
        node: The follower's node.
        nonces: The leader's nonce and the follower's.
    """
    signed = json.dumps([role, node, *nonces]).encode()
    return hmac.new(token.encode(), signed, "sha256").hexdigest()


def is_proof(given: str, token: str, role: str, node: int, *nonces: str) -> bool:
    """Whether `given` is that code; the comparison takes constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), make_proof(token, role, node, *nonces).encode())
