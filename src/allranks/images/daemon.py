"""Requests to the Docker daemon for image builds; a failed request raises :class:`~allranks.errors.ImageError`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import ImageError
from allranks.interruption import CHECK_INTERVAL, check

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

Progress = Callable[[str], None]
Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What a build needs besides its recipe."""

    client: DockerClient
    root: Path  # the folder that relative paths in requirements start from
    progress: Progress  # receives lines of output
    uses: ExitStack = field(default_factory=ExitStack)  # until it is closed, images are locked against removal


OURS = "allranks/"
"""The prefix of the names of all images that allranks has built or named."""


@contextmanager
def reported(what: str, *, remedy: str) -> Iterator[None]:
    """Convert exceptions of the SDK and its transport into an :class:`ImageError`."""
    import docker.errors  # noqa: PLC0415 - takes 0.1 s, and commands without a daemon do not need it
    import requests.exceptions  # noqa: PLC0415

    try:
        yield
    except docker.errors.APIError as error:
        raise ImageError(what, why=_sentence(error.explanation or error), remedy=remedy) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise ImageError(what, why=_sentence(error), remedy=remedy) from error


def find(client: DockerClient, reference: str) -> Image | None:
    """Look up an image in the daemon."""
    import docker.errors  # noqa: PLC0415

    remedy = "Check that the daemon answers (docker version), then run again."
    with reported(f"The daemon could not be queried for the image {reference}.", remedy=remedy):
        try:
            return client.images.get(reference)
        except docker.errors.ImageNotFound:
            return None
        except docker.errors.APIError as error:
            if not error.is_client_error():
                raise
            what = f"{reference!r} is not a valid name of an image."
            remedy = "Correct image or base of [images.NAME] in the matrix file."
            raise ImageError(what, why=_sentence(error.explanation), remedy=remedy) from error


def touch(client: DockerClient, reference: str) -> None:
    """Record in the daemon that an image was used now, by updating ``LastTagTime``.

    All users of the daemon share this time, and it survives a restart of the host.
    """
    import docker.errors  # noqa: PLC0415
    import requests  # noqa: PLC0415

    name, _, tag = reference.rpartition(":")
    with suppress(docker.errors.DockerException, requests.RequestException):  # it is only needed for pruning
        client.api.tag(reference, name, tag)


def pull(client: DockerClient, reference: str, *, progress: Progress, remedy: str) -> Image:
    """Pull an image from its registry."""
    what = f"The image {reference} is not on this host and cannot be pulled."
    progress(f"pulling {reference}")
    with reported(what, remedy=remedy):
        for event in EventReader(client.api.pull(reference, stream=True, decode=True)):
            if error := error_of(event):
                raise ImageError(what, why=_sentence(error), remedy=remedy)
        image = client.images.get(reference)
    progress(f"pulled {reference}")
    return image


class EventReader:
    """Reads the daemon's events of a build or a pull in a thread, so that an interrupt does not lose events.

    Iteration raises the error that ended the stream, or what :func:`allranks.interruption.check` raises. After the
    latter, it can be continued.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._queue = queue.SimpleQueue[Event | Exception | None]()
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: Iterable[Event]) -> None:
        try:
            for event in events:
                self._queue.put(event)
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            self._queue.put(error)
        self._queue.put(None)

    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event, or None at the end. Raises :class:`queue.Empty` after the timeout in seconds."""
        event = self._queue.get(timeout=timeout)
        if isinstance(event, Exception):
            raise event
        return event

    def __iter__(self) -> Iterator[Event]:
        """Yield the remaining events."""
        while True:
            check()
            with suppress(queue.Empty):
                if (event := self.next_event(CHECK_INTERVAL)) is None:
                    return
                yield event


def error_of(event: Event) -> str:
    """The error in an event of a stream, or an empty string.

    A daemon that rejects a request responds with ``message`` instead of a stream.
    """
    return str(event.get("error") or event.get("message") or "")


def _sentence(error: object) -> str:
    return f"{str(error).strip().rstrip('.')}."
