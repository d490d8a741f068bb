"""Chooses where jobs run: the engine, the GPUs, and the Python environment of each job."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.engine.package import bytecode_of, package_files, package_path
from allranks.engine.process import ProcessEngine
from allranks.engine.protocol import Engine, FileCopy
from allranks.environments import EnvironmentRecipe, ensure_environment, run_pip_of
from allranks.errors import AllranksError, EngineError, MatrixError
from allranks.image.daemon import Progress
from allranks.image.project import in_cache, kept_wheel
from allranks.image.recipe import recipe_of
from allranks.image.wheels import requirements
from allranks.matrix.cell_images import image_for
from allranks.matrix.model import EngineName, Image, Job, Matrix, Process
from allranks.schedule.gpus import Inventory, take_inventory
from allranks.schedule.packing.estimate import Capacity
from allranks.schedule.request import JobEnvironment
from allranks.user_cache import cache_folder

if TYPE_CHECKING:
    from docker import DockerClient


def surroundings_of(image: Image, *, root: Path, process: Process, progress: Progress) -> JobEnvironment:
    """The environment in which the process engine runs the cells of an image.

    torch, pytest and packages are one environment. The user's project lies beside it in a folder of its own, so that a
    change of code does not rebuild the environment.

    Args:
        image: What the matrix file says about the image.
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


MakeSurroundings = Callable[[Image], JobEnvironment]

