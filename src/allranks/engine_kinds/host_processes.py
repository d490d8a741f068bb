"""The engine ``process``: jobs on this host, in Python environments that allranks makes."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from allranks.engine.gpus import Inventory
from allranks.engine.kind import Finding, JobEnvironment, MakeEnvironment, Progress, examine_remains
from allranks.engine.package import package_path
from allranks.engine.process import ProcessEngine
from allranks.environments import EnvironmentRecipe, ensure_environment, run_pip_of
from allranks.errors import EngineError
from allranks.image.project import in_cache, kept_wheel
from allranks.image.recipe import recipe_of
from allranks.image.wheels import requirements
from allranks.matrix.model import Image, Matrix, Process
from allranks.user_cache import cache_folder


class ProcessKind:
    """See :class:`allranks.engine.kind.EngineKind`; every host has it."""

    name = "process"

    def why_not(self) -> str:
        """See :meth:`allranks.engine.kind.EngineKind.why_not`."""
        return ""

    def connect(self) -> "ConnectedProcesses":
        """See :meth:`allranks.engine.kind.EngineKind.connect`."""
        return ConnectedProcesses()

    def examine(self, _inventory: Inventory) -> Iterator[Finding]:
        """See :meth:`allranks.engine.kind.EngineKind.examine`."""
        return examine_remains(ProcessEngine(cache_folder() / "package"))


KIND = ProcessKind()


class ConnectedProcesses:
    """See :class:`allranks.engine.kind.ConnectedEngine`."""

    name = "process"
    answer = ""
    image_daemon = None

    def capacity(self) -> tuple[int, int]:
        """See :meth:`allranks.engine.kind.ConnectedEngine.capacity`."""
        return len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20

    def cleaner(self) -> ProcessEngine:
        """See :meth:`allranks.engine.kind.ConnectedEngine.cleaner`."""
        return ProcessEngine(package_path(cache_folder() / "package"))

    def engine_for(
        self, matrix: Matrix, progress: Progress, _uses: ExitStack | None
    ) -> tuple[ProcessEngine, MakeEnvironment]:
        """See :meth:`allranks.engine.kind.ConnectedEngine.engine_for`."""
        make = partial(environment_of, root=matrix.root, process=matrix.process, progress=progress)
        return self.cleaner(), make


def environment_of(image: Image, *, root: Path, process: Process, progress: Progress) -> JobEnvironment:
    """The environment in which the process engine runs the cells of an image.

    torch, pytest and packages are one environment. The user's project lies beside it in a folder of its own, so that a
    change of code does not rebuild the environment.

    Args:
        image: The image as the matrix file declares it.
        root: The folder of the matrix file.
        process: ``[process]`` of the matrix file; its interpreter takes precedence.
        progress: Receives lines while something is made.

    Raises:
        EngineError: The image is a finished one, which no process can run in.
        EnvironmentBuildError: The environment cannot be made.
        ImageError: A file that the image names is missing, or the project cannot be built.
    """
    if process.python is not None:
        return JobEnvironment(python=str(root / process.python) if "/" in process.python else process.python)
    if image.image is not None:
        msg = f"Image {image.name} is a finished one ({image.image}), and the process engine runs no images."
        remedy = "Use --engine docker, or give process.python an interpreter with torch."
        raise EngineError(msg, remedy=remedy)
    recipe = recipe_of(image, root=root)
    if recipe.apt:
        progress(f"image {image.name}: its Debian packages ({', '.join(recipe.apt)}) must be installed on this host")
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
        return JobEnvironment(python=str(python))
    return JobEnvironment(python=str(python), python_path=(_installed(project, python, progress),))


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
