"""Disturbs what a node receives from others: the program of the helper container beside it.

It shares the node's network name space, where it alone may administrate (``CAP_NET_ADMIN``), and nothing else. A rule
of nftables hands it each packet that arrives (target NFQUEUE, by nft_compat), so neither netem in the kernel nor
programs in the image are needed. The rule lets packets pass once this program has ended, and goes with the name space.
A rank of the node says which disturbances hold, and they hold while its connection does.

Numbers of messages and attributes are those of linux/netfilter/{nfnetlink,nf_tables,nfnetlink_queue}.h.

Python gets the text of this file as an argument, so that no test can change it: it has the standard library alone.
"""

import errno
import heapq
import json
import math
import os
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

ADDRESS: Final = ("127.0.0.1", 29401)
"""Where ranks of the node reach this program, next to the port of the leading agent."""

READY: Final = "ready"

AGENTS: Final = 29400
"""The port of the leading agent: the agents' own connections are never disturbed."""

LOST: Final = 0.4
"""Seconds that a lost packet may cost: TCP sends it again after 0.2 s, and if that is lost, after 0.4 s more."""

_NFQUEUE_SIZE: Final = 1 << 16
"""Packets that may wait: beyond them, the kernel lets packets pass."""

_BUFFER: Final = 8 << 20

_NFTABLES, _QUEUE = 10, 3
_REQUEST, _ACK, _CREATE = 0x1, 0x4, 0x400
_NESTED = 0x8000


