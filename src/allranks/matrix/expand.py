"""Expands a matrix into its cells, and finds the rule that dropped each other combination."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from allranks.errors import MatrixError
from allranks.matrix.axes import NO_TORCH
from allranks.matrix.model import Cell, Matrix, Rule
from allranks.matrix.toml_file import location
from allranks.matrix.when import Condition, Points, Space, parse_condition

MOST_POINTS = 1_000_000
"""More combinations than a real matrix has: they take seconds to expand, and a larger number is a typo."""


@dataclass(frozen=True)
class Impossible:
    """Cells that no host can run."""

    when: Condition
    reason: str
    remedy: str = ""  # what to change if all cells are impossible; {sizes} are the world sizes of the matrix
    unless: str = ""  # a variable that makes them possible if the file sets it to 1
    note: str = ""  # describes the variable in the error message


SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Lets several NCCL ranks share a GPU (experimental in 2.30; older versions fail at run time)."""

IMPOSSIBLE = (
    Impossible(
        parse_condition("backend == 'nccl' and gpu_count < world_size"),
        "NCCL needs a GPU for each rank",
        remedy="Give the cells as many GPUs as ranks:  gpu_count = {sizes}",
        unless=SHARED_GPU_VARIABLE,
        note=f'NCCL 2.30 has experimental support for shared GPUs: [[env]]  set = {{ {SHARED_GPU_VARIABLE} = "1" }}',
    ),
    Impossible(parse_condition("backend == 'nccl' and gpu_count == 0"), "NCCL needs a GPU"),
    Impossible(parse_condition("nodes > world_size"), "each node needs a rank"),
)


@dataclass(frozen=True)
class Expansion:
    """An expanded matrix."""

    matrix: Matrix
    cells: tuple[Cell, ...]  # every cell, in the order of the axes and of their values

    @cached_property
    def by_id(self) -> Mapping[str, Cell]:
        """The cells by id."""
        return {cell.id: cell for cell in self.cells}

    @cached_property
    def dropped(self) -> Mapping[Rule, Sequence[Cell]]:
        """The excluded combinations of the axes, grouped by the first rule that applies to them."""
        space, found = Space(self.matrix.axes), {}
        left = space.everywhere
        for rule in self.matrix.excludes:
            excluded = left & rule.when.points(space)
            found[rule] = _cells(space, excluded)
            left &= ~excluded
        return found


def expand(matrix: Matrix) -> Expansion:
    """Find the cells of a matrix: every combination of its axes, except the excluded ones.

    Raises:
        MatrixError: There are too many combinations, none is left, or a cell can never run.
    """
    size = _checked_size(matrix)
    space = Space(matrix.axes)
    left = space.everywhere
    for rule in matrix.excludes:
        left &= ~rule.when.points(space)
    _check_possible(matrix, space, left)
    if not left:
        why = f"The rules of [[matrix.exclude]] drop all {size} combinations of the axes."
        raise _matrix_error(matrix, "no cell is left", "Remove a rule, or add a value to an axis.", why)
    return Expansion(matrix, _cells(space, left))


def _cells(space: Space, points: Points) -> tuple[Cell, ...]:
    return tuple(map(Cell.at, space.values_at(points)))


def _checked_size(matrix: Matrix) -> int:
    """The number of combinations, unless there are too many."""
    size = prod(len(values) for values in matrix.axes.values())
    if size > MOST_POINTS:
        axes = " x ".join(f"{axis} {len(values):,}" for axis, values in matrix.axes.items() if values != (NO_TORCH,))
        why = f"Values per axis: {axes}; the limit is {MOST_POINTS:,} combinations."
        raise _matrix_error(matrix, f"{size:,} combinations are too many to expand", "Shorten the longest axis.", why)
    return size


def _check_possible(matrix: Matrix, space: Space, left: Points) -> None:
    """Reject cells that no host can run: the file must exclude them, with a reason."""
    for impossible in IMPOSSIBLE:
        allowed = 0
        for rule in matrix.env:
            points = rule.when.points(space) if rule.when else space.everywhere
            if impossible.unless in rule.set:
                allowed = allowed | points if rule.set[impossible.unless] == "1" else allowed & ~points
        if found := left & impossible.when.points(space) & ~allowed:
            first, others = Cell.at(next(space.values_at(found))), found.bit_count() - 1
            similar = f" ({others:,} more like it)" if others else ""
            why = f"{impossible.reason[0].upper()}{impossible.reason[1:]}."
            if impossible.remedy and not left & ~found:
                remedy = impossible.remedy.format(sizes=list(matrix.axes["world_size"]))
                raise _matrix_error(matrix, f"no cell of this matrix can ever run: {first.id}{similar}", remedy, why)
            exclude = f'[[matrix.exclude]]  when = "{impossible.when.source}"  reason = "{impossible.reason}"'
            remedy = f"Exclude it:  {exclude}\n{impossible.note}".rstrip()
            raise _matrix_error(matrix, f"the cell {first.id} can never run{similar}", remedy, why)


def _matrix_error(matrix: Matrix, what: str, remedy: str, why: str) -> MatrixError:
    return MatrixError(f"{location(matrix.path, matrix.line, 'matrix')}: {what}.", why=why, remedy=remedy)
