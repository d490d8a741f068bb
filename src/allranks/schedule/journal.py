"""The journal of an attempt at a job: its records on the host's disk, each written as it comes.

It is what verdicts are made of. Files that the job itself leaves are evidence beside it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from allranks.engine.ownership import is_dead
from allranks.records import JOURNAL, Record, encode
from allranks.report.rank_document import write_rank_files
from allranks.report.untrusted import leads_out, special

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """A file that records are appended to.

    Args:
        path: The file, made with the first record.

    Attributes:
        size: Bytes that have been written.
    """

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._file: int | None = None

    def write(self, record: Record) -> None:
        """Append a record.

        Raises:
            OSError: The file cannot be written; its last line may be cut short.
        """
        if self._file is None:
            self._file = os.open(self._path, _FLAGS, 0o644)
        line = memoryview(encode(record) + b"\n")
        self.size += len(line)
        while line:
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def complete_dead_runs(folder: Path) -> None:
    """Write the rank XML of jobs that were running when their runs were killed.

    Args:
        folder: A run's, or one that runs have been gathered in. What cannot be written stays as it is.
    """
    for attempt in _unended(folder):
        if is_dead(attempt.parents[3].name) and not list(attempt.glob("rank-*.xml")):
            with suppress(OSError):
                write_rank_files(attempt, attempt / JOURNAL)


def _unended(folder: Path) -> Iterator[Path]:
    """The attempts that have a journal and no record."""
    root = Path(os.path.realpath(folder))
    for journal in sorted(root.rglob(f"cells/*/*/attempt-*/{JOURNAL}")):
        # Whoever gathered it may have put a link there, and files would be written wherever that leads.
        if not leads_out(root, journal) and not special(journal) and not (journal.parent / "job.json").exists():
            yield journal.parent
