"""The matrix file as frozen values, and the declaration of its keys; plug-ins declare theirs.

Nothing here reads a file or decides anything: `declaration` creates these values, `expand` and `jobs` turn them into
cells and jobs.
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
"""The file of test durations, for even shards, beside the matrix file."""

MOST_SHARDS = 1000
"""More is a typing error: such jobs would take longer to plan than to run."""

SMALLEST_MEMORY = 256
"""MiB: an agent that has imported torch needs more than this by itself."""

SET_BY_ALLRANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Set for each rank by allranks; a rule that sets one of them would break every rendezvous."""

_BACKEND = "^[a-z][a-z0-9_]{0,62}$"
_NAMES = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_NAME_REMEDY = "A name has up to 63 letters, digits, '_', '-' and '.', and begins with a letter or digit."


def _axis(each: Kind) -> Kind:
    return many(each, least=1, is_unique=True, or_one=True)


def _when(example: str, unset: str = "every cell") -> Any:  # noqa: ANN401 - a field
    meaning = "A condition on the axes: the cells that this applies to."
    return key(condition(), meaning, default=None, example=example, unset=unset)


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

    def visible_axes(self) -> dict[str, AxisValue]:
        """The axes for reports and people: without ``torch`` if the matrix does not have that axis."""
        return {name: value for name, value in self.axes().items() if name != "torch" or value}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One ``[[matrix.exclude]]``: its condition and its reason, which is shown to the user."""

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
        _axis(whole(SMALLEST["world_size"], LARGEST)), "Numbers of ranks, over all nodes.", example=[2, 4]
    )
    gpu_count: tuple[int, ...] = key(
        _axis(whole(SMALLEST["gpu_count"], LARGEST)),
        "Numbers of GPUs, over all nodes.",
        default=(0,),
        example=[0, 2, 4],
    )
    init_method: tuple[str, ...] = key(
        _axis(choice(*INIT_METHODS)), "How ranks meet.", default=("env",), example=["env", "tcp"]
    )
    nodes: tuple[int, ...] = key(
        _axis(whole(SMALLEST["nodes"], LARGEST)),
        "Numbers of nodes that the ranks are spread over.",
        default=(1,),
        example=[1, 2],
    )
    torch: tuple[str, ...] = key(
        _axis(version()),
        "Versions of torch to test with; an image without its own `torch` is built once for each.",
        default=(NO_TORCH,),
        example=["2.13.0", "2.14.1"],
        unset="each image has its own",
    )
    custom_backends: tuple[str, ...] = key(
        many(
            text(
                _BACKEND,
                "cannot be the name of a backend",
                "torch lower-cases backend names: write a small letter, then small letters, digits and '_'.",
            )
        ),
        "Names of backends that torch does not have, so that they can be on the axis.",
        default=(),
        example=["mine"],
    )
    excludes: tuple[Rule, ...] = key(
        several(Rule), "Rules that drop combinations; the first that holds counts.", default=(), name="exclude"
    )

    RETIRED: ClassVar[Mapping[str, str]] = {
        "include": "Add its values to the axes, and drop what you do not want by [[matrix.exclude]]."
    }


@dataclass(frozen=True, kw_only=True)
class Suite:
    """``[suites.NAME]``: folders and files of tests."""

    name: str
    # Relative to the matrix file's folder, or to ``home``; none is in another. Patterns, until the file is read.
    paths: tuple[Path, ...] = key(
        many(relative_path(must_exist=False, is_inside=True), least=1, or_one=True),
        "Files and folders of tests, or patterns with `*`, `?` and `**`; or `allranks:NAME`, a suite of allranks.",
        example="tests/distributed",
        name="path",
    )
    # Files and folders below these paths whose tests are not the suite's.
    ignored: tuple[Path, ...] = key(
        many(relative_path(must_exist=False, is_inside=True)),
        "Files and folders below `path` to leave out, with the same patterns.",
        default=(),
        example=["tests/distributed/slow"],
        name="exclude",
    )
    isolation: Isolation = key(
        choice(*get_args(Isolation)),
        "How long the ranks live if all goes well: for a test, a file or the whole job.",
        default="file",
        example="job",
    )
    # True or False if every or no test gets the default process group; None to decide by the test.
    process_group: bool | None = key(
        flag(),
        "Whether every test gets the default process group, or none.",
        default=None,
        example=False,
        unset="every test but a plain unittest case",
    )
    launches_ranks: bool = key(
        flag(),
        "Whether the tests start ranks themselves: one process, which is no rank, runs each.",
        default=False,
        example=True,
    )
    unchecked_children: UncheckedChildren = key(
        choice(*get_args(UncheckedChildren)),
        "What it is if a process that a test started fails, and the test passes; a crash is always an error.",
        default="notice",
        example="error",
    )
    ignored_notices: tuple[NoticeKind, ...] = key(
        many(choice(*get_args(NoticeKind)), is_unique=True),
        "Kinds of notices to leave out of the terminal and of all reports; report.md explains them.",
        default=(),
        example=["state"],
    )
    start_children: ChildStart = key(
        choice(*get_args(ChildStart)),
        "How processes start by `spawn` or `forkserver`: each imports all, or forks what has imported the packages.",
        default="cold",
        example="warm",
    )
    when: Condition | None = _when("world_size > 1")
    files: tuple[Path, ...] = key(
        many(relative_path(is_inside=True)),
        "Other files and folders that the tests need in a container.",
        default=(),
        example=["tests/data"],
    )
    pytest_args: tuple[str, ...] = key(many(text()), "Arguments for pytest.", default=(), example=["-x"])
    shards: int = key(
        whole(1, MOST_SHARDS), "The number of jobs that share the tests in each cell.", default=1, example=4
    )
    default: bool = key(flag(), "False for a suite that runs only if `--suite` names it.", default=True, example=False)
    overlap: int = key(whole(1), "The number of launcher tests that may run at a time.", default=1, example=4)
    # By name, patterns of launcher tests that never overlap one another.
    test_groups: Mapping[str, tuple[str, ...]] = key(
        by_name(many(text())),
        "Launcher tests that never overlap one another: FILE, FOLDER or FILE::CLASS, with patterns.",
        default={},
        example={"port-29500": ["tests/test_rpc.py"]},
    )
    home: Path | None = None  # the folder of a suite that travels with allranks; None for one of the repository
    python_path: tuple[Path, ...] = ()  # folders that the job has on Python's path beside those of its environment


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of the jobs that share a suite in a cell."""

    number: int
    count: int

    def of(self, suite: str) -> str:
        """``<suite name>@2of4``, valid as a folder name; no suite has such a name, since none has an ``@``."""
        return f"{suite}@{self.number}of{self.count}"


