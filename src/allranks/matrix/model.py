"""The data classes of the matrix file, which declare its keys; plug-ins declare their own.

`declaration` creates them from a file, and `expand` and `jobs` turn them into cells and jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from allranks.matrix.axes import AXES, BACKENDS, INIT_METHODS, LARGEST, NO_TORCH, SMALLEST, AxisValue
from allranks.matrix.keys import (
    Kind,
    by_name,
    choice,
    condition,
    flag,
    key,
    many,
    one,
    relative_path,
    seconds,
    several,
    text,
    version,
    whole,
)
from allranks.matrix.when import Condition
from allranks.protocol.choices import ChildStart, Isolation, NoticeKind, UncheckedChildren

SkipPolicy = Literal["skip", "pass"]
ProjectMode = Literal["install", "copy"]
SeccompName = Literal["allranks", "default"]

DURATIONS_FILE = Path(".allranks-durations.json")
"""The file of test durations next to the matrix file, which is used to balance shards."""

MOST_SHARDS = 1000
"""A larger number is a typo: such jobs would take longer to plan than to run."""

SMALLEST_MEMORY = 256
"""In MiB; an agent with torch needs more than this."""

SET_BY_ALLRANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that allranks sets for each rank; a rule that sets one of them would break every rendezvous."""

_BACKEND = "^[a-z][a-z0-9_]{0,62}$"
_NAMES = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_NAME_REMEDY = "A name has up to 63 letters, digits, '_', '-' and '.', and starts with a letter or digit."


def _axis(kind: Kind) -> Kind:
    return many(kind, least=1, is_unique=True, or_one=True)


def _when(example: str, unset: str = "every cell") -> Any:  # noqa: ANN401 - a field
    meaning = "A condition on the axes: the cells that this applies to."
    return key(condition(), meaning, default=None, example=example, unset=unset)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the matrix."""

    backend: str  # name of the process-group backend in torch (``gloo``, ``nccl``)
    world_size: int  # number of ranks on all nodes
    gpu_count: int  # number of GPUs on all nodes
    init_method: str  # rendezvous: ``env``, ``tcp`` or ``file``
    nodes: int = 1  # number of nodes (containers)
    torch: str = NO_TORCH  # exact torch version; empty if it is not an axis of the matrix

    @classmethod
    def at(cls, values: Iterable[Any]) -> "Cell":
        """The cell with these values in axis order."""
        return cls(**dict(zip(AXES, values, strict=True)))

    @property
    def id(self) -> str:
        """A slug in axis order, valid in file and artifact names: ``nccl-w4-g4-env``, ``gloo-w2-g0-env-n2-t2.14.1``."""
        slug = f"{self.backend}-w{self.world_size}-g{self.gpu_count}-{self.init_method}"
        nodes = "" if self.nodes == 1 else f"-n{self.nodes}"
        return f"{slug}{nodes}-t{self.torch}" if self.torch else f"{slug}{nodes}"

    def axes(self) -> dict[str, AxisValue]:
        """The values in axis order."""
        return {name: getattr(self, name) for name in AXES}

    def matches(self, when: Condition | None) -> bool:
        """Whether a condition holds for this cell, or there is none."""
        return when is None or when.holds(vars(self))

    def visible_axes(self) -> dict[str, AxisValue]:
        """The values for reports and tables: without ``torch`` if it is not an axis of the matrix."""
        return {name: value for name, value in self.axes().items() if name != "torch" or value}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One ``[[matrix.exclude]]``."""

    when: Condition = key(
        condition(),
        "A condition on the axes: the combinations to drop.",
        example="backend == 'nccl' and gpu_count != world_size",
    )
    reason: str = key(text(), "Shown with each dropped cell.", example="NCCL needs a GPU for each rank")
    line: int


