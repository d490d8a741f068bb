"""The user's cache on this host, and locks between the processes that use it."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks.errors import EnvironmentBuildError, ImageError

WRITABLE = "Set XDG_CACHE_HOME to a folder that can be written."


def cache_folder() -> Path:
    """The cache folder of allranks for this user (XDG Base Directory Specification), which may not exist yet.

    Raises:
        EnvironmentBuildError: This user has no home folder.
    """
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        msg = "There is no folder for the cache."
        why = "Neither HOME nor XDG_CACHE_HOME is set, and this user has no entry in /etc/passwd."
        raise EnvironmentBuildError(msg, why=why, remedy=WRITABLE) from error
    return Path(base) / "allranks"


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the exclusive lock (flock(2)) of a file in an existing folder; wait while another process holds it.

    The kernel frees the lock when its holder ends, however it ends. The file stays: removing it would let a third
    process lock a new file of that name beside the second one.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    # O_RDWR does not wait for the other end of a FIFO; O_NOFOLLOW because a link could name another user's file.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def made_cache_folder(name: str) -> Path:
    """A folder of the user's cache (XDG Base Directory Specification), created if it does not exist.

    Args:
        name: Its content, such as ``wheels``.

    Raises:
        ImageError: The folder cannot be created or written.
    """
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "It is not writable", str(folder))
    except OSError as error:
        what = f"The cache folder {folder} cannot be made."
        raise ImageError(
            what,
            why=f"{error.strerror or error}.",
            remedy=WRITABLE,
        ) from error
    return folder


def keep(file: Path, text: str) -> None:
    """Write a file so that no other process ever reads a partial one."""
    private = file.with_suffix(f".{os.getpid()}")
    private.write_text(text, encoding="utf-8")
    private.replace(file)


@contextmanager
def locked(key: str) -> Iterator[None]:
    """Hold the host-wide lock of one key, so that two runs never build the same thing twice."""
    with hold(made_cache_folder("locks") / f"{key}.lock"):
        yield
