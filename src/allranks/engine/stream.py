"""The agent's standard output, taken apart: framed events, and whatever else was printed."""

from collections.abc import Iterator

from allranks.harness.events import RECORD_SEPARATOR, Event, parse_lines

_OUTPUT_LIMIT = 8000


class EventStream:
    """Bytes in, events out, whatever the boundaries of the pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._output = b""

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(RECORD_SEPARATOR):
                yield from parse_lines([line])
            else:
                self.note(line + b"\n")

    def note(self, data: bytes) -> None:
        """Keep the end of some output that is no event."""
        self._output = (self._output + data)[-_OUTPUT_LIMIT:]

    @property
    def output(self) -> str:
        """The end of what is no event."""
        return (self._output + self._rest).decode("utf-8", "replace").strip()
