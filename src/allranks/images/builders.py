"""The two ways to build with the daemon, and the check of its disk space."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from allranks.errors import ImageError
from allranks.images.child_process import child, lines_of
from allranks.images.daemon import EventReader, Progress, error_of, find, reported
from allranks.images.leftovers import end_step
from allranks.images.tar_stream import END, entry_of
from allranks.protocol.xml_text import clipped

if TYPE_CHECKING:
    from docker import DockerClient


_LOCAL = "http+docker://localhost"
"""The SDK's address of a daemon behind a socket of this host (``docker.api.client.APIClient``)."""

_CONTAINERD = Path("/var/lib/containerd")
"""Containerd's default, regardless of Docker's own folder (docs.docker.com/engine/storage/containerd)."""

_IN_CONTAINERD = "io.containerd.snapshotter.v1"
"""The ``driver-type`` of a daemon whose images are containerd's: by default from Docker 29 on."""

_BYTECODE = 1.5
"""Bytes of bytecode for each byte of source: 1.41 of torch 2.13.0, 1.45 of 2.14.1 with all that it depends on."""


@dataclass(frozen=True, kw_only=True)
class DiskNeeds:
    """The room that a build takes on the daemon's disk, in bytes."""

    meanwhile: int  # during the build
    lasting: int  # after the build


def room_for(wheels: Iterable[Path], builder: Builder) -> DiskNeeds:
    """The room that the build of a layer takes, by the unpacked sizes that its wheels list.

    Both builders hold the context in its own step, and the layer twice: where it is made, and where it goes. The legacy
    one also keeps the context as it was sent, and holds a layer twice more while it turns the container of a step into
    an image: 24 GB were taken for 3.0 GB of wheels that unpack to 5.65 GB.
    """
    sizes = [_sizes(wheel) for wheel in wheels]
    packed, unpacked = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    if builder is build_with_buildkit:
        return DiskNeeds(meanwhile=packed + 2 * unpacked, lasting=unpacked)
    return DiskNeeds(meanwhile=2 * packed + 3 * unpacked, lasting=unpacked)


def _sizes(wheel: Path) -> tuple[int, int]:
    """Bytes of a wheel, and of its installed files, bytecode included."""
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    source = sum(member.file_size for member in members if member.filename.endswith(".py"))
    return wheel.stat().st_size, sum(member.file_size for member in members) + int(_BYTECODE * source)


def check_room(client: DockerClient, layer: str, wheels: Iterable[Path], builder: Builder) -> None:
    """Check that the daemon has room to build a layer, if that can be determined."""
    with reported("The daemon did not report where it keeps its images.", remedy="Run: allranks doctor"):
        folder = images_folder(client.info(), client.api.base_url)
    if folder is None:
        return
    room, free = room_for(wheels, builder), shutil.disk_usage(folder).free
    if free < room.meanwhile:
        what = f"There is not enough space to build the layer {layer} of an image."
        raise ImageError(
            what,
            why=f"It takes {gigabytes(room.meanwhile)} while it is built, of which {gigabytes(room.lasting)} stay, and "
            f"{folder} has {gigabytes(free)}.",
            remedy="Free some: `allranks clean --images` removes images that were not used lately, and "
            "docker system df shows the rest.",
        )


def images_folder(said: Mapping[str, Any], address: str, containerd: Path = _CONTAINERD) -> Path | None:
    """The folder where a daemon keeps its images; None if it is not on this host."""
    root = Path(str(said.get("DockerRootDir", "")))
    if address != _LOCAL or not _is_here(root):
        return None
    if _IN_CONTAINERD not in (value for _, value in said.get("DriverStatus") or ()):
        return root
    # A containerd that the daemon itself started, as with Docker as a snap or rootless, uses a folder in the daemon's.
    own = root / "containerd"
    return next(filter(_is_here, (own, containerd)), root)


def _is_here(folder: Path) -> bool:
    return folder.is_absolute() and folder.is_dir() and os.access(folder, os.X_OK)


def gigabytes(size: float) -> str:
    """Bytes as Docker prints them: in billions."""
    return f"{size / 1e9:.1f} GB"


