"""The user's cache on this host, and locks between the processes that use it."""

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

WRITABLE = "Set XDG_CACHE_HOME to a folder that can be written."


_NAP: Final = 0.05
"""Seconds between two tries of a lock that another process holds."""


def cache_folder() -> Path:
    """The cache folder of allranks for this user (XDG Base Directory Specification), which may not exist yet."""
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

    The wait ends as :func:`allranks.interruption.check` asks.

    The kernel frees the lock when its holder ends, however it ends. The file stays: removing it would let a third
    process lock a new file of that name beside the second one.
    """
    # O_RDWR does not wait for the other end of a FIFO; O_NOFOLLOW because a link could name another user's file.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        while not _is_locked(descriptor):
            check()
            time.sleep(_NAP)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def made_cache_folder(name: str) -> Path:
    """A folder of the user's cache (XDG Base Directory Specification), created if it does not exist."""
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


LIMIT_VARIABLE: Final = "ALLRANKS_CACHE_GIB"
"""The variable with the limit of :func:`cache_limit`."""

_LIMIT_GIB: Final = 20.0
_PARTIAL: Final = "partial-"
_ABANDONED: Final = 24 * 3600.0
"""Seconds after which nobody is filling a folder whose name says that it is partial."""


def cache_limit() -> int:
    """Bytes that the environments may take, and the wheels as well: 20 GiB, or what the user has set."""
    given = os.environ.get(LIMIT_VARIABLE) or str(_LIMIT_GIB)
    try:
        gib = float(given)
    except ValueError:
        gib = math.nan
    if not 0 <= gib < math.inf:
        msg = f"{LIMIT_VARIABLE} is {given!r}, which is not a number of GiB."
        raise EnvironmentBuildError(msg, remedy=f"Set it to a number such as {_LIMIT_GIB:g}, or unset it.")
    return int(gib * (1 << 30))


def mark_used(entry: Path) -> None:
    """Keep an entry of the cache as long as this process runs, and count it as just used.

    Call this before checking whether the entry exists, and again after making it.
    """
    _held(entry)
    with suppress(OSError):  # it does not exist yet, or this user cannot write the cache, and so removes nothing
        os.utime(entry)


@cache
def _held(entry: Path) -> int:
    """A descriptor with a shared lock, which the kernel releases when this process ends; -1 for none."""
    with suppress(OSError):
        descriptor = _open_lock(entry)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor
    return -1


@contextmanager
def closing_descriptor(descriptor: int) -> Iterator[int]:
    """Close a descriptor at the end of a block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_lock(entry: Path) -> int:
    path = entry.with_name(f"{entry.name}.used")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def free_space(folder: Path, limit: int, progress: Callable[[str], None]) -> None:
    """Remove the least recently used entries of a folder in the cache above a limit, except for those in use.

    Args:
        folder: Its subfolders are the entries.
        limit: Bytes; see :func:`cache_limit`. The entry that was used last stays, however large it is.
        progress: Receives a line for each entry that is removed.
    """
    for entry in to_remove(folder, limit):
        _forget(entry, lambda entry: progress(f"removing {entry}, the least recently used"))


def _forget(entry: Path, tell: Callable[[Path], object]) -> None:
    with suppress(OSError), closing_descriptor(_open_lock(entry)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if a run uses it
        tell(entry)
        shutil.rmtree(entry, ignore_errors=True)


KEPT_DAYS: Final = 30
"""Days that an unused entry stays in the cache."""


def forget_unused(folder: Path) -> list[Path]:
    """Remove the subfolders of a folder in the cache that no run has used for long, by their mtime; return them."""
    removed: list[Path] = []
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = entry.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_mtime < oldest:
            _forget(entry, removed.append)
    return removed


def prune_cache() -> list[Path]:
    """Remove all that runs keep in the cache and have not used for long; return what was removed.

    Raises:
        EnvironmentBuildError: This user has no home folder.
    """
    kinds = ("environments", "wheels", "projects", "bytecode")
    return [entry for kind in kinds for entry in forget_unused(cache_folder() / kind)]


def to_remove(folder: Path, limit: int) -> list[Path]:
    """The entries that :func:`free_space` removes, if no run uses them."""
    found = [(entry.lstat().st_mtime, entry) for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    now = time.time()
    entries = [
        entry
        for used, entry in sorted(found, reverse=True)
        if not entry.name.startswith(_PARTIAL) or now - used > _ABANDONED
    ]
    return _beyond([(entry, _size(entry)) for entry in entries], limit)


def _beyond(entries: Sequence[tuple[Path, int]], limit: int) -> list[Path]:
    """The entries that do not fit, given those used last first: one that does not fit takes no room of the others."""
    removed: list[Path] = []
    total = 0
    for number, (entry, size) in enumerate(entries):
        if number and total + size > limit:
            removed.append(entry)
        else:
            total += size
    return removed


def _size(folder: Path) -> int:
    """Bytes on the disk of all files below a folder, which may be changing; links are not followed."""
    total = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118 - 30,000 files
    return total


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that no other process ever reads a partial one."""
    private = file.with_suffix(f".{os.getpid()}")
    private.write_text(text, encoding="utf-8")
    private.replace(file)


@contextmanager
def locked(key: str) -> Iterator[None]:
    """Hold the host-wide lock of one key, so that two runs never build the same thing twice."""
    with hold(made_cache_folder("locks") / f"{key}.lock"):
        yield
