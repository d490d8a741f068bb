"""Archives and compressed files beside results: whether they have results, which are not read there."""

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

from allranks.protocol.records import JOURNAL
from allranks.report.untrusted import head, open_regular, special

_TAR: Final = re.compile(r".*\.(?:tar|tgz|tbz2?|txz|tar\.(?:gz|bz2|xz))", re.IGNORECASE | re.DOTALL)
_OPENERS: Final[Mapping[bytes, Callable[[Path], Any]]] = MappingProxyType(
    {b"\x1f\x8b": gzip.GzipFile, b"BZ": bz2.BZ2File, b"\xfd7": lzma.LZMAFile}
)
"""By the first two bytes."""

_MOST: Final = 1 << 26
"""Bytes of a tar archive that are searched: it may be large, or expand to any size."""

_ERRORS: Final = (OSError, ValueError, EOFError, RuntimeError, BadZipFile, zlib.error, lzma.LZMAError)


def plain_head(path: Path, size: int) -> bytes:
    """The first characters of a text, also of a compressed one or one in UTF-16; empty if it cannot be read."""
    start = head(path, size)
    if start[:2] in _OPENERS and not special(path):
        try:
            with _OPENERS[start[:2]](path) as file:
                start = file.read(size)
        except _ERRORS:
            return b""
    return start.replace(b"\0", b"")


def is_archive(path: Path) -> bool:
    """True for a name of a zip or tar archive."""
    return path.suffix.lower() == ".zip" or _TAR.fullmatch(path.name) is not None


def has_results(archive: Path) -> bool:
    """True if an archive has results that are not unpacked beside it."""
    if special(archive):
        return False
    is_zip = archive.suffix.lower() == ".zip"
    try:
        found = _in_zip(archive) if is_zip else _in_tar(archive)
        names = [name for name, start in found if name.endswith(JOURNAL) or b"<testsuite" in start]
    except EOFError:
        return True  # the end of a compressed one is missing
    except _ERRORS:
        return is_zip and head(archive, 4) == b"PK\3\4"  # the end of it is missing, or it is encrypted
    folders = [archive.parent, *(each for each in archive.parent.iterdir() if each.is_dir())]
    return bool(names) and not any(all((each / name).exists() for name in names) for each in folders)


def _may_be(name: str) -> bool:
    return name.lower().endswith((".xml", ".xml.gz", ".xml.bz2", ".xml.xz", ".xml.zst", ".xml.zip", JOURNAL))


def _in_zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    with ZipFile(archive) as packed:
        yield from ((name, packed.open(name).read(1024)) for name in packed.namelist() if _may_be(name))


def _in_tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with _OPENERS.get(head(archive, 2), open_regular)(archive) as file:
        content = file.read(_MOST)
    with suppress(tarfile.TarError), tarfile.open(fileobj=BytesIO(content)) as packed:  # it may be cut
        for member in packed:
            if member.isreg() and _may_be(member.name) and (file := packed.extractfile(member)):
                yield member.name, file.read(1024)
