"""Builds images with BuildKit or the legacy builder, and checks the daemon's disk space."""

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
"""The SDK's address of a daemon with a socket on this host (``docker.api.client.APIClient``)."""

_CONTAINERD = Path("/var/lib/containerd")
"""containerd's default folder, regardless of Docker's own (docs.docker.com/engine/storage/containerd)."""

_IN_CONTAINERD = "io.containerd.snapshotter.v1"
"""The ``driver-type`` of a daemon that stores images in containerd, the default since Docker 29."""

_BYTECODE = 1.5
"""Bytes of bytecode per byte of source: 1.41 for torch 2.13.0, 1.45 for 2.14.1 with its dependencies."""


@dataclass(frozen=True, kw_only=True)
class SpaceNeeds:
    """The disk space that a build needs on the daemon's host, in bytes."""

    temporary: int  # during the build
    permanent: int  # after the build


def space_for(wheels: Iterable[Path], builder: Builder) -> SpaceNeeds:
    """The disk space for the build of a layer, from the unpacked sizes that its wheels list.

    Both builders store the context in a step of its own, and the layer twice: in a build stage and in the image. The
    legacy builder also keeps the context that was sent, and one more copy of a layer while it commits the container
    of a step. 3.0 GB of wheels that unpack to 5.65 GB took 24 GB.
    """
    sizes = [_sizes(wheel) for wheel in wheels]
    packed, unpacked = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    if builder is build_with_buildkit:
        return SpaceNeeds(temporary=packed + 2 * unpacked, permanent=unpacked)
    return SpaceNeeds(temporary=2 * packed + 3 * unpacked, permanent=unpacked)


def _sizes(wheel: Path) -> tuple[int, int]:
    """The sizes of a wheel and of its installed files, including bytecode."""
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    source = sum(member.file_size for member in members if member.filename.endswith(".py"))
    return wheel.stat().st_size, sum(member.file_size for member in members) + int(_BYTECODE * source)


def check_space(client: DockerClient, layer: str, wheels: Iterable[Path], builder: Builder) -> None:
    """Check that the daemon has enough disk space to build a layer, if that can be determined."""
    with reported("The daemon did not report where it stores its images.", remedy="Run: allranks doctor"):
        folder = images_folder(client.info(), client.api.base_url)
    if folder is None:
        return
    needs, free = space_for(wheels, builder), shutil.disk_usage(folder).free
    if free < needs.temporary:
        what = f"There is not enough space to build the layer {layer} of an image."
        raise ImageError(
            what,
            why=f"The build takes {gigabytes(needs.temporary)} and the result {gigabytes(needs.permanent)}, but "
            f"{folder} has only {gigabytes(free)}.",
            remedy="Free some: `allranks clean --images` removes images that were not used lately, and "
            "`docker system df` lists all.",
        )


def images_folder(info: Mapping[str, Any], address: str, containerd: Path = _CONTAINERD) -> Path | None:
    """The folder where a daemon stores its images; None if it is not on this host."""
    root = Path(str(info.get("DockerRootDir", "")))
    if address != _LOCAL or not _is_accessible(root):
        return None
    if _IN_CONTAINERD not in (value for _, value in info.get("DriverStatus") or ()):
        return root
    # If the daemon started containerd itself (rootless, or as a snap), its folder is inside the daemon's.
    own = root / "containerd"
    return next(filter(_is_accessible, (own, containerd)), root)


def _is_accessible(folder: Path) -> bool:
    return folder.is_absolute() and folder.is_dir() and os.access(folder, os.X_OK)


def gigabytes(size: float) -> str:
    """A size in the units that Docker prints."""
    return f"{size / 1e9:.1f} GB"


