"""The wheels of an image, resolved on the host for the image's Python.

Containers need no way to a package index then, and the host's pip configuration (mirrors, certificates, links)
counts. Only wheels are taken: a source distribution would be built for the host.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from allranks.image.base import ImagePython, as_json
from allranks.image.cache import cache_folder
from allranks.image.daemon import Progress
from allranks.image.host_pip import PipRequest, run_pip, without_configuration
from allranks.image.key import digest
from allranks.image.recipe import Recipe

_REMEDY = (
    "Check the versions in matrix.toml and what `pip config list` says about this host's package index; "
    "a package without a wheel for the image can be given through PIP_FIND_LINKS."
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be resolved.

    Attributes:
        recipe: What the image is to hold.
        further: Requirements of the user's project.
        python: The Python to resolve for.
        root: The folder that relative paths in requirements start from.
    """

    recipe: Recipe
    further: tuple[str, ...]
    python: ImagePython
    root: Path


@dataclass(frozen=True, kw_only=True)
class Wheelhouse:
    """Folders of wheels, in the order in which an image gets them.

    Attributes:
        tools: The wheel of pip, which is not installed.
        torch: torch and all that it depends on.
        packages: Everything else but the user's project.
    """

    tools: Path
    torch: Path
    packages: Path


def resolve(wanted: Wanted, progress: Progress) -> Wheelhouse:
    """The wheels of a recipe, from the cache or from the host's package index.

    All requirements are resolved together, so no layer of the image ever replaces a package of another.

    Args:
        wanted: The requirements, and the Python to meet them for.
        progress: Receives lines about downloads.

    Raises:
        ImageError: The requirements cannot be met with wheels.
    """
    folder = cache_folder("wheels") / _key(wanted)
    if not folder.is_dir():
        progress(f"resolving the packages of image {wanted.recipe.name}")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-") as scratch:
            _fill(Path(scratch), wanted, progress)
            _publish(Path(scratch), folder)
    return Wheelhouse(tools=folder / "tools", torch=folder / "torch", packages=folder / "packages")


def _key(wanted: Wanted) -> str:
    recipe = wanted.recipe
    inputs = (recipe.torch, recipe.index, recipe.packages, recipe.requirements_text, wanted.further)
    return digest(*inputs, as_json(wanted.python))[:16]


def _fill(scratch: Path, wanted: Wanted, progress: Progress) -> None:
    for name in ("tools", "torch", "packages"):
        (scratch / name).mkdir()
    run_pip(_download(wanted, scratch / "packages", requirements_of(wanted)), progress)
    run_pip(_download(wanted, scratch / "tools", ["--no-deps", "pip"]), progress)
    for name in _torch_wheels(wanted, scratch):
        (scratch / "packages" / name).rename(scratch / "torch" / name)


def requirements_of(wanted: Wanted) -> list[str]:
    """The requirements of an image, as pip takes them."""
    recipe = wanted.recipe
    file = ["--requirement", str(recipe.requirements.resolve())] if recipe.requirements else []
    index = ["--extra-index-url", recipe.index] if recipe.index else []
    return [f"torch=={recipe.torch}", *recipe.packages, *wanted.further, *file, *index]


def _publish(scratch: Path, folder: Path) -> None:
    """Give a finished wheelhouse its name; another run that was faster wins."""
    finished = scratch / "finished"
    finished.mkdir()
    for part in ("tools", "torch", "packages"):
        (scratch / part).rename(finished / part)
    try:
        finished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(finished)


def target_flags(python: ImagePython) -> list[str]:
    """The options that let pip choose wheels for another Python than its own."""
    major, minor = python.version
    platforms = [f"--platform={platform}" for platform in python.platforms]
    version = [f"--python-version={major}.{minor}", "--implementation=cp", f"--abi={python.abi}"]
    return ["--only-binary=:all:", *version, *platforms]


def _download(wanted: Wanted, into: Path, requirements: Sequence[str]) -> PipRequest:
    options = ["--progress-bar=off", f"--dest={into}", *target_flags(wanted.python)]
    return _request(wanted, ["download", *options, *requirements], os.environ)


def _torch_wheels(wanted: Wanted, scratch: Path) -> list[str]:
    """The names of torch's wheel and of the wheels that it depends on."""
    report = scratch / "report.json"
    where = ["--no-index", f"--find-links={scratch / 'packages'}", f"--target={scratch / 'never'}"]
    how = ["--dry-run", "--ignore-installed", f"--report={report}", *target_flags(wanted.python)]
    install = ["install", *how, *where, f"torch=={wanted.recipe.torch}"]
    run_pip(_request(wanted, install, without_configuration()), lambda _: None)
    entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [Path(unquote(urlsplit(entry["download_info"]["url"]).path)).name for entry in entries]


def _request(wanted: Wanted, command: Sequence[str], environ: Mapping[str, str]) -> PipRequest:
    return PipRequest(
        arguments=command,
        what=f"The packages of image {wanted.recipe.name} could not be resolved.",
        remedy=_REMEDY,
        folder=wanted.root,
        environ=environ,
        markers=wanted.python.markers,
    )
