"""How many mutants of a folder its tests kill: mutants drawn with a fixed seed, each tried with the tests alone.

    pip install cosmic-ray
    python benchmarks/mutants.py [--folder src/allranks/report/judge] [--tests tests/report/judge] [--count 300]
        [--jobs 2]

A mutant is a copy of the source in which an operator of cosmic-ray has changed one condition, comparison or number.
Each place has the same chance to be drawn, and then each change of it. Changes of ``is`` to ``==`` and back are left
out: no test can tell them apart where enumerations are compared. The tests are those of the checkout, from the fastest
to the slowest. Exit status 1 if they kill less than 95% of the mutants.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
TARGET: Final = 0.95
ALIKE: Final = ({"Is", "Eq"}, {"IsNot", "NotEq"})
_COMPARISON: Final = "core/ReplaceComparisonOperator_"
_OTHERS: Final = (
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_Sub_Add",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ZeroIterationForLoop",
)


class Mutant(NamedTuple):
    """A change of a module."""

    path: Path  # relative to the checkout
    operator: Any  # cosmic-ray's
    occurrence: int  # the number of the place, among those that this operator can change


def mutants(path: Path) -> Iterator[list[Mutant]]:
    """The mutants of a module, those of one place together."""
    # Imported late: only who tries mutants needs cosmic-ray.
    from cosmic_ray import plugins  # type: ignore[import-not-found]  # noqa: PLC0415
    from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found]  # noqa: PLC0415

    nodes = list(ast_nodes(get_ast((ROOT / path).read_text(encoding="utf-8"))))
    places: dict[Any, list[Mutant]] = {}
    for name in filter(_is_tried, plugins.operator_names()):
        operator = plugins.get_operator(name)()
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(positions):
            places.setdefault(start, []).append(Mutant(path, operator, occurrence))
    yield from (places[start] for start in sorted(places))


def code_of(mutant: Mutant) -> str:
    """The source of the changed module."""
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]  # noqa: PLC0415

    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    return str(mutate_code(source, mutant.operator, mutant.occurrence))


def _is_tried(name: str) -> bool:
    return name in _OTHERS or (name.startswith(_COMPARISON) and {*name.split("_")[1:]} not in ALIKE)


def _change(before: str, after: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))


class Trials:
    """Tries mutants, each in a copy of the source that no other trial uses at the time.

    Args:
        tests: A folder, relative to the checkout.
        python: The interpreter that has pytest.
        folder: An empty folder for the copies.
        jobs: The number of trials at the same time.
    """

    def __init__(self, tests: Path, python: str, folder: Path, jobs: int) -> None:
        self._command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for copy in (folder / str(number) for number in range(jobs)):
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
            compiled = [python, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(copy)]
            subprocess.run(compiled, check=True)
            self._copies.put(copy)
        self._order = folder / "tests"
        self._order.write_text("".join(f"{test}\n" for test in self._from_the_fastest(tests, copy)), encoding="utf-8")

    def _from_the_fastest(self, tests: Path, source: Path) -> list[str]:
        """The tests, from the fastest to the slowest; an error if one of them fails without a mutant."""
        done = self._run(source, str(tests), "-vvv", "--durations=0")
        if done.returncode != 0:
            sys.exit(f"The tests fail without a mutant.\n{done.stdout}{done.stderr}")
        seconds: defaultdict[str, float] = defaultdict(float)
        for took, nodeid in re.findall(r"^([0-9.]+)s (?:setup|call|teardown) +(.+)$", done.stdout, re.MULTILINE):
            seconds[nodeid] += float(took)
        return sorted(seconds, key=lambda nodeid: seconds[nodeid])

    def is_killed(self, path: Path, code: str) -> bool:
        """Whether a test fails with this code in a module."""
        copy = self._copies.get()
        changed = copy / path.relative_to("src")
        original = changed.read_text(encoding="utf-8")
        changed.write_text(code, encoding="utf-8")
        try:
            return self._run(copy, "-x", f"@{self._order}").returncode != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            changed.write_text(original, encoding="utf-8")
            self._copies.put(copy)

    def _run(self, source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Compiled tests and no plug-ins: pytest starts once for each mutant.
        environ = {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def main() -> int:
    """Try the mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("src/allranks/report/judge"))
    parser.add_argument("--tests", type=Path, default=Path("tests/report/judge"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trials at the same time")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has pytest")
    options = parser.parse_args()
    paths = sorted(path.relative_to(ROOT) for path in (ROOT / options.folder).glob("*.py"))
    places = [place for path in paths for place in mutants(path)]
    rng = random.Random(options.seed)  # noqa: S311
    drawn = [rng.choice(place) for place in rng.sample(places, min(options.count, len(places)))]
    killed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        trials = Trials(options.tests, options.python, Path(folder), options.jobs)
        codes = [code_of(mutant) for mutant in drawn]
        results = pool.map(trials.is_killed, (mutant.path for mutant in drawn), codes)
        for number, (mutant, code, is_killed) in enumerate(zip(drawn, codes, results, strict=True), start=1):
            killed += is_killed
            if not is_killed:
                print(f"{mutant.path}\n{_change((ROOT / mutant.path).read_text(encoding='utf-8'), code)}\n", flush=True)
            print(f"{killed} of {number} killed, of {len(drawn)} drawn from {len(places)} places", flush=True)
    return 0 if killed >= TARGET * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