_SOCKET = Path("/var/run/docker.sock")
_NO_GPUS = Inventory()


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run execute.

    Attributes:
        gpus: Ids of the GPUs that jobs may lease.
        inventory: How containers are given them.
        cores: CPU cores that ranks share.
        memory: MiB.
        surroundings: Where each job's Python comes from, made on first use.
        other_engines: Further engines whose runs may have used the GPUs.
    """

    engine: Engine
    gpus: tuple[str, ...]
    cores: int
    memory: int
    surroundings: Callable[[Job], JobEnvironment]
    inventory: Inventory = _NO_GPUS
    other_engines: tuple[Engine, ...] = ()

    def vacate(self, gpus: Sequence[str]) -> None:
        """Remove everything else that uses GPUs that have just been leased.

        Raises:
            EngineError: The engine cannot find out what uses them.
        """
        self.engine.vacate(gpus)
        for engine in self.other_engines:
            with suppress(EngineError):  # it has nothing to do with this run
                engine.vacate(gpus)

    @property
    def room(self) -> Capacity:
        """The total capacity that jobs share."""
        return Capacity(gpus=len(self.gpus), cores=self.cores, memory=self.memory)

    def name_of(self, gpu: str) -> str:
        """The name of one of its GPUs for people."""
        return replace(self.inventory, gpus=self.gpus).name_of(gpu)

    def places(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """The numbers of some of its GPUs for people: their indexes among all that it has."""
        return tuple(map((self.inventory.everything or self.gpus).index, gpus))


def choose_host(
    engine: EngineName,
    matrix: Matrix,
    say: Progress,
    inventory: Inventory | None = None,
    uses: ExitStack | None = None,
) -> Host:
    """The host of a run, after removal of what dead runs left on it.

    Args:
        engine: The requested engine; ``auto`` takes docker if a daemon answers.
        matrix: Defines what jobs need.
        say: Receives a line that names the engine, and why.
        inventory: The GPUs that jobs may use; None for all of this host's.
        uses: Until it is closed, the images of the run's jobs are not removed.

    Raises:
        EngineError: The docker engine was asked for, and no daemon answers.
    """
    inventory = take_inventory() if inventory is None else inventory
    gpus = inventory.gpus
    client, why = client_for(engine)
    say(f"engine: {'process' if client is None else 'docker'} ({why}); GPUs: {len(gpus) or 'none'}")
    chosen, make = _processes(matrix, say) if client is None else _containers(matrix, say, client, uses)
    for name in chosen.reap():
        say(f"removed {name}, which a dead run had left")
    cores, memory = _size_of_this_host() if client is None else _size_of_daemon(client)
    return Host(
        engine=chosen,
        gpus=gpus,
        cores=cores,
        memory=memory,
        surroundings=_ForHost(gpus, matrix, say, make),
        inventory=inventory,
        other_engines=_containers_beside_processes() if gpus and client is None else (),
    )


def _containers_beside_processes() -> tuple[Engine, ...]:
    client, _ = client_for("auto")
    return (_docker_engine(client),) if client else ()


def _size_of_this_host() -> tuple[int, int]:
    """Cores and MiB."""
    return len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def _size_of_daemon(client: "DockerClient") -> tuple[int, int]:
    """Cores and MiB of the host that the daemon is on, which may be another one."""
    from allranks.engine.docker_job import as_engine_error  # noqa: PLC0415 - see client_for

    with as_engine_error("The daemon does not say how large its host is."):
        said = client.info()
    return int(said["NCPU"]), int(said["MemTotal"]) >> 20


def engines() -> list[Engine]:
    """Every engine that works on this host, to clean up after."""
    found: list[Engine] = [_process_engine()]
    client, _ = client_for("auto")
    return found if client is None else [*found, _docker_engine(client)]


def _processes(matrix: Matrix, say: Progress) -> tuple[Engine, MakeSurroundings]:
    def make(image: Image) -> JobEnvironment:
        return surroundings_of(image, root=matrix.root, process=matrix.process, progress=say)

    return _process_engine(), make


def _containers(
    matrix: Matrix, say: Progress, client: "DockerClient", uses: ExitStack | None
) -> tuple[Engine, MakeSurroundings]:
    from allranks.image.built_image import ensure_image  # noqa: PLC0415 - see client_for
    from allranks.image.project import project_files  # noqa: PLC0415

    def make(image: Image) -> JobEnvironment:
        made = ensure_image(image, root=matrix.root, client=client, progress=say, uses=uses)
        copied = (project_files(image, matrix.root, say),) if image.mode == "copy" else ()
        return JobEnvironment(image=made.reference, python_path=copied)

    package = package_files()
    return _docker_engine(client, (*package, *bytecode_of(package, cache_folder() / "bytecode"))), make


def _process_engine() -> ProcessEngine:
    return ProcessEngine(package_path(cache_folder() / "package"))


def is_daemon_expected(engine: EngineName) -> bool:
    """Whether a run would look for a Docker daemon at all."""
    return engine == "docker" or (engine == "auto" and ("DOCKER_HOST" in os.environ or _SOCKET.exists()))


def client_for(engine: EngineName) -> "tuple[DockerClient | None, str]":
    """A client, or None for the process engine; and why.

    Raises:
        EngineError: The docker engine was asked for, and no daemon answers.
    """
    if engine == "process":
        return None, "asked for"
    if not is_daemon_expected(engine):
        return None, f"no Docker daemon: there is no {_SOCKET}"
    try:
        connect = _connect()
    except EngineError as error:
        if engine == "docker":
            raise
        return None, error.what.rstrip(".")
    try:
        return connect(), "asked for" if engine == "docker" else "a Docker daemon answers"
    except EngineError as error:
        if engine == "docker":
            raise
        return None, f"no Docker daemon answers: {error.why.splitlines()[0][:120]}"


def _connect() -> "Callable[[], DockerClient]":
    """The function that makes a client.

    Raises:
        EngineError: The SDK cannot be imported.
    """
    try:
        # The SDK takes a tenth of a second to import: hosts without a daemon do without.
        from allranks.engine.docker import connect  # noqa: PLC0415
    except ImportError as error:
        msg = "The Docker SDK for Python is not installed."
        remedy = "Install it (pip install docker), or use --engine process."
        raise EngineError(msg, why=str(error), remedy=remedy) from error
    return connect


def _docker_engine(client: "DockerClient", package: tuple[FileCopy, ...] = ()) -> Engine:
    """A docker engine; without a package it can only clean up."""
    from allranks.engine.docker import DockerEngine  # noqa: PLC0415 - see client_for

    return DockerEngine(client, package)


@dataclass
class _ForHost:
    """Makes the environment of a job, once for each image; a failure is not retried in this run."""

    gpus: tuple[str, ...]
    matrix: Matrix
    say: Progress
    make: MakeSurroundings
    _made: dict[Image, JobEnvironment | AllranksError] = field(default_factory=dict)

    def __call__(self, job: Job) -> JobEnvironment:
        image = self._image(job)
        if image not in self._made:
            self._made[image] = self._try(image)
        made = self._made[image]
        if isinstance(made, AllranksError):
            raise made
        return made

    def _try(self, image: Image) -> JobEnvironment | AllranksError:
        try:
            return self.make(image)
        except AllranksError as error:
            return error

    def _image(self, job: Job) -> Image:
        """The job's image; if the host lacks its GPUs, the image of the same cell without any.

        All its tests will be skipped, which is not worth a wait for gigabytes of CUDA.
        """
        wanted = job.cell.gpu_count
        if wanted <= len(self.gpus):
            return job.image
        lacks = f"{job.cell.id} asks for {wanted} GPUs, this host has {len(self.gpus)}: its tests will be skipped"
        with suppress(MatrixError):
            image = image_for(self.matrix, replace(job.cell, gpu_count=0))
            self.say(f"{lacks}, in image {image.name} instead of {job.image.name}")
            return image
        self.say(lacks)
        return job.image