_IMAGE = text(r"^\S+$", "cannot be the name of an image")

_DEBIAN_PACKAGE = text(
    "^[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?$",  # Debian Policy, 5.6.1
    "cannot be the name of a Debian package",
    'Write apt = ["libnuma1"], or with a version "libnuma1=2.0.16-1"; pip\'s packages go into packages.',
)


@dataclass(frozen=True, kw_only=True)
class Image:
    """``[images.NAME]``: the image that the cells under ``when`` run in."""

    name: str
    torch: str | None = key(
        version(), "The version of torch.", default=None, example="2.13.0", unset="that of the cell, if it is an axis"
    )
    when: Condition | None = _when("gpu_count == 0")
    image: str | None = key(
        _IMAGE,
        "A finished image, used as it is: it stands alone, or beside `when`.",
        default=None,
        example="registry.example.com/torch@sha256:…",
        unset="one is built from the other keys",
    )
    base: str = key(
        _IMAGE, "The image that the build begins with.", default="python:3.11-slim-bookworm", example="python:3.12-slim"
    )
    packages: tuple[str, ...] = key(
        many(text()), "Requirements of the tests, as pip takes them.", default=(), example=["numpy>=2", "expecttest"]
    )
    requirements: Path | None = key(
        relative_path(), "A requirements file.", default=None, example="requirements.txt", unset="none"
    )
    # Built into a wheel and installed last.
    project: Path | None = key(
        relative_path(),
        "The folder of your own code, from which a wheel is built.",
        default=None,
        example=".",
        unset="none",
    )
    mode: ProjectMode = key(
        choice("install", "copy"),
        "Whether the project is installed into the image, or copied with each job.",
        default="install",
        example="copy",
    )
    index: str = key(
        text(),
        "The address of a package index, the only one unless there is an `extra_index`.",
        default="",
        example="https://download.pytorch.org/whl/cpu",
        unset="those of the host's pip",
    )
    extra_index: tuple[str, ...] = key(
        many(text()),
        "Addresses of package indexes beside `index`, or beside those of the host's pip.",
        default=(),
        example=["https://packages.example.com/simple"],
    )
    apt: tuple[str, ...] = key(
        many(_DEBIAN_PACKAGE), "Debian packages, with or without =version.", default=(), example=["libnuma1"]
    )
    # The paths of all suites, relative to the matrix file; a change of tests alone builds no wheel.
    tests: tuple[Path, ...] = ()
    line: int = 1  # the line of the matrix file that declares it


