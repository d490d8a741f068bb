"""Tar archives: the files of a job, and its results."""

import io
import os
import shutil
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from allranks.engines.base import FileCopy
from allranks.engines.intake import Intake
from allranks.errors import EngineError
from allranks.protocol.config import RESULTS_BYTES

PAGE = 4096
"""The allocation unit of a file system in memory, in bytes."""

_EXTENSIONS = frozenset(
    {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
"""Headers that describe the entry behind them."""

_WITHOUT_CONTENT = frozenset(
    {tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE}
)
"""Entries without content behind them, whatever size they claim."""

_LARGEST_HEADER = 1 << 20
"""Bytes: Linux has paths of 4,096, and an extended attribute of a file has 64 KiB at the most."""

_MOST_DIGITS = 20

_VERSION_CONTROL = ".git"
"""Its configuration may have the token of a checkout."""

_SKIPPED_NAMES = frozenset(
    {"__pycache__", _VERSION_CONTROL, ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}
)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A finished archive."""

    data: bytes
    pages: int  # how many pages its files and folders take when they are unpacked


class ArchiveBuilder:
    """A tar archive in memory whose entries all belong to one user, given by its number."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._buffer = io.BytesIO()
        # A link would lead nowhere in the job: its target goes in instead.
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
        """Add files and folders below `prefix`; caches and version control are left out.

        Raises:
            EngineError: A file leads out of the folder that it has to be in.
            OSError: A file cannot be read.
        """
        for copy in copies:
            for path, target in _files(copy):
                name = str(PurePosixPath(prefix) / PurePosixPath(target.as_posix()))
                self._add_parents(name)
                with _opened(path, copy.root) as file:
                    self._tar.addfile(self._owned(self._tar.gettarinfo(arcname=name, fileobj=file)), file)

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


def copy_files(copy: FileCopy, into: Path) -> None:
    """Copy the files of one copy to their targets below a folder.

    Raises:
        EngineError: A file leads out of the folder that it has to be in.
        OSError: A file cannot be read or written.
    """
    for path, target in _files(copy):
        (into / target).parent.mkdir(parents=True, exist_ok=True)
        with _opened(path, copy.root) as file, (into / target).open("wb") as made:
            shutil.copyfileobj(file, made)


def check_links(copies: Iterable[FileCopy]) -> None:
    """Check that no file leads out of the folder that it has to be in, for jobs that see the folder itself.

    Raises:
        EngineError: One does.
    """
    for copy in copies:
        for _ in walk(copy.source, copy.root):
            pass


def _files(copy: FileCopy) -> Iterator[tuple[Path, Path]]:
    """The files of a copy, each with its target."""
    for path in walk(copy.source, copy.root):
        yield path, copy.target if path == copy.source else copy.target / path.relative_to(copy.source)


def walk(source: Path, root: Path | None = None, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """A file itself, or all files below a folder, in a fixed order.

    Links are followed. Anything else than files and folders (a socket, a link to nothing) is left out, and so are
    virtual environments below the folder.

    Args:
        source: The file or folder.
        root: The folder that no link may lead out of; None for no limit.
        above: Folders that are not entered again, so that a link to one of them does not recurse.

    Raises:
        EngineError: A link leads out of the root, or the source is outside of it.
    """
    if root is not None and (not above or source.is_symlink()):
        _refuse_outside(source, Path(os.path.realpath(source)), root)
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
    """A file open for reading. What was opened is checked, too: a link may have replaced the file since the walk."""
    with path.open("rb") as file:
        if root is not None:
            _refuse_outside(path, Path(f"/proc/self/fd/{file.fileno()}").readlink(), root)
        yield file


def _is_below(real: Path, root: Path) -> bool:
    return real.is_relative_to(root) and _VERSION_CONTROL not in real.relative_to(root).parts


def _refuse_outside(path: Path, real: Path, root: Path) -> None:
    """Refuse a path whose file or folder is not below the root, or belongs to its version control."""
    if _is_below(real, root):
        return
    below = [each for each in (*reversed(path.parents), path) if each.is_relative_to(root) and each.is_symlink()]
    link = next((each for each in below if not _is_below(Path(os.path.realpath(each)), root)), None)
    leads = f"{path} leads to {real}" if link is None else f"The link {link} leads to {os.path.realpath(link)}"
    msg = f"{leads}, outside of the repository's files in {root}."
    why = "Only files of the repository are copied into a job: otherwise, a pull request could read files of the host."
    remedy = "Replace it with the files that the tests need, or remove it from path and files in the matrix file."
    raise EngineError(msg, why=why, remedy=remedy)


def unpack(pieces: Iterable[bytes], into: Path, most: int = RESULTS_BYTES) -> None:
    """Unpack an untrusted archive of a job, without the first component of its paths.

    Only files are made, with the folders above them: links and devices are left out, so no entry can lead elsewhere.
    ``tarfile`` parses only headers here: its own streams would end silently at a damaged one, and skip for ever at one
    that claims 2**80 bytes.

    Raises:
        tarfile.TarError: It is damaged, or an entry would leave the folder; the entries before it are unpacked.
        EngineError: Something was left out; all that fits was unpacked.
        OSError: The folder cannot be written.
    """
    source, intake = _Source(pieces), Intake(into, most)
    for entry in _entries(source):
        intake.count_entry()
        end = source.position + (0 if entry.type in _WITHOUT_CONTENT else entry.size)
        path = PurePosixPath(*PurePosixPath(entry.name).parts[1:])
        if ".." in path.parts:
            msg = f"{entry.name!r} would leave the folder"
            raise tarfile.ExtractError(msg)
        if entry.type in tarfile.REGULAR_TYPES and entry.type != tarfile.GNUTYPE_SPARSE:
            intake.add_file(path, entry.size, source.take(entry.size))
        if not intake.may_pass_over(end - source.position):
            break
        source.skip(end - source.position + -end % tarfile.BLOCKSIZE)
    intake.check()


def _entries(source: "_Source") -> Iterator[tarfile.TarInfo]:
    """The entries of an archive; the caller moves the source behind the content of each.

    Raises:
        tarfile.TarError: The archive is damaged.
    """
    name, records = "", {}
    while (block := source.read(tarfile.BLOCKSIZE)).count(0) != tarfile.BLOCKSIZE:
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if entry.type in _EXTENSIONS:
            content = source.read_header(entry.size)
            if entry.type == tarfile.GNUTYPE_LONGNAME:
                name = content.partition(b"\0")[0].decode("utf-8", "surrogateescape")
            elif entry.type == tarfile.XHDTYPE:
                records = dict(_pax_records(content))
            continue
        entry.name = records.get(b"path", b"").decode("utf-8", "surrogateescape") or name or entry.name
        entry.size = _number(records[b"size"]) if b"size" in records else entry.size
        if entry.size < 0:
            msg = f"{entry.name!r} has a size of {entry.size}"
            raise tarfile.ReadError(msg)
        yield entry
        name, records = "", {}


def _pax_records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The key and the value of each record, ``<length> <key>=<value>`` and the end of a line (POSIX.1-2001, pax)."""
    place = 0
    while place < len(content):
        space = content.find(b" ", place, place + 20)
        end = place + _number(content[place:space]) if space > place else 0
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if not (place < space < end <= len(content) and equals):
            msg = "a pax header is damaged"
            raise tarfile.ReadError(msg)
        yield key, value
        place = end


def _number(digits: bytes) -> int:
    if not (digits.isdigit() and len(digits) <= _MOST_DIGITS):
        msg = f"{digits[:_MOST_DIGITS]!r} is not a number"
        raise tarfile.ReadError(msg)
    return int(digits)


class _Source:
    """A stream of bytes over pieces of any size, read in one pass."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.position = 0  # how many bytes have been read
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def take(self, size: int) -> Iterator[memoryview]:
        """The next bytes, in pieces.

        Raises:
            tarfile.ReadError: There are fewer.
        """
        while size > 0:
            while not self._rest:
                piece = next(self._pieces, None)
                if piece is None:
                    msg = "unexpected end of data"
                    raise tarfile.ReadError(msg)
                self._rest = memoryview(piece)
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            self.position += len(part)
            yield part

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return b"".join(self.take(size))

    def skip(self, size: int) -> None:
        """Pass over the next bytes."""
        for _ in self.take(size):
            pass

    def read_header(self, size: int) -> bytes:
        """The content of a header; the padding of its last block is read, too."""
        if not 0 <= size <= _LARGEST_HEADER:
            msg = f"a header of {size} bytes"
            raise tarfile.ReadError(msg)
        return self.read(size + -size % tarfile.BLOCKSIZE)[:size]
