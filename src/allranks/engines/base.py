"""The contract between a run and an engine: the specification of a job, its result, and the base class of engines."""

import dataclasses
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, Self

from allranks.engines.agent_output import Damage
from allranks.matrix.model import Image, Matrix
from allranks.ownership import GPUS_LABEL, RUN_LABEL
from allranks.protocol.config import AgentConfig
from allranks.protocol.records import Record

if TYPE_CHECKING:
    from docker import DockerClient

    from allranks.engines.gpus import Inventory


@dataclass(frozen=True, kw_only=True)
class FileCopy:
    """A file or folder that the job needs.

    Attributes:
        source: Its path on this host.
        target: Its path relative to the job's code folder.
        root: A real path that no link may lead out of; None if all files are trusted.
    """

    source: Path
    target: Path
    root: Path | None = None


LISTS: Final = Path(".test-lists")
"""The folder, in a job's code folder, of PyTorch's lists of tests. Each file has the name of its variable."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that one job may use, on one node or on all of them.

    Attributes:
        memory_bytes: Memory, without swap.
        shm_bytes: Size of ``/dev/shm``.
        disk_bytes: Size of its tests' files, on engines that can limit it; they count as memory, too.
        pids: Number of processes and threads.
        cpus: How many of its ranks may compute at a time.
        seconds: Time from :meth:`RunningJob.go` to the end of the agent, after which the engine kills the job. It
            includes what remains of imports and collection.
    """

    memory_bytes: int
    shm_bytes: int
    disk_bytes: int
    pids: int
    seconds: float
    cpus: int = 1


GpuDriver = Literal["nvidia", "cdi", "rocm"]


@dataclass(frozen=True, kw_only=True)
class Passthrough:
    """How a job gets its GPUs.

    Attributes:
        driver: ``nvidia`` requests UUIDs from NVIDIA's toolkit, ``cdi`` requests names of the engine's CDI
            specifications, ``rocm`` passes device nodes.
        nodes: The device nodes, as paths on the engine's host.
        groups: Ids of the groups that may use them.
        numbers: The GPUs' indexes on the host, which ROCm uses.
    """

    driver: GpuDriver = "nvidia"
    nodes: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Everything that an engine needs to run one attempt at one job.

    Attributes:
        run_id: The run that owns every object made for the job.
        job_id: ``<cell>/<suite>``.
        attempt: Counts from 1.
        image: Image reference, for engines that run containers.
        python: Interpreter, for engines that run processes.
        python_path: Folders to add to Python's path, for the user's project. Engines that copy files merge them.
        code: The folder on this host that suites are relative to.
        files: The parts of `code` that the job needs, for engines that copy files.
        carried: The initial content of the job's results folder, from an earlier job.
        gpus: Ids of the GPUs that the job has leased.
        resources: Its limits, for all nodes together.
        node_resources: Its limits on each node; empty for a job on one node.
        seccomp: The seccomp profile of its containers: that of allranks, or the daemon's default.
    """

    run_id: str
    job_id: str
    attempt: int
    agent: AgentConfig
    code: Path
    files: tuple[FileCopy, ...] = ()
    carried: tuple[FileCopy, ...] = ()
    image: str | None = None
    python: str | None = None
    python_path: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    passthrough: Passthrough = Passthrough()
    resources: Resources
    node_resources: tuple[Resources, ...] = ()
    seccomp: Literal["allranks", "default"] = "allranks"

    def resources_on(self, node: int) -> Resources:
        return self.node_resources[node] if self.node_resources else self.resources

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every object made for this attempt."""
        return {
            "allranks": "1",
            RUN_LABEL: self.run_id,
            "allranks.cell": self.agent.cell,
            "allranks.job": self.job_id,
            "allranks.attempt": str(self.attempt),
            **({GPUS_LABEL: json.dumps(self.gpus)} if self.gpus else {}),
        }

    def to_json(self) -> dict[str, Any]:
        """A printable form with only JSON types."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(dataclasses.replace(self, agent=_public(self.agent))))
        return plain


def _public(agent: AgentConfig) -> AgentConfig:
    """The agent's configuration without its secret token and the long table of durations."""
    share = None if agent.share is None else dataclasses.replace(agent.share, seconds={})
    return dataclasses.replace(agent, node_config=None, share=share)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value in, any JSON value out
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Path():
            return str(value)
    return value


def unique_name(*parts: str, longest: int) -> str:
    """A name for an object that other jobs and runs can see, unique for each sequence of parts.

    It consists of letters, digits and hyphens: a readable form of the parts, and a digest, since different parts can
    have the same readable form.

    Args:
        parts: The parts that identify the object, the most important first.
        longest: The maximum length, at least 40.
    """
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    words = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(("allranks", *parts)))
    return f"{words[: longest - len(digest) - 1].strip('-')}-{digest}"


