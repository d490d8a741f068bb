"""Reads and writes files that tests can tamper with, and checks the disk space for them.

Nothing here raises or blocks: a file that cannot be written or read is missing evidence, not an outcome.

A rank checks the disk space after each test. The kernel counts the bytes that a rank and its ended children have
written (``wchar`` of proc(5)); files that grow without write calls (fallocate(2), mmap(2)) are not counted.
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
"""Maximum number of bytes that are read from the end of a file."""


def size_of(path: Path) -> int:
    """The size of a regular file in bytes; 0 if there is none."""
    with suppress(OSError, ValueError):
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def open_end(path: Path) -> int:
    """Open a regular file for appending, and create it if it is missing; /dev/null if that fails."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FLAGS, 0o644)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def append(path: Path, data: bytes, limit: int) -> None:
    """Append to a regular file of at most `limit` bytes; a last line marks the cut."""
    with suppress(OSError), os.fdopen(open_end(path), "ab") as file:
        left = limit - os.fstat(file.fileno()).st_size
        if left > 0:
            file.write(data if len(data) <= left else data[:left] + b"\n--- this file has reached its limit ---\n")


def open_start(path: Path) -> BinaryIO | None:
    """Open a regular file for reading; None if that fails."""
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
    """The last `size` bytes of a file."""
    return read(path, max(0, size_of(path) - size))


FULL: Final = 1 << 20
"""A file system with fewer free bytes than this counts as full."""

_FRACTION: Final = 16
"""A rank that wrote at least 1/16 of a file system contributed to filling it."""

_LARGEST_OWN: Final = 8 * RESULTS_BYTES
"""Bytes: a job's own file system is not larger than this. A larger one is shared with the rest of the host."""


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """Disk space that has been used up."""

    message: str  # which file system, by which rank if known, and the remedy
    is_own: bool  # this rank wrote enough to be responsible


class DiskUse:
    """Compares the free disk space after each test with the space before it."""

    def __init__(self, results: Path, *others: Path) -> None:
        self._results = results
        self._folders = (results, *others)
        self._written = _written()
        self.begin()

    def begin(self) -> None:
        """Note the free space at the start of a test."""
        self._free_before = [_space_of(folder)[1] for folder in self._folders]

    def overrun(self) -> Overrun | None:
        """The disk space that the test has used up; None if there is enough left."""
        before, self._written = self._written, _written()
        written = self._written - before
        for folder, free_before in zip(self._folders, self._free_before, strict=True):
            size, free = _space_of(folder)
            was_filled = size > 0 and free < FULL <= free_before
            is_own = written * _FRACTION >= size
            if was_filled and (is_own or size <= _LARGEST_OWN):
                return _file_system_overrun(folder, size, written, is_own=is_own)
        return self._results_overrun(written)

    def _results_overrun(self, written: int) -> Overrun | None:
        if written * _FRACTION < RESULTS_BYTES:
            return None
        size = sum(_sizes(self._results))
        if size <= RESULTS_BYTES:
            return None
        message = (
            f"{self._results} has {_mib(size)} of files, but a job may return only {_mib(RESULTS_BYTES)}: "
            f"this rank wrote {_mib(written)} during this test. {_REMEDY}"
        )
        return Overrun(message=message, is_own=True)


_REMEDY: Final = (
    "Make the test write less, or write to ALLRANKS_SHARED, whose size is limits.disk_mib in the matrix file."
)


def _file_system_overrun(folder: Path, size: int, written: int, *, is_own: bool) -> Overrun:
    culprit = f"this rank wrote {_mib(written)}"
    if not is_own:
        culprit = f"the rank responsible could not be determined ({culprit})"
    message = f"{folder} ({_mib(size)}) was filled during this test: {culprit}. {_REMEDY}"
    return Overrun(message=message, is_own=is_own)


def remove_tree(folder: Path) -> None:
    """Remove a folder as far as possible, including folders whose permissions a test has removed."""
    with suppress(RecursionError):  # a thousand nested folders; Python 3.13 has no such limit
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for remedy in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with suppress(OSError):
                subprocess.run([*remedy, "--", folder], stderr=subprocess.DEVNULL, check=False)


def is_full(folder: Path) -> bool:
    """Whether the file system of a folder is full."""
    size, free = _space_of(folder)
    return size > 0 and free < FULL


def _space_of(folder: Path) -> tuple[int, int]:
    """Total and free bytes of a folder's file system; zeros if unknown."""
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
    """The sizes of the regular files below a folder, without following links."""
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
