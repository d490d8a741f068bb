"""Mutation tests: which small changes of the source do the quick tests detect?

    nox -s mutants -- [--count 300] [MODULE ...]

A mutant is a module in which an operator of cosmic-ray has changed one condition, comparison, number, loop or exception
handler of a function. It is killed if a test fails or the tests run for too long. A survivor is a missing test, dead
code, or a change without any effect. Each module must have at least 90% of its mutants killed; ``survivors.txt`` lists
the others. The seed is fixed: the same source has the same mutants, and a smaller count draws the first of them.

pytest collects the tests of a module once, in a copy of the checkout. Each mutant is tried in a fork, in which its code
replaces that of the module's functions.
"""

import argparse
import compileall
import gc
import inspect
import os
import py_compile
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.txt")
TARGET = 0.9

JUDGE = "tests/report/judge"
DIAGNOSE = "tests/agent/diagnose"
MODULES = {
    "report/judge/rules.py": f"{JUDGE}/test_rules.py {JUDGE}/test_every_combination.py",
    "report/judge/attempts.py": f"{JUDGE}/test_attempts.py {JUDGE}/test_reruns.py {JUDGE}/test_continued_attempts.py",
    "report/judge/accounting.py": f"{JUDGE}/test_accounting.py {JUDGE}/test_collections.py {JUDGE}/test_shards.py",
    "agent/diagnose/primary_failure.py": f"{DIAGNOSE}/test_primary_failure.py {DIAGNOSE}/test_step_outcome.py",
    "agent/diagnose/step_outcome.py": f"{DIAGNOSE}/test_step_outcome.py {DIAGNOSE}",
    "agent/diagnose/unmatched_calls.py": f"{DIAGNOSE}/test_unmatched_calls.py",
    "agent/diagnose/stacks.py": f"{DIAGNOSE}/test_stacks.py {DIAGNOSE}/test_child_stacks.py {DIAGNOSE}/test_py_spy.py",
    "matrix/select.py": "tests/matrix/test_select.py",
    "matrix/when.py": "tests/matrix/test_when.py tests/matrix/test_expand.py",
    "matrix/expand.py": "tests/matrix/test_expand.py",
    "runner/gpu_leases.py": "tests/runner/test_leases.py tests/runner/test_gpu_pool.py tests/runner/test_gpu_queue.py",
}
"""The modules, each with the quick tests of its behavior; pytest stops at the first failure."""

QUICK = "not integration and not thorough and not alone"

OPERATORS = {
    "AddNot", "ExceptionReplacer", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_BitAnd_BitOr",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ReplaceFalseWithTrue", "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Invert_UAdd", "ReplaceUnaryOperator_USub_UAdd",
    "ZeroIterationForLoop",
}  # fmt: skip
"""The operators besides those that replace a comparison with another one of these."""

COMPARISONS = ({"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"}, {"Is", "IsNot"}, {"In", "NotIn"})


class Mutant(NamedTuple):
    """A changed module."""

    code: str
    description: str  # ``file:line operator: before → after``


def mutants(path: Path, source: str) -> Iterator[Mutant]:
    """All mutants of a module in a random order: one of each position, then a second one of each, and so on."""
    nodes = list(ast_nodes(get_ast(source)))
    changes: dict[tuple[int, int], list[tuple[str, Any, int]]] = {}
    for name in sorted(filter(is_used, plugins.operator_names())):
        operator = plugins.get_operator(name)()
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for number, start in enumerate(positions):
            changes.setdefault(start, []).append((name.removeprefix("core/"), operator, number))
    rng = random.Random(1)  # noqa: S311
    ordered = [[(start, *change) for change in rng.sample(found, len(found))] for start, found in changes.items()]
    rng.shuffle(ordered)
    functions = [code for code, _ in codes(source, path)]
    for (line, _), name, operator, number in filter(None, chain.from_iterable(zip_longest(*ordered))):
        code = mutate_code(source, operator, number)
        changed = functions
        with suppress(SyntaxError):  # of ``not`` before an assignment expression
            changed = [function for function, _ in codes(code, path)]
        if changed != functions:
            lines = zip(source.splitlines(), code.splitlines(), strict=True)
            before, after = next((old.strip(), new.strip()) for old, new in lines if old != new)
            yield Mutant(code, f"{path}:{line} {name}: {before} → {after}")