_KEPT_LINES = 15
_LONGEST_LINE = 200
_NOISE = (" --->", "Removing intermediate container")
_REMEDY = "Correct what the last line names in [images] of matrix.toml, then run again."
_DISK_REMEDY = (
    "Free space where the daemon keeps its images: `allranks clean --images` removes those of allranks that "
    "were not used lately, and docker system df shows the rest."
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the legacy builder colours a step's standard error
_FAILED_STEP = re.compile(r"The command '.*' returned a non-zero code: (\d+)", re.DOTALL)


DOCKERFILE = "Dockerfile"
"""The name of the Dockerfile in a build's context."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One build, as both builders understand it."""

    tag: str  # reference of the image to make
    arguments: Mapping[str, str]  # build arguments
    network: str = "none"  # the network of steps, as for ``docker build --network``


def stream(files: Mapping[str, Path]) -> Iterator[bytes]:
    """Pack files into a tar archive, piece by piece."""
    for name, path in sorted(files.items()):
        header = tarfile.TarInfo(name)
        header.size = path.stat().st_size
        with path.open("rb") as file:
            yield from entry_of(header, file)
    yield END


Builder = Callable[["DockerClient", BuildRequest, Iterable[bytes], Progress], None]
"""Builds a request from a context; raises :class:`ImageError` with the last lines of output."""


def builder_of_host() -> Builder:
    """BuildKit if the docker command has it, else the builder inside every daemon.

    The command is asked, because only the buildx plug-in can do the client's part of a BuildKit build; the SDK cannot.
    """
    docker = shutil.which("docker")
    if docker is None:
        return build_with_sdk
    asked = subprocess.run([docker, "buildx", "version"], capture_output=True, check=False)
    return build_with_sdk if asked.returncode else build_with_buildkit


def build_with_sdk(client: DockerClient, request: BuildRequest, context: Iterable[bytes], progress: Progress) -> None:
    """Build by the daemon's API, which uses the legacy builder."""
    last = deque[str](maxlen=_KEPT_LINES)
    with reported(_what(request), remedy=_REMEDY):
        events = client.api.build(
            fileobj=cast("IO[bytes]", context),  # the SDK hands it to requests, which streams any iterable
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=request.tag,
            buildargs=dict(request.arguments),
            network_mode=request.network,
            # Behind a proxy the image would differ, so steps without network get no proxy.
            use_config_proxy=request.network != "none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        heard = EventReader(events)
        try:
            failure = _follow(heard, request, last, progress)
        except BaseException:
            _wait_for_end(client, request, heard, progress)
            raise
    if failure:
        raise failure


def _follow(heard: EventReader, request: BuildRequest, last: deque[str], progress: Progress) -> ImageError | None:
    """Take the daemon's events; return the error by which it has ended the build."""
    rest = ""  # output comes in the pieces that a command wrote, and apt writes `E`, `:` and the message one by one
    for event in heard:
        if error := error_of(event):
            return _failure(request, [*last, *rest.splitlines(), error])
        text, _, rest = (rest + _COLOUR.sub("", str(event.get("stream", "")))).rpartition("\n")
        _take(text, last, progress)
    _take(rest, last, progress)
    return None


def _wait_for_end(client: DockerClient, request: BuildRequest, heard: EventReader, progress: Progress) -> None:
    """Cancel a build, and wait until the daemon has ended it.

    It would end by itself without a client, but only after its current step, and no process would be left to remove
    what that step made. A command ends at once; a copy cannot be cancelled, and takes its time.
    """
    progress("waiting for the daemon to end its step")
    with suppress(Exception):  # the daemon is gone; the next run finds at its start what it left
        while True:
            end_step(client.api, request.arguments.get("BUILDER", ""))
            if heard.next_event() is None:
                return


def build_with_buildkit(
    client: DockerClient, request: BuildRequest, context: Iterable[bytes], progress: Progress
) -> None:
    """Build by the docker command, from the same bytes.

    ``docker build`` and not ``docker buildx build``: it takes the daemon's own builder, which sees the daemon's
    images, even if the user has selected another one.
    """
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    environ = {name: value for name, value in os.environ.items() if name != "BUILDX_BUILDER"}
    with child(
        buildkit_command(request), environ={**environ, "DOCKER_BUILDKIT": "1"}, stdin=subprocess.PIPE
    ) as process:
        writer = threading.Thread(target=_feed, args=(context, process.stdin))
        writer.start()
        for line in lines_of(process):
            _take(line, last, progress)
        writer.join()
    if process.returncode:
        raise _failure(request, last)
    _check_same_daemon(client, request)


def buildkit_command(request: BuildRequest) -> list[str]:
    """The command line of a build whose context comes on standard input."""
    arguments = [f"--build-arg={name}={value}" for name, value in request.arguments.items()]
    where = [f"--file={DOCKERFILE}", f"--tag={request.tag}", f"--network={request.network}"]
    return ["docker", "build", "--progress=plain", "--provenance=false", *where, *arguments, "-"]


def _feed(context: Iterable[bytes], pipe: IO[bytes]) -> None:
    """Write the context; a build that has failed closes the pipe, and prints why on its output."""
    with suppress(BrokenPipeError), pipe:
        for chunk in context:
            pipe.write(chunk)


def _check_same_daemon(client: DockerClient, request: BuildRequest) -> None:
    if find(client, request.tag) is None:
        raise ImageError(
            _what(request),
            why="The docker command built it in another daemon than the one that allranks uses.",
            remedy="Set DOCKER_HOST to one daemon for both.",
        )


def _take(text: str, last: deque[str], progress: Progress) -> None:
    for line in _COLOUR.sub("", text).splitlines():
        if line.strip() and not line.startswith(_NOISE):
            last.append(line.rstrip())
            progress(shortened(line.rstrip()))


def _what(request: BuildRequest) -> str:
    return f"The image {request.tag} could not be built."


def _failure(request: BuildRequest, lines: Iterable[str]) -> ImageError:
    why = "\n".join(shortened(line) for line in lines)
    return ImageError(_what(request), why=why, remedy=_DISK_REMEDY if "no space left" in why else _REMEDY)


def shortened(line: str) -> str:
    """A line of build output without the text of the script that failed, which does not help the user."""
    line = _FAILED_STEP.sub(r"a step of the build ended with code \1", line)
    return clipped(line, _LONGEST_LINE)
