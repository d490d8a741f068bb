"""Declarations of planted faults: each is a literal in the fault's own file, which is read without running the file."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

SUITES = Path(__file__).parent / "suites"

ENGINES = ("process", "docker")

CLUSTER = "slurm"
"""The engine that needs a cluster; only root can start one."""

LIMITS = {"process_group": 10, "test": 12, "job": 60, "peer_grace": 1}
"""The default limits of a fault, in seconds."""

OUTCOMES = frozenset(
    {"passed", "failed", "skipped", "xfailed", "xpassed", "errored", "crashed", "timed_out", "aborted", "missing"}
)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """The expected report of one testcase.

    Attributes:
        verdict: Kind and reason: ``("error", "crashed")``; several if it is undetermined.
        leading: The rank of the primary failure; None for no rank; several if it is undetermined.
        ranks: The outcome of each rank, several joined by ``|`` if it is undetermined; empty for a testcase that is not
            a test.
        words: Parts of the message.
        text: Parts of the text below the message.
        output: Parts of the captured output in the report.
        undetermined: Why there are several correct answers.
    """

    verdict: tuple[tuple[str, str], ...]
    leading: tuple[int | None, ...] = (None,)
    ranks: tuple[frozenset[str], ...] = ()
    words: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    undetermined: str = ""

    @classmethod
    def read(cls, declared: Mapping[str, Any], world_size: int) -> Self:
        """Read a literal.

        Raises:
            ValueError: It is invalid.
        """
        expected = cls(
            verdict=_several(declared["verdict"], tuple),
            leading=_several(declared.get("leading"), list),
            ranks=tuple(frozenset(outcome.split("|")) for outcome in declared.get("ranks", ())),
            words=tuple(declared.get("words", ())),
            text=tuple(declared.get("text", ())),
            output=tuple(declared.get("output", ())),
            undetermined=declared.get("undetermined", ""),
        )
        _refuse_unknown_keys(declared, cls)
        open_ends = len(expected.verdict) > 1 or len(expected.leading) > 1 or any(len(o) > 1 for o in expected.ranks)
        if open_ends != bool(expected.undetermined):
            msg = f"several right answers need a reason, and one answer needs none: {declared}"
            raise ValueError(msg)
        if not frozenset().union(*expected.ranks) <= OUTCOMES or len(expected.ranks) not in (0, world_size):
            msg = f"not the outcomes of {world_size} ranks: {declared['ranks']}"
            raise ValueError(msg)
        return expected


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Attributes:
        path: Its file, or its folder.
        test: The name of the judged test. Every other test of the suite must pass on every rank, unless `others`
            declares another outcome.
        expected: The expected report of the judged test.
        others: The expected reports of other testcases that do not just pass, by name, including errors of the job.
        seconds: From the job's go to its record, on an idle machine.
        limits: The limits of the matrix, in seconds.
        exit_code: The exit code of the command; several if it is undetermined.
        prints: Parts of the command's output.
        leaves: Parts of the names of what may be left behind, for a reason that its file gives.
        not_on: Engines that cannot express the fault, each with the reason.
        nodes: The number of nodes of the job.
        strike: The action on a node's container when a rank prints that it waits, and the node (see ``strike``).
        memory_mib: A real limit on the job's memory; on a cluster, only on the command's memory.
        disk_mib: The size of the disk with the job's temporary folder; None for the host's disk.
        is_alone: It needs so much of the machine that nothing else may run at the same time.
        pytest_args: More arguments for pytest.
        environment: Variables that the matrix sets.
        launches_ranks: One process runs the tests, which start their ranks themselves.
    """

    name: str
    path: Path
    world_size: int = 2
    test: str = "test_fault"
    expected: Expectation
    others: Mapping[str, Expectation] = field(default_factory=dict)
    seconds: float
    isolation: str = "job"
    limits: Mapping[str, float] = field(default_factory=dict)
    exit_code: tuple[int, ...] = (1,)
    prints: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    not_on: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    strike: tuple[str, int] | None = None
    init_method: str = "env"
    memory_mib: int | None = None
    disk_mib: int | None = None
    is_alone: bool = False
    pytest_args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    launches_ranks: bool = False

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that can express it."""
        return tuple(engine for engine in (*ENGINES, CLUSTER) if engine not in self.not_on)

    @property
    def source(self) -> Path:
        """The file that holds the declaration."""
        return self.path / f"test_{self.name}.py" if self.path.is_dir() else self.path

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the declaration of a fault.

        Raises:
            ValueError: It is missing or invalid.
        """
        name = path.stem
        source = path / f"test_{name}.py" if path.is_dir() else path
        declared = literal(source)
        try:
            fault = cls._from(declared, name, path)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{source}: FAULT is wrong: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
        return fault

    @classmethod
    def _from(cls, declared: dict[str, Any], name: str, path: Path) -> Self:
        own = {field.name for field in fields(Expectation)}
        world_size = declared.get("world_size", 2)
        read_here = own | {"others", "limits", "pytest_args", "prints", "leaves", "exit_code"}
        rest = {key: value for key, value in declared.items() if key not in read_here}
        expected = {key: value for key, value in declared.items() if key in own}
        others = {key: _other(value, world_size) for key, value in declared.get("others", {}).items()}
        return cls(
            name=name,
            path=path,
            expected=Expectation.read(expected, world_size),
            others=others,
            limits={**LIMITS, **declared.get("limits", {})},
            pytest_args=tuple(declared.get("pytest_args", ())),
            prints=tuple(declared.get("prints", ())),
            leaves=tuple(declared.get("leaves", ())),
            exit_code=_several(declared.get("exit_code", 1), list),
            **rest,
        )


NOT_RUN = Expectation(verdict=(("skipped", "pytest.skip"),), words=("not run",))
"""A test that did not run because its job ended."""


def passed(world_size: int) -> Expectation:
    """The expected report of an innocent test: it passes on every rank."""
    return Expectation(verdict=(("passed", ""),), ranks=(frozenset({"passed"}),) * world_size)


def _other(declared: Mapping[str, Any] | str, world_size: int) -> Expectation:
    return NOT_RUN if declared == "not run" else Expectation.read(declared, world_size)


def _several(declared: Any, kind: type) -> tuple[Any, ...]:
    """One answer, or a list of answers (a list of tuples if one answer is a tuple)."""
    if kind is tuple:
        return tuple(declared) if isinstance(declared, list) else (declared,)
    return tuple(declared) if isinstance(declared, kind) else (declared,)


def _refuse_unknown_keys(declared: Mapping[str, Any], kind: type) -> None:
    unknown = declared.keys() - {field.name for field in fields(kind)}
    if unknown:
        msg = f"unknown: {', '.join(sorted(unknown))}"
        raise ValueError(msg)


def literal(source: Path, name: str = "FAULT") -> dict[str, Any]:
    """The value of `name` in a file that is only parsed, because importing it may trigger the fault.

    Raises:
        ValueError: The file assigns no literal to that name.
    """
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            declared: dict[str, Any] = ast.literal_eval(node.value)
            return declared
    msg = f"{source} declares no {name}"
    raise ValueError(msg)


def read_all() -> dict[str, Fault]:
    """Every planted fault, by name."""
    paths = [
        path for path in sorted(SUITES.iterdir()) if path.suffix == ".py" or (path / f"test_{path.name}.py").exists()
    ]
    return {fault.name: fault for fault in map(Fault.read, paths)}
