"""The Docker daemon as image builds use it; its failures become :class:`~allranks.errors.ImageError`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.errors import ImageError
from allranks.interruption import PATIENCE, check

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

Progress = Callable[[str], None]
Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """Where a build takes place."""

    client: DockerClient
    root: Path  # the folder that relative paths in requirements start from
    progress: Progress  # receives lines of output
    # Holds locks that keep other processes from removing the images in use, until its owner closes it.
    uses: ExitStack = field(default_factory=ExitStack)


OURS = "allranks/"
"""The prefix of the names of all images that allranks has made or named."""


@contextmanager
def reported(what: str, *, remedy: str) -> Iterator[None]:
    """Turn exceptions of the SDK and its transport into an :class:`ImageError`."""
    import docker.errors  # noqa: PLC0415 - 0.1 s that a command which needs no daemon must not pay
    import requests.exceptions  # noqa: PLC0415

    try:
        yield
    except docker.errors.APIError as error:
        raise ImageError(what, why=_sentence(error.explanation or error), remedy=remedy) from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise ImageError(what, why=_sentence(error), remedy=remedy) from error


def find(client: DockerClient, reference: str) -> Image | None:
    """The image of that reference in the daemon, or None."""
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
            what = f"{reference!r} cannot be the name of an image."
            remedy = "Correct image or base of [images.NAME] in the matrix file."
            raise ImageError(what, why=_sentence(error.explanation), remedy=remedy) from error


def touch(client: DockerClient, reference: str) -> None:
    """Record in the daemon that an image was wanted now: giving it its name again renews ``LastTagTime``.

    Only the daemon's memory is shared by all its users and survives a restart of the host.
    """
    import docker.errors  # noqa: PLC0415
    import requests  # noqa: PLC0415

    name, _, tag = reference.rpartition(":")
    with suppress(docker.errors.DockerException, requests.RequestException):  # it only helps to choose what to prune
        client.api.tag(reference, name, tag)


def pull(client: DockerClient, reference: str, *, progress: Progress, remedy: str) -> Image:
    """Fetch an image from its registry."""
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
    """The daemon's events of a build or a pull, read by a thread: an interrupt in the reading would lose later ones.

    An iteration ends as :func:`allranks.interruption.check` asks, and can be taken up again.

    Raises:
        Exception: The error that ended the reading.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._news = queue.SimpleQueue[Event | Exception | None]()
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: Iterable[Event]) -> None:
        try:
            for event in events:
                self._news.put(event)
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            self._news.put(error)
        self._news.put(None)

    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event; None at the end. Raises :class:`queue.Empty` if there is none in these seconds."""
        news = self._news.get(timeout=timeout)
        if isinstance(news, Exception):
            raise news
        return news

    def __iter__(self) -> Iterator[Event]:
        """The events that have not been taken yet."""
        while True:
            check()
            with suppress(queue.Empty):
                if (event := self.next_event(PATIENCE)) is None:
                    return
                yield event


def error_of(event: Event) -> str:
    """The error in one event of a stream, or an empty string.

    A daemon that refuses a request answers with ``message`` where a stream was expected.
    """
    return str(event.get("error") or event.get("message") or "")


def _sentence(error: object) -> str:
    return f"{str(error).strip().rstrip('.')}."
