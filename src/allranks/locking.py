"""A lock between processes, held for the length of a block. The standard library alone: noxfiles import this."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the exclusive lock (flock(2)) of a file in an existing folder; wait while another process holds it.

    The kernel frees the lock when its holder ends, however it ends. The file stays: removing it would let a third
    process lock a new file of that name beside the second one.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    # O_RDWR does not wait for the other end of a FIFO, and a link would name a file of somebody else.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
