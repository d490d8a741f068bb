"""An image as a pile of layers, each with a name of its own, so that a change rebuilds only what lies above it."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.image.base import Base, python_of
from allranks.image.builders import BuildRequest, builder_of_host
from allranks.image.cache import locked
from allranks.image.context import layer_files, stream
from allranks.image.daemon import Progress, Site, find, reported
from allranks.image.dockerfile import dockerfile_path
from allranks.image.key import layer_key
from allranks.image.project import build_wheel
from allranks.image.recipe import Recipe
from allranks.image.wheel import identity, requirements
from allranks.image.wheelhouse import Wanted, Wheelhouse, resolve

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image

REPOSITORY = "allranks/layer"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer adds.

    Attributes:
        name: ``torch``, ``packages`` or ``project``.
        wheels: What is installed.
        tools: The folder with the wheel of pip that installs them.
        torch: The image's torch version.
    """

    name: str
    wheels: tuple[Path, ...]
    tools: Path
    torch: str


def build_layers(recipe: Recipe, base: Base, site: Site) -> Base:
    """Build what is missing of an image.

    Args:
        recipe: What goes in.
        base: What it lies on.
        site: Where it is built.

    Returns:
        The topmost layer, which is the image.

    Raises:
        ImageError: Something cannot be resolved or built.
    """
    with tempfile.TemporaryDirectory(prefix="allranks-") as scratch:
        project = _project_wheels(recipe, Path(scratch), site.progress)
        further = tuple(text for wheel in project for text in requirements(wheel))
        python = python_of(site.client, base)
        house = resolve(Wanted(recipe=recipe, further=further, python=python, root=site.root), site.progress)
        layers = _layers(house, project, recipe.torch)
        return reduce(lambda below, layer: _ensure_layer(layer, below, site), layers, base)


def _layers(house: Wheelhouse, project: tuple[Path, ...], torch: str) -> list[Layer]:
    """The layers from the bottom up; one without wheels would be empty."""
    contents = {"torch": tuple(house.torch.iterdir()), "packages": tuple(house.packages.iterdir()), "project": project}
    return [
        Layer(name=name, wheels=tuple(sorted(wheels)), tools=house.tools, torch=torch)
        for name, wheels in contents.items()
        if wheels
    ]


def _project_wheels(recipe: Recipe, scratch: Path, progress: Progress) -> tuple[Path, ...]:
    return (build_wheel(recipe.project, into=scratch, progress=progress),) if recipe.project else ()


def _ensure_layer(layer: Layer, below: Base, site: Site) -> Base:
    """The image of one layer on the image below it."""
    key = layer_key(
        parent_id=below.id,
        wheels=tuple(identity(wheel) for wheel in layer.wheels),
        dockerfile=dockerfile_path().read_text(encoding="utf-8"),
    )
    reference = f"{REPOSITORY}:{key}"
    with locked(f"layer-{key}"):
        image = find(site.client, reference) or _build_layer(layer, below, key, site)
    return Base(reference=reference, id=str(image.id))


def _build_layer(layer: Layer, below: Base, key: str, site: Site) -> Image:
    dockerfile = dockerfile_path()
    request = BuildRequest(
        tag=f"{REPOSITORY}:{key}",
        dockerfile=dockerfile.name,
        arguments={
            "BASE_IMAGE": below.reference,
            "TORCH_VERSION": layer.torch,
            "LAYER": layer.name,
            "LAYER_KEY": key,
        },
    )
    site.progress(f"building layer {layer.name}")
    context = stream(layer_files(dockerfile, tools=layer.tools, wheels=layer.wheels))
    try:
        builder_of_host()(site.client, request, context, site.progress)
        with reported(f"The image {request.tag} is gone right after its build.", remedy="Run again."):
            return site.client.images.get(request.tag)
    finally:
        _remove_builder_stage(site.client, key)


def _remove_builder_stage(client: DockerClient, key: str) -> None:
    """Remove the first stage of a layer's build, which holds the wheels and a second copy of the layer.

    It would serve as a cache only for a build of the same layer, and that is found by its name. The legacy builder
    leaves it; BuildKit has none that is an image.
    """
    import docker.errors  # noqa: PLC0415

    # A daemon prunes for one client at a time, and leftovers are no reason to fail a build.
    with suppress(docker.errors.DockerException):
        client.images.prune(filters={"dangling": True, "label": f"allranks.builder={key}"})
