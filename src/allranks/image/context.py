"""The build context: a tar stream that depends on names and contents alone."""

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_CHUNK = 1 << 20


def stream(files: Mapping[str, Path]) -> Iterator[bytes]:
    """Pack files into a tar archive, piece by piece: wheels of three gigabytes need neither memory nor disk.

    Owner, mode and time are the same for every file, so equal contents give equal bytes on every host.

    Args:
        files: Path in the archive, and the file it is read from.
    """
    for name, path in sorted(files.items()):
        header = tarfile.TarInfo(name)
        header.size = path.stat().st_size
        header.mode = 0o644
        yield header.tobuf(tarfile.PAX_FORMAT)
        yield from _content(path)
        yield bytes(-header.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def layer_files(dockerfile: Path, *, tools: Path | None, wheels: Sequence[Path]) -> dict[str, Path]:
    """What a Dockerfile expects in its context.

    Args:
        dockerfile: The Dockerfile.
        tools: The folder with the wheel of pip; None where nothing of Python's is installed.
        wheels: The wheels of the layer.
    """
    return {
        dockerfile.name: dockerfile,
        **{f"tools/{path.name}": path for path in (tools.iterdir() if tools else ())},
        **{f"wheels/{path.name}": path for path in wheels},
    }


def _content(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
