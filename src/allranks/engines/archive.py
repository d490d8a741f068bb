"""Streams the files of a job into a tar archive, and unpacks the streamed archive of its results."""

import io
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final, Self, TypeVar, cast

from allranks.engines.base import FileCopy
from allranks.engines.result_files import ResultWriter
from allranks.errors import EngineError
from allranks.images.tar_stream import END, entry_of
from allranks.protocol.config import RESULTS_BYTES

PAGE: Final = 4096
"""The allocation unit of tmpfs in bytes."""

_PIECE: Final = 1 << 16

_DESCRIPTIONS: Final = frozenset(
    {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
"""Headers that describe the next entry, which ``tarfile`` reads into memory."""

_LONGEST_DESCRIPTION: Final = 1 << 20
"""A limit in bytes: Linux has paths of at most 4,096 bytes and extended attributes of at most 64 KiB."""

_VERSION_CONTROL: Final = ".git"
"""Left out, since its configuration may contain a token."""

_SKIPPED_NAMES: Final = frozenset(
    {"__pycache__", _VERSION_CONTROL, ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
)


E = TypeVar("E", bound=tarfile.TarInfo)


class Archive:
    """A tar archive of files of this host, which are read while it is sent. All entries belong to one user."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._folders: set[str] = set()
        self._entries: list[tuple[str, bytes | None, Path | None, Path | None]] = []
        self.pages = 0  # the number of pages that its files and folders take when unpacked

    def add_folder(self, name: str) -> None:
        """Add an empty folder."""
        if name not in self._folders:
            self._folders.add(name)
            self._add(name, 0)

    def add_secret(self, name: str, content: bytes) -> None:
        """Add a file that only its owner may read."""
        self._add(name, len(content), content=content)

    def add_copies(self, prefix: str, copies: Iterable[FileCopy]) -> None:
        """Add files and folders below `prefix`, without caches and version control."""
        for copy in copies:
            for path, target in _files(copy):
                name = str(PurePosixPath(prefix) / PurePosixPath(target.as_posix()))
                self._add(name, path.stat().st_size, path=path, root=copy.root)

    def _add(
        self, name: str, size: int, *, content: bytes | None = None, path: Path | None = None, root: Path | None = None
    ) -> None:
        for parent in reversed(PurePosixPath(name).parents[:-1]):
            self.add_folder(str(parent))
        self.pages += 1 + -(-size // PAGE)
        self._entries.append((name, content, path, root))

    def pieces(self) -> Iterator[bytes]:
        """Yield the archive."""
        for name, content, path, root in self._entries:
            if path is not None:
                # A link would be broken in the job, so the archive has the file that it leads to.
                with _opened(path, root) as file:
                    found = os.fstat(file.fileno())
                    yield from entry_of(self._info(name, stat.S_IMODE(found.st_mode), size=found.st_size), file)
            elif content is not None:
                yield from entry_of(self._info(name, 0o600, size=len(content)), io.BytesIO(content))
            else:
                yield from entry_of(self._info(name, 0o755, kind=tarfile.DIRTYPE))
        yield END

    def _info(self, name: str, mode: int, *, size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.mtime = kind, mode, size, int(time.time())
        info.uid = info.gid = self._owner
        return info


def copy_files(copy: FileCopy, into: Path) -> None:
    """Copy a file or folder to its target below a folder of this host."""
    for path, target in _files(copy):
        (into / target).parent.mkdir(parents=True, exist_ok=True)
        with _opened(path, copy.root) as file, (into / target).open("wb") as written:
            shutil.copyfileobj(file, written)


def check_links(copies: Iterable[FileCopy]) -> None:
    """Check that no link leads out of its root, for jobs that use the files in place."""
    for copy in copies:
        for _ in walk(copy.source, copy.root):
            pass


def _files(copy: FileCopy) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a copy and their targets."""
    for path in walk(copy.source, copy.root):
        yield path, copy.target if path == copy.source else copy.target / path.relative_to(copy.source)


def walk(source: Path, root: Path | None = None, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield a file itself, or all files below a folder, in a fixed order.

    Links are followed. Sockets, pipes, broken links and virtual environments below the folder are left out.

    Args:
        source: The file or folder.
        root: The folder that no link may lead out of; None for no limit.
        above: The parent folders, which are not entered again, so that a link to one of them does not recurse.

    Raises:
        EngineError: A link leads out of the root, or the source is outside of it.
    """
    if root is not None and (not above or source.is_symlink()):
        _check_inside(source, Path(os.path.realpath(source)), root)
    if source.is_file():
        yield source
    elif source.is_dir() and (here := source.resolve()) not in above:
        if above and (source / "pyvenv.cfg").exists():
            return
        for path in sorted(source.iterdir()):
            if path.name not in _SKIPPED_NAMES:
                yield from walk(path, root, above | {here})


@contextmanager
def _opened(path: Path, root: Path | None) -> Iterator[BinaryIO]:
    """Open a file, and check again that it is inside the root: a link may have replaced the file since the walk."""
    with path.open("rb") as file:
        if root is not None:
            _check_inside(path, Path(f"/proc/self/fd/{file.fileno()}").readlink(), root)
        yield file


def _is_below(real: Path, root: Path) -> bool:
    return real.is_relative_to(root) and _VERSION_CONTROL not in real.relative_to(root).parts


def _check_inside(path: Path, real: Path, root: Path) -> None:
    """Check that the real path of a file is below the root, and not in its version control folder."""
    if _is_below(real, root):
        return
    links = [part for part in (*reversed(path.parents), path) if part.is_relative_to(root) and part.is_symlink()]
    link = next((link for link in links if not _is_below(Path(os.path.realpath(link)), root)), None)
    leads = f"{path} leads to {real}" if link is None else f"The link {link} leads to {os.path.realpath(link)}"
    msg = f"{leads}, outside of the repository's files in {root}."
    why = "Only files of the repository are copied into a job: otherwise, a pull request could read files of the host."
    remedy = "Replace it with the files that the tests need, or remove it from path and files in the matrix file."
    raise EngineError(msg, why=why, remedy=remedy)


def unpack(pieces: Iterable[bytes], into: Path, limit: int = RESULTS_BYTES) -> None:
    """Unpack an untrusted archive of a job, without the first component of its paths.

    Only regular files and their folders are created, so no link can redirect a later entry.

    Raises:
        tarfile.TarError: It is damaged, or an entry would leave the folder; the entries before it are unpacked.
        EngineError: Some files were left out; all others are unpacked.
        OSError: The folder cannot be written.
    """
    writer = ResultWriter(into, limit)
    with tarfile.open(fileobj=cast("IO[bytes]", _Source(pieces)), mode="r|", tarinfo=_Entry) as archive:
        for entry in archive:
            writer.count_entry()
            path = PurePosixPath(*PurePosixPath(entry.name).parts[1:])
            if ".." in path.parts:
                msg = f"{entry.name!r} would leave the folder"
                raise tarfile.ExtractError(msg)
            is_file = entry.isreg() and not entry.issparse()
            is_written = is_file and writer.add_file(path, entry.size, _content(archive, entry))
            has_content = entry.isreg() or entry.type not in tarfile.SUPPORTED_TYPES
            if not writer.skip(entry.size if has_content and not is_written else 0):
                break
    writer.check()


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(entry)
    while file and (piece := file.read(_PIECE)):
        yield piece


class _Entry(tarfile.TarInfo):
    """An entry of an untrusted archive.

    ``tarfile`` itself treats a damaged header after the first one as the end of the archive, reads a description of
    any size into memory, and does not catch all exceptions of its parsers.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse the header of an entry."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _DESCRIPTIONS and entry.size > _LONGEST_DESCRIPTION:
            msg = f"a header has {entry.size} bytes"
            raise tarfile.ReadError(msg)
        return _check_size(entry)

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """Parse an entry, with the descriptions before it."""
        try:
            return _check_size(super().fromtarfile(tarfile_))
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined] # typeshed lacks it
            raise
        except (tarfile.HeaderError, ValueError, IndexError) as error:
            raise tarfile.ReadError(str(error)) from error


def _check_size(entry: E) -> E:
    if entry.size < 0:
        msg = f"{entry.name!r} has a size of {entry.size}"
        raise tarfile.ReadError(msg)
    return entry


class _Source:
    """A file object over pieces of bytes. Reading past the last one is an error: an archive marks its own end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most this many of the next bytes."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                msg = "unexpected end of data"
                raise tarfile.ReadError(msg)
            self._rest = memoryview(piece)
        part, self._rest = self._rest[:size], self._rest[size:]
        return bytes(part)
