"""Parses an agent's output: Docker's stream frames, records, and other text."""

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
    """Parses Docker's multiplexed stream incrementally into ``(stream, payload)`` pairs.

    Payloads are yielded in parts as they arrive, without buffering: a frame may claim 4 GiB.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the non-empty parts of payloads in `data`."""
        start = 0
        while start < len(data):
            if self._left:
                payload = data[start : start + self._left]
                start += len(payload)
                self._left -= len(payload)
                yield self._stream, payload
            else:
                part = data[start : start + _HEADER.size - len(self._header)]
                start += len(part)
                self._header += part
                if len(self._header) == _HEADER.size:
                    self._stream, self._left = _HEADER.unpack(self._header)
                    self._header = b""


SEPARATOR: Final = b"\x1e"
"""Starts the line of a record (RFC 7464). A record cannot contain it: JSON escapes control characters."""

_OUTPUT_LIMIT: Final = 8000
_END: Final = re.compile(b"[\n" + SEPARATOR + b"]")


@dataclass(frozen=True)
class Damage:
    """Bytes of a stream that start like a record but cannot be decoded."""

    what: str  # where and why, as in "record 3, from byte 512 on, is not JSON"


class RecordReader:
    """Parses a stream of records and other output incrementally.

    ::

        output ──separator──▶ record ──line feed──▶ output
                              record ──separator──▶ record
                              record ──LINE_LIMIT─▶ output

    Parsing takes linear time, and at most one line is buffered.
    """

    def __init__(self) -> None:
        self._output = bytearray()
        self._line: bytearray | None = None
        self._line_offset = 0
        self._position = 0
        self._records = 0
        self._is_damaged = False

    def feed(self, data: bytes) -> Iterator[Record | Damage]:
        """Yield the records that `data` completes, and the first damage of the stream."""
        start = 0
        while start < len(data):
            if self._line is None:
                found = data.find(SEPARATOR, start)
                end = len(data) if found < 0 else found
                self.add_output(data[start:end])
                if end < len(data):
                    self._begin(self._position + end)
            else:
                match = _END.search(data, start)
                end = match.start() if match else len(data)
                self._line += data[start:end]
                yield from self._complete(is_ended=match is not None)
                if match and match.group() == SEPARATOR:
                    self._begin(self._position + end)
            start = end + 1
        self._position += len(data)

    def _begin(self, position: int) -> None:
        self._line = bytearray()
        self._line_offset = position
        self._records += 1

    def _complete(self, *, is_ended: bool) -> Iterator[Record | Damage]:
        """Yield the current record if its line has ended or exceeds the limit."""
        line = self._line
        if line is None or not (is_ended or len(line) > LINE_LIMIT):
            return
        self._line = None  # the rest of a line that is too long is output
        try:
            yield decode(bytes(line))
        except RecordError as error:
            if not self._is_damaged:
                self._is_damaged = True
                yield Damage(f"record {self._records}, from byte {self._line_offset} on, {error}")

    def add_output(self, data: bytes) -> None:
        """Add output that is not part of a record; only the end of it is kept."""
        self._output += data
        if len(self._output) > 2 * _OUTPUT_LIMIT:
            del self._output[:-_OUTPUT_LIMIT]

    @property
    def output(self) -> str:
        """The end of the output that is not part of a record."""
        return self._output[-_OUTPUT_LIMIT:].decode("utf-8", "replace").strip()
