"""The contract between a run and an engine: a job as data, and the base class of what runs it."""

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
        source: Where it is on this host.
        target: Where it goes, relative to the job's code folder.
        root: The folder, without links in its path, that no file may lead out of; None if all of them can be trusted.
    """

    source: Path
    target: Path
    root: Path | None = None


LISTS: Final = Path(".test-lists")
"""The folder in a job's code folder that has PyTorch's lists of tests, each under the name of its variable."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that one job may use, on one node or on all of them.

    Attributes:
        memory_bytes: Memory, without swap.
        shm_bytes: Size of ``/dev/shm``.
        disk_bytes: Limit of the files of its tests, for engines that can limit that; they take memory as well.
        pids: Number of processes and threads.
        cpus: How many of its ranks may compute at a time.
        seconds: From the job's turn to its agent's end, including imports and collection if they are not done by then;
            the engine's own, last time limit.
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
    """How a job is given its GPUs.

    Attributes:
        driver: ``nvidia`` is a request for ids that NVIDIA's toolkit grants, ``cdi`` one for names that the engine's
            CDI specifications have, ``rocm`` gives device nodes.
        nodes: Those nodes, as paths on the engine's host.
        groups: Numbers of the groups that may use them.
        numbers: Their indexes among the host's GPUs, which ROCm uses.
    """

    driver: GpuDriver = "nvidia"
    nodes: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """All that an engine needs to run one attempt at one job.

    Attributes:
        run_id: The run that owns every object made for the job.
        job_id: ``<cell>/<suite>``.
        attempt: From 1.
        image: Image reference, for engines that run containers.
        python: Interpreter, for engines that run processes.
        python_path: Folders on Python's path: the user's own project. Engines that copy put their contents into one.
        code: The folder on this host that suites are relative to.
        files: The parts of it that the job needs, for engines that copy.
        carried: The initial contents of the job's results folder, left by an earlier job.
        gpus: Identifiers of the GPUs that the job holds; empty for none.
        resources: Its limits, on all of its nodes together.
        node_resources: Its limits on each of several nodes, by that node's ranks; empty for one node.
        seccomp: The filter of system calls in its container: our own list, or the daemon's default.
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
        """The limits of the job on one of its nodes."""
        return self.node_resources[node] if self.node_resources else self.resources

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object made for this attempt."""
        return {
            "allranks": "1",
            RUN_LABEL: self.run_id,
            "allranks.cell": self.agent.cell,
            "allranks.job": self.job_id,
            "allranks.attempt": str(self.attempt),
            **({GPUS_LABEL: json.dumps(self.gpus)} if self.gpus else {}),
        }

    def to_json(self) -> dict[str, Any]:
        """A printable form, made of JSON's types alone."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(dataclasses.replace(self, agent=_public(self.agent))))
        return plain


def _public(agent: AgentConfig) -> AgentConfig:
    """The agent's config as records show it: without the token of its post and the long table of durations."""
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
    """A name for an object that other jobs and runs can see: other parts have another name.

    It begins with the words of the parts, for people, and ends with a digest of them, because words joined by hyphens
    have several readings. It has letters, digits and hyphens alone.

    Args:
        parts: What tells the object from all others, the most important first.
        longest: The most characters; at least 40.
    """
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MB, and few reports need it

    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    words = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(("allranks", *parts)))
    return f"{words[: longest - len(digest) - 1].strip('-')}-{digest}"


LAUNCHED: Final = 4
"""Ranks that a launcher test may start regardless of its cell's world size: torch's classes start four."""


def ranks_at_once(world_size: int, overlap: int) -> int:
    """How many ranks a job may have at a time, if this many of its launcher tests overlap."""
    return world_size if overlap == 1 else max(world_size, LAUNCHED) * overlap


