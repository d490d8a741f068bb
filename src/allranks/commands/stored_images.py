"""The images that runs have built, shown and removed: ``allranks images``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from allranks.engine.builds import reap_builders, reference_of
from allranks.engine.docker import connect
from allranks.engine.ownership import image_lock, is_held
from allranks.image.daemon import reported
from allranks.image.listing import render, total
from allranks.image.pruning import Limits, remove, to_remove
from allranks.image.space import gigabytes
from allranks.image.stock import StoredImage, take_stock

if TYPE_CHECKING:
    from docker import APIClient

Say = Callable[[str], None]

USUAL_AGE: Final = 14 * 86_400.0
"""Seconds that an image may lie unused where nothing else says what may stay."""


def show(say: Say) -> None:
    """Print every image of allranks, and what all of them take.

    Raises:
        AllranksError: No daemon answers.
    """
    with _daemon() as client:
        say(render(_stock(client), time.time()))


def preview(limits: Limits, say: Say) -> None:
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


def prune(limits: Limits, say: Say) -> None:
    """Remove images, the least recently used first, and what dead builds have left.

    Args:
        limits: What may stay; where they say nothing, what was used in the last two weeks.
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


def _or_usual(limits: Limits) -> Limits:
    return Limits(unused=USUAL_AGE) if limits == Limits() else limits


def _stock(client: APIClient) -> tuple[StoredImage, ...]:
    return take_stock(client, lambda name: is_held(image_lock(name)))


def _told(image: StoredImage) -> str:
    return f"{image.title} ({gigabytes(image.own)} of its own)"


@contextmanager
def _daemon() -> Iterator[APIClient]:
    with closing(connect()) as client:
        yield client.api
