"""From a matrix to its cells, and for every other point the rule that dropped it."""

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
"""More combinations than a real matrix has: they take seconds to expand, and a larger number is a typing error."""


@dataclass(frozen=True)
class Impossible:
    """Cells that no host can run, and the rule that excludes them."""

    when: Condition
    reason: str
    instead: str = ""  # what to change if no cell is left without them; {sizes} are those of the matrix
    unless: str = ""  # a variable that makes them possible if the file sets it to 1; empty for none
    remark: str = ""  # how it does so, for the error message


SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Lets NCCL put several ranks on one GPU (experimental in 2.30; older versions reject at run time)."""

IMPOSSIBLE = (
    Impossible(
        parse_condition("backend == 'nccl' and gpu_count < world_size"),
        "NCCL needs a GPU for each rank",
        instead="Give the cells GPUs, as many as they have ranks:  gpu_count = {sizes}",
        unless=SHARED_GPU_VARIABLE,
        remark=f'NCCL 2.30 can share GPUs, as an experiment: [[env]]  set = {{ {SHARED_GPU_VARIABLE} = "1" }}',
    ),
    Impossible(parse_condition("backend == 'nccl' and gpu_count == 0"), "NCCL needs a GPU"),
    Impossible(parse_condition("nodes > world_size"), "each node needs a rank"),
)


@dataclass(frozen=True)
class Expansion:
    """A matrix, expanded."""

    matrix: Matrix
    cells: tuple[Cell, ...]  # every cell, in the order of the axes and of their values

    @cached_property
    def by_id(self) -> Mapping[str, Cell]:
        """The cells by id."""
        return {cell.id: cell for cell in self.cells}

    @cached_property
    def dropped(self) -> Mapping[Rule, Sequence[Cell]]:
        """The other combinations of the axes, each under the first rule that applies to it, in the file's order."""
        space, found = Space(self.matrix.axes), {}
        left = space.everywhere
        for rule in self.matrix.excludes:
            hit = left & rule.when.points(space)
            found[rule] = _cells(space, hit)
            left &= ~hit
        return found


def expand(matrix: Matrix) -> Expansion:
    """Expands a matrix: every combination of its axes, minus the excluded ones.

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
        why = f"The excludes drop all {size} combinations of the axes."
        raise _matrix_error(matrix, "no cell is left", "Remove an exclude, or add a value to an axis.", why)
    return Expansion(matrix, _cells(space, left))


def _cells(space: Space, points: Points) -> tuple[Cell, ...]:
    return tuple(map(Cell.at, space.values_at(points)))


def _checked_size(matrix: Matrix) -> int:
    """The number of combinations, unless there are too many."""
    size = prod(len(values) for values in matrix.axes.values())
    if size > MOST_POINTS:
        axes = " x ".join(f"{axis} {len(values):,}" for axis, values in matrix.axes.items() if values != (NO_TORCH,))
        why = f"The axes have {axes} values; {MOST_POINTS:,} combinations are the limit."
        raise _matrix_error(matrix, f"{size:,} combinations are too many to expand", "Shorten the longest axis.", why)
    return size


def _check_possible(matrix: Matrix, space: Space, left: Points) -> None:
    """Refuses cells that no host can run: the file must exclude them, with a reason."""
    for impossible in IMPOSSIBLE:
        allowed = 0
        for rule in matrix.env:
            there = rule.when.points(space) if rule.when else space.everywhere
            if impossible.unless in rule.set:
                allowed = allowed | there if rule.set[impossible.unless] == "1" else allowed & ~there
        if bad := left & impossible.when.points(space) & ~allowed:
            first, others = Cell.at(next(space.values_at(bad))), bad.bit_count() - 1
            like_it = f", and {others:,} others like it" if others else ""
            why = f"{impossible.reason[0].upper()}{impossible.reason[1:]}."
            if impossible.instead and not left & ~bad:
                remedy = impossible.instead.format(sizes=list(matrix.axes["world_size"]))
                raise _matrix_error(matrix, f"no cell of this matrix can ever run: {first.id}{like_it}", remedy, why)
            exclude = f'[[matrix.exclude]]  when = "{impossible.when.source}"  reason = "{impossible.reason}"'
            raise _matrix_error(
                matrix,
                f"the cell {first.id} can never run{like_it}",
                f"Add an exclude:  {exclude}\n{impossible.remark}".rstrip(),
                why=why,
            )


def _matrix_error(matrix: Matrix, what: str, remedy: str, why: str) -> MatrixError:
    return MatrixError(f"{location(matrix.path, matrix.line, 'matrix')}: {what}.", why=why, remedy=remedy)