LAUNCHED: Final = 4
"""How many ranks a test may start itself, whatever the world size of its cell: torch's classes start four."""


def ranks_at_once(world_size: int, overlap: int) -> int:
    """How many ranks a job may have at a time, if up to `overlap` tests that start their own ranks run concurrently."""
    return world_size if overlap == 1 else max(world_size, LAUNCHED) * overlap


def resources(
    *, world_size: int, memory_mib: int | None, seconds: float, overlap: int = 1, disk_mib: int = 1024
) -> Resources:
    """The resources of a job, with defaults for keys that are not in the matrix file.

    Args:
        world_size: Number of ranks.
        memory_mib: Memory in MiB; by default 2 GiB, and 1 GiB for each rank or concurrent test.
        seconds: The job's time limit. The agent enforces it; the engine's limit is up to a minute longer.
        overlap: How many tests that start their own ranks may run concurrently.
        disk_mib: Size of the files of its tests in MiB.
    """
    mib = 1 << 20
    ranks = ranks_at_once(world_size, overlap)
    return Resources(
        memory_bytes=(memory_mib or 2048 + 1024 * max(world_size, overlap)) * mib,
        # For the buffers of NCCL, gloo and DataLoader workers; only used pages cost memory.
        shm_bytes=(64 + 256 * ranks) * mib,
        disk_bytes=disk_mib * mib,
        # The limit stops fork bombs; a rank has about 100 threads with RPC, autograd and gloo. A fork with torch takes
        # 1 to 2 MB, so many more of them would exhaust the memory, and the kernel kills processes one by one.
        pids=512 * max(ranks, LAUNCHED),
        seconds=seconds + min(60.0, 20.0 + seconds / 10),
        cpus=ranks,
    )


def total(nodes: Sequence[Resources]) -> Resources:
    """The limits of a job on all of its nodes together."""
    return Resources(
        memory_bytes=sum(node.memory_bytes for node in nodes),
        shm_bytes=sum(node.shm_bytes for node in nodes),
        disk_bytes=max(node.disk_bytes for node in nodes),  # they share a folder
        pids=sum(node.pids for node in nodes),
        seconds=max(node.seconds for node in nodes),
        cpus=sum(node.cpus for node in nodes),
    )


@dataclass(frozen=True)
class Placement:
    """The status of a job in the queue of an engine that queues its jobs.

    Attributes:
        text: As in "queued (Resources)" or "placed on n1".
        is_placed: Whether it has its nodes, so that its time has started.
    """

    text: str
    is_placed: bool


RecordSink = Callable[[int, Record | Damage | Placement], None]
"""Receives the number of a node (0 is the lead node), and a record of its agent, damage in its output, or, from an
engine that queues jobs, a placement."""


