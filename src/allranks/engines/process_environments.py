"""The Python environments in which jobs run outside of containers."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.engines.base import JobEnvironment, Progress
from allranks.errors import EngineError
from allranks.images.environments import (
    EnvironmentRecipe,
    Interpreter,
    ensure_environment,
    packages_of,
    probe,
    run_pip_of,
)
from allranks.images.pip_settings import requirement_lines
from allranks.images.project import in_cache, kept_wheel
from allranks.images.recipe import Recipe, recipe_of
from allranks.images.wheels import requirements
from allranks.matrix.model import Image, Process

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def environment_of(image: Image, *, root: Path, process: Process, progress: Progress) -> JobEnvironment:
    """The environment in which the process engine runs the cells of an image.

    torch, pytest and packages are one environment. The user's project lies beside it in a folder of its own, so that a
    change of code does not rebuild the environment.

    Args:
        image: The image as the matrix file declares it.
        root: The folder of the matrix file.
        process: ``[process]`` of the matrix file. Its interpreter takes precedence: what the image names beside torch
            and the interpreter lacks is installed apart from it.
        progress: Receives lines while something is made.
    """
    given = declared_python(process, root)
    if given and (image.image is not None or not (image.packages or image.requirements or image.project)):
        return JobEnvironment(python=given)
    if image.image is not None:
        msg = f"Image {image.name} is a finished one ({image.image}), and the process engine runs no images."
        remedy = "Use --engine docker, or give process.python an interpreter with torch."
        raise EngineError(msg, remedy=remedy)
    below = probe(given) if given else None
    if below and (torch := below.versions.get("torch")):
        image = replace(image, torch=torch)  # as a requirement it is met, and keeps pip from installing another
    recipe = recipe_of(image, root=root)
    if recipe.apt:
        progress(f"image {image.name}: its Debian packages ({', '.join(recipe.apt)}) must be installed on this host")
    project = kept_wheel(recipe.project, progress, tests=recipe.tests) if recipe.project else None
    needs = requirements(project) if project else ()
    above: tuple[Path, ...] = ()
    if below and _has_all(below, recipe, needs):
        python = Path(shutil.which(below.python) or below.python)
    else:
        python = ensure_environment(_environment(recipe, needs, below, root), progress)
        above = (packages_of(python),) if below else ()
    installed = (_installed(project, python, progress),) if project else ()
    return JobEnvironment(python=given or str(python), python_path=(*installed, *above))


def declared_python(process: Process, root: Path) -> str | None:
    """The interpreter of the matrix file: a path from its folder, or a name on the PATH."""
    return str(root / process.python) if process.python and "/" in process.python else process.python


def _has_all(below: Interpreter, recipe: Recipe, needs: Sequence[str]) -> bool:
    """Whether an interpreter has all that a recipe names; False if only pip can tell."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - few runs need it

    try:
        wanted = [
            Requirement(line) for line in (*recipe.packages, *requirement_lines(recipe.requirements_text), *needs)
        ]
    except InvalidRequirement:  # an option, such as --hash
        return False
    return all(each.marker is None and not each.extras and each.url is None and _has(below, each) for each in wanted)


def _has(below: Interpreter, wanted: "Requirement") -> bool:
    version = below.versions.get(wanted.name.lower().replace("_", "-").replace(".", "-"))
    return version is not None and wanted.specifier.contains(version)


def _environment(recipe: Recipe, needs: Sequence[str], below: Interpreter | None, root: Path) -> EnvironmentRecipe:
    """The environment with all that a recipe names but its project."""
    return EnvironmentRecipe(
        name="above-python" if below else f"torch-{recipe.torch}",
        file=recipe.requirements_file(needs),
        content=(json.dumps(recipe.wanted(needs)),),
        folder=root,
        below=below,
        remedy=recipe.remedy,
    )


def _installed(wheel: Path, python: Path, progress: Progress) -> Path:
    target = wheel.parent / "site"
    with in_cache(wheel.parent):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
                draft = Path(scratch) / "site"
                run_pip_of(python, ["--no-deps", "--target", str(draft), str(wheel)], wheel.name, progress)
                draft.rename(target)
    return target
