"""Chooses where jobs run: the engine, the GPUs, and the Python environment of each job."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from allranks.agent import kernel
from allranks.engines import AUTO
from allranks.engines.base import Engine, JobEnvironment, MakeEnvironment, Progress
from allranks.engines.gpus import Inventory, take_inventory
from allranks.engines.registry import choose_engine, engines_here
from allranks.errors import AllranksError, EngineError, MatrixError, counted
from allranks.images.built_image import build_limit
from allranks.matrix.cell_images import image_for
from allranks.matrix.model import Cell, Image, Job, Matrix
from allranks.protocol.config import share_of
from allranks.runner.tasks import Capacity


def require_kernel() -> None:
    """Check that this host's kernel has the features that runs need."""
    if refusal := kernel.check().refusal:
        raise EngineError(refusal, remedy=kernel.REMEDY)


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run execute."""

    engine: Engine
    cores: int  # CPU cores that ranks share
    memory: int  # MiB
    environment_of: Callable[[Job], JobEnvironment]  # the Python environment of a job, made on first use
    inventory: Inventory = field(default_factory=Inventory)  # the GPUs that jobs may use
    other_engines: tuple[Engine, ...] = ()  # the engines of other runs, which may have left jobs on the GPUs

    def evict(self, gpus: Sequence[str]) -> None:
        """Remove jobs of dead runs that still use GPUs that have just been leased.

        Raises:
            EngineError: The engine cannot find out what uses them.
        """
        self.engine.evict(gpus)
        for engine in self.other_engines:
            with suppress(EngineError):  # this run does not need that engine
                engine.evict(gpus)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that allranks leases to jobs; none if the engine assigns GPUs itself."""
        return () if self.engine.has_queue else self.inventory.gpus

    @property
    def capacity(self) -> Capacity:
        """The total capacity that jobs share."""
        return Capacity(gpus=len(self.gpus), cores=self.cores, memory=self.memory)


def gpus_here(cell: Cell, nodes: int) -> int:
    """How many GPUs of this host a job of the cell needs: those of one node if the engine has several machines."""
    return len(share_of(0, total=cell.gpu_count, nodes=cell.nodes)) if nodes > 1 else cell.gpu_count


def choose_host(
    engine: str | Engine,
    matrix: Matrix,
    say: Progress,
    inventory: Inventory | None = None,
    uses: ExitStack | None = None,
) -> Host:
    """Choose the engine of a run, remove leftovers of dead runs, and return the host.

    Args:
        engine: The requested engine.
        matrix: The matrix of the run.
        say: Prints a message.
        inventory: The GPUs that jobs may lease; None for all of the host's.
        uses: Until it is closed, the run's environments are kept from removal, and its engines stay open.
    """
    inventory = take_inventory() if inventory is None else inventory
    if engine == AUTO and not matrix.images:
        chosen, why = choose_engine("process")[0], "the matrix file has no [images]"
    else:
        chosen, why = choose_engine(engine) if isinstance(engine, str) else (engine, engine.answer or "requested")
    others = engines_here(exclude=chosen.name) if inventory.gpus and not chosen.has_queue else []
    if uses is not None:
        for opened in (chosen, *others):
            uses.callback(opened.close)
    gpus = () if chosen.has_queue else inventory.gpus
    say(f"engine: {chosen.name} ({why}); GPUs: {'assigned by it' if chosen.has_queue else len(gpus) or 'none'}")
    make = chosen.prepare(matrix, say, uses)
    for name in chosen.clean_up().dead:
        say(f"removed {name}, left by a dead run")
    cores, memory = chosen.capacity()
    return Host(
        engine=chosen,
        cores=cores,
        memory=memory,
        environment_of=_EnvironmentCache(chosen, gpus, matrix, say, make),
        inventory=inventory,
        other_engines=tuple(others),
    )


@dataclass
class _EnvironmentCache:
    """Makes the environment of a job, once for each image; a failure is not retried in this run."""

    engine: Engine
    gpus: tuple[str, ...]
    matrix: Matrix
    say: Progress
    make: MakeEnvironment
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
            with build_limit(image, self.matrix.limits.build):
                return replace(self.make(image), torch=image.torch or "")
        except AllranksError as error:
            return error

    def _image(self, job: Job) -> Image:
        """The job's image; if the host has too few GPUs, the image of the same cell without GPUs.

        Its tests will then be skipped, so the gigabytes of CUDA need not be installed.
        """
        needed = gpus_here(job.cell, self.engine.nodes)
        if needed <= len(self.gpus) or self.engine.has_queue:
            return job.image
        reason = f"{job.cell.id} needs {counted(needed, 'GPU')}, but this host has {len(self.gpus)}"
        image = job.image
        with suppress(MatrixError):
            image = image_for(self.matrix, replace(job.cell, gpu_count=0))
        where = "" if image == job.image else f", in image {image.name} instead of {job.image.name}"
        self.say(f"{reason}: its tests will be skipped{where}")
        return image
