"""How many mutants of a folder its tests kill: mutants drawn with a fixed seed, each tried with the tests alone.

    pip install cosmic-ray
    python benchmarks/mutants.py [--folder src/allranks/report/judge] [--tests tests/report/judge] [--count 300]

A mutant is a copy of the source in which an operator of cosmic-ray has changed one condition, comparison or number.
Each place has the same chance to be drawn, and then each change of it. Changes of ``is`` to ``==`` and back are left
out: no test can tell them apart where enumerations are compared. The tests are those of the checkout, from the fastest
file to the slowest. Exit status 1 if they kill less than 95% of the mutants.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
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


def is_killed(path: Path, code: str, copy: Path, tests: list[str], python: str) -> bool:
    """Whether a test fails with the mutant in place of its module."""
    changed = copy / path.relative_to("src")
    original = changed.read_text(encoding="utf-8")
    changed.write_text(code, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return True
    finally:
        changed.write_text(original, encoding="utf-8")
    return done.returncode != 0


def ordered(folder: Path, python: str) -> list[str]:
    """The files of tests, from the fastest to the slowest; an error if one of them fails without a mutant."""
    seconds = {}
    for path in sorted((ROOT / folder).glob("test_*.py")):
        began = time.monotonic()
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=True)
        seconds[str(path)] = time.monotonic() - began
    return sorted(seconds, key=lambda path: seconds[path])


def main() -> int:
    """Try the mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("src/allranks/report/judge"))
    parser.add_argument("--tests", type=Path, default=Path("tests/report/judge"))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has pytest")
    options = parser.parse_args()
    paths = sorted(path.relative_to(ROOT) for path in (ROOT / options.folder).glob("*.py"))
    places = [place for path in paths for place in mutants(path)]
    rng = random.Random(options.seed)  # noqa: S311
    drawn = [rng.choice(place) for place in rng.sample(places, min(options.count, len(places)))]
    tests = ordered(options.tests, options.python)
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        for number, mutant in enumerate(drawn, start=1):
            code = code_of(mutant)
            if is_killed(mutant.path, code, copy, tests, options.python):
                killed += 1
            else:
                print(f"{mutant.path}\n{_change((ROOT / mutant.path).read_text(encoding='utf-8'), code)}\n", flush=True)
            print(f"{killed} of {number} killed, of {len(drawn)} drawn from {len(places)} places", flush=True)
    return 0 if killed >= TARGET * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
