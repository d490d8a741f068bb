"""Reads folders and files of unknown origin: nothing is opened that could block, and no depth is too deep."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

_KINDS: Final = MappingProxyType(
    {
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFDIR: "a folder",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
)


def special(path: Path) -> str:
    """What a path is if not a regular file, such as ``a FIFO``; empty for a regular file, or if nothing is there."""
    try:
        return _KINDS.get(stat.S_IFMT(path.lstat().st_mode), "")
    except OSError:
        return ""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Raises:
        OSError: It cannot be opened, or is something else. To open a FIFO would wait for its writer, and to open a
            device may move it.
    """
    _refuse_special(path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _refuse_special(os.fstat(descriptor))  # it may have been replaced
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_special(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")


def head(path: Path, size: int) -> bytes:
    """The first bytes of a regular file; none where it cannot be read, or is something else."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except OSError:
        return b""


def digest(path: Path) -> str:
    """A digest of a regular file; empty where it cannot be read, or is something else."""
    try:
        with open_regular(path) as file:
            hasher = hashlib.sha256()
            while piece := file.read(1 << 20):
                hasher.update(piece)
            return hasher.hexdigest()
    except OSError:
        return ""


def leads_out(root: Path, path: Path) -> bool:
    """True if a path, its links resolved, is outside ``root``; unlike ``Path.resolve``, a loop of links is no error."""
    return not Path(os.path.realpath(path)).is_relative_to(root)


def listing(folder: Path) -> list[Path]:
    """What is in a folder, by name.

    Raises:
        OSError: It cannot be read. ``Path.glob`` would find nothing in it, without a word.
    """
    return sorted(folder.iterdir())


def walk(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder below ``root`` with the names of its folders and of all else in it; no link is followed.

    Like ``os.walk`` from the top down, which up to Python 3.11 recurses, and fails a thousand folders deep. The caller
    may remove folders from the list that it does not want.

    Raises:
        OSError: A folder cannot be read: what is in it might be missed by nobody.
    """
    left = [root]
    while left:
        path = left.pop()
        with os.scandir(path) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        folders = [name for name, is_folder in found if is_folder]
        yield path, folders, [name for name, is_folder in found if not is_folder]
        left.extend(path / name for name in reversed(folders))


def fresh(path: Path) -> Path:
    """The same path, with nothing there: a FIFO would block its writer, and a link lead the writer elsewhere.

    Raises:
        OSError: What is there cannot be removed.
    """
    path.unlink(missing_ok=True)
    return path
