"""What ``allranks images`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from allranks.image.space import gigabytes
from allranks.image.stock import StoredImage

_HEAD = ("image", "torch", "top layer", "size", "of its own", "built", "last used", "needed by")
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def render(stock: Sequence[StoredImage], now: float) -> str:
    """The images, one a line, the most recently used first; and what all of them take together.

    Args:
        stock: What there is.
        now: Seconds since the epoch.
    """
    rows = [_HEAD, *(_row(image, now) for image in reversed(stock))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", total(stock)])


def total(stock: Sequence[StoredImage]) -> str:
    """How many images there are, and what they take: what several have in common, once."""
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
    """Who needs it; of many, which a busy host has, one."""
    rest = f" and {len(users) - 1} more" if len(users) > 1 else ""
    return f"{users[0]}{rest}" if users else "-"


def _ago(seconds: float) -> str:
    return next(_counted(seconds), "just now")


def _counted(seconds: float) -> Iterator[str]:
    for size, unit in _UNITS:
        if count := int(seconds // size):
            yield f"{count} {unit}{'' if count == 1 else 's'} ago"
