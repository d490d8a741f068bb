"""The wheel of the user's own project."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks.environments import forget_unused, locked
from allranks.errors import EnvironmentBuildError
from allranks.image.daemon import Progress
from allranks.image.host_pip import PipRequest, python_that_builds, run_pip
from allranks.image.sources import changed, has_changed, while_it_stays
from allranks.user_cache import cache_folder


def kept_wheel(folder: Path, progress: Progress) -> Path:
    """The wheel of a project, built when its source has changed, in a folder of the cache that is its own.

    Args:
        folder: The project's folder.
        progress: Receives lines about the build.

    Raises:
        EnvironmentBuildError: The cache cannot be used.
        ImageError: The project does not build.
    """
    return while_it_stays(folder, lambda source: _kept_wheel(folder, source, progress), progress)


def _kept_wheel(folder: Path, source: str, progress: Progress) -> Path:
    kept = cache_folder() / "projects" / f"{source}-{_builder()}"
    with in_cache(kept):
        os.utime(kept)
        if wheels := list(kept.glob("*.whl")):
            return wheels[0]
        forget_unused(kept.parent)
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            wheel = build_wheel(folder, into=Path(scratch), progress=progress)
            if has_changed(folder, source):
                raise changed(folder)
            return wheel.rename(kept / wheel.name)


def _builder() -> str:
    """The Python that builds, which compiled modules depend on."""
    python = os.path.realpath(python_that_builds() or sys.executable)
    return hashlib.sha256(f"{python} {sys.version}".encode()).hexdigest()[:12]


@contextmanager
def in_cache(folder: Path) -> Iterator[None]:
    """A folder of the cache that exists, and that no other run changes meanwhile."""
    try:
        with locked(folder):
            folder.mkdir(exist_ok=True)
            yield
    except OSError as error:
        msg = f"The folder {folder} of the cache cannot be used."
        remedy = "Free some space, or set XDG_CACHE_HOME to a folder that can be written."
        raise EnvironmentBuildError(msg, why=str(error), remedy=remedy) from error


def build_wheel(folder: Path, *, into: Path, progress: Progress) -> Path:
    """Build a project into a wheel, as ``pip install`` of its folder would.

    Args:
        folder: The project's folder.
        into: A folder without wheels, which gets this one.
        progress: Receives lines about the build.

    Raises:
        ImageError: The project does not build.
    """
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

    A ``build`` folder that an earlier build left gives deleted modules back to every later wheel.
    """
    file = scratch / "setuptools.cfg"
    file.write_text(f"[build]\nbuild_base = {scratch}\n[egg_info]\negg_base = {scratch}\n", encoding="utf-8")
    return file