@dataclass(frozen=True, kw_only=True)
class Axes:
    """``[matrix]``."""

    backend: tuple[str, ...] = key(
        _axis(text(_BACKEND, "is not a supported backend", suggested=BACKENDS)),
        "Backends of the process group, by torch's names.",
        example=["gloo", "nccl"],
    )
    world_size: tuple[int, ...] = key(
        _axis(whole(SMALLEST["world_size"], LARGEST)), "Numbers of ranks on all nodes.", example=[2, 4]
    )
    gpu_count: tuple[int, ...] = key(
        _axis(whole(SMALLEST["gpu_count"], LARGEST)),
        "Numbers of GPUs on all nodes.",
        default=(0,),
        example=[0, 2, 4],
    )
    init_method: tuple[str, ...] = key(
        _axis(choice(*INIT_METHODS)), "Rendezvous methods.", default=("env",), example=["env", "tcp"]
    )
    nodes: tuple[int, ...] = key(
        _axis(whole(SMALLEST["nodes"], LARGEST)),
        "Numbers of nodes.",
        default=(1,),
        example=[1, 2],
    )
    torch: tuple[str, ...] = key(
        _axis(version()),
        "Versions of torch; an image without its own `torch` is built for each of them.",
        default=(NO_TORCH,),
        example=["2.13.0", "2.14.1"],
        unset="that of each image",
    )
    custom_backends: tuple[str, ...] = key(
        many(
            text(
                _BACKEND,
                "is not a valid name of a backend",
                "A name starts with a lower-case letter, and has lower-case letters, digits and '_'.",
            )
        ),
        "Names of additional backends, for the axis `backend`. "
        'A suite registers one by `pytest_args = ["-p", "MODULE"]`.',
        default=(),
        example=["mine"],
    )
    excludes: tuple[Rule, ...] = key(
        several(Rule), "Rules that drop combinations; the first that matches applies.", default=(), name="exclude"
    )

    RETIRED: ClassVar[Mapping[str, str]] = {
        "include": "Add its values to the axes, and drop unneeded combinations with [[matrix.exclude]]."
    }