@dataclass(frozen=True, kw_only=True)
class EnvRule:
    """One ``[[env]]``: variables that the cells under ``when`` get."""

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
    """``[policy]``: how rank outcomes are interpreted."""

    # None if the file does not set it, so that the sandcastle variables decide when results are merged.
    skip: SkipPolicy | None = key(
        choice("skip", "pass"),
        "What a skip because of missing hardware counts as.",
        default=None,
        example="pass",
        unset='`"skip"`',
    )
    mixed_skip: tuple[str, ...] = key(
        many(text()),
        "Tests, as patterns, that some ranks may skip while others run them.",
        default=(),
        example=["*::test_uneven*"],
    )
    # A check that was asked for and whose file is absent would never fail: it must exist.
    baseline: Path | None = key(
        relative_path(),
        "A file with the numbers of executed tests of a good run; `allranks report` makes it (`--update-baseline`).",
        default=None,
        example=".allranks-baseline.json",
        unset="none",
    )


@dataclass(frozen=True, kw_only=True)
class Limits:
    """``[limits]``: time limits in seconds, each inside the next, and the memory of one job."""

    process_group: float = key(
        seconds(), "For an operation of the process group; below `test`.", default=60.0, example=30
    )
    # From the release of a test to the last rank's report.
    test: float = key(
        seconds(),
        "For a test, over all ranks; below `job`.",
        default=120.0,
        example=300,
        unset="120, or `DISTRIBUTED_TESTS_DEFAULT_TIMEOUT` of the environment",
    )
    # From a job's turn to its agent's end; the agent's work ahead of its turn does not count.
    job: float = key(seconds(), "For a suite in a cell.", default=1800.0, example=3600)
    build: float = key(seconds(), "For an image, or a Python environment, to be made.", default=3600.0, example=7200)
    peer_grace: float = key(
        seconds(), "For the peers of the first bad rank to end by themselves.", default=3.0, example=10
    )
    assembly: float = key(
        seconds(),
        "For the agents of a cell's nodes to meet, and the same again to collect.",
        default=120.0,
        example=300,
    )
    silence: float = key(seconds(), "Without a sign of life, after which a node is lost.", default=20.0, example=60)
    memory_mib: int | None = key(
        whole(SMALLEST_MEMORY),
        "Memory of a job in MiB.",
        default=None,
        example=8192,
        unset="2048, and 1024 for each rank",
    )
    disk_mib: int = key(
        whole(1),
        "MiB that the tests of a job may write, if the engine can limit that; it counts as memory.",
        default=1024,
        example=4096,
    )
    # What sets a time limit, by its name, where that is not ``[limits]``: an option or a variable.
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Process:
    """``[process]``: settings of the process engine."""

    python: str | None = key(
        text(),
        "An interpreter that has torch and what the tests need.",
        default=None,
        example="python3",
        unset="allranks makes an environment",
    )


@dataclass(frozen=True, kw_only=True)
class Docker:
    """``[docker]``: settings of the docker engine."""

    seccomp: SeccompName = key(
        choice("allranks", "default"),
        "The filter for system calls of a job: allranks' own list, or the daemon's default.",
        default="allranks",
        example="default",
    )


_LABEL = replace(
    text(
        r"^[^,\s]([^,\n]{0,254}[^,\s])?$",
        "cannot be a label",
        "Write it as in the settings of your runners: one line of up to 256 characters, no comma.",
    ),
    identity=str.lower,
)


