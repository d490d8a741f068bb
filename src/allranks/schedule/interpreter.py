"""The Python of jobs on the process engine: an environment for each image of the matrix file, made on first use."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from allranks.environments import EnvironmentRecipe, ensure_environment, run_pip_of
from allranks.errors import EngineError
from allranks.image.project import in_cache, kept_wheel
from allranks.image.recipe import recipe_of
from allranks.image.wheel import requirements
from allranks.matrix.model import Image, Process
from allranks.schedule.request import Surroundings

Progress = Callable[[str], None]


def surroundings_of(image: Image, *, root: Path, process: Process, progress: Progress) -> Surroundings:
    """What the process engine runs the cells of an image in.

    torch, pytest and packages are one environment; the user's project lies beside it in a folder of its own, so that
    a change of code makes neither anew.

    Args:
        image: What the matrix file says about the image.
        root: The folder of the matrix file.
        process: ``[process]`` of the matrix file; its interpreter wins.
        progress: Receives lines while something is made.

    Raises:
        EngineError: The image is a finished one, which no process can run in.
        EnvironmentBuildError: The environment cannot be made.
        ImageError: A file that the image names is missing, or the project cannot be built.
    """
    if process.python is not None:
        return Surroundings(python=str(root / process.python) if "/" in process.python else process.python)
    if image.image is not None:
        msg = f"Image {image.name} is a finished one ({image.image}), and the process engine runs no images."
        remedy = "Use --engine docker, or give process.python an interpreter with torch."
        raise EngineError(msg, remedy=remedy)
    recipe = recipe_of(image, root=root)
    if recipe.apt:
        progress(f"image {image.name}: its Debian packages ({', '.join(recipe.apt)}) are this host's to have")
    project = kept_wheel(recipe.project, progress) if recipe.project else None
    index = ("--extra-index-url", recipe.index) if recipe.index else ()
    file = ("--requirement", str(recipe.requirements)) if recipe.requirements else ()
    environment = EnvironmentRecipe(
        name=f"torch-{recipe.torch}",
        arguments=(f"torch=={recipe.torch}", *recipe.packages, *_needs(project), *file, *index),
        content=(recipe.requirements_text,),
    )
    python = ensure_environment(environment, progress)
    if project is None:
        return Surroundings(python=str(python))
    return Surroundings(python=str(python), python_path=(_installed(project, python, progress),))


def _needs(wheel: Path | None) -> tuple[str, ...]:
    return requirements(wheel) if wheel else ()


def _installed(wheel: Path, python: Path, progress: Progress) -> Path:
    """A folder with the contents of the project's wheel."""
    target = wheel.parent / "site"
    with in_cache(wheel.parent):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
                draft = Path(scratch) / "site"
                run_pip_of(python, ["--no-deps", "--target", str(draft), str(wheel)], wheel.name, progress)
                draft.rename(target)
    return target
