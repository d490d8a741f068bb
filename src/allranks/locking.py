"""A lock between processes, held for the length of a block. The standard library alone: noxfiles import this."""

import fcntl
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
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
