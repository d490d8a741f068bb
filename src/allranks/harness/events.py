"""Events: what happened, one JSON object a line, written before the next step is taken.

A rank writes its own file (``events-<rank>.jsonl``), the agent writes ``events-agent.jsonl``: the
*journal*. The journal also leaves the job at once, framed on the agent's standard output as a JSON
text sequence (RFC 7464: record separator, JSON, line feed), so that anything else that lands there
can be told apart.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

Event = dict[str, Any]
"""One event: ``event`` names its kind, ``at`` is seconds since the epoch."""

JOURNAL = "events-agent.jsonl"
"""The agent's own file of events."""

RECORD_SEPARATOR = b"\x1e"


def rank_events(results: Path, rank: int) -> Path:
    """A rank's own file of events."""
    return results / f"events-{rank}.jsonl"


def lane_folder(results: Path, lane: int) -> Path:
    """The folder of the files of a lane's ranks: tests that overlap cannot share a rank's file."""
    return results / f"lane-{lane}"


def folders_with_ranks(results: Path) -> list[Path]:
    """The folders that files of ranks may be in: the results folder, and one for each lane."""
    return [results, *sorted(path for path in results.glob("lane-*") if path.is_dir())]


class Journal(Protocol):
    """Takes the agent's events."""

    def write(self, event: str, **fields: object) -> None:
        """Keep one event, stamped with the time of day."""

    def say(self, event: str, **fields: object) -> None:
        """Pass on an event that is not worth keeping."""


class EventLog:
    """An append-only file of events; each line is one ``write``, so a kill never tears an earlier one.

    Args:
        path: The file to append to.
        stream: A file descriptor that gets a framed copy of each event, or None.
    """

    def __init__(self, path: Path, stream: int | None = None) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._stream = stream
        if _is_torn(self._file):
            # A writer before this one was killed in the middle of a long line: ours must not become its end.
            write_all(self._file, b"\n")

    def write(self, event: str, **fields: object) -> None:
        """Append one event, stamped with the time of day; what the file cannot take leaves by the stream all the same.

        Raises:
            OSError: The file cannot be written.
        """
        line = json.dumps({"event": event, "at": time.time(), **fields}).encode() + b"\n"
        try:
            write_all(self._file, line)
        finally:
            if self._stream is not None:
                self._copy(line, self._stream)

    def say(self, event: str, **fields: object) -> None:
        """Stream an event that is not worth keeping."""
        if self._stream is not None:
            self._copy(json.dumps({"event": event, "at": time.time(), **fields}).encode() + b"\n", self._stream)

    def _copy(self, line: bytes, stream: int) -> None:
        try:
            write_all(stream, RECORD_SEPARATOR + line)
        except OSError:
            # Nobody reads any more. The file is the truth, and end-of-file on stdin says the rest.
            self._stream = None

    def close(self) -> None:
        """Close the file; the stream belongs to the caller."""
        os.close(self._file)


def write_event(path: Path, event: str, **fields: object) -> None:
    """Append one event to a file that somebody else may write as well, or has written.

    Raises:
        OSError: The file cannot be written.
    """
    log = EventLog(path)
    try:
        log.write(event, **fields)
    finally:
        log.close()


def _is_torn(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to a blocking descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_events(path: Path) -> list[Event]:
    """The events of a file in their order; a torn or foreign line is left out, a missing file is empty."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    return list(parse_lines(lines))


def parse_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events among some lines, with or without frames."""
    for line in lines:
        try:
            event = json.loads(line.lstrip(RECORD_SEPARATOR))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def append_events(path: Path, events: Iterable[Event]) -> None:
    """Append events to a file as they are."""
    with path.open("ab+") as file:
        if _is_torn(file.fileno()):
            file.write(b"\n")
        file.writelines(json.dumps(event).encode() + b"\n" for event in events)
