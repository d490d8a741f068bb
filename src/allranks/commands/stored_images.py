"""The images that runs have built: listed, previewed and removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from allranks.engine.docker import connect
from allranks.engine.leftovers import reap_builders, reference_of
from allranks.engine.ownership import image_lock, is_held
from allranks.image.builders import gigabytes
from allranks.image.daemon import reported
from allranks.image.stock import StockLimits, StoredImage, remove, take_stock, to_remove

if TYPE_CHECKING:
    from docker import APIClient


Say = Callable[[str], None]

USUAL_AGE: Final = 14 * 86_400.0
"""Seconds that an image may stay unused if no limit is given."""


def show(say: Say) -> None:
    """Print every image of allranks, and their total size.

    Raises:
        AllranksError: No daemon answers.
    """
    with _daemon() as client:
        say(render(_stock(client), time.time()))


def preview(limits: StockLimits, say: Say) -> None:
    """Print what :func:`prune` would remove.

    Raises:
        AllranksError: No daemon answers.
    """
    with _daemon() as client:
        stock = _stock(client)
        chosen = to_remove(stock, _or_usual(limits), time.time())
    for image in chosen:
        say(f"would remove {_told(image)}")
    say(f"would stay: {total([image for image in stock if image not in chosen])}")


def prune(limits: StockLimits, say: Say) -> None:
    """Remove images, least recently used first, and the leftovers of dead builds.

    Args:
        limits: What to keep; without limits, images used in the last two weeks.
        say: Prints one line.

    Raises:
        AllranksError: No daemon answers.
    """
    with _daemon() as client:
        with reported("What dead builds have left could not be listed.", remedy="Run: allranks doctor"):
            for builder in reap_builders(client):
                say(f"removed the unfinished build of {reference_of(builder)}")
        for image in remove(client, to_remove(_stock(client), _or_usual(limits), time.time()), say):
            say(f"removed {_told(image)}")
        left = _stock(client)
    say(f"left: {total(left)}")
    if limits.size is not None and sum(image.own for image in left) > limits.size:
        say("nothing more can go: `allranks images` says who needs what is left")


def _or_usual(limits: StockLimits) -> StockLimits:
    return StockLimits(unused=USUAL_AGE) if limits == StockLimits() else limits


def _stock(client: APIClient) -> tuple[StoredImage, ...]:
    return take_stock(client, lambda name: is_held(image_lock(name)))


def _told(image: StoredImage) -> str:
    return f"{image.title} ({gigabytes(image.own)} of its own)"


@contextmanager
def _daemon() -> Iterator[APIClient]:
    with closing(connect()) as client:
        yield client.api


_HEAD = ("image", "torch", "top layer", "size", "of its own", "built", "last used", "needed by")
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def render(stock: Sequence[StoredImage], now: float) -> str:
    """The images, one per line, most recently used first, and their total size.

    Args:
        stock: The images of this host.
        now: Seconds since the epoch.
    """
    rows = [_HEAD, *(_row(image, now) for image in reversed(stock))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", total(stock)])


def total(stock: Sequence[StoredImage]) -> str:
    """The number of images and their total size; shared layers count once."""
    return f"{len(stock)} images and layers, {gigabytes(sum(image.own for image in stock))}"


def _row(image: StoredImage, now: float) -> tuple[str, ...]:
    return (
        image.title,
        image.torch or "-",
        image.layer,
        gigabytes(image.size),
        gigabytes(image.own),
        _ago(now - image.made),
        _ago(now - image.used),
        _first(image.users),
    )


def _first(users: Sequence[str]) -> str:
    """The first user of an image, and the number of others: a busy host has many."""
    rest = f" and {len(users) - 1} more" if len(users) > 1 else ""
    return f"{users[0]}{rest}" if users else "-"


def _ago(seconds: float) -> str:
    return next(_counted(seconds), "just now")


def _counted(seconds: float) -> Iterator[str]:
    for size, unit in _UNITS:
        if count := int(seconds // size):
            yield f"{count} {unit}{'' if count == 1 else 's'} ago"
