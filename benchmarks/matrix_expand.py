"""Expanding a matrix, against the plain way: every rule asked at every point until one holds.

    PYTHONPATH=src python benchmarks/matrix_expand.py

Both sides expand the same matrix of about ten thousand points under the same 50 rules in the same process,
turn by turn; what counts is the ratio of their medians. The full size (1,000,000 points) runs on our side alone,
because the plain way takes minutes there.
"""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

from allranks.matrix.axes import AXES, AxisValue
from allranks.matrix.expand import expand
from allranks.matrix.model import Matrix, Rule
from allranks.matrix.when import parse_condition

ROUNDS = 7
RULES = 50


def matrix_of(backends: int, world_sizes: int, gpu_counts: int, init_methods: int, nodes: int) -> Matrix:
    """A matrix with this many values on each axis and 50 rules that each drop a little, half of them over all axes."""
    axes: dict[str, tuple[AxisValue, ...]] = {
        "backend": tuple(f"backend{number}" for number in range(backends)),
        "world_size": tuple(range(nodes, nodes + world_sizes)),  # never fewer ranks than nodes
        "gpu_count": tuple(range(gpu_counts)),
        "init_method": tuple(f"method{number}" for number in range(init_methods)),
        "nodes": tuple(range(1, 1 + nodes)),
        "torch": ("",),
    }
    rules = [rule(number, axes) for number in range(RULES)]
    return Matrix(path=Path("matrix.toml"), axes=axes, excludes=tuple(rules))


def rule(number: int, axes: dict[str, tuple[AxisValue, ...]]) -> Rule:
    """The rule of this number: narrow ones over two axes, and ones that name every axis."""
    backend, world, gpus, method, nodes, _ = (axes[axis][number % len(axes[axis])] for axis in AXES)
    text = f"backend == {backend!r} and gpu_count == {gpus} and world_size != {world}"
    if number % 2:
        text += f" and (gpu_count > world_size or not init_method in [{method!r}] or nodes < {nodes})"
    return Rule(when=parse_condition(text), reason="benchmark", line=number)


def plain(matrix: Matrix) -> int:
    """The number of cells, counted the plain way."""
    points = (dict(zip(AXES, values, strict=True)) for values in product(*matrix.axes.values()))
    return sum(not any(rule.when.holds(point) for rule in matrix.excludes) for point in points)


def ours(matrix: Matrix) -> int:
    """The number of cells of an expansion."""
    return len(expand(matrix).cells)


def seconds(work: Callable[[Matrix], int], matrix: Matrix) -> float:
    """How long one expansion takes."""
    start = perf_counter()
    work(matrix)
    return perf_counter() - start


def described(times: Sequence[float]) -> str:
    """Median and range, in milliseconds."""
    return f"median {median(times) * 1e3:.1f} ms (from {min(times) * 1e3:.1f} to {max(times) * 1e3:.1f})"


def main() -> None:
    """Prints both sides of the comparison, and the full size."""
    small = matrix_of(4, 10, 10, 5, 5)
    if plain(small) != ours(small):
        msg = "the two ways disagree"
        raise SystemExit(msg)
    pairs = [(seconds(plain, small), seconds(ours, small)) for _ in range(ROUNDS)]
    plain_times, our_times = zip(*pairs, strict=True)
    print(f"10,000 points, {RULES} rules: plain {described(plain_times)}")
    print(f"10,000 points, {RULES} rules: ours  {described(our_times)}")
    print(f"ratio of medians: {median(plain_times) / median(our_times):.0f}")
    full = matrix_of(10, 20, 50, 10, 10)
    print(f"1,000,000 points, {RULES} rules: ours  {described([seconds(ours, full) for _ in range(ROUNDS)])}")
    start, count = perf_counter(), sum(1 for _ in expand(full).cells)
    print(f"1,000,000 points, {RULES} rules, and all {count:,} cells made: {perf_counter() - start:.2f} s")
    square = matrix_of(1, 1000, 1000, 1, 1)
    print(f"1,000 x 1,000 points, {RULES} rules: ours  {described([seconds(ours, square) for _ in range(ROUNDS)])}")


if __name__ == "__main__":
    main()
