"""The images of allranks in a daemon: their sizes, their users, and their removal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from allranks.errors import ImageError
from allranks.images.builders import gigabytes
from allranks.images.daemon import OURS, Progress, reported
from allranks.images.docker_client import connect
from allranks.images.layers import REPOSITORY
from allranks.images.leftovers import reference_of, remove_dead_builds
from allranks.ownership import alone, image_lock, is_held

if TYPE_CHECKING:
    from docker import APIClient


_LAYER_LABEL = "allranks.layer"

RUN = "a run or build of this host"
OTHERS = "an image that allranks did not build"


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image that allranks has built, or a layer of one."""

    id: str
    names: tuple[str, ...]  # its names, those of images before those of layers
    torch: str  # its torch version; empty if it has none
    layer: str  # the topmost layer: ``debian``, ``torch``, ``packages`` or ``project``
    size: int  # bytes, including all images below it
    own: int  # bytes beyond the nearest image below it, which its removal frees
    made: float  # when it was built, in seconds since the epoch
    used: float  # when a run last wanted it, or an image above it
    diffs: tuple[str, ...]  # its file system's layers, from the bottom up
    users: tuple[str, ...] = ()  # users of it, or of an image above it; it must not be removed while there are any

    def lies_on(self, other: StoredImage) -> bool:
        """Whether the other one is a part of this one."""
        return _lies_on(self.diffs, other.diffs)

    @property
    def title(self) -> str:
        """Its name for people: its names as an image, or if it has none, as a layer."""
        images = [name for name in self.names if not _is_layer(name)]
        return ", ".join(images or self.names)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Any image, with the facts that matter here."""

    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    made: float
    named: float
    diffs: tuple[str, ...]

    @property
    def own_names(self) -> tuple[str, ...]:
        return tuple(sorted((name for name in self.names if name.startswith(OURS)), key=_is_layer))

    @property
    def is_ours(self) -> bool:
        """True for an image of allranks; one that users build on it inherits its labels, but has another name."""
        return _LAYER_LABEL in self.labels and bool(self.own_names)


def list_images(client: APIClient, is_needed: Callable[[str], bool]) -> tuple[StoredImage, ...]:
    """Every image of allranks in a daemon, the least recently used first."""
    with reported("The images could not be listed.", remedy="Check that the daemon answers (docker version)."):
        seen = list(_all_seen(client))
        containers = client.containers(all=True)
    ours = [image for image in seen if image.is_ours]
    users = {image.id: _users(image, seen, containers, is_needed) for image in ours}
    images = [_stored(image, ours, seen, users) for image in ours]
    return tuple(sorted(images, key=lambda image: (image.used, -len(image.diffs))))


def _all_seen(client: APIClient) -> Iterator[_Seen]:
    import docker.errors  # noqa: PLC0415 - as in `reported`

    look: Callable[[str], Mapping[str, Any]] = client.inspect_image
    for each in client.images():
        with suppress(docker.errors.ImageNotFound):  # it has just been removed
            yield _seen(look(each["Id"]))


def _seen(said: Mapping[str, Any]) -> _Seen:
    return _Seen(
        id=said["Id"],
        names=tuple(said.get("RepoTags") or ()),
        labels=(said.get("Config") or {}).get("Labels") or {},
        size=int(said["Size"]),
        made=_seconds(said.get("Created", "")),
        named=_seconds((said.get("Metadata") or {}).get("LastTagTime", "")),
        diffs=tuple((said.get("RootFS") or {}).get("Layers") or ()),
    )


def _seconds(text: str) -> float:
    """Seconds since the epoch; zero if the daemon does not have it, which it reports as the year one."""
    try:
        return max(0.0, datetime.fromisoformat(text).astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _users(
    image: _Seen, seen: Sequence[_Seen], containers: Iterable[Mapping[str, Any]], is_needed: Callable[[str], bool]
) -> tuple[str, ...]:
    """The users of this very image; see :func:`_stored` for those of images above it."""
    found = [str(each["Names"][0]).lstrip("/") for each in containers if each["ImageID"] == image.id]
    if any(is_needed(name) for name in image.own_names):
        found.append(RUN)
    others = (other for other in seen if not other.is_ours and other.id != image.id)
    is_below_others = any(other.diffs == image.diffs or _lies_on(other.diffs, image.diffs) for other in others)
    if is_below_others or len(image.own_names) < len(image.names):
        found.append(OTHERS)
    return tuple(found)


def _stored(
    image: _Seen, ours: Sequence[_Seen], seen: Sequence[_Seen], users: Mapping[str, tuple[str, ...]]
) -> StoredImage:
    above = [other for other in ours if _lies_on(other.diffs, image.diffs)]
    below = max((other for other in seen if _lies_on(image.diffs, other.diffs)), key=lambda it: it.size, default=None)
    return StoredImage(
        id=image.id,
        names=image.own_names,
        torch=image.labels.get("allranks.torch", ""),
        layer=image.labels[_LAYER_LABEL],
        size=image.size,
        own=image.size - (below.size if below else 0),
        made=image.made,
        used=max(other.named or other.made for other in (image, *above)),
        diffs=image.diffs,
        users=tuple(dict.fromkeys(user for other in (image, *above) for user in users[other.id])),
    )


def _lies_on(upper: tuple[str, ...], lower: tuple[str, ...]) -> bool:
    return len(lower) < len(upper) and upper[: len(lower)] == lower


def _is_layer(name: str) -> bool:
    return name.startswith(f"{REPOSITORY}:")


@dataclass(frozen=True, kw_only=True)
class PruneLimits:
    """The limits for images that stay."""

    unused: float | None = None  # seconds that an image may lie unused; None for any
    size: int | None = None  # bytes that all images may take together; None for any


def to_remove(images: Sequence[StoredImage], limits: PruneLimits, now: float) -> tuple[StoredImage, ...]:
    """The images to remove, in an order that works: each before the image below it.

    An image counts as used as recently as the most recent one above it, and as needed by the users of any of these, so
    no image is removed from under another.
    """
    chosen: list[StoredImage] = []
    total = sum(image.own for image in images)
    for image in sorted(images, key=lambda each: (each.used, -len(each.diffs))):
        is_old = limits.unused is not None and now - image.used > limits.unused
        is_too_much = limits.size is not None and total > limits.size
        if not image.users and (is_old or is_too_much):
            chosen.append(image)
            total -= image.own
    return tuple(chosen)


def remove(client: APIClient, chosen: Iterable[StoredImage], say: Progress) -> Iterator[StoredImage]:
    """Remove images that are still unused, in this order; yield the removed ones, and say why others stay."""
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
    """Remove an image, or return why it stays.

    A run of another host, or of another container, has no lock here, but has renewed the image's last use.
    """
    with ExitStack() as locks:
        if not all(locks.enter_context(alone(image_lock(name))) for name in image.names):
            return "a run or build needs it now"
        try:
            with reported(f"The image {image.title} could not be removed.", remedy=""):
                look: Callable[[str], Mapping[str, Any]] = client.inspect_image
                if _seen(look(image.id)).named > image.used:
                    return "a run of another host has just used it"
                for name in image.names:
                    client.remove_image(name)
        except ImageError as error:
            return error.why
    return ""


USUAL_AGE: Final = 14 * 86_400.0
"""Seconds that an image may stay unused if no limit is given."""


class Pruning(NamedTuple):
    """What a removal did, or would do."""

    removed: tuple[StoredImage, ...]
    left: tuple[StoredImage, ...]


def every_image() -> tuple[StoredImage, ...]:
    """Every image of allranks, the least recently used first."""
    with _daemon() as client:
        return _list_images(client)


def preview(limits: PruneLimits, say: Progress) -> Pruning:
    """Print what :func:`prune` would remove."""
    images = every_image()
    chosen = to_remove(images, _or_usual(limits), time.time())
    left = tuple(image for image in images if image not in chosen)
    for image in chosen:
        say(f"would remove {_told(image)}")
    say(f"would stay: {total(left)}")
    return Pruning(chosen, left)


def prune(limits: PruneLimits, say: Progress) -> Pruning:
    """Remove images, least recently used first, and the leftovers of dead builds.

    Without limits, images used in the last two weeks stay.
    """
    removed: list[StoredImage] = []
    with _daemon() as client:
        with reported("The leftovers of dead builds could not be listed.", remedy="Run: allranks doctor"):
            for builder in remove_dead_builds(client):
                say(f"removed the unfinished build of {reference_of(builder)}")
        for image in remove(client, to_remove(_list_images(client), _or_usual(limits), time.time()), say):
            removed.append(image)
            say(f"removed {_told(image)}")
        left = _list_images(client)
    say(f"left: {total(left)}")
    if limits.size is not None and sum(image.own for image in left) > limits.size:
        say("nothing more can be removed: `allranks clean --images --dry-run` shows what uses the rest")
    return Pruning(tuple(removed), left)


def _or_usual(limits: PruneLimits) -> PruneLimits:
    return PruneLimits(unused=USUAL_AGE) if limits == PruneLimits() else limits


def _list_images(client: APIClient) -> tuple[StoredImage, ...]:
    return list_images(client, lambda name: is_held(image_lock(name)))


def _told(image: StoredImage) -> str:
    return f"{image.title} ({gigabytes(image.own)} of its own)"


@contextmanager
def _daemon() -> Iterator[APIClient]:
    with closing(connect()) as client:
        yield client.api


_HEAD = ("image", "torch", "top layer", "size", "of its own", "built", "last used", "needed by")
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def render(images: Sequence[StoredImage], now: float) -> str:
    """The images, one per line, most recently used first, and their total size."""
    rows = [_HEAD, *(_row(image, now) for image in reversed(images))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", total(images)])


def total(images: Sequence[StoredImage]) -> str:
    """The number of images and their total size; shared layers count once."""
    return f"{len(images)} images and layers, {gigabytes(sum(image.own for image in images))}"


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