def resources(
    *, world_size: int, memory_mib: int | None, seconds: float, overlap: int = 1, disk_mib: int = 1024
) -> Resources:
    """The resources of a job, with defaults for keys that its matrix file lacks.

    Args:
        world_size: Number of ranks.
        memory_mib: Memory in MiB; None for 2 GiB and 1 GiB more for each rank, or for each test that overlaps.
        seconds: The job's time limit; the agent keeps it, the engine allows up to a minute more.
        overlap: How many of its launcher tests may run at a time.
        disk_mib: Limit of the files of its tests, in MiB.
    """
    mib = 1 << 20
    ranks = ranks_at_once(world_size, overlap)
    return Resources(
        memory_bytes=(memory_mib or 2048 + 1024 * max(world_size, overlap)) * mib,
        # NCCL and gloo share buffers here, DataLoader workers too; only what is used costs memory.
        shm_bytes=(64 + 256 * ranks) * mib,
        disk_bytes=disk_mib * mib,
        # A rank has a hundred threads if RPC, autograd and gloo each have theirs; the limit is for fork bombs. A fork
        # that has torch takes 1 to 2 MB: more of them would use up the memory, and the kernel kills them one by one.
        pids=512 * max(ranks, LAUNCHED),
        seconds=seconds + min(60.0, 20.0 + seconds / 10),
        cpus=ranks,
    )


def total(each: Sequence[Resources]) -> Resources:
    """The limits of a job on all of its nodes together, which run at the same time."""
    return Resources(
        memory_bytes=sum(one.memory_bytes for one in each),
        shm_bytes=sum(one.shm_bytes for one in each),
        disk_bytes=max(one.disk_bytes for one in each),  # their folder is one
        pids=sum(one.pids for one in each),
        seconds=max(one.seconds for one in each),
        cpus=sum(one.cpus for one in each),
    )


@dataclass(frozen=True)
class Placement:
    """What an engine that queues its jobs says of a job's place.

    Attributes:
        text: In words, as in "queued (Resources)" or "placed on n1".
        is_placed: It has its nodes, and its time has begun.
    """

    text: str
    is_placed: bool


RecordSink = Callable[[int, Record | Damage | Placement], None]
"""Takes a report of a node's agent: the node's number (0 leads), and a record or why there is none. Engines that queue
jobs report their places, too."""


