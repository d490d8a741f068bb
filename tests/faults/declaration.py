"""What a planted fault declares about itself: a literal in its own file, read without running that file."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

SUITES = Path(__file__).parent / "suites"

ENGINES = ("process", "docker")

CLUSTER = "slurm"
"""The engine that needs a cluster, which takes root to start."""

LIMITS = {"process_group": 10, "test": 12, "job": 60, "peer_grace": 1}
"""Seconds, for what a fault does not say itself."""

OUTCOMES = frozenset(
    {"passed", "failed", "skipped", "xfailed", "xpassed", "errored", "crashed", "timed_out", "aborted", "missing"}
)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the report must say of one testcase.

    Attributes:
        verdict: Kind and reason: ``("error", "crashed")``; one of several where that is undetermined.
        leading: The rank that leads; None for no rank; one of several where that is undetermined.
        ranks: The outcome of each rank, by rank, several joined by ``|`` where that is undetermined; empty for a
            testcase that stands for no test.
        words: What the message must contain.
        text: What the text below the message must contain.
        output: What the captured output in the report must contain.
        undetermined: Why there is more than one right answer.
    """

    verdict: tuple[tuple[str, str], ...]
    leading: tuple[int | None, ...] = (None,)
    ranks: tuple[frozenset[str], ...] = ()
    words: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    undetermined: str = ""

    @classmethod
    def read(cls, said: Mapping[str, Any], world_size: int) -> Self:
        """Read a literal; the words ``passed``, ``skipped`` and ``not run`` stand for the whole of it.

        Raises:
            ValueError: It is none.
        """
        expected = cls(
            verdict=_several(said["verdict"], tuple),
            leading=_several(said.get("leading"), list),
            ranks=tuple(frozenset(outcome.split("|")) for outcome in said.get("ranks", ())),
            words=tuple(said.get("words", ())),
            text=tuple(said.get("text", ())),
            output=tuple(said.get("output", ())),
            undetermined=said.get("undetermined", ""),
        )
        _refuse_unknown_keys(said, cls)
        open_ends = len(expected.verdict) > 1 or len(expected.leading) > 1 or any(len(o) > 1 for o in expected.ranks)
        if open_ends != bool(expected.undetermined):
            msg = f"several right answers need a reason, and one answer needs none: {said}"
            raise ValueError(msg)
        if not frozenset().union(*expected.ranks) <= OUTCOMES or len(expected.ranks) not in (0, world_size):
            msg = f"not the outcomes of {world_size} ranks: {said['ranks']}"
            raise ValueError(msg)
        return expected


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Attributes:
        path: Its file, or its folder.
        test: Name of the judged test; every other test of the suite is innocent, and must pass on every rank, unless
            `others` says what becomes of it.
        expected: What must become of the judged test.
        others: The other testcases that do not just pass, by name, those of the job itself included.
        seconds: From the job's go to its record, on an idle machine.
        limits: The matrix's, in seconds.
        exit_code: Of the whole command; one of several where that is undetermined.
        says: What the command must print.
        leaves: Parts of the names of what stays, for a reason that its file gives.
        not_on: Engines that cannot express the fault, each with the reason.
        nodes: Agents of the job.
        strike: What is done to the container of a node when a rank says that it waits, and that node (see ``strike``).
        memory_mib: A real limit on the job's memory; on a cluster on that of the command alone.
        disk_mib: The size of the disk that the job's temporary folder lies on; None for the host's own.
        is_alone: It takes so much of the machine that nothing else may run beside it.
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
    says: tuple[str, ...] = ()
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
            ValueError: It has none, or one that says something unknown.
        """
        name = path.stem
        source = path / f"test_{name}.py" if path.is_dir() else path
        said = literal(source)
        try:
            fault = cls._from(said, name, path)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{source}: FAULT is wrong: {type(error).__name__}: {error}"
            raise ValueError(msg) from error
        return fault

    @classmethod
    def _from(cls, said: dict[str, Any], name: str, path: Path) -> Self:
        own = {field.name for field in fields(Expectation)}
        world_size = said.get("world_size", 2)
        read_here = own | {"others", "limits", "pytest_args", "says", "leaves", "exit_code"}
        rest = {key: value for key, value in said.items() if key not in read_here}
        expected = {key: value for key, value in said.items() if key in own}
        others = {key: _other(value, world_size) for key, value in said.get("others", {}).items()}
        return cls(
            name=name,
            path=path,
            expected=Expectation.read(expected, world_size),
            others=others,
            limits={**LIMITS, **said.get("limits", {})},
            pytest_args=tuple(said.get("pytest_args", ())),
            says=tuple(said.get("says", ())),
            leaves=tuple(said.get("leaves", ())),
            exit_code=_several(said.get("exit_code", 1), list),
            **rest,
        )


NOT_RUN = Expectation(verdict=(("skipped", "pytest.skip"),), words=("not run",))
"""A test that the end of its job kept from running."""


def passed(world_size: int) -> Expectation:
    """An innocent test: it passes on every rank."""
    return Expectation(verdict=(("passed", ""),), ranks=(frozenset({"passed"}),) * world_size)


def _other(said: Mapping[str, Any] | str, world_size: int) -> Expectation:
    return NOT_RUN if said == "not run" else Expectation.read(said, world_size)


def _several(said: Any, kind: type) -> tuple[Any, ...]:
    """One answer, or a list of answers (of tuples, where one answer is a tuple)."""
    if kind is tuple:
        return tuple(said) if isinstance(said, list) else (said,)
    return tuple(said) if isinstance(said, kind) else (said,)


def _refuse_unknown_keys(said: Mapping[str, Any], kind: type) -> None:
    unknown = said.keys() - {field.name for field in fields(kind)}
    if unknown:
        msg = f"unknown: {', '.join(sorted(unknown))}"
        raise ValueError(msg)


def literal(source: Path, name: str = "FAULT") -> dict[str, Any]:
    """The value of `name` in a file that is only parsed, because to import it may be the fault.

    Raises:
        ValueError: The file assigns no literal to that name.
    """
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            said: dict[str, Any] = ast.literal_eval(node.value)
            return said
    msg = f"{source} declares no {name}"
    raise ValueError(msg)


def read_all() -> dict[str, Fault]:
    """Every planted fault, by name."""
    paths = [
        path for path in sorted(SUITES.iterdir()) if path.suffix == ".py" or (path / f"test_{path.name}.py").exists()
    ]
    return {fault.name: fault for fault in map(Fault.read, paths)}
