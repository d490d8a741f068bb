"""Which images go when room is made, and their removal: the least recently used first, never one that is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allranks.engine.ownership import alone, image_lock
from allranks.errors import ImageError
from allranks.image.daemon import reported
from allranks.image.stock import StoredImage

if TYPE_CHECKING:
    from docker import APIClient


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may stay.

    Attributes:
        unused: Seconds that an image may lie unused; None for any.
        size: Bytes that all images may take together; None for any.
    """

    unused: float | None = None
    size: int | None = None


def to_remove(stock: Sequence[StoredImage], limits: Limits, now: float) -> tuple[StoredImage, ...]:
    """What has to go, in the order in which it can: what lies on another image before that one.

    An image is as recently used as the most recent of those that lie on it, and needed by whoever needs one of them, so
    none is taken away from under another.

    Args:
        stock: What there is.
        limits: What may stay.
        now: Seconds since the epoch.
    """
    chosen: list[StoredImage] = []
    total = sum(image.own for image in stock)
    for image in sorted(stock, key=lambda each: (each.used, -len(each.diffs))):
        is_old = limits.unused is not None and now - image.used > limits.unused
        is_too_much = limits.size is not None and total > limits.size
        if not image.users and (is_old or is_too_much):
            chosen.append(image)
            total -= image.own
    return tuple(chosen)


def remove(client: APIClient, chosen: Iterable[StoredImage], say: Callable[[str], None]) -> Iterator[StoredImage]:
    """Remove images, as far as nobody has come to need them meanwhile; those that are gone.

    Args:
        client: The daemon's API.
        chosen: What has to go, as :func:`to_remove` orders it.
        say: Told which one stays after all, and why.
    """
    kept: list[StoredImage] = []
    for image in chosen:
        if any(other.lies_on(image) for other in kept):
            kept.append(image)
        elif reason := _why_kept(client, image):
            kept.append(image)
            say(f"kept {image.title}: {reason}")
        else:
            yield image


def _why_kept(client: APIClient, image: StoredImage) -> str:
    """Remove an image, or say why it stays."""
    with ExitStack() as locks:
        if not all(locks.enter_context(alone(image_lock(name))) for name in image.names):
            return "a run or build needs it by now"
        try:
            with reported(f"The image {image.title} could not be removed.", remedy=""):
                for name in image.names:
                    client.remove_image(name)
        except ImageError as error:
            return error.why
    return ""
