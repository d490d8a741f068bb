"""The user's project as files that go into each job, in the place of a layer: a change of code builds no image."""

import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

from allranks.errors import ImageError
from allranks.image.daemon import Progress
from allranks.image.project import in_cache, kept_wheel
from allranks.image.recipe import recipe_of
from allranks.image.wheel import is_pure, requirements
from allranks.matrix.model import Image


def without_project(image: Image, root: Path, progress: Progress) -> Image:
    """An image with what its project needs, and without the project.

    Args:
        image: One whose project is copied.
        root: The folder that the matrix file's relative paths start from.
        progress: Receives lines while a wheel is built.

    Raises:
        EnvironmentBuildError: The cache cannot be used.
        ImageError: The project does not build, or has more than Python in it.
    """
    needs = requirements(_wheel(image, root, progress))
    return replace(image, project=None, mode="install", packages=(*image.packages, *needs))


def project_files(image: Image, root: Path, progress: Progress) -> Path:
    """A folder with what an installed project would be; as its source is at the first call after a change of it.

    Args:
        image: One whose project is copied.
        root: The folder that the matrix file's relative paths start from.
        progress: Receives lines while a wheel is built.

    Raises:
        EnvironmentBuildError: The cache cannot be used.
        ImageError: The project does not build, or has more than Python in it.
    """
    wheel = _wheel(image, root, progress)
    target = wheel.parent / "files"
    with in_cache(wheel.parent):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch, zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(scratch) / "files")
                (Path(scratch) / "files").rename(target)
    return target


def _wheel(image: Image, root: Path, progress: Progress) -> Path:
    folder = recipe_of(image, root=root).project
    if folder is None:
        msg = f"Image {image.name} has no project that could be copied."
        raise ImageError(msg, remedy=f"Add project to [images.{image.name}], or remove its mode.")
    wheel = kept_wheel(folder, progress)
    if not is_pure(wheel):
        msg = f"The project of image {image.name} cannot be copied into jobs."
        why = f"{wheel.name} has modules that are compiled, or files for other folders than Python's."
        raise ImageError(msg, why=why, remedy=f'Write mode = "install" in [images.{image.name}]: it is built into it.')
    return wheel
