"""Builds an image in layers, so that a change rebuilds only the layers above it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import ImageError
from allranks.images.base import Base, dockerfile_path, python_of
from allranks.images.builders import DOCKERFILE, BuildRequest, builder_of_host, check_space, stream
from allranks.images.daemon import BuildContext, find, reported
from allranks.images.leftovers import builder_of, remove_leftovers
from allranks.images.project import wheel_of
from allranks.images.recipe import Recipe, layer_key
from allranks.images.wheels import ResolutionRequest, Wheelhouse, identity, requirements, resolve
from allranks.ownership import image_lock, shared_lock
from allranks.user_cache import locked

if TYPE_CHECKING:
    from docker.models.images import Image


REPOSITORY = "allranks/layer"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of an image."""

    name: str  # ``debian``, ``torch``, ``packages`` or ``project``
    content: tuple[str, ...]  # what distinguishes it from other layers on the same parent
    wheels: tuple[Path, ...] = ()  # the wheels to install; none for Debian packages
    tools: Path | None = None  # the folder with the wheel of pip that installs them; None for Debian packages
    arguments: Mapping[str, str] = field(default_factory=dict)  # its own build arguments
    network: str = "none"  # the network of the build, as for Docker's ``--network``

    @property
    def files(self) -> dict[str, Path]:
        """The build context: the file on the host for each path in it."""
        return {
            DOCKERFILE: dockerfile_path(),
            **{f"tools/{path.name}": path for path in (self.tools.iterdir() if self.tools else ())},
            **{f"wheels/{path.name}": path for path in self.wheels},
        }


def build_layers(recipe: Recipe, base: Base, context: BuildContext) -> Base:
    """Build the missing layers of an image; return the topmost layer, which is the image.

    Raises:
        SourceChangedError: The project changed during the build.
    """
    project: tuple[Path, ...] = ()
    if recipe.project:
        project = (wheel_of(recipe.project, recipe.source, recipe.tests, context.progress),)
    needs = tuple(text for wheel in project for text in requirements(wheel))
    base = with_debian_packages(recipe, base, context)
    python = python_of(context.client, base)
    request = ResolutionRequest(recipe=recipe, project_needs=needs, python=python, root=context.root)
    layers = _wheel_layers(resolve(request, context.progress), project, recipe.torch)
    return reduce(lambda parent, layer: _ensure_layer(layer, parent, context), layers, base)


def with_debian_packages(recipe: Recipe, base: Base, context: BuildContext) -> Base:
    """The base with the recipe's Debian packages, if there are any."""
    if not recipe.apt:
        return base
    packages = tuple(sorted(set(recipe.apt)))
    layer = Layer(
        name="debian",
        content=packages,
        arguments={"PACKAGES": " ".join(packages)},
        network="default",
    )
    try:
        return _ensure_layer(layer, base, context)
    except ImageError as error:
        raise _with_apt_messages(error, recipe, base) from error


def _with_apt_messages(error: ImageError, recipe: Recipe, base: Base) -> ImageError:
    """Replace the build output by the error messages of apt, if there are any."""
    messages = [line.removeprefix("E: ") for line in error.why.splitlines() if line.startswith("E: ")]
    if not messages:
        return error
    return ImageError(
        f"The Debian packages of image {recipe.name} could not be installed on {base.reference}.",
        why="\n".join(dict.fromkeys(messages)),
        remedy=f"Fix `apt` in [images.{recipe.name}]: it must list binary packages of the base image's Debian release. "
        "Check one with apt-cache policy NAME.",
    )


def _wheel_layers(wheelhouse: Wheelhouse, project: tuple[Path, ...], torch: str) -> list[Layer]:
    """The layers that have wheels, from the bottom up."""
    contents = {
        "torch": tuple(wheelhouse.torch.iterdir()),
        "packages": tuple(wheelhouse.packages.iterdir()),
        "project": project,
    }
    return [
        Layer(
            name=name,
            content=tuple(identity(wheel) for wheel in wheels),
            wheels=tuple(sorted(wheels)),
            tools=wheelhouse.tools,
            arguments={"TORCH_VERSION": torch},
        )
        for name, wheels in contents.items()
        if wheels
    ]


def _ensure_layer(layer: Layer, below: Base, context: BuildContext) -> Base:
    dockerfile = dockerfile_path().read_text(encoding="utf-8")
    key = layer_key(parent_id=below.id, content=layer.content, dockerfile=dockerfile)
    reference = f"{REPOSITORY}:{key}"
    # Locked until `uses` is closed, since the next layer is built on this one.
    context.uses.enter_context(shared_lock(image_lock(reference)))
    with locked(f"layer-{key}"):
        image = find(context.client, reference) or _build_layer(layer, below, reference, context)
    return Base(reference=reference, id=str(image.id))


def _build_layer(layer: Layer, below: Base, reference: str, context: BuildContext) -> Image:
    build, builder = builder_of_host(), builder_of(reference)
    check_space(context.client, layer.name, layer.wheels, build)
    request = BuildRequest(
        tag=reference,
        arguments={"BASE_IMAGE": below.pinned, "LAYER": layer.name, "BUILDER": builder, **layer.arguments},
        network=layer.network,
    )
    context.progress(f"building layer {layer.name}")
    try:
        build(context.client, request, stream(layer.files), context.progress)
        with reported(f"The image {reference} was removed right after its build.", remedy="Run again."):
            return context.client.images.get(reference)
    finally:
        # The legacy builder keeps the first stage of a build, with the wheels and a copy of the layer, or all steps of
        # an aborted build. As a cache, they would only serve the same layer, which is found by its name anyway.
        remove_leftovers(context.client.api, builder)
