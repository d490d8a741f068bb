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
from allranks.images.project import cached_wheel, in_cache
from allranks.images.recipe import Recipe, recipe_of
from allranks.images.wheels import requirements
from allranks.matrix.model import Image, Process

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def environment_of(image: Image, *, root: Path, process: Process, progress: Progress) -> JobEnvironment:
    """The environment in which the process engine runs the cells of an image.

    torch, pytest and the packages are installed in one environment, and the user's project in a separate folder, so
    that a change of the project does not rebuild the environment.

    Args:
        image: The image in the matrix file.
        root: The folder of the matrix file.
        process: ``[process]`` of the matrix file. If it names an interpreter, that provides torch, and missing packages
            are installed in a separate environment, which can also import those of the interpreter.
        progress: Receives progress output.
    """
    given = declared_python(process, root)
    if given and (image.image is not None or not (image.packages or image.requirements or image.project)):
        return JobEnvironment(python=given)
    if image.image is not None:
        msg = f"The process engine cannot run image {image.name}, which is a prebuilt image ({image.image})."
        remedy = "Use --engine docker, or set process.python to an interpreter with torch."
        raise EngineError(msg, remedy=remedy)
    below = probe(given) if given else None
    if below and (torch := below.versions.get("torch")):
        image = replace(image, torch=torch)  # so that pip does not install another version
    recipe = recipe_of(image, root=root)
    if recipe.apt:
        progress(f"image {image.name}: this host must have its Debian packages ({', '.join(recipe.apt)})")
    project = cached_wheel(recipe.project, progress, tests=recipe.tests) if recipe.project else None
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
    """The interpreter of the matrix file: a path relative to it, or a command on the PATH."""
    return str(root / process.python) if process.python and "/" in process.python else process.python


def _has_all(below: Interpreter, recipe: Recipe, needs: Sequence[str]) -> bool:
    """Whether an interpreter certainly has all packages of a recipe; False also if only pip could decide that."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - few runs need it

    lines = (*recipe.packages, *requirement_lines(recipe.requirements_text), *needs)
    try:
        return all(_has(below, Requirement(line)) for line in lines)
    except InvalidRequirement:  # an option, such as --hash
        return False


def _has(below: Interpreter, requirement: "Requirement") -> bool:
    if requirement.marker or requirement.extras or requirement.url:
        return False
    version = below.versions.get(requirement.name.lower().replace("_", "-").replace(".", "-"))
    return version is not None and requirement.specifier.contains(version)


def _environment(recipe: Recipe, needs: Sequence[str], below: Interpreter | None, root: Path) -> EnvironmentRecipe:
    """The environment of a recipe, without its project."""
    return EnvironmentRecipe(
        name="above-python" if below else f"torch-{recipe.torch}",
        file=recipe.requirements_file(needs),
        content=(json.dumps(recipe.key_parts(needs)),),
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
