"""A container registry, in which images lie under the keys of what went into them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from allranks.errors import ImageError
from allranks.image.build import BuiltImage
from allranks.image.daemon import Site, error_of, reported
from allranks.image.portable import PortableImage, Put, Shelf


def look_up(registry: str) -> Callable[[str, Site], str | None]:
    """What a registry knows of a key, by its digest; a registry that does not answer knows nothing.

    Args:
        registry: The part of its names above ours, such as ``ghcr.io/owner/repository``.
    """

    def known(key: str, site: Site) -> str | None:
        with suppress(ImageError):
            return _by_digest(_place(registry, key), site)
        return None

    return known


def by_push(registry: str) -> Put:
    """How an image gets into a registry; parameter as of :func:`look_up`."""

    def put(image: PortableImage, built: BuiltImage, _shelf: Shelf, site: Site) -> PortableImage:
        place = _place(registry, image.key)
        name, _, tag = place.rpartition(":")
        site.progress(f"pushing {place}")
        with reported(f"The image {place} could not be pushed.", remedy=_REMEDY):
            site.client.api.tag(built.id, name, tag)
            for event in site.client.api.push(name, tag, stream=True, decode=True):
                if error := error_of(event):
                    msg = f"The image {place} could not be pushed."
                    raise ImageError(msg, why=f"{error}.", remedy=_REMEDY)
        return replace(image, reference=_by_digest(place, site))

    return put


_REMEDY = "Log in to the registry (docker login) as somebody who may write there, then run again."


def _place(registry: str, key: str) -> str:
    """Registries take lower case only, and the owner of a repository may have a capital."""
    return f"{registry.rstrip('/')}/{key}".lower()


def _by_digest(place: str, site: Site) -> str:
    """The image that a name means now, by a name that will never mean another."""
    with reported(f"The registry could not be asked for {place}.", remedy=_REMEDY):
        answer = site.client.api.inspect_distribution(place)  # type: ignore[no-untyped-call]
    return f"{place.rpartition(':')[0]}@{answer['Descriptor']['digest']}"
