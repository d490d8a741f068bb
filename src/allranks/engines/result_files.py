"""Writes the result files of a job on the host, within limits; each file is replaced atomically."""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from heapq import nlargest
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from allranks.errors import EngineError
from allranks.protocol.config import RESULTS_BYTES
from allranks.protocol.records import JOURNAL

DRAFT = ".allranks.part"


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """Yield the path of a draft, which replaces `target` on success and is removed after an error.

    Only one writer at a time may use a folder: all drafts have the same short name, since a file's own name may have
    the maximum length.
    """
    draft = target.with_name(DRAFT)
    try:
        yield draft
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


RESERVED: Final = ("job.json", JOURNAL, "rank-*.xml", ".*")
"""Patterns of the names that allranks itself writes in the folder of an attempt."""

MOST_ENTRIES: Final = 50_000
"""The limit of files and folders: a job of 64 ranks leaves about 400, and each one costs the host an inode."""

LONGEST_NAME: Final = 255
"""The longest name in bytes: the limit of Linux file systems."""

LONGEST_PATH: Final = 1024
"""The longest path in bytes: Linux allows 4,096, including the path of the results folder."""

DEEPEST: Final = 32
"""The maximum number of folders above a file."""

_Reason = Literal["bytes", "entries", "name", "reserved", "clash", "unreadable"]

_CLASHES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY})
"""The kernel's errors for a path that is a folder and should be a file, or vice versa."""


class ResultWriter:
    """Writes the files of a job into a folder, within limits, and records those that were left out.

    Args:
        folder: The folder, created if necessary.
        limit: The limit in bytes. A sparse file counts with its length, since its copy is not sparse.
    """

    def __init__(self, folder: Path, limit: int = RESULTS_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit = limit
        self._free = limit
        self._skipped = 0
        self._entries = 0
        self._left_out: dict[_Reason, list[tuple[PurePosixPath, int]]] = {}
        self._has_read_all = True

    def count_entry(self) -> None:
        """Count a file or folder, whether it is copied or not."""
        self._entries += 1

    def skip(self, size: int) -> bool:
        """Skip bytes of the archive; return whether to read on. Later files may fit, but reading is limited, too."""
        self._skipped += size
        self._has_read_all = self._entries <= MOST_ENTRIES and self._skipped <= 2 * self._limit
        return self._has_read_all

    def accepts_folder(self, path: PurePosixPath) -> bool:
        """Whether a file in this folder could be written; if not, record the folder as left out."""
        if (reason := self._check(path / "x", 0)) is not None:
            self.leave_out(reason, path, 0)
        return reason is None

    def add_file(self, path: PurePosixPath, size: int, content: Iterable[bytes | memoryview]) -> bool:
        """Write a file of this size, replacing an earlier one with its name; return False if it was left out."""
        if (reason := self._check(path, size)) is not None:
            self.leave_out(reason, path, size)
            return False
        target = self._folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with draft_of(target) as draft, draft.open("wb") as file:
                for piece in content:
                    file.write(piece)
        except OSError as error:
            if error.errno not in _CLASHES:
                raise
            self.leave_out("clash", path, size)
            return False
        self._free -= size
        return True

    def leave_out(self, reason: _Reason, path: PurePosixPath, size: int) -> None:
        """Record that a file or folder was not copied."""
        self._left_out.setdefault(reason, []).append((path, size))

    def _check(self, path: PurePosixPath, size: int) -> _Reason | None:
        names = [len(os.fsencode(part)) for part in path.parts]
        fits = 0 < len(names) <= DEEPEST + 1 and max(names) <= LONGEST_NAME and len(os.fsencode(path)) <= LONGEST_PATH
        if not fits or "\0" in str(path):
            return "name"
        if path.name == DRAFT or any(fnmatchcase(path.parts[0], pattern) for pattern in RESERVED):
            return "reserved"
        if self._entries > MOST_ENTRIES:
            return "entries"
        return "bytes" if size > self._free else None

    def check(self) -> None:
        """Raise an error if files were left out."""
        if self._left_out:
            what, *why = [self._describe(reason, left_out) for reason, left_out in self._left_out.items()]
            if not self._has_read_all:
                why.append("Later files were not read.")
            raise EngineError(what, why="\n".join(why), remedy=_REMEDIES[next(iter(self._left_out))])

    def _describe(self, reason: _Reason, left_out: Sequence[tuple[PurePosixPath, int]]) -> str:
        problems: dict[_Reason, str] = {
            "bytes": f"The job's results exceed the limit of {_readable(self._limit)}",
            "entries": f"The job left more than {MOST_ENTRIES:,} files and folders",
            "name": f"The job left files with names over {LONGEST_NAME} bytes, or paths over {LONGEST_PATH:,} bytes or "
            f"{DEEPEST} folders",
            "reserved": "The job left files with names that allranks reserves for itself",
            "clash": "The job left a file and a folder with the same name",
            "unreadable": "The job left files that cannot be read",
        }
        largest = nlargest(3, left_out, key=lambda entry: entry[1])
        names = ", ".join(f"{_shown(path)} ({_readable(size)})" for path, size in largest)
        rest = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        return f"{problems[reason]}. Left out: {names}{rest}."


_REMEDIES: dict[_Reason, str] = {
    "bytes": "Make its tests write less: files that the report does not need belong in ALLRANKS_SHARED.",
    "entries": "Make its tests write fewer files.",
    "name": "Make its tests use shorter names.",
    "reserved": "Make its tests use other names.",
    "clash": "Make its tests use other names.",
    "unreadable": "Make its tests write files that their owner may read.",
}


def _shown(path: PurePosixPath) -> str:
    text = str(path)
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")


def _readable(size: int) -> str:
    if size < 1 << 20:
        return f"{size:,} bytes"
    return f"{size / (1 << 20):,.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):,.0f} GiB"