@dataclass(frozen=True, kw_only=True)
class RunnerRule:
    """One ``[[runners]]``: the CI machines that run the cells under ``when``."""

    labels: tuple[str, ...] = key(
        many(_LABEL, least=1, is_unique=True),
        "Labels that a machine must have, all of them.",
        example=["self-hosted", "linux", "gpu-4"],
    )
    when: Condition | None = _when("gpu_count > 0", "every cell that no earlier rule takes")
    gpus: int = key(whole(0), "GPUs of such a machine.", default=0, example=4)
    cores: int | None = key(
        whole(1),
        "CPU cores of such a machine.",
        default=None,
        example=16,
        unset="4; with GPUs 4 for each on GitHub's machines, and 8 on yours",
    )
    # True if GitHub owns it, standard or larger: a job has six hours.
    hosted: bool = key(
        flag(),
        "Whether GitHub owns the machine, so that a job has six hours.",
        default=False,
        example=True,
        unset="true for labels like `ubuntu-24.04`, without `self-hosted` beside them",
    )
    engine: str | None = key(
        text(),
        "The engine that runs jobs there, if neither the command line nor `ALLRANKS_ENGINE` chooses.",
        default=None,
        example="process",
        unset='`"docker"`',
    )
    line: int = 0  # the line of the matrix file that declares it; 0 for the rule that applies if the file has none

    RETIRED: ClassVar[Mapping[str, str]] = {
        "group": "Name the runners by labels: each runner of a group has some.",
        "minutes": "Remove it: a job has 360 minutes on GitHub's machines and 7200 on yours; limits.job is the limit.",
    }

    @property
    def runs_on(self) -> str:
        """The labels, as text: ``self-hosted, gpu-4``."""
        return ", ".join(self.labels)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One matrix file, checked."""

    path: Path
    # The values on each axis, in the order of :data:`AXES`.
    axes: Mapping[str, tuple[AxisValue, ...]] = key(
        one(Axes), "The axes: each combination of their values is a cell, unless an exclude drops it.", name="matrix"
    )
    suites: Mapping[str, Suite] = key(
        by_name(one(Suite), _NAMES, _NAME_REMEDY, least=1),
        "Suites of tests, by name; each runs in every cell, unless its `when` does not hold there.",
        default={},
        is_required=True,
    )
    images: Mapping[str, Image] = key(
        by_name(one(Image), _NAMES, _NAME_REMEDY, least=1),
        "What cells run in, by name; each cell needs exactly one, or the file has none and names `process.python`.",
        default={},
    )
    env: tuple[EnvRule, ...] = key(
        several(EnvRule), "Environment variables of cells; of two rules for one variable the later wins.", default=()
    )
    policy: Policy = key(one(Policy), "How outcomes of ranks are read.", default=Policy())
    limits: Limits = key(
        one(Limits), "Times in seconds, `process_group` < `test` < `job`, and memory.", default=Limits()
    )
    process: Process = key(one(Process), "The engine that runs jobs as processes of this host.", default=Process())
    docker: Docker = key(one(Docker), "The engine that runs jobs in containers.", default=Docker())
    # Which CI machines run which cells; of two rules for one cell the earlier wins.
    runners: tuple[RunnerRule, ...] = key(
        several(RunnerRule), "Which CI machines take which cells; the first rule that holds counts.", default=()
    )
    excludes: tuple[Rule, ...] = ()
    # The tables of plug-ins that the file has, by name, as the dataclasses that declare them.
    tables: Mapping[str, Any] = field(default_factory=dict)
    # Images that another machine has built, by the name of the image they replace; not from the file.
    finished: Mapping[str, str] = field(default_factory=dict)
    line: int = 1  # the line on which ``[matrix]`` begins
    warnings: tuple[str, ...] = ()  # what is likely a mistake, and no error

    RETIRED: ClassVar[Mapping[str, str]] = {
        "durations": f"Durations are kept in {DURATIONS_FILE} beside this file. "
        "`plan` and `report` take another one with --durations.",
        "engines": "An engine of another package declares a table of its own: [NAME].",
    }

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
