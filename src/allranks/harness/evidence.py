"""Files in the results folder as whoever supervises may touch them: tests can put anything in their places.

Nothing here raises or blocks: what cannot be written or read is evidence that is lacking, and no outcome.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

MOST_READ: Final = 4 << 20
"""Bytes that are read of a file at once: the end of what there is."""


def size_of(path: Path) -> int:
    """Bytes of a regular file; 0 where there is none."""
    with suppress(OSError, ValueError):
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def open_end(path: Path) -> int:
    """A descriptor that appends to a regular file, made if need be; one of /dev/null where that cannot be had."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FLAGS, 0o644)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def append(path: Path, data: bytes, limit: int) -> None:
    """Add to a regular file, made if need be, that may grow to `limit` bytes; a last line says where it has."""
    with suppress(OSError), os.fdopen(open_end(path), "ab") as file:
        room = limit - os.fstat(file.fileno()).st_size
        if room > 0:
            file.write(data if len(data) <= room else data[:room] + b"\n--- this file has reached its limit ---\n")


def read(path: Path, start: int = 0) -> str:
    """The text of a regular file from a byte on, of much its end; empty where there is none."""
    with suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                file.seek(max(start, found.st_size - MOST_READ))
                return file.read(MOST_READ).decode("utf-8", "replace")
    return ""
