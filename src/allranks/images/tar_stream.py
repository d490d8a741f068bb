"""Streams tar archives, so that files of gigabytes need neither memory nor disk space."""

import errno
import tarfile
from collections.abc import Iterator
from typing import IO, Final

from allranks.interruption import check

END: Final = bytes(2 * tarfile.BLOCKSIZE)
"""The last bytes of an archive."""

_PIECE: Final = 1 << 20


def entry_of(info: tarfile.TarInfo, file: IO[bytes] | None = None) -> Iterator[bytes]:
    """Yield an entry, with as many bytes of the file as its header announces.

    Calls :func:`allranks.interruption.check` before each piece, since the receiver may be slow.

    Raises:
        OSError: The file cannot be read, or has become shorter.
    """
    yield info.tobuf(tarfile.PAX_FORMAT)
    left = info.size
    while file and left:
        check()
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise OSError(errno.EIO, "It became shorter while it was read", info.name)
        left -= len(piece)
        yield piece
    yield bytes(-info.size % tarfile.BLOCKSIZE)
