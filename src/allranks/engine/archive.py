"""Tar archives: what goes into a job, and what comes out of it."""

import io
import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from allranks.engine.drafts import draft_of
from allranks.engine.spec import FileCopy

PAGE = 4096
"""Bytes that a file system in memory gives out at a time."""

_SKIPPED_NAMES = frozenset({"__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A finished archive.

    Attributes:
        data: It.
        pages: How many pages its files take where they are unpacked, those of folders included.
    """

    data: bytes
    pages: int


class ArchiveBuilder:
    """A tar archive in memory whose entries all belong to one user.

    Args:
        owner: Numeric user and group of every entry.
    """

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._buffer = io.BytesIO()
        # A link would lead nowhere in the job: what it leads to goes in instead.
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", dereference=True)  # noqa: SIM115 - see `finish`
        self._folders: set[str] = set()
        self._pages = 0

    def add_folder(self, name: str) -> None:
        """Add an empty folder."""
        if name in self._folders:
            return
        self._add_parents(name)
        self._folders.add(name)
        info = tarfile.TarInfo(name)
        info.type = tarfile.DIRTYPE
        info.mode = 0o755
        info.mtime = int(time.time())
        self._tar.addfile(self._owned(info))

    def add_secret(self, name: str, content: bytes) -> None:
        """Add a file with this content that its owner alone may read."""
        self._add_parents(name)
        info = tarfile.TarInfo(name)
        info.size = len(content)
        info.mode = 0o600
        info.mtime = int(time.time())
        self._tar.addfile(self._owned(info), io.BytesIO(content))

    def add_copies(self, prefix: str, copies: Iterable[FileCopy]) -> None:
        """Add files and folders below `prefix`; caches and version control are left out."""
        for copy in copies:
            for path in walk(copy.source):
                target = copy.target / path.relative_to(copy.source) if path != copy.source else copy.target
                name = str(PurePosixPath(prefix) / PurePosixPath(target.as_posix()))
                self._add_parents(name)
                self._tar.add(path, name, recursive=False, filter=self._owned)

    def _add_parents(self, name: str) -> None:
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            self.add_folder(str(parent))

    def _owned(self, info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = self._owner
        info.uname = info.gname = ""
        self._pages += 1 + -(-info.size // PAGE)
        return info

    def finish(self) -> Archive:
        """The archive."""
        self._tar.close()
        return Archive(data=self._buffer.getvalue(), pages=self._pages)


def walk(source: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """A file itself, or all files below a folder, in a fixed order.

    Links are followed. What is neither file nor folder (a socket, a link to nothing) is left out.

    Args:
        source: The file or folder.
        above: Folders that are not entered again, so that a link to one of them ends.
    """
    if source.is_file():
        yield source
    elif source.is_dir() and (here := source.resolve()) not in above:
        for path in sorted(source.iterdir()):
            if path.name not in _SKIPPED_NAMES:
                yield from walk(path, above | {here})


def unpack(pieces: Iterable[bytes], into: Path) -> None:
    """Unpack an archive that a job made, and which is therefore not trusted, without its first path component.

    Folders and files are made, and nothing else: links and devices are left out, so no entry can lead anywhere. The
    extraction filters of tarfile would do, but Debian 12's Python 3.11.2 is older than they are.

    Raises:
        tarfile.TarError: It is broken, or an entry wants to leave the folder.
        OSError: The folder cannot be written.
    """
    with tarfile.open(fileobj=_Reader(iter(pieces)), mode="r|") as archive:
        for entry in archive:
            parts = PurePosixPath(entry.name).parts[1:]
            if ".." in parts:
                msg = f"{entry.name!r} would leave the folder"
                raise tarfile.ExtractError(msg)
            _extract(archive, entry, into.joinpath(*parts))


def _extract(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    if entry.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    content = archive.extractfile(entry) if entry.isfile() else None
    if content is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(target) as draft, draft.open("wb") as file:
            shutil.copyfileobj(content, file)


class _Reader(io.RawIOBase):
    """A readable file over pieces of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._rest) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._rest += piece
        data, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return data
