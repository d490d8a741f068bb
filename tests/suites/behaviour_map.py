"""Reads suites/behaviours.toml, and what it is held against: torch's tests, our tests, and the results of a run.

    python tests/suites/behaviour_map.py RESULTS

prints which tests of the map did not run in a run's folder, or did not pass, and which behaviours have no test that
passed because GPUs are missing. Exit status 1 for the former.
"""

import ast
import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITES = ROOT / "suites"
MAP = SUITES / "behaviours.toml"
MADE_FOR = "2.13"
"""The torch whose tests are the keys of the map."""

TORCH_MODULES = ("rpc_test", "dist_autograd_test")


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """One behaviour that torch tests.

    Args:
        name: torch's class and test, as ``RpcTest.add``.
        tests: Our tests that show it, as ``rpc/test_calls.py::test_sum``.
        not_here: The reason why it has no test here; empty if it has.
    """

    name: str
    tests: tuple[str, ...] = ()
    not_here: str = ""


def behaviours(path: Path = MAP) -> list[Behaviour]:
    """All that the map has."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_behaviour(f"{table}.{key}", value) for table, rows in tables.items() for key, value in rows.items()]


def _behaviour(name: str, value: object) -> Behaviour:
    match value:
        case [str(), *_]:
            return Behaviour(name=name, tests=tuple(map(str, value)))
        case {"not_here": str(reason), **others} if not others:
            return Behaviour(name=name, not_here=reason)
    msg = f"{name}: neither a list of tests nor {{ not_here = reason }}: {value!r}"
    raise ValueError(msg)


def installed_torch() -> str:
    """Major and minor version, without an import of torch."""
    return ".".join(version("torch").split(".")[:2])


def torch_tests(classes: Sequence[str]) -> set[str]:
    """The tests of torch's classes by those names, as ``RpcTest.add``, without an import of torch."""
    package = importlib.util.find_spec("torch")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "testing/_internal/distributed/rpc"
    return {
        f"{node.name}.{name.removeprefix('test_')}"
        for module in TORCH_MODULES
        for node in ast.parse((folder / f"{module}.py").read_bytes()).body
        if isinstance(node, ast.ClassDef) and node.name in classes
        for name in _functions(node.body)
    }


def suite_tests(suite: str) -> set[str]:
    """The test functions of one of our suites, as ``rpc/test_calls.py::test_sum``."""
    return {
        f"{suite}/{path.relative_to(SUITES / suite).as_posix()}::{name}"
        for path in (SUITES / suite).rglob("test_*.py")
        for name in _functions(ast.parse(path.read_bytes()).body)
    }


def _functions(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The tests that a module or class defines, or takes from another module to run them once more."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            names = [node.name]
        else:
            names = [name.asname or name.name for name in node.names] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if name.startswith("test_"))


def outcomes(report: Path) -> dict[str, set[str]]:
    """The verdicts of each test function of a run, over all of its parameters and cells.

    Args:
        report: Its ``report.json``.

    Returns:
        By function; a skip because GPUs are missing is ``no hardware``.
    """
    found: dict[str, set[str]] = {}
    for suite in json.loads(report.read_text(encoding="utf-8"))["suites"]:
        for test in suite["tests"]:
            name = test["nodeid"].partition("[")[0].removeprefix("suites/")
            lacks_gpus = test.get("skip_kind") == "hardware"
            found.setdefault(name, set()).add("no hardware" if lacks_gpus else test["verdict"])
    return found


def troubles(known: Sequence[Behaviour], found: Mapping[str, set[str]]) -> list[str]:
    """What is wrong with a run, a line each: a mapped test that is absent, or did not pass."""
    tests = sorted({test for behaviour in known for test in behaviour.tests})
    return [
        f"{test}: {', '.join(sorted(found[test])) if test in found else 'did not run'}"
        for test in tests
        if not found.get(test, {"absent"}) <= {"passed", "no hardware"}
    ]


def main(arguments: Sequence[str]) -> int:
    """Compare, print."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    known, found = behaviours(), outcomes(Path(arguments[0]) / "report.json")
    wrong = troubles(known, found)
    for line in wrong:
        print(line)
    shown = [item for item in known if any("passed" in found.get(test, ()) for test in item.tests)]
    skipped = [record for record in known if record.tests and record not in shown]
    for item in skipped:
        print(f"{item.name} is not shown: {', '.join(item.tests)}")
    absent = sum(bool(test.not_here) for test in known)
    print(f"{len(known)} behaviours: {len(shown)} shown, {len(skipped)} not shown, {absent} not here")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