def is_used(name: str) -> bool:
    """Whether an operator of cosmic-ray is used."""
    kind, *replaced = name.removeprefix("core/").split("_")
    comparison = kind == "ReplaceComparisonOperator" and any(compared.issuperset(replaced) for compared in COMPARISONS)
    return comparison or name.removeprefix("core/") in OPERATORS


def codes(source: str, path: Path) -> Iterator[tuple[CodeType, tuple[str, int]]]:
    """The code of each function of a module, with its name and line."""
    found = [compile(source, str(path), "exec", dont_inherit=True)]
    for code in found:
        found.extend(inner for inner in code.co_consts if isinstance(inner, CodeType))
        if code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED:
            yield code, (code.co_qualname, code.co_firstlineno)


class Trials:
    """A plug-in of pytest that tries the mutants of a module with the collected tests."""

    def __init__(self, copy: Path, path: Path, count: int) -> None:
        self._copy = copy
        self._path = path
        self._count = count
        self.survivors: list[str] = []
        self.tried = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort property tests last: they take longest, above all to shrink an example that fails."""
        items.sort(key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants."""
        original = (self._copy / self._path).read_text(encoding="utf-8")
        begin = time.monotonic()
        if not in_child(lambda: self._try(session, original), 600):
            pytest.exit("The tests fail without a mutant.", returncode=1)
        limit = 10 + 3 * (time.monotonic() - begin)
        for mutant in islice(mutants(self._path, original), self._count):
            self.tried += 1
            if in_child(lambda code=mutant.code: self._try(session, code), limit):
                self.survivors.append(mutant.description)
                print(mutant.description, flush=True)
        (self._copy / self._path).write_text(original, encoding="utf-8")
        return True

    def _try(self, session: pytest.Session, source: str) -> int:
        """Run the tests with a changed module until one fails."""
        path = self._copy / self._path
        path.write_text(source, encoding="utf-8")  # for the processes that tests start
        changed = {key: code for code, key in codes(source, path)}
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and function.__code__.co_filename == str(path):
                function.__code__ = changed[function.__code__.co_qualname, function.__code__.co_firstlineno]
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        for item, following in zip_longest(session.items, session.items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return 1
        return 0


def in_child(function: Callable[[], int], limit: float = 0) -> bool:
    """Whether a function returns 0 in a process of its own, and within a limit in seconds, if there is one."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if limit:
                os.setsid()
                signal.setitimer(signal.ITIMER_REAL, limit)  # the signal ends the process
            status = function()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return status == 0


def try_module(copy: Path, module: str, count: int) -> int:
    """Try the mutants of a module, and update the list of survivors; 1 if fewer than 90% are killed."""
    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    trials = Trials(copy, Path("src/allranks", module), count)
    options = ("-s", "-qq", "--no-summary", "-p", "no:cacheprovider", f"--basetemp={copy}/tmp", "-m", QUICK)
    if status := pytest.main([*options, *MODULES[module].split()], plugins=[trials]):
        return status
    killed = trials.tried - len(trials.survivors)
    print(f"{module}: {killed} of {trials.tried} mutants killed ({killed / trials.tried:.1%})", flush=True)
    lines = SURVIVORS.read_text(encoding="utf-8").splitlines()
    others = [line for line in lines if not line.startswith(f"src/allranks/{module}:")]
    SURVIVORS.write_text("".join(f"{line}\n" for line in sorted([*others, *trials.survivors])), encoding="utf-8")
    return int(killed < TARGET * trials.tried)


def main() -> int:
    """Try the mutants of some modules."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", choices=[*MODULES, []], metavar="MODULE")
    parser.add_argument("--count", type=int, default=300, help="mutants of each module")
    options = parser.parse_args()
    os.environ["CI"] = "1"  # Hypothesis then tries the same examples each time
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "results", "build", "dist"))
        # By content: a mutant of the same size and second would look like its original.
        compileall.compile_dir(copy / "src", quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        modules = options.modules or MODULES
        passed = [in_child(lambda name=module: try_module(copy, name, options.count)) for module in modules]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
