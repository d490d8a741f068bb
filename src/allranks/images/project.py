"""Builds the user's project as a wheel, or as files to copy into each job."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from allranks.errors import EnvironmentBuildError, ImageError
from allranks.images.daemon import Progress
from allranks.images.environments import locked
from allranks.images.pip_settings import pip_settings, python_that_builds
from allranks.images.recipe import digest, recipe_of
from allranks.images.sources import build_until_stable, change_error, has_changed, has_test, is_known, source_digest
from allranks.images.wheels import PipRequest, is_pure, requirements, run_pip
from allranks.matrix.model import Image
from allranks.user_cache import cache_folder, remove_unused, write_atomically


def without_project(image: Image, root: Path, progress: Progress) -> Image:
    """Replace the project of an image with the project's requirements."""
    needs = requirements(_wheel(image, root, progress))
    return replace(image, project=None, mode="install", packages=(*image.packages, *needs))


def project_files(image: Image, root: Path, progress: Progress) -> Path:
    """A folder with the files of the installed project; another folder after a change of its source."""
    wheel = _wheel(image, root, progress)
    target = wheel.parent / "files"
    with in_cache(wheel.parent):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch, zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(scratch) / "files")
                (Path(scratch) / "files").rename(target)
    return target


def _wheel(image: Image, root: Path, progress: Progress) -> Path:
    recipe = recipe_of(image, root=root)
    if recipe.project is None:
        msg = f'Image {image.name} has mode = "copy", but no project.'
        raise ImageError(msg, remedy=f"Add project to [images.{image.name}], or remove mode.")
    wheel = cached_wheel(recipe.project, progress, tests=recipe.tests)
    if not is_pure(wheel):
        msg = f"The project of image {image.name} cannot be copied into jobs."
        why = f"{wheel.name} has compiled modules, or files outside of site-packages."
        raise ImageError(msg, why=why, remedy=f'Set mode = "install" in [images.{image.name}].')
    return wheel


def cached_wheel(folder: Path, progress: Progress, *, tests: Sequence[Path] = ()) -> Path:
    """The cached wheel of a project, rebuilt when its source has changed.

    If only the content of tests has changed, and the last wheel contains no tests, that wheel is reused. (A build that
    compiles or runs its tests is not detected.)
    """
    return build_until_stable(folder, lambda source: wheel_of(folder, source, tests, progress), progress)


def wheel_of(folder: Path, source: str, tests: Sequence[Path], progress: Progress) -> Path:
    """The cached or newly built wheel of a project.

    Args:
        folder: The project.
        source: The hash of its files.
        tests: Files and folders of tests.
        progress: Receives progress output.

    Raises:
        SourceChangedError: The project changed during the build.
    """
    projects = cache_folder() / "projects"
    cached, link = projects / f"{source}-{_builder(folder)}", _link_without_tests(folder, tests)
    same_without_tests = projects / link.read_text(encoding="utf-8") if link and link.is_file() else cached
    if wheel := _cached_wheel(cached) or _cached_wheel(same_without_tests):
        return wheel
    with in_cache(cached):
        if wheel := next(cached.glob("*.whl"), None):  # another run was faster
            return wheel
        remove_unused(projects)
        with tempfile.TemporaryDirectory(dir=cached) as scratch:
            wheel = build_wheel(folder, into=Path(scratch), progress=progress)
            lacks_tests = link is not None and is_known(source) and not has_test(wheel, folder, tests)
            if has_changed(folder, source):
                raise change_error(folder)
            wheel = wheel.rename(cached / wheel.name)
        if link and lacks_tests:
            write_atomically(link, cached.name)
        return wheel


def _cached_wheel(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    with in_cache(folder):
        os.utime(folder)
        return next(folder.glob("*.whl"), None)


def _link_without_tests(folder: Path, tests: Sequence[Path]) -> Path | None:
    """The file that names the folder of a wheel without tests; None for a project without tests.

    The file's own name does not depend on the content of tests.
    """
    if not tests:
        return None
    return cache_folder() / "projects" / f"{source_digest(folder, tests=tests)}-{_builder(folder)}.wheel"


def _builder(folder: Path) -> str:
    """A hash of what the build of compiled modules depends on: the Python, and the settings of its pip."""
    python = python_that_builds() or sys.executable
    settings = pip_settings(folder, python)
    return digest(os.path.realpath(python), sys.version, settings)[:12]


@contextmanager
def in_cache(folder: Path) -> Iterator[None]:
    """Create a folder of the cache, and lock it in this context."""
    try:
        with locked(folder):
            folder.mkdir(exist_ok=True)
            yield
    except OSError as error:
        msg = f"The cache folder {folder} cannot be used."
        remedy = "Free some space, or set XDG_CACHE_HOME to a writable folder."
        raise EnvironmentBuildError(msg, why=str(error), remedy=remedy) from error


def build_wheel(folder: Path, *, into: Path, progress: Progress) -> Path:
    """Build a wheel of a project, as ``pip install`` of its folder would."""
    progress(f"building a wheel of {folder.name}")
    request = PipRequest(
        arguments=["wheel", "--no-deps", "--wheel-dir", str(into), str(folder)],
        what=f"The wheel of the project {folder} could not be built.",
        remedy=f"Make this command succeed: pip wheel --no-deps {folder}",
        folder=folder,
        environ={**os.environ, "DIST_EXTRA_CONFIG": str(_setuptools_configuration(into))},
    )
    run_pip(request, progress)
    return next(into.glob("*.whl"))


def _setuptools_configuration(scratch: Path) -> Path:
    """Keep setuptools from building inside the project: modules in an old ``build`` folder would enter every wheel."""
    file = scratch / "setuptools.cfg"
    file.write_text(f"[build]\nbuild_base = {scratch}\n[egg_info]\negg_base = {scratch}\n", encoding="utf-8")
    return file
