"""What is heard of a job while it runs, written down at once: its own files may go with its container, or with the run.

When they come home they take the place of this. Where they never do, it is what a report can be made of.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from allranks.engine.ownership import is_dead
from allranks.harness.events import JOURNAL, Event, write_all
from allranks.harness.rank_xml import ranks_heard_of, write_rank_xml


class Heard:
    """A journal of a job as it is heard; a disk that cannot take it is told of when the job's own files come.

    Args:
        path: Where it goes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, event: Event) -> None:
        """Keep an event."""
        if self._file is None:
            return
        try:
            write_all(self._file, json.dumps(event).encode() + b"\n")
        except OSError:
            self.close()
            # A part would pass for the whole; the events are still in memory, and written when the job is put away.
            with suppress(OSError):
                self._path.unlink()

    def close(self) -> None:
        """Keep no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def write_missing_xml(attempt: Path, *, cell: str, suite: str, world_size: int) -> None:
    """Write the JUnit XML of each rank that is known of and has none, in the folder of an attempt.

    Raises:
        OSError: The folder cannot be written.
    """
    for rank in ranks_heard_of(attempt):
        if not (attempt / f"rank-{rank}.xml").exists():
            write_rank_xml(attempt, rank, cell=cell, suite=suite, world_size=world_size)


def complete_dead_runs(folder: Path) -> None:
    """Make readable what runs that were killed had heard of the jobs that they were at.

    Args:
        folder: A run's, or one that runs have been gathered in. What cannot be written stays as it is.
    """
    for attempt in _unended(folder):
        suite, cell = attempt.parent, attempt.parent.parent
        if is_dead(cell.parent.parent.name):
            # What makes no sense, and a folder that cannot be written, stay: that job.json is missing is told.
            with suppress(OSError, LookupError, TypeError, ValueError, AttributeError):
                write_missing_xml(attempt, cell=cell.name, suite=suite.name, world_size=_world_size(attempt))


def _world_size(attempt: Path) -> int:
    """How many ranks an attempt was to have, of which not all may have been heard."""
    cell = attempt.parent.parent
    manifest = json.loads((cell.parent.parent / "run.json").read_text(encoding="utf-8"))
    return int(manifest["cells"][cell.name]["world_size"])


def _unended(folder: Path) -> Iterator[Path]:
    """The attempts that have a journal and no record."""
    for journal in sorted(folder.resolve().rglob(f"cells/*/*/attempt-*/{JOURNAL}")):
        if not (journal.parent / "job.json").exists():
            yield journal.parent
