"""The content of a matrix file, as frozen values.

Nothing here reads a file or decides anything: `declaration` creates these values, `expand` and `jobs`
turn them into cells and jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from allranks.matrix.axes import AXES, NO_TORCH, AxisValue
from allranks.matrix.when import Condition

Isolation = Literal["test", "file", "job"]
SkipPolicy = Literal["skip", "pass"]

DURATIONS_FILE = Path(".allranks-durations.json")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the matrix."""

    backend: str  # name of the process-group backend, as torch spells it (``gloo``, ``nccl``)
    world_size: int  # number of ranks, over all nodes
    gpu_count: int  # number of GPUs, over all nodes
    init_method: str  # rendezvous: ``env``, ``tcp`` or ``file``
    nodes: int = 1  # number of nodes (containers) the ranks are spread over
    torch: str = NO_TORCH  # exact torch version; empty if it is not an axis of the matrix

    @classmethod
    def at(cls, values: Iterable[Any]) -> "Cell":
        """The cell with these values, which are in axis order."""
        return cls(**dict(zip(AXES, values, strict=True)))

    @property
    def id(self) -> str:
        """A slug in axis order, legal in file and artifact names: ``nccl-w4-g4-env``, ``gloo-w2-g0-env-n2-t2.14.1``."""
        slug = f"{self.backend}-w{self.world_size}-g{self.gpu_count}-{self.init_method}"
        nodes = "" if self.nodes == 1 else f"-n{self.nodes}"
        return f"{slug}{nodes}-t{self.torch}" if self.torch else f"{slug}{nodes}"

    def axes(self) -> dict[str, AxisValue]:
        """The value on each axis, in axis order."""
        return {name: getattr(self, name) for name in AXES}

    def matches(self, when: Condition | None) -> bool:
        """True if a condition holds for this cell, or there is none."""
        return when is None or when.holds(vars(self))

    def told_axes(self) -> dict[str, AxisValue]:
        """The axes for reports and people: without ``torch`` if the matrix does not have that axis."""
        return {name: value for name, value in self.axes().items() if name != "torch" or value}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One ``[[matrix.exclude]]``: its condition and its reason, which is shown to the user."""

    when: Condition
    reason: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Include:
    """One ``[[matrix.include]]``: a cell that is in the matrix regardless of axes and excludes."""

    cell: Cell
    reason: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Folders and files of tests."""

    name: str
    paths: tuple[Path, ...]  # relative to the matrix file's folder, or to ``home``; none is in another
    home: Path | None = None  # the folder of a suite that travels with allranks; None for one of the repository
    python_path: tuple[Path, ...] = ()  # folders that the job has on Python's path beside those of its environment
    ignored: tuple[Path, ...] = ()  # files and folders below these paths whose tests are not the suite's
    isolation: Isolation = "file"  # the lifetime of a gang of ranks
    overlap: int = 1  # how many launcher tests may run at a time
    # By name, patterns of launcher tests that never overlap one another.
    test_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # True or False if every or no test gets the default process group; None to decide by the test.
    process_group: bool | None = None
    launches_ranks: bool = False  # the tests start ranks themselves: one process runs each of them
    when: Condition | None = None  # the cells that the suite runs in; None for all of them
    files: tuple[Path, ...] = ()  # further files or folders (relative) that the tests read; they are copied too
    pytest_args: tuple[str, ...] = ()  # arguments that every run of the suite passes to pytest
    shards: int = 1  # the number of jobs that its tests are split over in each cell
    default: bool = True  # True to run if no suite is named


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of the jobs that share a suite in a cell."""

    number: int
    count: int

    def of(self, suite: str) -> str:
        """``<suite name>@2of4``, valid as a folder name; no suite has such a name, since none has an ``@``."""
        return f"{suite}@{self.number}of{self.count}"


ProjectMode = Literal["install", "copy"]
PROJECT_MODES: tuple[ProjectMode, ...] = ("install", "copy")


@dataclass(frozen=True, kw_only=True)
class Image:
    """One ``[images.NAME]``: the image that the cells under ``when`` run in."""

    name: str
    when: Condition | None = None
    image: str | None = None  # a finished image, used unchanged; None to build one from the rest
    base: str = "python:3.11-slim-bookworm"  # base image of the build
    torch: str | None = None  # exact torch version, such as ``2.13.0``; None for the cell's
    index: str = ""  # address of the package index, the only one; empty for those of the host's pip configuration
    extra_index: tuple[str, ...] = ()  # addresses of package indexes beside it, or beside those of the host
    packages: tuple[str, ...] = ()  # requirement strings for the suites' dependencies
    requirements: Path | None = None  # a requirements file, relative to the matrix file
    project: Path | None = None  # a folder, relative to the matrix file, that is built into a wheel and installed last
    apt: tuple[str, ...] = ()  # Debian packages that are installed first, with or without ``=version``
    # How the project is added: ``install`` as the last layer of the image, ``copy`` with each job.
    mode: ProjectMode = "install"
    # The paths of all suites, relative to the matrix file; a change of tests alone builds no wheel.
    tests: tuple[Path, ...] = ()
    line: int = 1  # the line of the matrix file that declares it


@dataclass(frozen=True, kw_only=True)
class EnvRule:
    """One ``[[env]]``: variables that the cells under ``when`` get (None: all cells)."""

    set: Mapping[str, str]
    when: Condition | None = None


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How rank outcomes are interpreted."""

    # ``pass`` turns environment skips into passes (sandcastle's skip-but-pass); None if the file does not set it, so
    # that the sandcastle variables decide when results are merged.
    skip: SkipPolicy | None = None
    mixed_skip: tuple[str, ...] = ()  # test ids (``fnmatch`` patterns) whose ranks may disagree on a skip
    # The file of tests executed in a good run, relative to the matrix file; None for no baseline.
    baseline: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits in seconds, each inside the next, and the memory of one job."""

    process_group: float = 60.0  # time limit of the process group's own operations
    test: float = 120.0  # from the release of a test to the last rank's report
    job: float = 1800.0  # from a job's turn to its agent's end; the agent's work ahead of its turn does not count
    peer_grace: float = 3.0  # time for the peers of the first bad rank to end by themselves
    assembly: float = 120.0  # time for the agents of a cell's nodes to meet, and the same again to collect
    silence: float = 20.0  # time without a sign of life after which the agent of a node counts as lost
    memory_mib: int | None = None  # memory of one job in MiB; None for 2 GiB plus 1 GiB for each rank
    disk_mib: int = 1024  # MiB that the tests of one job may write, if the engine can limit that; it counts as memory
    # What sets a time limit, by its name, where that is not ``[limits]``: an option or a variable.
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Process:
    """``[process]``: settings of the process engine."""

    # An interpreter that has torch and the suites' packages; None if allranks should create one.
    python: str | None = None


SeccompName = Literal["allranks", "default"]


@dataclass(frozen=True, kw_only=True)
class Docker:
    """``[docker]``: settings of the docker engine."""

    # The filter for the system calls of a job: allranks' own list, or the daemon's default.
    seccomp: SeccompName = "allranks"


@dataclass(frozen=True, kw_only=True)
class RunnerRule:
    """One ``[[runners]]``: the CI machines that run the cells under ``when`` (None: all cells left by earlier rules).

    Attributes:
        labels: The labels that a machine must have, all of them.
        group: The runner group that it must be in; empty for any.
        cores: The number of CPU cores; None if the file does not set it.
        hosted: True if GitHub owns it, standard or larger: a job has six hours.
        engine: The engine that runs jobs there; None for whichever is available.
        minutes: The time limit of a CI job; None for the CI's own limit.
        line: The line of the matrix file that declares it; 0 for the rule that applies if the file has none.
    """

    when: Condition | None = None
    labels: tuple[str, ...] = ()
    group: str = ""
    gpus: int = 0
    cores: int | None = None
    hosted: bool = False
    engine: str | None = None
    minutes: int | None = None
    line: int = 0

    @property
    def runs_on(self) -> str:
        """The group and labels, as text: ``self-hosted, gpu-4``."""
        return ", ".join((*([f"the group {self.group}"] if self.group else []), *self.labels))


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One matrix file, checked."""

    path: Path
    axes: Mapping[str, tuple[AxisValue, ...]]  # the values on each axis, in the order of :data:`AXES`
    excludes: tuple[Rule, ...] = ()
    includes: tuple[Include, ...] = ()
    suites: Mapping[str, Suite] = field(default_factory=dict)
    images: Mapping[str, Image] = field(default_factory=dict)
    env: tuple[EnvRule, ...] = ()
    policy: Policy = Policy()
    limits: Limits = Limits()
    process: Process = Process()
    docker: Docker = Docker()
    # ``[engines.NAME]``: settings of engines that other packages add, as they are in the file.
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Which CI machines run which cells; of two rules for one cell the earlier wins.
    runners: tuple[RunnerRule, ...] = ()
    # The file of test durations, for even shards, relative to the matrix file; it may not exist yet.
    durations: Path = DURATIONS_FILE
    # The tables of plug-ins that the file has, by name, with all of their keys.
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Images that another machine has built, by the name of the image they replace; not from the file.
    finished: Mapping[str, str] = field(default_factory=dict)
    line: int = 1  # the line on which ``[matrix]`` begins
    warnings: tuple[str, ...] = ()  # what is likely a mistake, and no error

    @property
    def root(self) -> Path:
        """The folder that every path in the file is relative to."""
        return self.path.parent

    def environment_of(self, cell: Cell) -> dict[str, str]:
        """The variables that the file sets for a cell; of two rules for one variable the later wins."""
        environment: dict[str, str] = {}
        for rule in self.env:
            if cell.matches(rule.when):
                environment.update(rule.set)
        return environment


@dataclass(frozen=True, kw_only=True)
class Job:
    """One suite in one cell, or one shard of it, with everything that the matrix declares for it."""

    cell: Cell
    suite: Suite
    image: Image
    environment: Mapping[str, str]
    shard: Shard | None = None  # None if the suite is not split

    @property
    def name(self) -> str:
        """The suite's name, or ``<suite name>@2of4``."""
        return self.shard.of(self.suite.name) if self.shard else self.suite.name

    @property
    def id(self) -> str:
        """``<cell id>/<name>``, unique in a run."""
        return f"{self.cell.id}/{self.name}"
