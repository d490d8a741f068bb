"""Lists and removes the images of allranks in a daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from allranks.errors import ImageError, counted
from allranks.images.builders import gigabytes
from allranks.images.daemon import OURS, Progress, reported
from allranks.images.docker_client import connect
from allranks.images.layers import REPOSITORY
from allranks.images.leftovers import reference_of, remove_dead_builds
from allranks.ownership import exclusive_lock, image_lock, is_held

if TYPE_CHECKING:
    from docker import APIClient


_LAYER_LABEL = "allranks.layer"

RUN = "a run or build on this host"
OTHERS = "an image that allranks did not build"


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image that allranks has built, or a layer of one."""

    id: str
    names: tuple[str, ...]  # its names as an image, then its names as a layer
    torch: str  # its torch version, if any
    layer: str  # the topmost layer: ``debian``, ``torch``, ``packages`` or ``project``
    size: int  # bytes, including its parents
    own: int  # bytes that it adds to its parent, which its removal frees
    created: float  # when it was built, in seconds since the epoch
    used: float  # when a run last used it or one of its children
    diffs: tuple[str, ...]  # the layers of its file system, from the bottom up
    users: tuple[str, ...] = ()  # what uses it or one of its children; an image with users must not be removed

    def is_based_on(self, other: StoredImage) -> bool:
        """Whether the other image is one of its parents."""
        return _is_based_on(self.diffs, other.diffs)

    @property
    def title(self) -> str:
        """Its name in messages."""
        images = [name for name in self.names if not _is_layer(name)]
        return ", ".join(images or self.names)


@dataclass(frozen=True, kw_only=True)
class _AnyImage:
    """An image of allranks or another program."""

    id: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    size: int
    created: float
    tagged: float  # when it last got a name
    diffs: tuple[str, ...]

    @property
    def own_names(self) -> tuple[str, ...]:
        return tuple(sorted((name for name in self.names if name.startswith(OURS)), key=_is_layer))

    @property
    def is_ours(self) -> bool:
        """Whether it is an image of allranks. Images that are based on one inherit its labels, but not its name."""
        return _LAYER_LABEL in self.labels and bool(self.own_names)


def list_images(client: APIClient, is_needed: Callable[[str], bool]) -> tuple[StoredImage, ...]:
    """Every image of allranks in a daemon, the least recently used first."""
    with reported("The images could not be listed.", remedy="Check that the daemon answers (docker version)."):
        all_images = list(_inspect_all(client))
        containers = client.containers(all=True)
    ours = [image for image in all_images if image.is_ours]
    users = {image.id: _users(image, all_images, containers, is_needed) for image in ours}
    images = [_stored(image, ours, all_images, users) for image in ours]
    return tuple(sorted(images, key=lambda image: (image.used, -len(image.diffs))))


def _inspect_all(client: APIClient) -> Iterator[_AnyImage]:
    import docker.errors  # noqa: PLC0415 - as in `reported`

    for image in client.images():
        with suppress(docker.errors.ImageNotFound):  # it has just been removed
            yield _inspect(client, image["Id"])


def _inspect(client: APIClient, image_id: str) -> _AnyImage:
    inspect: Callable[[str], Mapping[str, Any]] = client.inspect_image  # the SDK has no types for it
    found = inspect(image_id)
    return _AnyImage(
        id=found["Id"],
        names=tuple(found.get("RepoTags") or ()),
        labels=(found.get("Config") or {}).get("Labels") or {},
        size=int(found["Size"]),
        created=_seconds(found.get("Created", "")),
        tagged=_seconds((found.get("Metadata") or {}).get("LastTagTime", "")),
        diffs=tuple((found.get("RootFS") or {}).get("Layers") or ()),
    )


