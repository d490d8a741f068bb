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

_NO_GPUS = Inventory()


def require_kernel() -> None:
    """Check that this host's kernel has what runs rely on: see :mod:`allranks.agent.kernel`."""
    if refusal := kernel.examine().refusal:
        raise EngineError(refusal, remedy=kernel.REMEDY)


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run execute."""

    engine: Engine
    gpus: tuple[str, ...]
    cores: int  # CPU cores that ranks share
    memory: int  # MiB
    environment_of: Callable[[Job], JobEnvironment]  # where each job's Python comes from, made on first use
    inventory: Inventory = _NO_GPUS
    other_engines: tuple[Engine, ...] = ()  # further engines whose runs may have used the GPUs

    def evict(self, gpus: Sequence[str]) -> None:
        """Remove everything else that uses GPUs that have just been leased.

        Raises:
            EngineError: The engine cannot find out what uses them.
        """
        self.engine.evict(gpus)
        for engine in self.other_engines:
            with suppress(EngineError):  # it has nothing to do with this run
                engine.evict(gpus)

    @property
    def room(self) -> Capacity:
        """The total capacity that jobs share."""
        return Capacity(gpus=len(self.gpus), cores=self.cores, memory=self.memory)

    def gpus_for(self, cell: Cell) -> int:
        """How many of its GPUs a job of the cell takes: see :func:`gpus_here`."""
        return gpus_here(cell, self.engine.nodes)

    def name_of(self, gpu: str) -> str:
        """The name of one of its GPUs for people."""
        return replace(self.inventory, gpus=self.gpus).name_of(gpu)

    def places(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """The numbers of some of its GPUs for people: their indexes among all that it has."""
        return tuple(map((self.inventory.everything or self.gpus).index, gpus))


def gpus_here(cell: Cell, nodes: int) -> int:
    """How many GPUs of this host a job of the cell takes: its own share if the engine spreads it over several nodes."""
    return len(share_of(0, total=cell.gpu_count, nodes=cell.nodes)) if nodes > 1 else cell.gpu_count


def choose_host(
    engine: str | Engine,
    matrix: Matrix,
    say: Progress,
    inventory: Inventory | None = None,
    uses: ExitStack | None = None,
) -> Host:
    """The host of a run, after removal of what dead runs left on it.

    Jobs may lease the GPUs of the inventory; without one, all that are found. Nothing that was made for the run is
    removed before `uses` is closed.
    """
    inventory = take_inventory() if inventory is None else inventory
    if engine == AUTO and not matrix.images:
        chosen, why = choose_engine("process")[0], "the matrix file has no [images]"
    else:
        chosen, why = choose_engine(engine) if isinstance(engine, str) else (engine, engine.answer or "requested")
    others = engines_here(exclude=chosen.name) if inventory.gpus and not chosen.has_queue else []
    if uses is not None:
        for each in (chosen, *others):
            uses.callback(each.close)
    gpus = () if chosen.has_queue else inventory.gpus
    say(f"engine: {chosen.name} ({why}); GPUs: {'its own' if chosen.has_queue else len(gpus) or 'none'}")
    make = chosen.prepare(matrix, say, uses)
    for name in chosen.clean_up().dead:
        say(f"removed {name}, left by a dead run")
    cores, memory = chosen.capacity()
    return Host(
        engine=chosen,
        gpus=gpus,
        cores=cores,
        memory=memory,
        environment_of=_ForHost(chosen, gpus, matrix, say, make),
        inventory=inventory,
        other_engines=tuple(others),
    )


@dataclass
class _ForHost:
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
        """The job's image; if the host lacks its GPUs, the image of the same cell without any.

        All its tests will be skipped, which is not worth a wait for gigabytes of CUDA.
        """
        wanted = gpus_here(job.cell, self.engine.nodes)
        if wanted <= len(self.gpus) or self.engine.has_queue:
            return job.image
        lacks = f"{job.cell.id} asks for {counted(wanted, 'GPU')}, this host has {len(self.gpus)}"
        image = job.image
        with suppress(MatrixError):
            image = image_for(self.matrix, replace(job.cell, gpu_count=0))
        where = "" if image == job.image else f", in image {image.name} instead of {job.image.name}"
        self.say(f"{lacks}: its tests will be skipped{where}")
        return image
