"""The journal of an adopted job: it goes on where the first orchestrator was killed."""

import os
from collections import Counter
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from allranks.protocol.records import Record, encode
from allranks.report.journal import JournalWriter


class AdoptedJournal(JournalWriter):
    """Appends the records that it lacks: an adopted job's come again from the first, those of several nodes mixed anew.

    A last line that was cut short goes: its record comes again. The first record is the orchestrator's own.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._known: Counter[bytes] = Counter()
        with suppress(FileNotFoundError), path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    os.ftruncate(file.fileno(), self.size)
                    break
                if self.size:
                    self._known[_digest(line)] += 1
                self.size += len(line)

    def write(self, record: Record) -> None:
        """See :meth:`JournalWriter.write <allranks.report.journal.JournalWriter.write>`."""
        digest = _digest(encode(record) + b"\n")
        if self._known[digest] > 0:
            self._known[digest] -= 1
        else:
            super().write(record)

    @property
    def is_lacking(self) -> bool:
        """Whether records that were in the journal have not come again."""
        return self._known.total() > 0


def _digest(line: bytes) -> bytes:
    return sha256(line).digest()
