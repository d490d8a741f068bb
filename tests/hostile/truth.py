"""The expected outcome of a hostile case, declared next to it and read without running it.

Most cases are functions with the decorator ``attack`` in ``suites/KIND.py``. Other cases have files or folders of their
own in ``suites/KIND``, with the literal ``TRUTH``.
"""

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from declaration import ENGINES, LIMITS, OUTCOMES, literal

SUITES = Path(__file__).parent / "suites"

GOOD = frozenset({"passed", "xfailed", "xpassed"})
BAD = OUTCOMES - GOOD - {"skipped"}
HONEST = frozenset({"passed", "aborted", "missing"})
WORDS = {"any": OUTCOMES, "bad": BAD, "honest": HONEST, "unpassed": OUTCOMES - GOOD}
"""Names for sets of outcomes: ``honest`` is for a rank that passes unless the attack stops it or its job first,
``unpassed`` for a test whose body never ran."""

BEFORE = {"test_victim": ["passed", "failed"], "test_honest": ["passed", "passed"]}
AFTER = {"test_after": ["bad", "any"]}
"""The expected outcomes of the tests around every attack. Rank 1 attacks, so its own later reports are not judged."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The allowed report of a test.

    Attributes:
        ranks: The outcomes that each rank may have; empty if any outcome is allowed on any rank.
        is_bad: The testcase must be an error or a failure, which is implied if a rank must be bad.
        one_is_bad: One of several testcases of this name must be an error or a failure.
        may_be_absent: The report may lack it.
        count: The number of tests, for a name that ends in ``*``.
    """

    ranks: tuple[frozenset[str], ...]
    is_bad: bool = False
    one_is_bad: bool = False
    may_be_absent: bool = False
    count: int = 1

    @classmethod
    def read(cls, declared: Sequence[str] | Mapping[str, Any]) -> Self:
        """Read a literal: outcomes by rank, or a table of these and more.

        Raises:
            ValueError: It names an unknown outcome.
        """
        table = dict(declared) if isinstance(declared, Mapping) else {"ranks": declared}
        ranks = tuple(_outcomes(words) for words in table.pop("ranks"))
        return cls(ranks=ranks, **{"is_bad": any(allowed <= BAD for allowed in ranks), **table})


def _outcomes(words: str) -> frozenset[str]:
    allowed = frozenset[str]().union(*(WORDS.get(word, frozenset({word})) for word in words.split("|")))
    if not allowed <= OUTCOMES:
        msg = f"not outcomes: {words}"
        raise ValueError(msg)
    return allowed


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """One hostile case.

    Attributes:
        kind: The kind of attack, as its file or folder is named.
        path: Its file, or its folder.
        function: The name of its function in this file; empty if the whole file is the case.
        tests: The allowed reports by the names of tests; a name that ends in ``*`` stands for all names with this
            prefix.
        attack_only: No tests run before and after it.
        engines: The process engine protects only against accidents, so attacks beyond the job need containers.
        is_sample: It runs each time; other cases run in the session ``hostile``.
        is_alone: It needs a separate run.
    """

    name: str
    kind: str
    path: Path
    function: str = ""
    tests: Mapping[str, Truth]
    attack_only: bool = False
    engines: tuple[str, ...] = ENGINES
    is_sample: bool = False
    is_alone: bool = False
    isolation: str = "job"
    nodes: int = 1
    limits: Mapping[str, float] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the declaration of a case.

        Raises:
            ValueError: It is missing or invalid.
        """
        source = path / "test_1_attack.py" if path.is_dir() else path
        declared = literal(source, "TRUTH")
        return cls._from(declared, name=path.stem, kind=path.parent.name, path=path)

    @classmethod
    def read_functions(cls, path: Path) -> Iterator[Self]:
        """Read the declarations of all cases in a file.

        Raises:
            ValueError: One of them is wrong.
        """
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            for call in function.decorator_list if isinstance(function, ast.FunctionDef) else ():
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "attack":
                    declared = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
                    ranks = [ast.literal_eval(rank) for rank in call.args]
                    declared["tests"] = {"test_attack": ranks, **declared.get("tests", {})}
                    name = function.name
                    yield cls._from(declared, name=name, kind=path.stem, path=path, function=name)

    @classmethod
    def _from(cls, declared: dict[str, Any], *, name: str, path: Path, **more: str) -> Self:
        try:
            return cls._parse(declared, name=name, path=path, **more)
        except (KeyError, TypeError, ValueError) as error:
            msg = f"{path}: the declaration of {name} is wrong: {type(error).__name__}: {error}"
            raise ValueError(msg) from error

    @classmethod
    def _parse(cls, declared: dict[str, Any], **case: Any) -> Self:
        around = {} if declared.get("attack_only") else {**BEFORE, **AFTER}
        return cls(
            **case,
            tests={name: Truth.read(item) for name, item in {**around, **declared.pop("tests")}.items()},
            limits={**LIMITS, "process_group": 12, "test": 15, "peer_grace": 0.3, **declared.pop("limits", {})},
            engines=tuple(declared.pop("engines", ENGINES)),
            arguments=tuple(declared.pop("arguments", ())),
            **declared,
        )

    @property
    def surroundings(self) -> tuple[object, ...]:
        """The settings of its run: only cases with the same settings can share a run."""
        return (self.nodes, tuple(sorted(self.limits.items())), self.arguments, self.is_alone and self.name)


def read_all() -> dict[str, Hostile]:
    """Every case, by name."""
    cases = [Hostile.read(path) for path in _paths()]
    cases += [case for path in sorted(SUITES.glob("*.py")) for case in Hostile.read_functions(path)]
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        msg = f"two cases of one name: {sorted(name for name in names if names.count(name) > 1)}"
        raise ValueError(msg)
    return dict(zip(names, cases, strict=True))


def _paths() -> Iterator[Path]:
    for path in sorted(SUITES.glob("*/*")):
        if path.suffix == ".py" or (path / "test_1_attack.py").exists():
            yield path


def asked_for() -> list[Hostile]:
    """The cases to run: a sample of each kind, or all, or those that ALLRANKS_HOSTILE names."""
    wanted = os.environ.get("ALLRANKS_HOSTILE", "").split()
    every = read_all()
    if wanted == ["all"]:
        return list(every.values())
    return [every[name] for name in wanted] or [case for case in every.values() if case.is_sample]