@dataclass(frozen=True, kw_only=True)
class Suite:
    """``[suites.NAME]``: folders and files of tests."""

    name: str
    # Relative to the matrix file's folder, or to `home`; none is below another. In the file, they may be patterns.
    paths: tuple[Path, ...] = key(
        many(relative_path(must_exist=False, is_inside=True), least=1, or_one=True),
        "Files and folders of tests, as paths or patterns (`*`, `?`, `**`); or `allranks:NAME`, a suite of allranks.",
        example="tests/distributed",
        name="path",
    )
    ignored: tuple[Path, ...] = key(
        many(relative_path(must_exist=False, is_inside=True)),
        "Files and folders below `path` to leave out, as paths or patterns.",
        default=(),
        example=["tests/distributed/slow"],
        name="exclude",
    )
    isolation: Isolation = key(
        choice(*get_args(Isolation)),
        "How long the same ranks run while tests pass: for a test, a file or the whole job.",
        default="file",
        example="job",
    )
    process_group: bool | None = key(
        flag(),
        "Whether all tests or none get the default process group.",
        default=None,
        example=False,
        unset="all tests except plain unittest cases",
    )
    launches_ranks: bool = key(
        flag(),
        "Whether the tests start ranks themselves, so that each test runs in a single process.",
        default=False,
        example=True,
    )
    unchecked_children: UncheckedChildren = key(
        choice(*get_args(UncheckedChildren)),
        "How to report a failed child process of a passed test; a crashed one is always an error.",
        default="notice",
        example="error",
    )
    ignored_notices: tuple[NoticeKind, ...] = key(
        many(choice(*get_args(NoticeKind)), is_unique=True),
        "Kinds of notices to leave out of the terminal and all reports; report.md explains them.",
        default=(),
        example=["state"],
    )
    start_children: ChildStart = key(
        choice(*get_args(ChildStart)),
        "How `spawn` and `forkserver` start processes: `cold` imports everything again, `warm` forks from a server "
        "that has already imported the packages of the test modules.",
        default="cold",
        example="warm",
    )
    when: Condition | None = _when("world_size > 1")
    files: tuple[Path, ...] = key(
        many(relative_path(is_inside=True)),
        "Additional files and folders that the tests need in a container.",
        default=(),
        example=["tests/data"],
    )
    pytest_args: tuple[str, ...] = key(many(text()), "Arguments for pytest.", default=(), example=["-x"])
    shards: int = key(
        whole(1, MOST_SHARDS), "The number of jobs to split the tests of each cell into.", default=1, example=4
    )
    default: bool = key(flag(), "False for a suite that only runs with `--suite`.", default=True, example=False)
    overlap: int = key(whole(1), "The number of multi-process tests that may run concurrently.", default=1, example=4)
    test_groups: Mapping[str, tuple[str, ...]] = key(
        by_name(many(text())),
        "Multi-process tests that never run concurrently, by group: FILE, FOLDER or FILE::CLASS, with patterns.",
        default={},
        example={"port-29500": ["tests/test_rpc.py"]},
    )
    home: Path | None = None  # the folder of a suite of allranks; None for a suite of the repository
    python_path: tuple[Path, ...] = ()  # folders to add to Python's path in the job


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of the jobs that share a suite in a cell."""

    number: int
    count: int

    def of(self, suite: str) -> str:
        """``<suite name>@2of4``, which is a valid folder name; names of suites have no ``@``."""
        return f"{suite}@{self.number}of{self.count}"


_IMAGE = text(r"^\S+$", "is not a valid name of an image")

_DEBIAN_PACKAGE = text(
    "^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$",  # Debian Policy, 5.6.1
    "is not a valid name of a Debian package",
    'Write apt = ["libnuma1"], or with a version "libnuma1=2.0.16-1"; Python packages belong in packages.',
)


@dataclass(frozen=True, kw_only=True)
class Image:
    """``[images.NAME]``."""

    name: str
    torch: str | None = key(
        version(),
        "The version of torch.",
        default=None,
        example="2.13.0",
        unset="that of the cell, if torch is an axis",
    )
    when: Condition | None = _when("gpu_count == 0")
    image: str | None = key(
        _IMAGE,
        "A prebuilt image to use as it is; only `when` may be set as well.",
        default=None,
        example="registry.example.com/torch@sha256:…",
        unset="an image is built from the other keys",
    )
    base: str = key(
        _IMAGE, "The base image of the build.", default="python:3.11-slim-bookworm", example="python:3.12-slim"
    )
    packages: tuple[str, ...] = key(
        many(text()), "Requirements of the tests, for pip.", default=(), example=["numpy>=2", "expecttest"]
    )
    requirements: Path | None = key(
        relative_path(), "A requirements file.", default=None, example="requirements.txt", unset="none"
    )
    project: Path | None = key(
        relative_path(),
        "The folder of your own code, which is built as a wheel.",
        default=None,
        example=".",
        unset="none",
    )
    mode: ProjectMode = key(
        choice("install", "copy"),
        "Whether the project is installed in the image, or copied into each job.",
        default="install",
        example="copy",
    )
    index: str = key(
        text(),
        "The address of the package index.",
        default="",
        example="https://download.pytorch.org/whl/cpu",
        unset="configuration of the host's pip",
    )
    extra_index: tuple[str, ...] = key(
        many(text()),
        "Addresses of additional package indexes.",
        default=(),
        example=["https://packages.example.com/simple"],
    )
    apt: tuple[str, ...] = key(
        many(_DEBIAN_PACKAGE), "Debian packages, with or without =version.", default=(), example=["libnuma1"]
    )
    tests: tuple[Path, ...] = ()  # the paths of all suites, so that changes of tests do not rebuild the wheel
    line: int = 1  # its line in the matrix file


@dataclass(frozen=True, kw_only=True)
class EnvRule:
    """One ``[[env]]``."""

    set: Mapping[str, str] = key(
        by_name(
            text(""),
            f"^(?!({'|'.join(SET_BY_ALLRANKS)})$)[A-Za-z_][A-Za-z0-9_]*$",
            f"Use letters, digits and '_'. allranks itself sets {', '.join(SET_BY_ALLRANKS)}.",
        ),
        "The variables.",
        example={"NCCL_DEBUG": "WARN"},
    )
    when: Condition | None = _when("backend == 'nccl'")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """``[policy]``."""

    # None if the file does not set it: then PyTorch's sandcastle variables decide when results are merged.
    skip: SkipPolicy | None = key(
        choice("skip", "pass"),
        "How to count a test that all ranks skip because of their environment, such as missing hardware.",
        default=None,
        example="pass",
        unset='`"skip"`',
    )
    mixed_skip: tuple[str, ...] = key(
        many(text()),
        "Patterns of tests that some ranks may skip while others run them.",
        default=(),
        example=["*::test_uneven*"],
    )
    baseline: Path | None = key(  # it must exist: without the file, the check would never fail
        relative_path(),
        "A file with the numbers of executed tests of a passed run, created by `allranks report --update-baseline`.",
        default=None,
        example=".allranks-baseline.json",
        unset="none",
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``[limits]``: time limits in seconds, and memory."""

    process_group: float = key(
        seconds(), "Time for an operation of the process group; less than `test`.", default=60.0, example=30
    )
    # From the release of a test to the last rank's report.
    test: float = key(
        seconds(),
        "Time for a test on all ranks, in any suite; less than `job`. A marker can set another: `time_limit(300)`.",
        default=120.0,
        example=300,
        unset="120, or the environment variable `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT`",
    )
    # From the start of the tests to the end of the agent, without earlier work of the agent.
    job: float = key(seconds(), "Time for a suite in a cell.", default=1800.0, example=3600)
    build: float = key(seconds(), "Time to build an image or a Python environment.", default=3600.0, example=7200)
    peer_grace: float = key(
        seconds(), "Time for the peers of the first failed rank to end by themselves.", default=3.0, example=10
    )
    assembly: float = key(
        seconds(),
        "Time for the agents of a cell's nodes to connect, and again for them to collect tests.",
        default=120.0,
        example=300,
    )
    silence: float = key(
        seconds(), "Time without a message from a node until it counts as lost.", default=20.0, example=60
    )
    memory_mib: int | None = key(
        whole(SMALLEST_MEMORY),
        "Memory of a job in MiB.",
        default=None,
        example=8192,
        unset="2048, and 1024 for each rank",
    )
    disk_mib: int = key(
        whole(1),
        "MiB that the tests of a job may write, if the engine can limit that; they count as memory.",
        default=1024,
        example=4096,
    )
    settings: Mapping[str, str] = field(default_factory=dict)  # by limit, the option or variable that set it


