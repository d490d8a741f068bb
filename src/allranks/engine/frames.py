"""Docker's multiplexed attach stream (Engine API, ``POST /containers/{id}/attach``), taken apart."""

import struct
from collections.abc import Iterator

_HEADER = struct.Struct(">BxxxL")

STDOUT = 1


class FrameReader:
    """Bytes in, ``(stream, payload)`` out, whatever the boundaries of the pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that `data` completes."""
        self._rest += data
        while len(self._rest) >= _HEADER.size:
            stream, size = _HEADER.unpack_from(self._rest)
            end = _HEADER.size + size
            if len(self._rest) < end:
                return
            yield stream, self._rest[_HEADER.size : end]
            self._rest = self._rest[end:]
