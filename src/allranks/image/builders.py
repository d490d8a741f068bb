"""The two ways to have the daemon build: its own legacy builder, and BuildKit by the docker command."""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from allranks.engine.builds import end_step
from allranks.errors import ImageError
from allranks.image.child import child, lines_of
from allranks.image.daemon import Event, Progress, error_of, find, reported

if TYPE_CHECKING:
    from docker import DockerClient

_KEPT_LINES = 15
_LONGEST_LINE = 200
_NOISE = (" --->", "Removing intermediate container")
_REMEDY = "Correct what the last line names in [images] of matrix.toml, then run again."
_DISK_REMEDY = (
    "Free space where the daemon keeps its images: `allranks images --prune` removes those of allranks that nobody has "
    "used lately, and docker system df shows what else there is."
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the legacy builder paints what a step writes to its standard error
_FAILED_STEP = re.compile(r"The command '.*' returned a non-zero code: (\d+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One build, as both builders understand it.

    Attributes:
        tag: Reference of the image to make.
        dockerfile: Name of the Dockerfile in the context.
        arguments: Build arguments.
        network: What steps reach, as ``docker build --network`` has it.
    """

    tag: str
    dockerfile: str
    arguments: Mapping[str, str]
    network: str = "none"


Builder = Callable[["DockerClient", BuildRequest, Iterable[bytes], Progress], None]
"""Builds a request from a context; raises :class:`ImageError` with the last lines of output."""


def builder_of_host() -> Builder:
    """BuildKit where the docker command has it, or else the builder inside every daemon.

    The command is asked, because only the buildx plug-in makes BuildKit's part of a build; the SDK cannot.
    """
    docker = shutil.which("docker")
    if docker is None:
        return build_with_sdk
    asked = subprocess.run([docker, "buildx", "version"], capture_output=True, check=False)
    return build_with_sdk if asked.returncode else build_with_buildkit


def build_with_sdk(client: DockerClient, request: BuildRequest, context: Iterable[bytes], progress: Progress) -> None:
    """Build by the daemon's API, which is the legacy builder."""
    last = deque[str](maxlen=_KEPT_LINES)
    with reported(_what(request), remedy=_REMEDY):
        events = client.api.build(
            fileobj=cast("IO[bytes]", context),  # the SDK hands it to requests, which streams any iterable
            custom_context=True,
            dockerfile=request.dockerfile,
            tag=request.tag,
            buildargs=dict(request.arguments),
            network_mode=request.network,
            # An image would be another one behind a proxy; where a step needs none, it gets none.
            use_config_proxy=request.network != "none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        heard = _heard(events)
        try:
            _follow(heard, request, last, progress)
        except ImageError:
            raise  # the daemon itself has ended it
        except BaseException:
            _wait_for_end(client, request, heard, progress)
            raise


def _follow(heard: Iterable[Event], request: BuildRequest, last: deque[str], progress: Progress) -> None:
    rest = ""  # a command's output comes as it wrote it, and apt writes `E`, `:` and what is wrong one by one
    for event in heard:
        if error := error_of(event):
            raise _failure(request, [*last, *rest.splitlines(), error])
        text, _, rest = (rest + _COLOUR.sub("", str(event.get("stream", "")))).rpartition("\n")
        _take(text, last, progress)
    _take(rest, last, progress)


def _heard(events: Iterator[Event]) -> Iterator[Event]:
    """What the daemon says of a build, read by a thread: an interrupt would end the reading, and all news of the build.

    Raises:
        Exception: What the reading ended with.
    """
    news = queue.SimpleQueue[Event | Exception | None]()

    def read() -> None:
        try:
            for event in events:
                news.put(event)
        except Exception as error:  # noqa: BLE001 - whoever listens raises it
            news.put(error)
        news.put(None)

    threading.Thread(target=read, daemon=True).start()
    # Not a generator: that would be over with the first interrupt.
    return map(_event, iter(news.get, None))


def _event(heard: object) -> Event:
    if isinstance(heard, Exception):
        raise heard
    return cast("Event", heard)


def _wait_for_end(client: DockerClient, request: BuildRequest, heard: Iterator[Event], progress: Progress) -> None:
    """End a build that is not to go on, and wait until the daemon has ended it.

    It would end by itself when nobody listens, but after the step that it is at, and nobody would be there to remove
    what that has made. A command ends at once; a copy, of which the daemon can be told nothing, takes its time.
    """
    progress("waiting for the daemon to end its step")
    with suppress(Exception):  # the daemon is gone; what it has left, the next run's start finds
        while True:
            end_step(client.api, request.arguments.get("BUILDER", ""))
            if next(heard, None) is None:
                return


def build_with_buildkit(
    client: DockerClient, request: BuildRequest, context: Iterable[bytes], progress: Progress
) -> None:
    """Build by the docker command, from the same bytes.

    ``docker build`` and not ``docker buildx build``: it takes the daemon's own builder, which sees the daemon's
    images, even when the user has selected another one.
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
    where = [f"--file={request.dockerfile}", f"--tag={request.tag}", f"--network={request.network}"]
    return ["docker", "build", "--progress=plain", "--provenance=false", *where, *arguments, "-"]


def _feed(context: Iterable[bytes], pipe: IO[bytes]) -> None:
    """Write the context; a build that has failed closes the pipe, and says why on its output."""
    with suppress(BrokenPipeError), pipe:
        for chunk in context:
            pipe.write(chunk)


def _check_same_daemon(client: DockerClient, request: BuildRequest) -> None:
    if find(client, request.tag) is None:
        raise ImageError(
            _what(request),
            why="The docker command built it in another daemon than the one that allranks talks to.",
            remedy="Set DOCKER_HOST to the daemon that both are to use.",
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
    """A line of build output without the text of the script that failed, which says nothing to the user."""
    line = _FAILED_STEP.sub(r"a step of the build ended with code \1", line)
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
