"""Docker's multiplexed attach stream (Engine API, ``POST /containers/{id}/attach``), taken apart."""

import struct
from collections.abc import Iterator

_HEADER = struct.Struct(">BxxxL")

STDOUT = 1


class FrameReader:
    """Bytes in, ``(stream, payload)`` out, whatever the boundaries of the pieces.

    A payload is passed on as it comes, in as many parts: a frame may claim 4 GiB, and nothing of it is kept here.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """What of payloads is in `data`, never empty."""
        place = 0
        while place < len(data):
            if self._left:
                payload = data[place : place + self._left]
                place += len(payload)
                self._left -= len(payload)
                yield self._stream, payload
            else:
                part = data[place : place + _HEADER.size - len(self._header)]
                place += len(part)
                self._header += part
                if len(self._header) == _HEADER.size:
                    self._stream, self._left = _HEADER.unpack(self._header)
                    self._header = b""
