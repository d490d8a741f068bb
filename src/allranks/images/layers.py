"""An image as a pile of layers, so that a change rebuilds only the layers above it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import ImageError
from allranks.images.base import Base, dockerfile_path, python_of
from allranks.images.builders import DOCKERFILE, BuildRequest, builder_of_host, check_room, stream
from allranks.images.daemon import BuildContext, Progress, find, reported
from allranks.images.leftovers import builder_of, remove_remains
from allranks.images.project import wheel_of
from allranks.images.recipe import Recipe, layer_key
from allranks.images.wheels import Wanted, Wheelhouse, identity, requirements, resolve
from allranks.ownership import image_lock, shared
from allranks.user_cache import locked

if TYPE_CHECKING:
    from docker.models.images import Image


REPOSITORY = "allranks/layer"


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer adds."""

    name: str  # ``debian``, ``torch``, ``packages`` or ``project``
    content: tuple[str, ...]  # what distinguishes it from other layers on the same image below
    wheels: tuple[Path, ...] = ()  # the wheels to install; none for Debian packages
    tools: Path | None = None  # the folder with the wheel of pip that installs them; None for Debian packages
    arguments: Mapping[str, str] = field(default_factory=dict)  # build arguments of its own
    network: str = "none"  # the network of the build, as for Docker's ``--network``

    @property
    def files(self) -> dict[str, Path]:
        """The context that the Dockerfile expects: paths in it, each with the file that it is read from."""
        return {
            DOCKERFILE: dockerfile_path(),
            **{f"tools/{path.name}": path for path in (self.tools.iterdir() if self.tools else ())},
            **{f"wheels/{path.name}": path for path in self.wheels},
        }


def build_layers(recipe: Recipe, base: Base, context: BuildContext) -> Base:
    """Build the missing layers of an image; return the topmost, which is the image.

    Raises:
        SourceChangedError: The recipe's project has changed since the recipe was read.
    """
    project = _project_wheels(recipe, context.progress)
    further = tuple(text for wheel in project for text in requirements(wheel))
    ground = with_debian_packages(recipe, base, context)
    python = python_of(context.client, ground)
    house = resolve(Wanted(recipe=recipe, further=further, python=python, root=context.root), context.progress)
    layers = _wheel_layers(house, project, recipe.torch)
    return reduce(lambda below, layer: _ensure_layer(layer, below, context), layers, ground)


def with_debian_packages(recipe: Recipe, base: Base, context: BuildContext) -> Base:
    """The base with the recipe's Debian packages; the base itself for none."""
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
        raise _told_by_apt(error, recipe, base) from error


def _told_by_apt(error: ImageError, recipe: Recipe, base: Base) -> ImageError:
    """The error with apt's own messages in place of all build output; other errors as they are."""
    said = [line.removeprefix("E: ") for line in error.why.splitlines() if line.startswith("E: ")]
    if not said:
        return error
    return ImageError(
        f"The Debian packages of image {recipe.name} could not be installed on {base.reference}.",
        why="\n".join(dict.fromkeys(said)),
        remedy=f"Correct apt of [images.{recipe.name}] in the matrix file: it takes the names of binary packages that "
        "the base image's Debian has (apt-cache policy NAME).",
    )


def _wheel_layers(house: Wheelhouse, project: tuple[Path, ...], torch: str) -> list[Layer]:
    """The layers from the bottom up; one without wheels would be empty."""
    contents = {"torch": tuple(house.torch.iterdir()), "packages": tuple(house.packages.iterdir()), "project": project}
    return [
        Layer(
            name=name,
            content=tuple(identity(wheel) for wheel in wheels),
            wheels=tuple(sorted(wheels)),
            tools=house.tools,
            arguments={"TORCH_VERSION": torch},
        )
        for name, wheels in contents.items()
        if wheels
    ]


def _project_wheels(recipe: Recipe, progress: Progress) -> tuple[Path, ...]:
    if recipe.project is None:
        return ()
    return (wheel_of(recipe.project, recipe.source, recipe.tests, progress),)


def _ensure_layer(layer: Layer, below: Base, context: BuildContext) -> Base:
    dockerfile = dockerfile_path().read_text(encoding="utf-8")
    key = layer_key(parent_id=below.id, content=layer.content, dockerfile=dockerfile)
    reference = f"{REPOSITORY}:{key}"
    # This process holds it until the run ends: the next layer lies on it.
    context.uses.enter_context(shared(image_lock(reference)))
    with locked(f"layer-{key}"):
        image = find(context.client, reference) or _build_layer(layer, below, reference, context)
    return Base(reference=reference, id=str(image.id))


def _build_layer(layer: Layer, below: Base, reference: str, context: BuildContext) -> Image:
    build, builder = builder_of_host(), builder_of(reference)
    check_room(context.client, layer.name, layer.wheels, build)
    request = BuildRequest(
        tag=reference,
        arguments={"BASE_IMAGE": below.pinned, "LAYER": layer.name, "BUILDER": builder, **layer.arguments},
        network=layer.network,
    )
    context.progress(f"building layer {layer.name}")
    try:
        build(context.client, request, stream(layer.files), context.progress)
        with reported(f"The image {reference} is gone right after its build.", remedy="Run again."):
            return context.client.images.get(reference)
    finally:
        # The first stage of a finished build, which holds the wheels and a second copy of the layer; after an early
        # end, all its steps. They would be a cache only for the same layer, which is found by its name anyway.
        # The legacy builder leaves them; BuildKit leaves no images.
        remove_remains(context.client.api, builder)
