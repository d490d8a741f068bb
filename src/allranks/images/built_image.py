"""The image of a cell: found by its key, or built layer by layer."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import ImageError
from allranks.images.base import Base, dockerfile_path, find_base
from allranks.images.daemon import OURS, BuildContext, Progress, find, pull, reported, touch
from allranks.images.recipe import Recipe, image_key, recipe_of
from allranks.images.sources import source_digest, while_it_stays
from allranks.interruption import time_limit
from allranks.ownership import image_lock, shared
from allranks.user_cache import locked

if TYPE_CHECKING:
    from docker import DockerClient

    from allranks.matrix.model import Image


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image that the daemon has."""

    reference: str  # its name, for display
    id: str
    built: bool  # whether this call made or pulled it


def build_limit(image: Image, seconds: float) -> AbstractContextManager[None]:
    """The time limit of a block that makes an image, or the Python environment for its jobs."""
    late = ImageError(
        f"Image {image.name} was not made in {seconds:g} s.",
        why="That is limits.build of the matrix file.",
        remedy="Raise it, or find out what takes so long: allranks build prints each step.",
    )
    return time_limit(seconds, late)


def ensure_image(
    image: Image, *, root: Path, client: DockerClient, progress: Progress, uses: ExitStack | None = None
) -> BuiltImage:
    """Find, pull or build the image of a cell.

    With unchanged inputs nothing is built, and the cost is three requests to the daemon and a check of the project's
    files. If two processes need the same image, one of them builds it.

    Until `uses` is closed, no process on this host removes the image (``allranks clean --images``).
    """
    with ExitStack() as held:
        context = BuildContext(client=client, root=root, progress=progress, uses=held)
        there = (
            _finished(image.name, image.image, context) if image.image is not None else _found_or_built(image, context)
        )
        if uses is not None:
            uses.push(held.pop_all())
        return there


def _found_or_built(image: Image, context: BuildContext) -> BuiltImage:
    recipe = recipe_of(_installed_whole(image, context), root=context.root)
    if recipe.project is None:
        return _ensure(recipe, context)
    return while_it_stays(
        recipe.project, lambda source: _ensure(replace(recipe, source=source), context), context.progress
    )


def _ensure(recipe: Recipe, context: BuildContext) -> BuiltImage:
    base, reference = _named(recipe, context)
    context.uses.enter_context(shared(image_lock(reference)))
    return _present(context.client, reference) or _build_once(recipe, base, reference, context)


def _present(client: DockerClient, reference: str) -> BuiltImage | None:
    """An image that the daemon has, after marking it as wanted; None if it has none."""
    if present := find(client, reference):
        touch(client, reference)
        return BuiltImage(reference=reference, id=str(present.id), built=False)
    return None


def image_reference(image: Image, context: BuildContext) -> str:
    """The name that an image has, or will have once it is built, with the key of its content."""
    if image.image is not None:
        return image.image
    return _named(_with_source(recipe_of(_installed_whole(image, context), root=context.root)), context)[1]


def _named(recipe: Recipe, context: BuildContext) -> tuple[Base, str]:
    base = find_base(context.client, recipe.base, environ=os.environ, progress=context.progress)
    return base, f"{repository(recipe.name)}:{_key(recipe, base)}"


def _with_source(recipe: Recipe) -> Recipe:
    return replace(recipe, source=source_digest(recipe.project)) if recipe.project else recipe


def _installed_whole(image: Image, context: BuildContext) -> Image:
    """The image as it is built: without a project that is copied into jobs, but with that project's requirements."""
    if image.mode == "install":
        return image
    from allranks.images.project import without_project  # noqa: PLC0415 - it builds a wheel, which few need

    return without_project(image, context.root, context.progress)


def repository(name: str) -> str:
    """The repository of a matrix file's image: Docker allows lower case, digits and single separators."""
    return f"{OURS}{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'image'}"


def _finished(name: str, reference: str, context: BuildContext) -> BuiltImage:
    context.uses.enter_context(shared(image_lock(reference)))
    if present := find(context.client, reference):
        if reference.startswith(OURS):
            touch(context.client, reference)
        return BuiltImage(reference=reference, id=str(present.id), built=False)
    remedy = (
        f"Correct image of [images.{name}], log in to its registry (docker login), or build it here under that name."
    )
    pulled = pull(context.client, reference, progress=context.progress, remedy=remedy)
    return BuiltImage(reference=reference, id=str(pulled.id), built=True)


def _key(recipe: Recipe, base: Base) -> str:
    return image_key(
        recipe,
        base_id=base.id,
        dockerfile=dockerfile_path().read_text(encoding="utf-8"),
    )


def _build_once(recipe: Recipe, base: Base, reference: str, context: BuildContext) -> BuiltImage:
    from allranks.images.layers import build_layers  # noqa: PLC0415 - most runs build nothing

    name, _, tag = reference.partition(":")
    with locked(f"{name.replace('/', '-')}-{tag}"):
        if present := find(context.client, reference):
            return BuiltImage(reference=reference, id=str(present.id), built=False)
        context.progress(f"building image {reference} on {base.reference}{f' ({base.reason})' if base.reason else ''}")
        top = build_layers(recipe, base, context)
        with reported(f"The image {reference} could not be tagged.", remedy="Run again."):
            context.client.api.tag(top.id, name, tag)
        return BuiltImage(reference=reference, id=top.id, built=True)