@dataclass(frozen=True, kw_only=True)
class Process:
    """``[process]``."""

    python: str | None = key(
        text(),
        "An interpreter that has torch and the packages of the tests.",
        default=None,
        example="python3",
        unset="allranks creates an environment",
    )


@dataclass(frozen=True, kw_only=True)
class Docker:
    """``[docker]``."""

    seccomp: SeccompName = key(
        choice("allranks", "default"),
        "The seccomp profile of a job: that of allranks, or the daemon's default.",
        default="allranks",
        example="default",
    )


_LABEL = replace(
    text(
        r"^[^,\s]([^,\n]{0,254}[^,\s])?$",
        "is not a valid label",
        "Write it as in the settings of your runners: one line of up to 256 characters, without commas.",
    ),
    identity=str.lower,
)


@dataclass(frozen=True, kw_only=True)
class RunnerRule:
    """One ``[[runners]]``."""

    labels: tuple[str, ...] = key(
        many(_LABEL, least=1, is_unique=True),
        "Labels that a machine must have.",
        example=["self-hosted", "linux", "gpu-4"],
    )
    when: Condition | None = _when("gpu_count > 0", "every cell that matches no earlier rule")
    gpus: int = key(whole(0), "GPUs of such a machine.", default=0, example=4)
    cores: int | None = key(
        whole(1),
        "CPU cores of such a machine.",
        default=None,
        example=16,
        unset="4; with GPUs, 4 per GPU on GitHub's machines and 8 on yours",
    )
    hosted: bool = key(
        flag(),
        "Whether GitHub owns the machine; if so, a job is limited to six hours.",
        default=False,
        example=True,
        unset="true for labels like `ubuntu-24.04` without `self-hosted`",
    )
    engine: str | None = key(
        text(),
        "The engine, unless the command line or `ALLRANKS_ENGINE` selects one.",
        default=None,
        example="process",
        unset='`"docker"`',
    )
    line: int = 0  # its line in the matrix file; 0 for the default rule

    RETIRED: ClassVar[Mapping[str, str]] = {
        "group": "Select the runners of the group by their labels.",
        "minutes": "Remove it: a job has 360 minutes on GitHub's machines and 7200 on yours. Use limits.job.",
    }

    @property
    def runs_on(self) -> str:
        """The labels in messages: ``self-hosted, gpu-4``."""
        return ", ".join(self.labels)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A checked matrix file."""

    path: Path
    # The values on each axis, in the order of :data:`AXES`.
    axes: Mapping[str, tuple[AxisValue, ...]] = key(
        one(Axes), "The axes: each combination of their values is a cell, unless a rule excludes it.", name="matrix"
    )
    suites: Mapping[str, Suite] = key(
        by_name(one(Suite), _NAMES, _NAME_REMEDY, least=1),
        "Test suites, by name; each runs in every cell that matches its `when`.",
        default={},
        is_required=True,
    )
    images: Mapping[str, Image] = key(
        by_name(one(Image), _NAMES, _NAME_REMEDY, least=1),
        "Images, by name; exactly one must match each cell. Without images, `process.python` is required.",
        default={},
    )
    env: tuple[EnvRule, ...] = key(
        several(EnvRule), "Environment variables of cells; later rules override earlier ones.", default=()
    )
    policy: Policy = key(one(Policy), "How to interpret the outcomes of ranks.", default=Policy())
    limits: Limits = key(
        one(Limits), "Time limits in seconds, `process_group` < `test` < `job`, and memory.", default=Limits()
    )
    process: Process = key(one(Process), "The engine that runs jobs as processes of this host.", default=Process())
    docker: Docker = key(one(Docker), "The engine that runs jobs in containers.", default=Docker())
    runners: tuple[RunnerRule, ...] = key(
        several(RunnerRule), "CI machines for cells; the first rule that matches a cell applies.", default=()
    )
    excludes: tuple[Rule, ...] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)  # the tables of plug-ins, by name, as their dataclasses
    image_references: Mapping[str, str] = field(default_factory=dict)  # of images built elsewhere, by name
    line: int = 1  # the line of ``[matrix]``
    warnings: tuple[str, ...] = ()

    RETIRED: ClassVar[Mapping[str, str]] = {
        "durations": f"Durations are stored in {DURATIONS_FILE} next to this file. "
        "To use another file, run `plan` and `report` with --durations.",
        "engines": "An engine of another package declares its own table, [NAME].",
    }

    @property
    def root(self) -> Path:
        """The folder that all paths in the file are relative to."""
        return self.path.parent

    def environment_of(self, cell: Cell) -> dict[str, str]:
        """The environment variables that the file sets for a cell."""
        environment: dict[str, str] = {}
        for rule in self.env:
            if cell.matches(rule.when):
                environment.update(rule.set)
        return environment


@dataclass(frozen=True, kw_only=True)
class Job:
    """One suite, or one shard of it, in one cell."""

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
