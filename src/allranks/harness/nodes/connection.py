"""The connection of two agents: JSON over TCP, after a mutual proof of the job's token.

Each message is one JSON object behind its length in four bytes. The leader sends a number that it has just made up, the
follower answers with one of its own and a code over both (HMAC, RFC 2104, with SHA-256) that only who knows the token
can make, and the leader proves itself in the same way. The token itself is never sent. What follows is neither
encrypted nor signed: the port belongs into a network that the nodes have for themselves.
"""

import hmac
import json
import secrets
import selectors
import socket
import struct
import time
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
"""An object of JSON's types alone."""

FRAME_LIMIT = 64 << 20
"""Bytes of one message between agents that know each other: the names of several hundred thousand tests."""

GREETING_LIMIT = 1 << 10
"""Bytes of one message of whoever has not proven yet that it knows the token."""

_HEADER = struct.Struct("!I")
_PIECE = 1 << 16
_PIECES = 16
_NONCE_BYTES = 32


class WireError(Exception):
    """The other side cannot be spoken to any more; the message says what it did, as in "is gone"."""


class NodeConnection:
    """One end of a connection.

    Args:
        connection: A connected socket, which belongs to this object from here on.

    Attributes:
        ended: Why nothing more will come, as in "is gone"; empty as long as something may.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_dead_hosts(connection)
        self._socket = connection
        self._limit = GREETING_LIMIT
        self._rest = bytearray()
        self.ended = ""

    def trust(self) -> None:
        """Take longer messages: the other side has proven itself."""
        self._limit = FRAME_LIMIT

    def fileno(self) -> int:
        """The socket's descriptor, readable when something has come or nothing more will."""
        return self._socket.fileno()

    def send(self, message: Message, timeout: float) -> None:
        """Send a message whole, and take in meanwhile what comes: two that only sent would wait for each other.

        Args:
            message: What to send.
            timeout: Seconds that it may take.

        Raises:
            WireError: The other side is gone, or takes nothing any more.
        """
        data = json.dumps(message).encode()
        view = memoryview(_HEADER.pack(len(data)) + data)
        deadline = time.monotonic() + timeout
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                self._wait_for_room(deadline)
            except OSError as error:
                msg = "is gone"
                raise WireError(msg) from error

    def _wait_for_room(self, deadline: float) -> None:
        events = selectors.EVENT_WRITE if self.ended else selectors.EVENT_WRITE | selectors.EVENT_READ
        ready = self._select(events, deadline)
        if not ready:
            msg = "takes nothing any more"
            raise WireError(msg)
        if ready & selectors.EVENT_READ:
            self._pull()

    def wait(self, deadline: float) -> bool:
        """Wait until something has come or nothing more will; False when `deadline` (monotonic) came first."""
        return bool(self._select(selectors.EVENT_READ, deadline))

    def _select(self, events: int, deadline: float) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, events)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        return ready[0][1] if ready else 0

    @property
    def has_message(self) -> bool:
        """Whether a whole message has come that :meth:`receive` has not given yet: no descriptor tells of it."""
        if len(self._rest) < _HEADER.size:
            return False
        (size,) = _HEADER.unpack_from(self._rest)
        return bool(len(self._rest) >= _HEADER.size + size)

    def receive(self) -> list[Message]:
        """The messages that are there, without waiting; sets `ended` when they are the last."""
        self._pull()
        messages: list[Message] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _pull(self) -> None:
        """Take in what is there, up to a bound: a flood must not keep its reader from everything else."""
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
        """The next whole message; None while there is none."""
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
        message = _parsed(data)
        if message is None:
            self._refuse("sends what is no message")
        return message

    def _refuse(self, why: str) -> None:
        self.ended = why
        self._rest.clear()

    def end(self) -> None:
        """Have the other side learn that this one is done with it; the descriptor stays valid."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


def _parsed(data: bytes) -> Message | None:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _notice_dead_hosts(connection: socket.socket) -> None:
    """Have the kernel end a connection whose other host has not answered for a minute (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def make_nonce() -> str:
    """A number that nobody can have seen before, as text."""
    return secrets.token_hex(_NONCE_BYTES)


def make_proof(token: str, role: str, node: int, *nonces: str) -> str:
    """The code by which one side shows that it knows the token.

    Args:
        token: The job's.
        role: ``leader`` or ``follower``: neither can send the other's proof back as its own.
        node: The follower's node.
        nonces: The leader's and the follower's.
    """
    said = json.dumps([role, node, *nonces]).encode()
    return hmac.new(token.encode(), said, "sha256").hexdigest()


def is_proof(given: object, token: str, role: str, node: int, *nonces: str) -> bool:
    """Whether `given` is that code, in a time that does not tell how much of it is right."""
    return isinstance(given, str) and hmac.compare_digest(
        given.encode("utf-8", "replace"), make_proof(token, role, node, *nonces).encode()
    )
