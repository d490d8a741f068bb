"""Whether the daemon has room for what is to be built, asked before minutes are spent on it."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import ImageError
from allranks.image.builders import Builder, build_with_buildkit
from allranks.image.daemon import reported

if TYPE_CHECKING:
    from docker import DockerClient

_LOCAL = "http+docker://localhost"
"""What the SDK calls a daemon behind a socket of this host (``docker.api.client.APIClient``)."""

_CONTAINERD = Path("/var/lib/containerd")
"""Its default, whatever Docker's own folder is (docs.docker.com/engine/storage/containerd)."""

_IN_CONTAINERD = "io.containerd.snapshotter.v1"
"""The ``driver-type`` of a daemon whose images are containerd's: by default from Docker 29 on."""

_BYTECODE = 1.5
"""Bytes of bytecode for each byte of source: 1.41 of torch 2.13.0, 1.45 of 2.14.1 with all that it depends on."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a build takes of the daemon's disk, in bytes.

    Attributes:
        meanwhile: While it goes on.
        lasting: When it is over.
    """

    meanwhile: int
    lasting: int


def room_for(wheels: Iterable[Path], builder: Builder) -> Room:
    """What the build of a layer takes, by what its wheels say that they unpack to.

    Both builders hold the context in a step of its own, and the layer twice: where it is made, and where it goes. The
    legacy one also keeps the context that was sent, and holds a layer twice more while it turns the container of a
    step into an image: 24 GB were taken for 3.0 GB of wheels that unpack to 5.65 GB.
    """
    sizes = [_sizes(wheel) for wheel in wheels]
    packed, unpacked = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    if builder is build_with_buildkit:
        return Room(meanwhile=packed + 2 * unpacked, lasting=unpacked)
    return Room(meanwhile=2 * packed + 3 * unpacked, lasting=unpacked)


def _sizes(wheel: Path) -> tuple[int, int]:
    """Bytes of a wheel, and of what is installed of it, bytecode included."""
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    source = sum(member.file_size for member in members if member.filename.endswith(".py"))
    return wheel.stat().st_size, sum(member.file_size for member in members) + int(_BYTECODE * source)


def check_room(client: DockerClient, layer: str, wheels: Iterable[Path], builder: Builder) -> None:
    """See that the daemon has room to build a layer, where that can be told.

    Args:
        client: Connection to the daemon.
        layer: The layer's name, for the error.
        wheels: What goes into it.
        builder: What builds it.

    Raises:
        ImageError: There is too little.
    """
    with reported("The daemon could not be asked where it keeps its images.", remedy="Run: allranks doctor"):
        folder = images_folder(client.info(), client.api.base_url)
    if folder is None:
        return
    room, free = room_for(wheels, builder), shutil.disk_usage(folder).free
    if free < room.meanwhile:
        what = f"There is no room to build the layer {layer} of an image."
        raise ImageError(
            what,
            why=f"It takes {gigabytes(room.meanwhile)} while it is built, of which {gigabytes(room.lasting)} stay, and "
            f"{folder} has {gigabytes(free)}.",
            remedy="Free some: `allranks images --prune` removes images that nobody has used lately, and docker system "
            "df shows what else there is.",
        )


def images_folder(said: Mapping[str, Any], address: str, containerd: Path = _CONTAINERD) -> Path | None:
    """The folder in which a daemon keeps its images; None where it is not one of this host.

    Args:
        said: What the daemon says of itself (``docker info``).
        address: Its address, as the SDK has it.
        containerd: Where the system's containerd keeps its things.
    """
    root = Path(str(said.get("DockerRootDir", "")))
    if address != _LOCAL or not _is_here(root):
        return None
    if _IN_CONTAINERD not in (value for _, value in said.get("DriverStatus") or ()):
        return root
    # One that the daemon has started itself, as where Docker is a snap or rootless, keeps its things with the daemon's.
    own = root / "containerd"
    return next(filter(_is_here, (own, containerd)), root)


def _is_here(folder: Path) -> bool:
    return folder.is_absolute() and folder.is_dir() and os.access(folder, os.X_OK)


def gigabytes(size: float) -> str:
    """Bytes as Docker tells them: in billions."""
    return f"{size / 1e9:.1f} GB"