@dataclass(frozen=True, kw_only=True)
class NodeExit:
    """How the agent of one node ended.

    Attributes:
        status: Its exit status, negative for a signal; None if unknown.
        out_of_memory: The kernel's out-of-memory killer killed some of its processes.
        output: The end of its output that is not part of a record, such as why it could not start.
    """

    status: int | None
    out_of_memory: bool = False
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class JobExit(NodeExit):
    """How a job ended. The inherited attributes are those of the lead node.

    Attributes:
        timed_out: The engine's own time limit ended it.
        ended_by: What ended it from outside, as in "was preempted"; empty if nothing did, or if it is unknown.
        is_disturbed: Tests may have failed because of `ended_by`, even if all of them ended.
        began: When it got its nodes, in seconds since the epoch; None if it had them from the start.
        followers: How the agents of the other nodes ended.
    """

    timed_out: bool = False
    ended_by: str = ""
    is_disturbed: bool = False
    began: float | None = None
    followers: tuple[NodeExit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """The Python environment of a job."""

    image: str | None = None  # image reference, on an engine that runs containers
    python: str | None = None  # interpreter, on an engine that runs processes
    python_path: tuple[Path, ...] = ()  # folders to add to Python's path
    torch: str = field(default="", compare=False)  # the torch version in the matrix file, if any


MakeEnvironment = Callable[[Image], JobEnvironment]
"""Makes the environment for all jobs of an image, which may take minutes, or raises :class:`AllranksError`."""

Progress = Callable[[str], None]
"""Receives lines of progress output."""


class Finding(NamedTuple):
    """The result of one check of this host."""

    subject: str  # what was checked, in a word or two
    text: str  # its state
    remedy: str = ""  # what to do; empty if there is no problem
    is_checked: bool = True

    @property
    def line(self) -> str:
        """The finding as ``allranks doctor`` prints it."""
        mark = "PROBLEM" if self.remedy else "ok" if self.is_checked else "skipped"
        line = f"{mark:7}  {self.subject}: {self.text}"
        return f"{line}\n         -> {self.remedy}" if self.remedy else line


class Leftovers(NamedTuple):
    """The names of objects that earlier runs left on a host."""

    dead: Sequence[str] = ()  # of dead runs; they have been removed, except in a dry run
    unknown: Sequence[str] = ()  # of runs of another host or pid namespace, which may be alive


class RunningJob(Protocol):
    """A started job. Its agent imports and collects the tests, then waits for :meth:`go`."""

    def go(self) -> None:
        """Let the job run its tests as soon as it has collected them. Its time limit starts now."""

    def wait(self, sink: RecordSink) -> JobExit:
        """Wait for the agent to end, and pass each record to `sink` as it arrives.

        Raises:
            EngineError: The engine lost the job.
        """

    def request_stop(self) -> None:
        """Make the job end soon, so that :meth:`wait` in another thread returns. Thread-safe."""

    def stop(self) -> None:
        """Let the agent stop its ranks and write its results; kill it if it does not. Idempotent."""

    def collect(self, results: Path) -> None:
        """Copy the job's results into an existing folder.

        Raises:
            EngineError: They cannot be copied.
        """


class Engine(ABC):
    """The base class of all engines.

    A plug-in registers its engines with the hook ``allranks_engines``. Each run or command uses its own instance.
    """

    name: ClassVar[str]
    """Its name, as in ``--engine NAME``."""

    has_queue: ClassVar[bool] = False
    """Whether it queues jobs and assigns GPUs itself: allranks leases no GPUs, and jobs outlive the orchestrator."""

    answer: str = ""
    """Why ``--engine auto`` chose it, as in "a Docker daemon answers"; may be empty."""

    most_jobs: int | None = None
    """How many jobs a run may submit at a time; None for no limit. It is valid after :meth:`prepare`."""

    nodes: int = 1
    """The number of machines on which it runs the nodes of a job."""

    image_daemon: "DockerClient | None" = None
    """The daemon that builds its images; None if it runs no images."""

    @classmethod
    @abstractmethod
    def detect(cls, *, is_requested: bool) -> Self:
        """Connect to the engine of this host.

        Args:
            is_requested: Whether the user named it. Otherwise a cheap check may decide that this host lacks it.

        Raises:
            EngineAbsentError: This host does not have it; ``why`` says what is missing.
            EngineDeniedError: This user may not use it.
            EngineError: It does not work.
        """

    @abstractmethod
    def prepare(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> MakeEnvironment:
        """Prepare a run; return the function that makes the environments of its jobs.

        Args:
            matrix: The matrix of the run. The table of a plug-in's engine is in ``matrix.tables``.
            progress: Receives progress output of that function.
            uses: Until it is closed, the run's images and environments are kept from removal; None for no such locks.

        Raises:
            AllranksError: The engine's table is invalid.
        """

    @abstractmethod
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> AbstractContextManager[RunningJob]:
        """Start a job; leaving the context removes everything that was made for it, even after errors.

        Args:
            spec: The job.
            held: File descriptors that hold the locks of the job's GPU leases. Processes inherit them, so that a lease
                lasts as long as any process of the job. Containers cannot; they end when their owner ends.

        Raises:
            EngineError: The job could not be started; nothing is left of it.
        """

    @abstractmethod
    def clean_up(self, *, is_dry_run: bool = False) -> Leftovers:
        """Remove what dead runs left on this host.

        Args:
            is_dry_run: Find leftovers without removing them.

        Raises:
            EngineError: Leftovers cannot be determined.
        """

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Release resources, such as a connection. The last call of a run."""

    def capacity(self) -> tuple[int, int]:
        """Cores and MiB of memory for all concurrent jobs; by default, those of this host.

        Raises:
            EngineError: The engine does not report them.
        """
        return len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20

    def check(self, inventory: "Inventory") -> Iterator[Finding]:  # noqa: ARG002 - of engines that pass GPUs on
        """Check whether this host can run jobs with these GPUs, for ``allranks doctor``, without changing anything."""
        yield from ()

    def adopt(self, spec: JobSpec) -> AbstractContextManager[RunningJob] | None:  # noqa: ARG002
        """Take over a job that an earlier orchestrator of the run started; return None if there is none.

        The job may have ended. All its records are read again. Only engines with a queue have such jobs.
        """
        return None

    def check_leases(self) -> None:  # noqa: B027 - most engines have nothing to check
        """Check that a GPU lease of this process keeps all other runs off the engine's GPU.

        Raises:
            EngineError: Other runs could use the GPU anyway.
        """

    def evict(self, gpus: Sequence[str]) -> None:  # noqa: B027 - for most engines a lease is enough
        """Remove jobs of dead runs that still use these GPUs, which the caller has leased.

        Raises:
            EngineError: The jobs that use them cannot be determined.
        """
