"""Packing what the page carries: JSON, deflated, in base64, which is inert in HTML whatever it says.

The browser's own ``DecompressionStream`` unpacks it (Chrome 80, Firefox 113, Safari 16.4).
"""

import base64
import json
import zlib
from typing import Final

_LEVEL: Final = 6


class Packer:
    """Packs lines of JSON as they come; keeps no more than the packed bytes."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL)
        self._packed = bytearray()

    @property
    def size(self) -> int:
        """Packed bytes so far."""
        return len(self._packed)

    def add(self, value: object) -> None:
        """Pack a value as one line."""
        self._packed += self._deflate.compress(dumps(value) + b"\n")
        # Without this the size would lag behind by what zlib holds back, which may be most of a small page.
        self._packed += self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> str:
        """Everything, in base64; nothing can be added after it."""
        self._packed += self._deflate.flush()
        return base64.b64encode(self._packed).decode()


def pack(value: object) -> str:
    """One value, packed by itself."""
    return base64.b64encode(zlib.compress(dumps(value), _LEVEL)).decode()


def dumps(value: object) -> bytes:
    """Compact JSON in ASCII: no character of it means anything to HTML's or JavaScript's line ends."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
