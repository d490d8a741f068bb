"""A job's folder on a node's own disk, locked while the job runs.

A killed supervisor cannot remove its folder, so the next job of this user on the node does.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PREFIX: Final = "allranks-node-"

_LOCK: Final = ".lock"
"""The locked file; it contains the name of the job's folder."""


@contextmanager
def scratch_folder(job: Path) -> Iterator[tuple[Path, int]]:
    """A new folder for a job, removed at the end, and a locked descriptor for processes of the job to inherit."""
    _remove_dead(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock = os.open(folder / f"{_LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(lock, os.fsencode(job))
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{_LOCK}.new").replace(folder / _LOCK)  # so that it never exists without its lock
        yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_dead(temporary: Path) -> None:
    """Remove this user's folders whose lock nobody holds; a folder without a lock may have just been made."""
    for path in temporary.glob(f"{PREFIX}*/{_LOCK}"):
        with suppress(OSError):
            if path.parent.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)