def _seconds(text: str) -> float:
    """Seconds since the epoch; zero if unknown, which the daemon reports as the year one."""
    try:
        return max(0.0, datetime.fromisoformat(text).astimezone(UTC).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _users(
    image: _AnyImage,
    all_images: Sequence[_AnyImage],
    containers: Iterable[Mapping[str, Any]],
    is_needed: Callable[[str], bool],
) -> tuple[str, ...]:
    """The users of the image itself, not those of our images based on it."""
    found = [str(container["Names"][0]).lstrip("/") for container in containers if container["ImageID"] == image.id]
    if any(is_needed(name) for name in image.own_names):
        found.append(RUN)
    others = (other for other in all_images if not other.is_ours and other.id != image.id)
    has_foreign_children = any(other.diffs == image.diffs or _is_based_on(other.diffs, image.diffs) for other in others)
    if has_foreign_children or len(image.own_names) < len(image.names):
        found.append(OTHERS)
    return tuple(found)


def _stored(
    image: _AnyImage, ours: Sequence[_AnyImage], all_images: Sequence[_AnyImage], users: Mapping[str, tuple[str, ...]]
) -> StoredImage:
    children = [other for other in ours if _is_based_on(other.diffs, image.diffs)]
    parents = (other for other in all_images if _is_based_on(image.diffs, other.diffs))
    return StoredImage(
        id=image.id,
        names=image.own_names,
        torch=image.labels.get("allranks.torch", ""),
        layer=image.labels[_LAYER_LABEL],
        size=image.size,
        own=image.size - max((parent.size for parent in parents), default=0),
        created=image.created,
        used=max(other.tagged or other.created for other in (image, *children)),
        diffs=image.diffs,
        users=tuple(dict.fromkeys(user for other in (image, *children) for user in users[other.id])),
    )


def _is_based_on(upper: tuple[str, ...], lower: tuple[str, ...]) -> bool:
    return len(lower) < len(upper) and upper[: len(lower)] == lower


def _is_layer(name: str) -> bool:
    return name.startswith(f"{REPOSITORY}:")


@dataclass(frozen=True, kw_only=True)
class PruneLimits:
    """Which images to keep: those within both limits."""

    unused: float | None = None  # seconds since the last use; None for no limit
    size: int | None = None  # bytes of all images together; None for no limit


def to_remove(images: Sequence[StoredImage], limits: PruneLimits, now: float) -> tuple[StoredImage, ...]:
    """The images to remove, children before their parents.

    A parent is never removed before a child: the users of a child are also users of the parent, and the use of a child
    is also a use of the parent.
    """
    chosen: list[StoredImage] = []
    total = sum(image.own for image in images)
    for image in sorted(images, key=lambda image: (image.used, -len(image.diffs))):
        is_old = limits.unused is not None and now - image.used > limits.unused
        exceeds_size = limits.size is not None and total > limits.size
        if not image.users and (is_old or exceeds_size):
            chosen.append(image)
            total -= image.own
    return tuple(chosen)


def remove(client: APIClient, chosen: Iterable[StoredImage], progress: Progress) -> Iterator[StoredImage]:
    """Remove images that are still unused, in this order; yield the removed ones, and report why others are kept."""
    kept: list[StoredImage] = []
    for image in chosen:
        if any(other.is_based_on(image) for other in kept):
            kept.append(image)
        elif reason := _remove_unless_used(client, image):
            kept.append(image)
            progress(f"kept {image.title}: {reason}")
        else:
            yield image


def _remove_unless_used(client: APIClient, image: StoredImage) -> str:
    """Remove an image, or return why it is kept.

    The lock of a run on another host or in another container is not visible, but the image's last use is.
    """
    with ExitStack() as locks:
        if not all(locks.enter_context(exclusive_lock(image_lock(name))) for name in image.names):
            return "a run or build needs it now"
        try:
            with reported(f"The image {image.title} could not be removed.", remedy=""):
                if _inspect(client, image.id).tagged > image.used:
                    return "a run on another host has just used it"
                for name in image.names:
                    client.remove_image(name)
        except ImageError as error:
            return error.why
    return ""


DEFAULT_LIMITS: Final = PruneLimits(unused=14 * 86_400.0)


class Pruning(NamedTuple):
    """The result of :func:`prune` or :func:`preview`."""

    removed: tuple[StoredImage, ...]
    left: tuple[StoredImage, ...]


def our_images() -> tuple[StoredImage, ...]:
    """List every image of allranks, the least recently used first."""
    with _daemon() as client:
        return _list_images(client)


def preview(limits: PruneLimits, progress: Progress) -> Pruning:
    """Report what :func:`prune` would remove."""
    images = our_images()
    chosen = to_remove(images, _or_default(limits), time.time())
    left = tuple(image for image in images if image not in chosen)
    for image in chosen:
        progress(f"would remove {_describe(image)}")
    progress(f"would keep: {total(left)}")
    return Pruning(chosen, left)


def prune(limits: PruneLimits, progress: Progress) -> Pruning:
    """Remove images, the least recently used first, and the leftovers of dead builds.

    Without limits, images that were used in the last two weeks are kept.
    """
    removed: list[StoredImage] = []
    with _daemon() as client:
        with reported("The leftovers of dead builds could not be listed.", remedy="Run: allranks doctor"):
            for builder in remove_dead_builds(client):
                progress(f"removed the unfinished build of {reference_of(builder)}")
        for image in remove(client, to_remove(_list_images(client), _or_default(limits), time.time()), progress):
            removed.append(image)
            progress(f"removed {_describe(image)}")
        left = _list_images(client)
    progress(f"left: {total(left)}")
    if limits.size is not None and sum(image.own for image in left) > limits.size:
        progress("nothing more can be removed: `allranks clean --images --dry-run` shows what uses the rest")
    return Pruning(tuple(removed), left)


def _or_default(limits: PruneLimits) -> PruneLimits:
    return DEFAULT_LIMITS if limits == PruneLimits() else limits


def _list_images(client: APIClient) -> tuple[StoredImage, ...]:
    return list_images(client, lambda name: is_held(image_lock(name)))


def _describe(image: StoredImage) -> str:
    return f"{image.title} (own size: {gigabytes(image.own)})"


@contextmanager
def _daemon() -> Iterator[APIClient]:
    with closing(connect()) as client:
        yield client.api


_HEAD = ("image", "torch", "top layer", "size", "own size", "built", "last used", "needed by")
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"))


def render(images: Sequence[StoredImage], now: float) -> str:
    """A table of the images, the most recently used first, and their total size."""
    rows = [_HEAD, *(_row(image, now) for image in reversed(images))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", total(images)])


def total(images: Sequence[StoredImage]) -> str:
    """The number of images and their total size; shared layers count once."""
    number = counted(len(images), "image or layer", "images and layers")
    return f"{number}, {gigabytes(sum(image.own for image in images))}"


def _row(image: StoredImage, now: float) -> tuple[str, ...]:
    return (
        image.title,
        image.torch or "-",
        image.layer,
        gigabytes(image.size),
        gigabytes(image.own),
        _ago(now - image.created),
        _ago(now - image.used),
        _first(image.users),
    )


def _first(users: Sequence[str]) -> str:
    """The first user of an image, and the number of others."""
    rest = f" and {len(users) - 1} more" if len(users) > 1 else ""
    return f"{users[0]}{rest}" if users else "-"


def _ago(seconds: float) -> str:
    for size, unit in _UNITS:
        if count := int(seconds // size):
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
