"""Chooses where jobs run: the engine, the GPUs, and the Python environment of each job."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from allranks.engine.gpus import Inventory, take_inventory
from allranks.engine.kind import JobEnvironment, MakeEnvironment, Progress, choose_engine, cleaners
from allranks.engine.protocol import Engine
from allranks.errors import AllranksError, EngineError, MatrixError
from allranks.matrix.cell_images import image_for
from allranks.matrix.model import Image, Job, Matrix
from allranks.schedule.packing.estimate import Capacity

_NO_GPUS = Inventory()


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run execute.

    Attributes:
        cores: CPU cores that ranks share.
        memory: MiB.
        environment_of: Where each job's Python comes from, made on first use.
        other_engines: Further engines whose runs may have used the GPUs.
        most_jobs: The most jobs at a time on an engine that queues them and leases GPUs itself; None on others.
    """

    engine: Engine
    gpus: tuple[str, ...]
    cores: int
    memory: int
    environment_of: Callable[[Job], JobEnvironment]
    inventory: Inventory = _NO_GPUS
    other_engines: tuple[Engine, ...] = ()
    most_jobs: int | None = None

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
    engine: str,
    matrix: Matrix,
    say: Progress,
    inventory: Inventory | None = None,
    uses: ExitStack | None = None,
) -> Host:
    """The host of a run, after removal of what dead runs left on it.

    Images that the run's jobs use are kept until `uses` is closed.

    Raises:
        EngineError: The engine that was asked for is not there.
    """
    inventory = take_inventory() if inventory is None else inventory
    gpus = inventory.gpus
    connected, why = choose_engine(engine)
    most_jobs = connected.most_jobs
    say(f"engine: {connected.name} ({why}); GPUs: {'its own' if most_jobs else len(gpus) or 'none'}")
    gpus = () if most_jobs else gpus
    chosen, make = connected.engine_for(matrix, say, uses)
    for name in chosen.reap():
        say(f"removed {name}, left by a dead run")
    cores, memory = connected.capacity()
    return Host(
        engine=chosen,
        gpus=gpus,
        cores=cores,
        memory=memory,
        environment_of=_ForHost(gpus, matrix, say, make, leases_gpus=most_jobs is None),
        inventory=inventory,
        other_engines=tuple(cleaners(beside=connected.name)) if gpus else (),
        most_jobs=most_jobs,
    )


@dataclass
class _ForHost:
    """Makes the environment of a job, once for each image; a failure is not retried in this run."""

    gpus: tuple[str, ...]
    matrix: Matrix
    say: Progress
    make: MakeEnvironment
    leases_gpus: bool = True
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
        if wanted <= len(self.gpus) or not self.leases_gpus:
            return job.image
        lacks = f"{job.cell.id} asks for {wanted} GPUs, this host has {len(self.gpus)}: its tests will be skipped"
        with suppress(MatrixError):
            image = image_for(self.matrix, replace(job.cell, gpu_count=0))
            self.say(f"{lacks}, in image {image.name} instead of {job.image.name}")
            return image
        self.say(lacks)
        return job.image