@dataclass(frozen=True, kw_only=True)
class NodeExit:
    """How the agent of one node ended.

    Attributes:
        status: Its exit status, negative for a signal; None if unknown.
        out_of_memory: The kernel's out-of-memory killer ended some of its processes.
        output: The end of its output beside its records, such as why it could not start.
    """

    status: int | None
    out_of_memory: bool = False
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class JobExit(NodeExit):
    """How a job ended: its agent or, of several, the leading one, and the others.

    Attributes:
        timed_out: The engine's own time limit ended it.
        ended_by: What ended it from outside, as in "was preempted"; empty if nothing did, or the engine cannot tell.
        is_disturbed: Tests may have failed for what is in `ended_by`, even if all have ended.
        began: When it was given its nodes, in seconds since the epoch; None if it had them when it got its turn.
        followers: The agents of the nodes from 1 on.
    """

    timed_out: bool = False
    ended_by: str = ""
    is_disturbed: bool = False
    began: float | None = None
    followers: tuple[NodeExit, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """Where a job's Python comes from."""

    image: str | None = None  # reference of the image, on an engine that runs containers
    python: str | None = None  # interpreter, on an engine that runs processes
    python_path: tuple[Path, ...] = ()  # folders on Python's path beside those of the image or interpreter
    torch: str = field(default="", compare=False)  # the version that the matrix file states for it; empty for none


MakeEnvironment = Callable[[Image], JobEnvironment]
"""Makes the environment of all jobs of an image, which may take minutes; raises an :class:`AllranksError`."""

Progress = Callable[[str], None]
"""Receives lines while something is made."""


class Finding(NamedTuple):
    """The result of one check of this host."""

    subject: str  # what was checked, in a word or two
    text: str  # its state
    remedy: str = ""  # the one thing to do; empty if there is no problem

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        mark = "PROBLEM" if self.remedy else "ok"
        told = f"{mark:7}  {self.subject}: {self.text}"
        return f"{told}\n         -> {self.remedy}" if self.remedy else told


class Leftovers(NamedTuple):
    """What runs have left on a host, by name."""

    dead: Sequence[str] = ()  # what dead runs left, which was removed unless that was not wanted
    # What belongs to runs of another host, or of another name space of this one; whether they live is not known here.
    unknown: Sequence[str] = ()


class RunningJob(Protocol):
    """A job that has been started and, once it has collected, waits for its turn."""

    def go(self) -> None:
        """Give the job its turn: its time begins now. The agent has imported and collected before, or still does."""

    def wait(self, sink: RecordSink) -> JobExit:
        """Wait for the agent's end, giving `sink` each record as it comes.

        Raises:
            EngineError: The engine lost the job.
        """

    def hang_up(self) -> None:
        """End the job soon, so that :meth:`wait` returns; from any thread, while another one waits."""

    def stop(self) -> None:
        """Have the agent stop its ranks and write its results; kill it if it does not. Idempotent."""

    def collect(self, results: Path) -> None:
        """Put the job's results into an existing folder.

        Raises:
            EngineError: They cannot be fetched.
        """


class Engine(ABC):
    """A place where jobs run: the base class of all engines.

    A plug-in registers its engines by the hook ``allranks_engines``. An object of the class belongs to one run, or to a
    command that examines or cleans up a host.
    """

    name: ClassVar[str]
    """Its name, as in ``--engine NAME``."""

    has_queue: ClassVar[bool] = False
    """Whether it queues jobs by itself, and gives them GPUs: allranks leases none, and jobs outlive their
    orchestrator."""

    answer: str = ""
    """Why a run may take it, in words, as in "a Docker daemon answers"; empty for no reason."""

    most_jobs: int | None = None
    """The most jobs to submit at a time, once it has been prepared for a run; None for no such limit."""

    nodes: int = 1
    """How many nodes of its own it has for jobs on several."""

    image_daemon: "DockerClient | None" = None
    """The daemon that builds the images of its jobs; None if it runs no images."""

    @classmethod
    @abstractmethod
    def detect(cls, *, is_asked_for: bool) -> Self:
        """Connect to the engine of this host.

        Args:
            is_asked_for: Whether the user has named it. Otherwise a host that seems to lack it is not searched further.

        Raises:
            EngineAbsentError: This host does not have it, which is no problem; ``why`` says in words what is missing.
            EngineDeniedError: It is there, and closed to this user.
            EngineError: It is there, and does not work.
        """

    @abstractmethod
    def prepare(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> MakeEnvironment:
        """Get ready for the jobs of a run; return the function that makes their environments.

        Args:
            matrix: The matrix of the run. An engine of another package finds its own table in ``matrix.tables``.
            progress: Receives lines while environments are made.
            uses: Until it is closed, nothing that was made for the run is removed; None if nothing protects it.

        Raises:
            AllranksError: Its table is wrong.
        """

    @abstractmethod
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> AbstractContextManager[RunningJob]:
        """Start a job; leaving the context removes everything that was made for it, also after errors.

        Args:
            spec: The job.
            held: Locked descriptors of the job's leases. A process inherits them, so that a lease lasts as long
                as any process of its job; a container cannot, and ends with its owner instead.

        Raises:
            EngineError: It could not be started; nothing of it is left.
        """

    @abstractmethod
    def clean_up(self, *, is_dry_run: bool = False) -> Leftovers:
        """Remove what dead runs have left on this host.

        Args:
            is_dry_run: Only find it.

        Raises:
            EngineError: It cannot be determined.
        """

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Release what it holds, such as a connection. Nothing else is called then."""

    def capacity(self) -> tuple[int, int]:
        """Cores, and MiB of memory, for all jobs at a time: by default, those of this host.

        Raises:
            EngineError: The engine does not report it.
        """
        return len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20

    def examine(self, inventory: "Inventory") -> Iterator[Finding]:  # noqa: ARG002 - of engines that pass GPUs on
        """Check what it needs to run jobs with these GPUs, for ``allranks doctor``; nothing is changed."""
        yield from ()

    def adopt(self, spec: JobSpec) -> AbstractContextManager[RunningJob] | None:  # noqa: ARG002
        """Take over a job that an earlier orchestrator of the run has started; None if there is none.

        It may have ended meanwhile. Its records come again from the first. Only engines with a queue have such jobs.
        """
        return None

    def check_leases(self) -> None:  # noqa: B027 - most engines have nothing to check
        """Check that leases of this process exclude all other runs on the engine's GPUs; call it before a lease.

        Raises:
            EngineError: They do not.
        """

    def vacate(self, gpus: Sequence[str]) -> None:  # noqa: B027 - for most engines a lease is enough
        """Remove what still uses one of these GPUs: the lease is ours, so its owner has died, or lost track of it.

        Raises:
            EngineError: It cannot be determined what uses them.
        """
