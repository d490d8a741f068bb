"""The user's own project, as a wheel or as files that go into each job."""

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
from allranks.images.sources import changed, has_changed, has_test, is_known, source_digest, while_it_stays
from allranks.images.wheels import PipRequest, is_pure, requirements, run_pip
from allranks.matrix.model import Image
from allranks.user_cache import cache_folder, forget_unused, keep


def without_project(image: Image, root: Path, progress: Progress) -> Image:
    """An image with the requirements of its project, but without the project."""
    needs = requirements(_wheel(image, root, progress))
    return replace(image, project=None, mode="install", packages=(*image.packages, *needs))


def project_files(image: Image, root: Path, progress: Progress) -> Path:
    """A folder with the project as it would be installed; made again at the first call after a change of its source."""
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
        msg = f"Image {image.name} has no project to copy."
        raise ImageError(msg, remedy=f"Add project to [images.{image.name}], or remove its mode.")
    wheel = kept_wheel(recipe.project, progress, tests=recipe.tests)
    if not is_pure(wheel):
        msg = f"The project of image {image.name} cannot be copied into jobs."
        why = f"{wheel.name} has compiled modules, or files outside Python's folders."
        raise ImageError(msg, why=why, remedy=f'Write mode = "install" in [images.{image.name}] to build it in.')
    return wheel


def kept_wheel(folder: Path, progress: Progress, *, tests: Sequence[Path] = ()) -> Path:
    """The wheel of a project, built when its source has changed, in its own folder of the cache.

    A change of tests alone builds nothing if the last wheel had none of them: then neither has the next, which would be
    built from files of the same names. A build that compiles or runs its tests is not seen.
    """
    return while_it_stays(folder, lambda source: wheel_of(folder, source, tests, progress), progress)


def wheel_of(folder: Path, source: str, tests: Sequence[Path], progress: Progress) -> Path:
    """The wheel of a project with this hash of its files.

    Raises:
        SourceChangedError: The project changed meanwhile.
    """
    projects = cache_folder() / "projects"
    kept, note = projects / f"{source}-{_builder(folder)}", _note(folder, tests)
    same_but_for_tests = projects / note.read_text(encoding="utf-8") if note and note.is_file() else kept
    if found := _found(kept) or _found(same_but_for_tests):
        return found
    with in_cache(kept):
        if found := next(kept.glob("*.whl"), None):  # another run was faster
            return found
        forget_unused(projects)
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            wheel = build_wheel(folder, into=Path(scratch), progress=progress)
            lacks_tests = note is not None and is_known(source) and not has_test(wheel, folder, tests)
            if has_changed(folder, source):
                raise changed(folder)
            wheel = wheel.rename(kept / wheel.name)
        if note and lacks_tests:
            keep(note, kept.name)
        return wheel


def _found(kept: Path) -> Path | None:
    if not kept.is_dir():
        return None
    with in_cache(kept):
        os.utime(kept)
        return next(kept.glob("*.whl"), None)


def _note(folder: Path, tests: Sequence[Path]) -> Path | None:
    """The file that names the kept wheel without tests of this source, whatever the tests are; None for no tests."""
    if not tests:
        return None
    return cache_folder() / "projects" / f"{source_digest(folder, tests=tests)}-{_builder(folder)}.wheel"


def _builder(folder: Path) -> str:
    """A hash of what compiled modules depend on: the Python that builds, and where its pip finds the build backend."""
    python = python_that_builds() or sys.executable
    settings = pip_settings(folder, python)
    return digest(os.path.realpath(python), sys.version, settings)[:12]


@contextmanager
def in_cache(folder: Path) -> Iterator[None]:
    """Make a folder of the cache, and keep other runs from changing it meanwhile."""
    try:
        with locked(folder):
            folder.mkdir(exist_ok=True)
            yield
    except OSError as error:
        msg = f"The folder {folder} of the cache cannot be used."
        remedy = "Free some space, or set XDG_CACHE_HOME to a folder that can be written."
        raise EnvironmentBuildError(msg, why=str(error), remedy=remedy) from error


def build_wheel(folder: Path, *, into: Path, progress: Progress) -> Path:
    """Build a project into a wheel, as ``pip install`` of its folder would."""
    progress(f"building a wheel of {folder.name}")
    request = PipRequest(
        arguments=["wheel", "--no-deps", "--wheel-dir", str(into), str(folder)],
        what=f"The project {folder} could not be built into a wheel.",
        remedy=f"Make this command succeed: pip wheel --no-deps {folder}",
        folder=folder,
        environ={**os.environ, "DIST_EXTRA_CONFIG": str(_setuptools_configuration(into))},
    )
    run_pip(request, progress)
    return next(into.glob("*.whl"))


def _setuptools_configuration(scratch: Path) -> Path:
    """Keep setuptools from building inside the project.

    A ``build`` folder of an earlier build would put deleted modules into every later wheel.
    """
    file = scratch / "setuptools.cfg"
    file.write_text(f"[build]\nbuild_base = {scratch}\n[egg_info]\negg_base = {scratch}\n", encoding="utf-8")
    return file
