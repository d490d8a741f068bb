"""The wheel of the user's own project."""

import os
from pathlib import Path

from allranks.image.daemon import Progress
from allranks.image.host_pip import PipRequest, run_pip


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