_KEPT_LINES = 15
_LONGEST_LINE = 200
_NOISE = (" --->", "Removing intermediate container")
_REMEDY = "Correct [images] in matrix.toml, as the last line of the build suggests, then run again."
_DISK_REMEDY = (
    "Free up space on the daemon's disk: `allranks clean --images` removes allranks' images that were not used "
    "lately, and `docker system df` lists all."
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")  # the legacy builder colors a step's standard error
_FAILED_STEP = re.compile(r"The command '.*' returned a non-zero code: (\d+)", re.DOTALL)


DOCKERFILE = "Dockerfile"
"""The name of the Dockerfile in a build's context."""


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """The parameters of a build."""

    tag: str  # reference of the new image
    arguments: Mapping[str, str]  # build arguments
    network: str = "none"  # the network of steps, as for ``docker build --network``


def stream(files: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield a tar archive of files."""
    for name, path in sorted(files.items()):
        header = tarfile.TarInfo(name)
        header.size = path.stat().st_size
        with path.open("rb") as file:
            yield from entry_of(header, file)
    yield END


Builder = Callable[["DockerClient", BuildRequest, Iterable[bytes], Progress], None]
"""Builds a request from a context; raises :class:`ImageError` with the last lines of output."""


def builder_of_host() -> Builder:
    """BuildKit if the docker command has its plug-in buildx, otherwise the daemon's legacy builder.

    The SDK does not implement the client's part of a BuildKit build.
    """
    docker = shutil.which("docker")
    if docker is None:
        return build_with_sdk
    buildx = subprocess.run([docker, "buildx", "version"], capture_output=True, check=False)
    return build_with_sdk if buildx.returncode else build_with_buildkit


def build_with_sdk(client: DockerClient, request: BuildRequest, context: Iterable[bytes], progress: Progress) -> None:
    """Build through the daemon's API, which uses the legacy builder."""
    last = deque[str](maxlen=_KEPT_LINES)
    with reported(_what(request), remedy=_REMEDY):
        events = client.api.build(
            fileobj=cast("IO[bytes]", context),  # the SDK hands it to requests, which streams any iterable
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=request.tag,
            buildargs=dict(request.arguments),
            network_mode=request.network,
            # The settings of a proxy would become part of the image.
            use_config_proxy=request.network != "none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        reader = EventReader(events)
        try:
            failure = _follow(reader, request, last, progress)
        except BaseException:
            _cancel(client, request, reader, progress)
            raise
    if failure:
        raise failure


def _follow(reader: EventReader, request: BuildRequest, last: deque[str], progress: Progress) -> ImageError | None:
    """Report the output of a build; return the error of a failed one."""
    rest = ""  # an event contains what a command wrote at once: apt writes `E`, `:` and the message separately
    for event in reader:
        if error := error_of(event):
            return _failure(request, [*last, *rest.splitlines(), error])
        text, _, rest = (rest + _COLOR.sub("", str(event.get("stream", "")))).rpartition("\n")
        _report(text, last, progress)
    _report(rest, last, progress)
    return None


def _cancel(client: DockerClient, request: BuildRequest, reader: EventReader, progress: Progress) -> None:
    """Cancel a build, and wait until the daemon has ended it.

    If only the connection were closed, the build would complete its current step and leave the result. A command is
    killed immediately; a copy cannot be canceled.
    """
    progress("waiting for the daemon to end the current step")
    with suppress(Exception):  # of a lost daemon; the next run cleans up
        while True:
            end_step(client.api, request.arguments.get("BUILDER", ""))
            if reader.next_event() is None:
                return


def build_with_buildkit(
    client: DockerClient, request: BuildRequest, context: Iterable[bytes], progress: Progress
) -> None:
    """Build with the docker command.

    The command is ``docker build`` and not ``docker buildx build``: it uses the daemon's own builder, which can use the
    daemon's images, even if the user has selected another one.
    """
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    environ = {name: value for name, value in os.environ.items() if name != "BUILDX_BUILDER"}
    with child(
        buildkit_command(request), environ={**environ, "DOCKER_BUILDKIT": "1"}, stdin=subprocess.PIPE
    ) as process:
        writer = threading.Thread(target=_write, args=(context, process.stdin))
        writer.start()
        for line in lines_of(process):
            _report(line, last, progress)
        writer.join()
    if process.returncode:
        raise _failure(request, last)
    _check_same_daemon(client, request)


def buildkit_command(request: BuildRequest) -> list[str]:
    """The command line of a build that reads its context from standard input."""
    arguments = [f"--build-arg={name}={value}" for name, value in request.arguments.items()]
    where = [f"--file={DOCKERFILE}", f"--tag={request.tag}", f"--network={request.network}"]
    return ["docker", "build", "--progress=plain", "--provenance=false", *where, *arguments, "-"]


def _write(context: Iterable[bytes], pipe: IO[bytes]) -> None:
    """Write the context. If the build fails, it closes the pipe and prints the reason."""
    with suppress(BrokenPipeError), pipe:
        for chunk in context:
            pipe.write(chunk)


def _check_same_daemon(client: DockerClient, request: BuildRequest) -> None:
    if find(client, request.tag) is None:
        raise ImageError(
            _what(request),
            why="The docker command does not use allranks' daemon.",
            remedy="Set DOCKER_HOST to the same daemon for both.",
        )


def _report(text: str, last: deque[str], progress: Progress) -> None:
    for line in _COLOR.sub("", text).splitlines():
        if line.strip() and not line.startswith(_NOISE):
            last.append(line.rstrip())
            progress(shortened(line.rstrip()))


def _what(request: BuildRequest) -> str:
    return f"The image {request.tag} could not be built."


def _failure(request: BuildRequest, lines: Iterable[str]) -> ImageError:
    why = "\n".join(shortened(line) for line in lines)
    return ImageError(_what(request), why=why, remedy=_DISK_REMEDY if "no space left" in why else _REMEDY)


def shortened(line: str) -> str:
    """A clipped line of build output, without the script of a failed step."""
    line = _FAILED_STEP.sub(r"a step of the build ended with code \1", line)
    return clipped(line, _LONGEST_LINE)
