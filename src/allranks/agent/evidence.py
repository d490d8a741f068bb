"""Files that tests can write, as the supervisor reads them, and the room left for them.

Nothing here raises or blocks: a file that cannot be written or read is missing evidence, not an outcome.

A rank checks the room after each of its tests. The kernel counts the bytes that it and its ended children have written
(``wchar`` of proc(5)); files that grow without write calls (fallocate(2), mmap(2)) are not counted.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from allranks.protocol.config import RESULTS_BYTES

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

MOST_READ: Final = 4 << 20
"""Bytes that are read of a file, from its end."""


def size_of(path: Path) -> int:
    """Bytes of a regular file; 0 if there is none."""
    with suppress(OSError, ValueError):
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def open_end(path: Path) -> int:
    """A descriptor that appends to a regular file, created if missing; one of /dev/null if that fails."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FLAGS, 0o644)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def append(path: Path, data: bytes, limit: int) -> None:
    """Append to a regular file, created if missing, up to `limit` bytes; a last line marks the cut."""
    with suppress(OSError), os.fdopen(open_end(path), "ab") as file:
        room = limit - os.fstat(file.fileno()).st_size
        if room > 0:
            file.write(data if len(data) <= room else data[:room] + b"\n--- this file has reached its limit ---\n")


def open_start(path: Path) -> BinaryIO | None:
    """A regular file, to be read from its start; None if there is none, or it cannot be opened."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    return None


def read(path: Path, start: int = 0) -> str:
    """The text of a regular file from a byte on, at most the last :data:`MOST_READ` bytes; empty if there is none."""
    if (file := open_start(path)) is not None:
        with suppress(OSError, ValueError), file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - MOST_READ))
            return file.read(MOST_READ).decode("utf-8", "replace")
    return ""


def read_end(path: Path, size: int) -> str:
    """The last bytes of a file, at most so many."""
    return read(path, max(0, size_of(path) - size))


FULL: Final = 1 << 20
"""Bytes: a file system with less free space than this counts as full."""

_SHARE: Final = 16
"""A rank that wrote at least one part in this many of a file system helped to fill it."""

_OWN: Final = 8 * RESULTS_BYTES
"""Bytes: a job's own file system is no larger; anything on the host may fill a larger one."""


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """Disk space that has been used up."""

    message: str  # which space, by which rank if known, and the remedy
    is_own: bool  # whether the bytes that this rank has written show that it did so


class DiskUse:
    """Compares the free space after each test with that before it."""

    def __init__(self, results: Path, *others: Path) -> None:
        self._results = results
        self._folders = (results, *others)
        self._written = _written()
        self.begin()

    def begin(self) -> None:
        """A test begins, on all ranks."""
        self._had = self._free()

    def overrun(self) -> Overrun | None:
        """The space that the ending test has used up; None if there is nothing to report."""
        before, self._written = self._written, _written()
        written = self._written - before
        for folder, had in zip(self._folders, self._had, strict=True):
            size, has = _space_of(folder)
            was_filled = size > 0 and has < FULL <= had
            is_own = written * _SHARE >= size
            if was_filled and (is_own or size <= _OWN):
                return _of_file_system(folder, size, written, is_own=is_own)
        return self._of_results(written)

    def _of_results(self, written: int) -> Overrun | None:
        """The results of the job, if there are too many, and this rank has written many of them."""
        if written * _SHARE < RESULTS_BYTES:
            return None
        left = sum(_sizes(self._results))
        if left <= RESULTS_BYTES:
            return None
        message = (
            f"{self._results} holds {_mib(left)} of files, and no more than {_mib(RESULTS_BYTES)} of a job's "
            f"results are taken: this rank wrote {_mib(written)} during this test. {_REMEDY}"
        )
        return Overrun(message=message, is_own=True)

    def _free(self) -> list[int]:
        return [_space_of(folder)[1] for folder in self._folders]


_REMEDY: Final = "Have it write less; what ALLRANKS_SHARED has room for is limits.disk_mib of the matrix file."


def _of_file_system(folder: Path, size: int, written: int, *, is_own: bool) -> Overrun:
    whose = f"this rank wrote {_mib(written)}" if is_own else "which rank did it cannot be told: none by plain writing"
    message = f"{folder}, which has room for {_mib(size)}, was filled during this test: {whose}. {_REMEDY}"
    return Overrun(message=message, is_own=is_own)


def remove_tree(folder: Path) -> None:
    """Remove a folder, as far as possible, with folders in it that tests have closed to everyone."""
    with suppress(RecursionError):  # a thousand nested folders; Python 3.13 has no such limit
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for remedy in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with suppress(OSError):
                subprocess.run([*remedy, "--", folder], stderr=subprocess.DEVNULL, check=False)


def is_full(folder: Path) -> bool:
    """Whether the file system of a folder has no room left."""
    size, free = _space_of(folder)
    return size > 0 and free < FULL


def _space_of(folder: Path) -> tuple[int, int]:
    """Total and free bytes of a folder's file system; zeros if it cannot be queried."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    free = found.f_bavail if found.f_favail or not found.f_files else 0  # without a free inode no file can be created
    return found.f_blocks * found.f_frsize, free * found.f_frsize


def _written() -> int:
    try:
        descriptor = os.open("/proc/self/io", os.O_RDONLY)
        try:
            counts = os.read(descriptor, 512)
        finally:
            os.close(descriptor)
    except OSError:
        return 0
    return int(counts.partition(b"wchar: ")[2].partition(b"\n")[0] or 0)


def _sizes(folder: Path) -> Iterator[int]:
    """The sizes of the regular files below a folder; links are not followed."""
    for above, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(above, name))  # noqa: PTH118 - thousands of them
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield found.st_size


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
