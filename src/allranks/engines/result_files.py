"""Copies a job's results to the host, within limits; each file is replaced atomically."""

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
    """A path to write a file to, which replaces `target` at the end, and is removed after an error.

    Only one writer at a time may use a folder. The draft's name is short, since the file's may be of maximal length.
    """
    draft = target.with_name(DRAFT)
    try:
        yield draft
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


RESERVED: Final = ("job.json", JOURNAL, "rank-*.xml", ".*")
"""Patterns of the names that the host itself writes in an attempt's folder."""

MOST_ENTRIES: Final = 50_000
"""Files and folders: a job of 64 ranks leaves about 400, and each further one costs the host an inode."""

LONGEST_NAME: Final = 255
"""Bytes of one name: the limit of Linux file systems."""

LONGEST_PATH: Final = 1024
"""Bytes: the results folder's own path, which comes before it, shares the 4,096 of Linux."""

DEEPEST: Final = 32
"""Folders above a file."""

_Reason = Literal["bytes", "entries", "name", "reserved", "clash", "unreadable"]

_CLASHES = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY})
"""The kernel's errors for a file in the place of a folder, or the other way round."""


class ResultWriter:
    """Puts a job's files into a folder, as far as they fit, and records those that do not.

    Args:
        folder: Where they go; made if need be.
        most: How many bytes they may have. A sparse file counts by its length, which its copy takes.
    """

    def __init__(self, folder: Path, most: int = RESULTS_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._most = most
        self._room = most
        self._passed_over = 0
        self._entries = 0
        self._left_out: dict[_Reason, list[tuple[PurePosixPath, int]]] = {}
        self._has_read_all = True

    def count_entry(self) -> None:
        """Count one more file or folder, copied or not."""
        self._entries += 1

    def may_pass_over(self, size: int) -> bool:
        """Whether to read on behind this many uncopied bytes: later files may fit, but reading has its limit, too."""
        self._passed_over += size
        self._has_read_all = self._entries <= MOST_ENTRIES and self._passed_over <= 2 * self._most
        return self._has_read_all

    def takes_folder(self, path: PurePosixPath) -> bool:
        """Whether files in a folder could be taken; if not, the folder is recorded as left out."""
        if (reason := self._refusal(path / "x", 0)) is not None:
            self.leave_out(reason, path, 0)
        return reason is None

    def add_file(self, path: PurePosixPath, size: int, content: Iterable[bytes | memoryview]) -> bool:
        """Write a file of this size, replacing an earlier one of its name; False if it was left out."""
        if (reason := self._refusal(path, size)) is not None:
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
        self._room -= size
        return True

    def leave_out(self, reason: _Reason, path: PurePosixPath, size: int) -> None:
        """Record that something was not copied."""
        self._left_out.setdefault(reason, []).append((path, size))

    def _refusal(self, path: PurePosixPath, size: int) -> _Reason | None:
        names = [len(os.fsencode(part)) for part in path.parts]
        fits = 0 < len(names) <= DEEPEST + 1 and max(names) <= LONGEST_NAME and len(os.fsencode(path)) <= LONGEST_PATH
        if not fits or "\0" in str(path):
            return "name"
        if path.name == DRAFT or any(fnmatchcase(path.parts[0], pattern) for pattern in RESERVED):
            return "reserved"
        if self._entries > MOST_ENTRIES:
            return "entries"
        return "bytes" if size > self._room else None

    def check(self) -> None:
        """Check that nothing was left out."""
        if self._left_out:
            what, *why = [self._told(reason, each) for reason, each in self._left_out.items()]
            if not self._has_read_all:
                why.append("What came after it was not read.")
            raise EngineError(what, why="\n".join(why), remedy=_REMEDIES[next(iter(self._left_out))])

    def _told(self, reason: _Reason, left_out: Sequence[tuple[PurePosixPath, int]]) -> str:
        words: dict[_Reason, str] = {
            "bytes": f"The job's results exceed the limit of {_readable(self._most)}",
            "entries": f"The job left more than {MOST_ENTRIES:,} files and folders",
            "name": f"The job left names over {LONGEST_NAME} bytes, paths over {LONGEST_PATH} or deeper than {DEEPEST}",
            "reserved": "The job left files under names that allranks itself writes",
            "clash": "The job left a file and a folder of one name",
            "unreadable": "The job left what cannot be read",
        }
        largest = nlargest(3, left_out, key=lambda each: each[1])
        names = ", ".join(f"{_shown(path)} ({_readable(size)})" for path, size in largest)
        rest = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        return f"{words[reason]}: {names}{rest} left out."


_REMEDIES: dict[_Reason, str] = {
    "bytes": "Have its tests leave less: files that the report should not have belong into ALLRANKS_SHARED.",
    "entries": "Have its tests leave fewer files.",
    "name": "Have its tests leave shorter names.",
    "reserved": "Have its tests use other names.",
    "clash": "Have its tests use other names.",
    "unreadable": "Have its tests leave files that their owner may read.",
}


def _shown(path: PurePosixPath) -> str:
    text = str(path)
    return ascii(text if len(text) <= 80 else f"{text[:77]}...")


def _readable(size: int) -> str:
    if size < 1 << 20:
        return f"{size:,} bytes"
    return f"{size / (1 << 20):,.0f} MiB" if size < 10 << 30 else f"{size / (1 << 30):,.0f} GiB"
