"""Chooses where a run's jobs go: the engine, the GPUs, and the Python of each job."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.engine.bytecode import bytecode_of
from allranks.engine.package import package_files, package_path
from allranks.engine.process import ProcessEngine
from allranks.engine.protocol import Engine
from allranks.engine.spec import FileCopy
from allranks.errors import AllranksError, EngineError, MatrixError
from allranks.matrix.cell_images import image_for
from allranks.matrix.model import EngineName, Image, Job, Matrix
from allranks.schedule.interpreter import surroundings_of
from allranks.schedule.inventory import Inventory, take_inventory
from allranks.schedule.packing.task import Room
from allranks.schedule.request import Surroundings
from allranks.user_cache import cache_folder

if TYPE_CHECKING:
    from docker import DockerClient

Say = Callable[[str], None]
MakeSurroundings = Callable[[Image], Surroundings]

_SOCKET = Path("/var/run/docker.sock")
_NO_GPUS = Inventory()


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run are run.

    Attributes:
        gpus: Ids of the GPUs that jobs may lease.
        inventory: How containers are given them.
        cores: CPU cores that ranks share.
        memory: MiB.
        surroundings: Where each job's Python comes from, made on first use.
        other_engines: Those by which other runs may have used the GPUs.
    """

    engine: Engine
    gpus: tuple[str, ...]
    cores: int
    memory: int
    surroundings: Callable[[Job], Surroundings]
    inventory: Inventory = _NO_GPUS
    other_engines: tuple[Engine, ...] = ()

    def vacate(self, gpus: Sequence[str]) -> None:
        """Have nothing else use GPUs that have just been leased.

        Raises:
            EngineError: The engine cannot tell what uses them.
        """
        self.engine.vacate(gpus)
        for engine in self.other_engines:
            with suppress(EngineError):  # it has nothing to do with this run
                engine.vacate(gpus)

    @property
    def room(self) -> Room:
        """All that jobs share."""
        return Room(gpus=len(self.gpus), cores=self.cores, memory=self.memory)

    def name_of(self, gpu: str) -> str:
        """What people call one of its GPUs."""
        return replace(self.inventory, gpus=self.gpus).name_of(gpu)

    def places(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """The numbers by which people know some of its GPUs: their places among all that it has."""
        return tuple(map((self.inventory.everything or self.gpus).index, gpus))


def choose_host(
    engine: EngineName,
    matrix: Matrix,
    say: Say,
    inventory: Inventory | None = None,
    uses: ExitStack | None = None,
) -> Host:
    """The host of a run, with what dead runs left on it removed.

    Args:
        engine: The engine that was asked for; ``auto`` takes docker where a daemon answers.
        matrix: Says what jobs need.
        say: Told which engine, and why.
        inventory: The GPUs that jobs may use; None for all of this host's.
        uses: Until it is closed, nobody removes the images of the run's jobs.

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


def _processes(matrix: Matrix, say: Say) -> tuple[Engine, MakeSurroundings]:
    def make(image: Image) -> Surroundings:
        return surroundings_of(image, root=matrix.root, process=matrix.process, progress=say)

    return _process_engine(), make


def _containers(
    matrix: Matrix, say: Say, client: "DockerClient", uses: ExitStack | None
) -> tuple[Engine, MakeSurroundings]:
    from allranks.image.build import ensure_image  # noqa: PLC0415 - see client_for
    from allranks.image.copied import project_files  # noqa: PLC0415

    def make(image: Image) -> Surroundings:
        made = ensure_image(image, root=matrix.root, client=client, progress=say, uses=uses)
        copied = (project_files(image, matrix.root, say),) if image.mode == "copy" else ()
        return Surroundings(image=made.reference, python_path=copied)

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
    """Without a package it runs nothing, and cleans up."""
    from allranks.engine.docker import DockerEngine  # noqa: PLC0415 - see client_for

    return DockerEngine(client, package)


@dataclass
class _ForHost:
    """Surroundings of a job, made once for each image; what failed once is not tried again in this run."""

    gpus: tuple[str, ...]
    matrix: Matrix
    say: Say
    make: MakeSurroundings
    _made: dict[Image, Surroundings | AllranksError] = field(default_factory=dict)

    def __call__(self, job: Job) -> Surroundings:
        image = self._image(job)
        if image not in self._made:
            self._made[image] = self._try(image)
        made = self._made[image]
        if isinstance(made, AllranksError):
            raise made
        return made

    def _try(self, image: Image) -> Surroundings | AllranksError:
        try:
            return self.make(image)
        except AllranksError as error:
            return error

    def _image(self, job: Job) -> Image:
        """The job's image; where the host lacks its GPUs, the image of the same cell without any.

        All its tests will be skipped, and nobody should wait for gigabytes of CUDA to learn that.
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
