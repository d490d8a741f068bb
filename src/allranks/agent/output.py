"""The output of a rank: read from its pipes as it is printed, and truncated to a limit."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allranks.agent import evidence

KEPT = 1 << 20
"""Bytes kept of one stream during one test: half from its start, half from its end."""

LOG_LIMIT = 64 << 20
"""Maximum size of a rank's log in bytes."""

_PIPE = 1 << 16
"""Capacity of a pipe in bytes (pipe(7)): reading that many drains everything that was in it at the start."""


class Excerpt:
    """The start and the end of a text of any length."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Append more of the text."""
        half = KEPT // 2
        left = half - len(self._head)
        self._head += data[:left]
        self._tail += data[left:]
        self._dropped += max(0, len(self._tail) - half)
        del self._tail[:-half]

    def text(self) -> str:
        """The kept text, with a line that marks the cut."""
        if not self._dropped:
            return (self._head + self._tail).decode("utf-8", "replace")
        ends = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"\n… {self._dropped} bytes cut …\n".join(ends)


class OutputStream:
    """The reading end of the pipe that is the standard output or standard error of a rank.

    Args:
        descriptor: The reading end.
        echo: Called with each line as soon as it is complete, without its line feed.
    """

    def __init__(self, descriptor: int, echo: Callable[[str], None] | None = None) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.at_end = False
        self._excerpt = Excerpt()
        self._echo = echo
        self._line = b""

    def drain(self) -> None:
        """Read about one pipe's capacity: a flood of output must not starve the supervisor's other work."""
        read = 0
        while not self.at_end and read < _PIPE and (data := self._read()):
            read += len(data)
            self._excerpt.add(data)
            if self._echo is not None:
                self._echo_lines(data, self._echo)

    def _read(self) -> bytes:
        try:
            data = os.read(self.descriptor, _PIPE)
        except BlockingIOError:
            return b""
        self.at_end = not data
        return data

    def _echo_lines(self, data: bytes, echo: Callable[[str], None]) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > _PIPE:
            lines.append(self._line)
            self._line = b""
        for line in lines:
            echo(line.decode("utf-8", "replace"))

    def peek(self) -> str:
        """The output since the last call of :meth:`take`, whose next call returns it, too."""
        self.drain()
        return self._excerpt.text()

    def take(self) -> str:
        """The output since the last call, truncated as :class:`Excerpt` does."""
        self.drain()
        if self._line and self._echo is not None:
            self._echo(self._line.decode("utf-8", "replace"))
            self._line = b""
        text = self._excerpt.text()
        if text:
            self._excerpt = Excerpt()
        return text


@dataclass(frozen=True, kw_only=True)
class Output:
    """What one rank printed during one test."""

    stdout: str = ""
    stderr: str = ""


class OutputLog:
    """``rank-N.log``: the output of a rank, test by test, over all gangs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, title: str, output: Output) -> None:
        """Append output under a line that names its test."""
        streams = [("stdout", output.stdout), ("stderr", output.stderr)]
        parts = [f"--- {name} of {title} ---\n{_with_line_end(text)}" for name, text in streams if text]
        if parts:
            evidence.append(self._path, "".join(parts).encode("utf-8", "replace"), LOG_LIMIT)


def _with_line_end(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"
