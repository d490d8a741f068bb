"""Keeps the results of the last failed ``pytest --ranks`` sessions in a temporary folder of the user.

Like pytest's own temporary folders, they are numbered. All users can write to the system's temporary folder, so a
folder of this name is used only if it belongs to this user and only this user can access it.
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
"""The number of sessions whose results are kept."""

_PREFIX: Final = "session-"


def root() -> Path | None:
    """The user's folder, which is created if it does not exist; None if it is not safe to use."""
    folder = Path(tempfile.gettempdir()) / f"allranks-ranks-of-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return folder if is_own else None


def new_folder() -> Path:
    """Create a folder for the results of a session; it is locked until this process ends."""
    number = 0
    while (parent := root()) is not None:
        with suppress(FileExistsError, FileNotFoundError):  # another session created the folder, or removed its parent
            number = max([number, *_sessions(parent)]) + 1
            folder = parent / f"{_PREFIX}{number}"
            folder.mkdir(mode=0o700)
            _lock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_SH)  # never closed
            return folder
    return Path(tempfile.mkdtemp(prefix="allranks-ranks-"))


def remove(folder: Path) -> None:
    """Remove the results of a session."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent == root():
        with suppress(OSError):  # it contains other sessions
            folder.parent.rmdir()


def remove_older() -> None:
    """Remove the results of all sessions except the last ones and those that are still running."""
    parent = root()
    sessions = {} if parent is None else _sessions(parent)
    for number in sorted(sessions)[:-KEPT]:
        folder = sessions[number]
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError), closing_descriptor(os.open(folder, flags)) as descriptor:
            if _lock(descriptor, fcntl.LOCK_EX):
                shutil.rmtree(folder, ignore_errors=True)


def _sessions(parent: Path) -> dict[int, Path]:
    """The folders of sessions, by number."""
    names = ((path.name.removeprefix(_PREFIX), path) for path in parent.iterdir() if path.name.startswith(_PREFIX))
    return {int(number): path for number, path in names if number.isdecimal()}


def _lock(descriptor: int, mode: int) -> bool:
    with suppress(OSError):
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        return True
    return False
