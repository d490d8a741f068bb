"""The results of sessions of ``pytest --ranks`` that went wrong: the last few stay in a folder of this user's.

As pytest's own temporary folders, they are numbered. Other users can write in the system's temporary folder, too, so a
folder of this name that is not this user's alone is never used.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from allranks.user_cache import closing_descriptor

KEPT: Final = 3
"""Sessions whose results stay."""

_PREFIX: Final = "session-"


def root() -> Path | None:
    """The folder of this user, created if it does not exist; None if another user has something of that name."""
    folder = Path(tempfile.gettempdir()) / f"allranks-ranks-of-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return folder if is_own else None


def new_folder() -> Path:
    """A fresh folder for the results of a session, which keeps it as long as this process runs."""
    number = 0
    while (parent := root()) is not None:
        with suppress(FileExistsError, FileNotFoundError):  # another session was faster, or has just removed the last
            number = max([number, *_numbered(parent)]) + 1
            folder = parent / f"{_PREFIX}{number}"
            folder.mkdir(mode=0o700)
            # Until this process ends.
            _lock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_SH)
            return folder
    return Path(tempfile.mkdtemp(prefix="allranks-ranks-"))


def forget(folder: Path) -> None:
    """Remove the results of a session in which nothing went wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent == root():
        with suppress(OSError):  # it has others
            folder.parent.rmdir()


def forget_older() -> None:
    """Remove the results of all sessions but the last ones, and those of sessions that run."""
    parent = root()
    numbered = {} if parent is None else _numbered(parent)
    for number in sorted(numbered)[:-KEPT]:
        folder = numbered[number]
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError), closing_descriptor(os.open(folder, flags)) as descriptor:
            if _lock(descriptor, fcntl.LOCK_EX):
                shutil.rmtree(folder, ignore_errors=True)


def _numbered(parent: Path) -> dict[int, Path]:
    found = ((path.name.removeprefix(_PREFIX), path) for path in parent.iterdir() if path.name.startswith(_PREFIX))
    return {int(number): path for number, path in found if number.isdecimal()}


def _lock(descriptor: int, how: int) -> bool:
    with suppress(OSError):
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        return True
    return False
