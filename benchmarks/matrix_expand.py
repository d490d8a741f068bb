"""Expanding a matrix, beside the quickest plain way: Python's own ``eval`` of every rule at every point.

    PYTHONPATH=src python benchmarks/matrix_expand.py

Both sides get the same 3,600 points and ten rules in the same process, turn by turn; what counts is the ratio of their
medians. The largest matrix that may be, of which rules leave a few thousand cells, runs on our side alone.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from allranks.matrix.axes import AXES, AxisValue
from allranks.matrix.expand import MOST_POINTS, expand
from allranks.matrix.model import Matrix, Rule
from allranks.matrix.when import parse_condition

ROUNDS = 7
RULES = 10
MANY_RULES = 50


def matrix_of(world_sizes: int, count: int = RULES) -> Matrix:
    """A matrix with 360 points for each world size, and rules that each drop a little, half of them over all axes."""
    axes: dict[str, tuple[AxisValue, ...]] = {
        "backend": tuple(f"backend{number}" for number in range(4)),
        "world_size": tuple(range(5, 5 + world_sizes)),  # never fewer ranks than nodes
        "gpu_count": tuple(range(6)),
        "init_method": ("env", "tcp", "file"),
        "nodes": tuple(range(1, 6)),
        "torch": ("",),
    }
    rules = (rule(number, axes) for number in range(count))
    return Matrix(path=Path("matrix.toml"), axes=axes, excludes=tuple(rules))


def rule(number: int, axes: dict[str, tuple[AxisValue, ...]]) -> Rule:
    """The rule of this number: narrow ones over two axes, and ones that name every axis."""
    backend, world, gpus, method, nodes, _ = (axes[axis][number % len(axes[axis])] for axis in AXES)
    text = f"backend == {backend!r} and gpu_count == {gpus} and world_size != {world}"
    if number % 2:
        text += f" and (gpu_count > world_size or not init_method in [{method!r}] or nodes < {nodes})"
    return Rule(when=parse_condition(text), reason="benchmark", line=number)


def plain(matrix: Matrix) -> int:
    """The number of cells, counted by Python itself."""
    rules = [compile(rule.when.source, "rule", "eval") for rule in matrix.excludes]
    points = (dict(zip(AXES, values, strict=True)) for values in product(*matrix.axes.values()))
    return sum(not any(eval(rule, {}, point) for rule in rules) for point in points)  # noqa: S307 - our own text


def ours(matrix: Matrix) -> int:
    """The number of cells of an expansion."""
    return len(expand(matrix).cells)


def main() -> None:
    """Print both sides of the comparison, and the time of the largest matrix."""
    small = matrix_of(10)
    if plain(small) != ours(small):
        msg = "the two ways disagree"
        raise SystemExit(msg)
    times: dict[str, list[float]] = {"eval": [], "ours": []}
    for _ in range(ROUNDS):
        for name, work in (("eval", plain), ("ours", ours)):
            begun = perf_counter()
            work(small)
            times[name].append(perf_counter() - begun)
    for name, seconds in times.items():
        span = f"from {min(seconds) * 1e3:.0f} to {max(seconds) * 1e3:.0f}"
        print(f"3,600 points, {RULES} rules: {name} median {median(seconds) * 1e3:.0f} ms ({span})")
    print(f"ratio of medians: {median(times['ours']) / median(times['eval']):.2f}")
    large = matrix_of(MOST_POINTS // 360, MANY_RULES - 1)
    few = Rule(when=parse_condition("world_size > 20"), reason="what a person can look at", line=MANY_RULES)
    begun = process_time()
    count = ours(replace(large, excludes=(*large.excludes, few)))
    print(f"{MOST_POINTS:,} points, {MANY_RULES} rules: {count:,} cells in {process_time() - begun:.2f} s of CPU time")


if __name__ == "__main__":
    main()
