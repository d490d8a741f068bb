"""The user's cache folder, with locks between the processes that use it."""

import errno
import fcntl
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from allranks.errors import EnvironmentBuildError, ImageError
from allranks.interruption import check

WRITABLE = "Set XDG_CACHE_HOME to a writable folder."


_LOCK_POLL: Final = 0.05
"""Seconds between two attempts to get a lock."""


def cache_folder() -> Path:
    """The cache folder of allranks for this user (XDG Base Directory Specification), which may not exist yet."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:
        msg = "The cache folder could not be determined."
        why = "Neither HOME nor XDG_CACHE_HOME is set, and this user has no entry in /etc/passwd."
        raise EnvironmentBuildError(msg, why=why, remedy=WRITABLE) from error
    return Path(base) / "allranks"


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Wait for an exclusive lock (flock(2)) on a file in an existing folder.

    The wait calls :func:`allranks.interruption.check`. The kernel releases the lock when the process ends. The file is
    not removed: otherwise, one process could lock the old file, and another one a new file with the same name.
    """
    # O_RDWR does not block on a FIFO, and O_NOFOLLOW does not open another user's file through a link.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        while not _is_locked(descriptor):
            check()
            time.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def made_cache_folder(name: str) -> Path:
    """A subfolder of the user's cache, which is created if it does not exist."""
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "It is not writable", str(folder))
    except OSError as error:
        what = f"The cache folder {folder} cannot be used."
        raise ImageError(what, why=f"{error.strerror or error}.", remedy=WRITABLE) from error
    return folder


LIMIT_VARIABLE: Final = "ALLRANKS_CACHE_GIB"
"""The environment variable for :func:`cache_limit`."""

_LIMIT_GIB: Final = 20.0
_PARTIAL: Final = "partial-"
_ABANDONED: Final = 24 * 3600.0
"""Seconds after which no process writes to a partial folder anymore."""


def cache_limit() -> int:
    """The size limit in bytes of the environments, and of the wheels: 20 GiB each unless the user sets it."""
    setting = os.environ.get(LIMIT_VARIABLE) or str(_LIMIT_GIB)
    try:
        gib = float(setting)
    except ValueError:
        gib = math.nan
    if not 0 <= gib < math.inf:
        msg = f"{LIMIT_VARIABLE} is {setting!r}, which is not a number of GiB."
        raise EnvironmentBuildError(msg, remedy=f"Set it to a number such as {_LIMIT_GIB:g}, or unset it.")
    return int(gib * (1 << 30))


def mark_used(entry: Path) -> None:
    """Protect an entry of the cache from removal while this process runs, and update the time of its last use.

    Call this before checking whether the entry exists, and again after creating it.
    """
    _held(entry)
    with suppress(OSError):  # it does not exist yet, or the cache is read-only
        os.utime(entry)


@cache
def _held(entry: Path) -> int:
    """Lock an entry (shared) until this process ends; return the lock's descriptor, or -1 if that is impossible."""
    with suppress(OSError):
        descriptor = _open_lock(entry)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor
    return -1


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of the context."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_lock(entry: Path) -> int:
    path = entry.with_name(f"{entry.name}.used")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def free_space(folder: Path, limit: int, progress: Callable[[str], None]) -> None:
    """Remove the least recently used entries of a cache folder above a size limit, except those in use.

    Args:
        folder: The folder, whose subfolders are the entries.
        limit: The limit in bytes; see :func:`cache_limit`. The most recently used entry is always kept.
        progress: Receives a line for each removed entry.
    """
    for entry in to_remove(folder, limit):
        _remove(entry, lambda entry: progress(f"removing {entry}: the cache is full"))


def _remove(entry: Path, report: Callable[[Path], object]) -> None:
    with suppress(OSError), closing_descriptor(_open_lock(entry)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if a run uses it
        report(entry)
        shutil.rmtree(entry, ignore_errors=True)


KEPT_DAYS: Final = 30
"""Days that an unused entry is kept in the cache."""


def remove_unused(folder: Path) -> list[Path]:
    """Remove the entries of a cache folder that were not used in the last :data:`KEPT_DAYS`, and return them."""
    removed: list[Path] = []
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = entry.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_mtime < oldest:
            _remove(entry, removed.append)
    return removed


def prune_cache() -> list[Path]:
    """Remove all unused entries of the cache, and return them.

    Raises:
        EnvironmentBuildError: This user has no home folder.
    """
    kinds = ("environments", "wheels", "projects", "bytecode")
    return [entry for kind in kinds for entry in remove_unused(cache_folder() / kind)]


def to_remove(folder: Path, limit: int) -> list[Path]:
    """The entries that :func:`free_space` removes if no run uses them."""
    found = [(entry.lstat().st_mtime, entry) for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    now = time.time()
    entries = [
        entry
        for used, entry in sorted(found, reverse=True)
        if not entry.name.startswith(_PARTIAL) or now - used > _ABANDONED
    ]
    return _beyond([(entry, _size(entry)) for entry in entries], limit)


def _beyond(entries: Sequence[tuple[Path, int]], limit: int) -> list[Path]:
    """The entries to remove so that the others fit into a limit.

    `entries` are sorted by their last use, the latest first. Smaller ones after a removed one may still fit.
    """
    removed: list[Path] = []
    total = 0
    for index, (entry, size) in enumerate(entries):
        if index and total + size > limit:
            removed.append(entry)
        else:
            total += size
    return removed


def _size(folder: Path) -> int:
    """The disk usage in bytes of a folder, which may be changing; links are not followed."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118 - 30,000 files
    return total


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that other processes never read a partial one; if that fails, an existing file stays."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def locked(key: str) -> Iterator[None]:
    """Lock a key on this host, so that no two runs build the same thing at once."""
    with hold(made_cache_folder("locks") / f"{key}.lock"):
        yield
