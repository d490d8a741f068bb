"""Finds, pulls or builds the image of a cell."""

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
from allranks.images.sources import build_until_stable, source_digest
from allranks.interruption import time_limit
from allranks.ownership import image_lock, shared_lock
from allranks.user_cache import locked

if TYPE_CHECKING:
    from docker import DockerClient

    from allranks.matrix.model import Image


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image that the daemon has."""

    reference: str  # its name
    id: str


def build_limit(image: Image, seconds: float) -> AbstractContextManager[None]:
    """A context that limits the time to build an image, or the Python environment for its jobs."""
    late = ImageError(
        f"Image {image.name} was not built within {seconds:g} s.",
        why="The limit is limits.build of the matrix file.",
        remedy="Raise it, or find the slow step: allranks build prints each one.",
    )
    return time_limit(seconds, late)


def ensure_image(
    image: Image, *, root: Path, client: DockerClient, progress: Progress, uses: ExitStack | None = None
) -> BuiltImage:
    """Find, pull or build the image of a cell.

    With unchanged inputs, this takes three requests to the daemon and a check of the project's files. If two processes
    need the same image, one of them builds it.

    Until `uses` is closed, ``allranks clean --images`` does not remove the image.
    """
    with ExitStack() as held:
        context = BuildContext(client=client, root=root, progress=progress, uses=held)
        if image.image is not None:
            built = _find_or_pull(image.name, image.image, context)
        else:
            built = _find_or_build(image, context)
        if uses is not None:
            uses.push(held.pop_all())
        return built


def _find_or_build(image: Image, context: BuildContext) -> BuiltImage:
    recipe = recipe_of(_without_copied_project(image, context), root=context.root)
    if recipe.project is None:
        return _ensure(recipe, context)
    return build_until_stable(
        recipe.project, lambda source: _ensure(replace(recipe, source=source), context), context.progress
    )


def _ensure(recipe: Recipe, context: BuildContext) -> BuiltImage:
    base, reference = _base_and_reference(recipe, context)
    context.uses.enter_context(shared_lock(image_lock(reference)))
    return _present(context.client, reference) or _build_once(recipe, base, reference, context)


def _present(client: DockerClient, reference: str) -> BuiltImage | None:
    """Find an image, and mark it as used if it is one of allranks; None if the daemon does not have it."""
    if present := find(client, reference):
        if reference.startswith(OURS):
            touch(client, reference)
        return BuiltImage(reference=reference, id=str(present.id))
    return None


def image_reference(image: Image, context: BuildContext) -> str:
    """The name of an image, which contains the key of its inputs; the image need not exist."""
    if image.image is not None:
        return image.image
    recipe = recipe_of(_without_copied_project(image, context), root=context.root)
    if recipe.project:
        recipe = replace(recipe, source=source_digest(recipe.project))
    return _base_and_reference(recipe, context)[1]


def _base_and_reference(recipe: Recipe, context: BuildContext) -> tuple[Base, str]:
    base = find_base(context.client, recipe.base, environ=os.environ, progress=context.progress)
    dockerfile = dockerfile_path().read_text(encoding="utf-8")
    return base, f"{repository(recipe.name)}:{image_key(recipe, base_id=base.id, dockerfile=dockerfile)}"


def _without_copied_project(image: Image, context: BuildContext) -> Image:
    """The image to build. If the project is copied into jobs, the image only has the project's requirements."""
    if image.mode == "install":
        return image
    from allranks.images.project import without_project  # noqa: PLC0415 - few need it

    return without_project(image, context.root, context.progress)


def repository(name: str) -> str:
    """The repository for an image of the matrix file, in lower case, digits and single hyphens, as Docker requires."""
    return f"{OURS}{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-') or 'image'}"


def _find_or_pull(name: str, reference: str, context: BuildContext) -> BuiltImage:
    context.uses.enter_context(shared_lock(image_lock(reference)))
    if present := _present(context.client, reference):
        return present
    remedy = f"Correct image of [images.{name}], log in to its registry (docker login), or build it with that name."
    pulled = pull(context.client, reference, progress=context.progress, remedy=remedy)
    return BuiltImage(reference=reference, id=str(pulled.id))


def _build_once(recipe: Recipe, base: Base, reference: str, context: BuildContext) -> BuiltImage:
    from allranks.images.layers import build_layers  # noqa: PLC0415 - most runs build nothing

    name, _, tag = reference.partition(":")
    with locked(f"{name.replace('/', '-')}-{tag}"):
        if present := _present(context.client, reference):
            return present
        context.progress(f"building image {reference} on {base.reference}{f' ({base.reason})' if base.reason else ''}")
        top = build_layers(recipe, base, context)
        with reported(f"The image {reference} could not be tagged.", remedy="Run again."):
            context.client.api.tag(top.id, name, tag)
        return BuiltImage(reference=reference, id=top.id)