@dataclass(kw_only=True)
class IncomingLink:
    """What this node receives from one other node.

    Attributes:
        kind: ``late``, ``loss``, ``rate`` or ``cut``; empty for no disturbance.
        value: Seconds, a share of packets, bits in a second, or seconds.
        first: The packet from which on it holds, from 1.
        most: Seconds that it may cost in all; a cut has its own end.
        seed: What is lost is drawn from it.
        packets: How many have come.
        hit: Those of them that were disturbed.
    """

    kind: str = ""
    value: float = 0.0
    first: int = 1
    most: float = math.inf
    seed: int = 0
    packets: int = 0
    hit: int = 0
    _free: float = 0.0
    _began: float = math.inf
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start to draw."""
        self._random = random.Random(self.seed)  # noqa: S311 - replayed by its seed

    def release(self, now: float, size: int) -> float | None:
        """When a packet may pass, given its arrival and its bytes; None if it is lost. Packets keep their order."""
        self.packets += 1
        before, self._free = max(now, self._free), max(now, self._free)
        if self.packets < self.first:
            return before
        match self.kind:
            case "late":
                self._free = max(before, min(now + self.value, before + self.most))
            case "rate":
                self._free = before + min(8 * size / self.value, self.most)
            case "loss" if self._random.random() < self.value and self.most >= LOST:
                self.most -= LOST
                self.hit += 1
                return None
            case "cut":
                self._began = min(self._began, now)
                if now < self._began + self.value:
                    self.hit += 1
                    return None
        self.most -= self._free - before
        self.hit += self._free > now
        return self._free


class Helper:
    """Passes packets on, as the ranks of this node ask.

    Args:
        peers: Other nodes, by address.
    """

    def __init__(self, peers: Mapping[bytes, str]) -> None:
        self._peers = peers
        self._links = {peer: IncomingLink() for peer in peers.values()}
        self._waiting: list[tuple[float, int]] = []
        self._queue = _Netlink()
        self._queue.ask(_QUEUE << 8 | 2, _attribute(1, struct.pack("!BxH", 1, socket.AF_INET)))
        settings = (
            _attribute(2, struct.pack("!IB", 64, 2)),  # copy the headers
            _attribute(3, struct.pack("!I", _NFQUEUE_SIZE)),
            _attribute(4, struct.pack("!I", 5)),
            _attribute(5, struct.pack("!I", 5)),  # let pass what is too much, and take large packets whole
        )
        self._queue.ask(_QUEUE << 8 | 2, b"".join(settings))
        self._queue.socket.setblocking(False)
        _make_rule()  # last, so that no packet comes between the answers

    def serve(self, owner: int) -> None:
        """Work until the owner closes this descriptor."""
        rank: socket.socket | None = None
        with socket.create_server(ADDRESS) as server, selectors.DefaultSelector() as selector:
            for each in (server, self._queue.socket, owner):
                selector.register(each, selectors.EVENT_READ)
            print(READY, flush=True)
            while True:
                timeout = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
                ready = [key.fileobj for key, _ in selector.select(timeout)]
                if owner in ready and not os.read(owner, 1 << 10):
                    return
                if self._queue.socket in ready:
                    self._take()
                if rank in ready and rank is not None and not self._obey(rank):
                    selector.unregister(rank)
                    rank.close()
                    rank = None
                if server in ready:  # of a new gang: the ranks of the last one have ended, or will be killed
                    if rank is not None:
                        selector.unregister(rank)
                        rank.close()
                    rank, _ = server.accept()
                    self._become({})
                    selector.register(rank, selectors.EVENT_READ)
                self._release(time.monotonic())

    def _obey(self, rank: socket.socket) -> bool:
        """Set disturbances, and report on those until now; False if the rank is gone, which ends them."""
        with suppress(OSError, ValueError, TypeError):
            if data := rank.recv(1 << 16):
                counts = {peer: [link.packets, link.hit] for peer, link in self._links.items() if link.kind}
                self._become({peer: IncomingLink(**terms) for peer, terms in json.loads(data).items()})
                rank.sendall(json.dumps(counts).encode() + b"\n")
                return True
        self._become({})
        return False

    def _become(self, links: Mapping[str, IncomingLink]) -> None:
        """Disturb these links and no other; what still waits passes now."""
        self._release(math.inf)
        self._links = {peer: links.get(peer, IncomingLink()) for peer in self._links}

    def _take(self) -> None:
        for kind, body in self._queue.messages():
            if kind != _QUEUE << 8:
                continue
            attributes = dict(_attributes(body[4:]))
            number = int.from_bytes(attributes[1][:4])
            due = self._due(attributes.get(10, b""))
            if due is None:
                self._tell(number, 0)
            else:
                heapq.heappush(self._waiting, (due, number))

    def _due(self, header: bytes) -> float | None:
        """When a packet may pass, given the beginning of its headers (RFC 791); None if it is lost."""
        now = time.monotonic()
        peer = self._peers.get(header[12:16])
        length = 4 * (header[0] & 15) if header else 0
        if peer is None or AGENTS in struct.unpack_from("!HH", header.ljust(length + 4, b"\0"), length):
            return now
        return self._links[peer].release(now, int.from_bytes(header[2:4]))

    def _release(self, now: float) -> None:
        while self._waiting and self._waiting[0][0] <= now:
            self._tell(heapq.heappop(self._waiting)[1], 1)

    def _tell(self, number: int, verdict: int) -> None:
        self._queue.send(_QUEUE << 8 | 1, _attribute(2, struct.pack("!II", verdict, number)), _REQUEST)


def _make_rule() -> None:
    """Have each packet that arrives from another node queued, and passed if no program takes it from the queue."""
    name = _attribute(1, b"allranks\0")
    hook = _attribute(1, struct.pack("!I", 1)) + _attribute(2, struct.pack("!I", 0))  # input, the usual priority
    chain = name + _attribute(3, b"in\0") + _attribute(4 | _NESTED, hook) + _attribute(7, b"filter\0")
    from_outside = (
        _expression("meta", _attribute(1, struct.pack("!I", 1)), _attribute(2, struct.pack("!I", 6))),  # iifname
        _expression(
            "cmp",
            _attribute(1, struct.pack("!I", 1)),
            _attribute(2, struct.pack("!I", 1)),  # is not
            _attribute(3 | _NESTED, _attribute(1, b"lo".ljust(16, b"\0"))),
        ),
    )
    queue = _expression(
        "target",
        _attribute(1, b"NFQUEUE\0"),
        _attribute(2, struct.pack("!I", 3)),
        _attribute(3, struct.pack("HHHxx", 0, 1, 1)),  # queue 0 alone; pass without a program
    )
    rule = name + _attribute(2, b"in\0") + _attribute(4 | _NESTED, b"".join((*from_outside, queue)))
    batch = [
        (0x10, b"", _REQUEST, _NFTABLES),
        (_NFTABLES << 8 | 0, name, _REQUEST | _CREATE | _ACK, 0),
        (_NFTABLES << 8 | 3, chain, _REQUEST | _CREATE | _ACK, 0),
        (_NFTABLES << 8 | 6, rule, _REQUEST | _CREATE | _ACK, 0),
        (0x11, b"", _REQUEST, _NFTABLES),
    ]
    netlink = _Netlink()
    netlink.socket.send(b"".join(_message(*each) for each in batch))
    for _ in range(3):
        netlink.acknowledged()


class _Netlink:
    """A socket of netfilter's netlink."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
        self.socket.bind((0, 0))
        for option in (33, socket.SO_RCVBUF):  # the first is SO_RCVBUFFORCE, for administrators
            with suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
                break

    def send(self, kind: int, body: bytes, flags: int) -> None:
        self.socket.send(_message(kind, body, flags, 0))

    def ask(self, kind: int, body: bytes) -> None:
        self.send(kind, body, _REQUEST | _ACK)
        self.acknowledged()

    def acknowledged(self) -> None:
        """Wait for the answer.

        Raises:
            OSError: It is an error.
        """
        self.socket.settimeout(10.0)
        for kind, body in self._split(self.socket.recv(1 << 16)):
            if kind == 2 and (code := -struct.unpack_from("i", body)[0]):
                raise OSError(code, os.strerror(code))

    def messages(self) -> Iterable[tuple[int, bytes]]:
        """The messages that are there; the kernel has let pass those that did not fit."""
        try:
            yield from self._split(self.socket.recv(1 << 17))
        except OSError as error:
            if error.errno not in {errno.ENOBUFS, errno.EAGAIN}:
                raise

    @staticmethod
    def _split(data: bytes) -> Iterable[tuple[int, bytes]]:
        while data:
            size, kind = struct.unpack_from("IH", data)
            yield kind, data[16:size]
            data = data[(size + 3) & ~3 :]


def _message(kind: int, body: bytes, flags: int, resource: int) -> bytes:
    """A message of netlink (nlmsghdr, nfgenmsg), for IPv4."""
    family = socket.AF_INET if kind >= 1 << 8 else socket.AF_UNSPEC
    return struct.pack("IHHII", 20 + len(body), kind, flags, 0, 0) + struct.pack("!BBH", family, 0, resource) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> Iterable[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]


def _expression(name: str, *attributes: bytes) -> bytes:
    described = _attribute(1, name.encode() + b"\0") + _attribute(2 | _NESTED, b"".join(attributes))
    return _attribute(1 | _NESTED, described)


def main(arguments: Sequence[str]) -> Any:  # noqa: ANN401 - what sys.exit takes
    """Help a node whose peers are these, as ``NODE=ADDRESS``."""
    pairs = [each.split("=") for each in arguments]
    try:
        helper = Helper({socket.inet_aton(address): node for node, address in pairs})
    except OSError as error:
        return f"{error.strerror} (NFQUEUE)"
    helper.serve(sys.stdin.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
