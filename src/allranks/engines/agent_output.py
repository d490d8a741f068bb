"""The standard output of an agent: frames of the daemon, records, and other text."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from allranks.protocol.records import LINE_LIMIT, Record, decode
from allranks.protocol.typed_json import RecordError

_HEADER = struct.Struct(">BxxxL")

STDOUT = 1


class FrameReader:
    """Bytes in, ``(stream, payload)`` out, regardless of the boundaries of the pieces.

    Payloads are passed on in parts as they arrive, without buffering: a frame may claim 4 GiB.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The parts of payloads in `data`, never empty."""
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


SEPARATOR: Final = b"\x1e"
"""Begins the line of a record (RFC 7464). It cannot be inside of one: JSON escapes control characters."""

_OUTPUT_LIMIT: Final = 8000
_END: Final = re.compile(b"[\n" + SEPARATOR + b"]")


@dataclass(frozen=True)
class Damage:
    """Bytes of a stream that begin like a record but are none."""

    what: str  # where they are and why, as in "record 3, from byte 512 on, is not JSON"


class RecordReader:
    """Bytes in, records out, regardless of the boundaries of the pieces.

    ::

        output ──separator──▶ record ──line feed──▶ output
                              record ──separator──▶ record
                              record ──LINE_LIMIT─▶ output

    Time is linear in the number of bytes, and no more than one line is kept.
    """

    def __init__(self) -> None:
        self._output = bytearray()
        self._line: bytearray | None = None
        self._began = 0
        self._position = 0
        self._records = 0
        self._is_damaged = False

    def feed(self, data: bytes) -> Iterator[Record | Damage]:
        """The records that `data` completes, and the first damage of the stream."""
        place = 0
        while place < len(data):
            if self._line is None:
                end = _index(data.find(SEPARATOR, place), data)
                self.note(data[place:end])
                if end < len(data):
                    self._begin(self._position + end)
            else:
                found = _END.search(data, place)
                end = found.start() if found else len(data)
                self._line += data[place:end]
                yield from self._complete(is_ended=found is not None)
                if found and found.group() == SEPARATOR:
                    self._begin(self._position + end)
            place = end + 1
        self._position += len(data)

    def _begin(self, position: int) -> None:
        self._line = bytearray()
        self._began = position
        self._records += 1

    def _complete(self, *, is_ended: bool) -> Iterator[Record | Damage]:
        """The record that has begun, if its line has ended or has become too long."""
        line = self._line
        if line is None or not (is_ended or len(line) > LINE_LIMIT):
            return
        self._line = None  # the rest of a line that is too long is output
        try:
            yield decode(bytes(line))
        except RecordError as error:
            if not self._is_damaged:
                self._is_damaged = True
                yield Damage(f"record {self._records}, from byte {self._began} on, {error}")

    def note(self, data: bytes) -> None:
        """Keep the end of output that is no record."""
        self._output += data
        if len(self._output) > 2 * _OUTPUT_LIMIT:
            del self._output[:-_OUTPUT_LIMIT]

    @property
    def output(self) -> str:
        """The end of the output that is no record."""
        return self._output[-_OUTPUT_LIMIT:].decode("utf-8", "replace").strip()


def _index(found: int, data: bytes) -> int:
    return len(data) if found < 0 else found
