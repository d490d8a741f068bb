"""From a matrix to its cells, and for every other point the rule that dropped it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import overload

from allranks.errors import MatrixError
from allranks.matrix.axes import AXES, NO_TORCH, AxisValue
from allranks.matrix.document import place
from allranks.matrix.grid import Grid, Point, PointSet
from allranks.matrix.model import Cell, Include, Matrix, Rule
from allranks.matrix.when import Condition, parse_condition

MOST_POINTS = 20_000_000
"""More combinations than any machine tests; beyond them only a typing error is left as an explanation."""


@dataclass(frozen=True)
class Impossible:
    """Cells that no host can run, and the rule that would leave them out.

    Attributes:
        unless: A variable that makes them possible where the file sets it to 1; empty for none.
        remark: How, for who is told that they cannot run.
    """

    when: Condition
    reason: str
    unless: str = ""
    remark: str = ""


SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Has NCCL put several ranks on one GPU (2.30, an experiment; older ones refuse at run time)."""

IMPOSSIBLE = (
    Impossible(
        parse_condition("backend == 'nccl' and gpu_count < world_size"),
        "NCCL needs a GPU for each rank",
        unless=SHARED_GPU_VARIABLE,
        remark=f'NCCL 2.30 can share GPUs, as an experiment: [[env]]  set = {{ {SHARED_GPU_VARIABLE} = "1" }}',
    ),
    Impossible(parse_condition("backend == 'nccl' and gpu_count == 0"), "NCCL needs a GPU"),
    Impossible(parse_condition("nodes > world_size"), "each node needs a rank"),
)


class Cells(Sequence[Cell]):
    """Cells in matrix order, made when they are asked for: a million of them cost nothing until then.

    Args:
        grid: The matrix's points.
        chosen: Those of them that are cells here.
        included: Cells beyond the grid's, after the others.
    """

    def __init__(self, grid: Grid, chosen: PointSet, included: tuple[Cell, ...]) -> None:
        self._grid = grid
        self._chosen = chosen
        self._included = included

    def __len__(self) -> int:
        """The number of cells."""
        return self._chosen.bit_count() + len(self._included)

    def __iter__(self) -> Iterator[Cell]:
        """The cells, each made as it comes."""
        return chain((cell_at(point) for point in self._grid.points(self._chosen)), self._included)

    def __contains__(self, cell: object) -> bool:
        """Whether the cell is one of these; looked up, not searched for."""
        if not isinstance(cell, Cell):
            return False
        number = self._grid.index(cell.axes())
        return cell in self._included or (number is not None and bool(self._chosen >> number & 1))

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Cell, ...]: ...
    def __getitem__(self, index: int | slice) -> Cell | tuple[Cell, ...]:
        """The cell at a position, or those at several."""
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return tuple(self[position] for position in positions)
        if positions < len(self._numbers):
            return cell_at(self._grid.point(self._numbers[positions]))
        return self._included[positions - len(self._numbers)]

    def __repr__(self) -> str:
        """Their number: a list of them could be very long."""
        return f"<{len(self)} cells>"

    @cached_property
    def _numbers(self) -> Sequence[int]:
        return tuple(self._grid.numbers(self._chosen))


@dataclass(frozen=True)
class Dropped:
    """What one rule took out: the points at which it was the first to hold."""

    rule: Rule
    points: PointSet = field(repr=False)


@dataclass(frozen=True)
class Expansion:
    """A matrix, expanded.

    Attributes:
        matrix: What was expanded.
        grid: Every combination of the axes.
        kept: The combinations that are cells.
        removed: The others, by the rule that dropped them, in the file's order.
    """

    matrix: Matrix
    grid: Grid
    kept: PointSet = field(repr=False)  # Python refuses to write out numbers of this size
    removed: tuple[Dropped, ...]

    @cached_property
    def cells(self) -> Cells:
        """Every cell, in the order of the axes and of the values on them; the included ones last."""
        return Cells(self.grid, self.kept, tuple(include.cell for include in self.matrix.includes))

    @property
    def dropped_by(self) -> Mapping[Rule, int]:
        """How many points each rule dropped; zero for a rule that came too late or never holds."""
        return {dropped.rule: dropped.points.bit_count() for dropped in self.removed}

    def why_dropped(self, values: Mapping[str, AxisValue]) -> Rule | None:
        """The rule that dropped a point (a value on every axis); None for a cell or a point beyond the axes."""
        number = self.grid.index(values)
        if number is None:
            return None
        return next((dropped.rule for dropped in self.removed if dropped.points >> number & 1), None)

    def dropped(self) -> Iterator[tuple[Cell, Rule]]:
        """Each dropped point with the rule that dropped it, rule by rule."""
        for dropped in self.removed:
            for point in self.grid.points(dropped.points):
                yield cell_at(point), dropped.rule


def expand(matrix: Matrix) -> Expansion:
    """Expands a matrix: every combination of its axes, less what is excluded, and then what is included.

    Raises:
        MatrixError: There are too many combinations, none is left, a cell can never run, or an included cell
            is there already.
    """
    _check_size(matrix)
    grid = Grid({axis: tuple(values) for axis, values in _all_axes(matrix).items()})
    kept, removed = _excluded(matrix, grid)
    included = _included(matrix, grid, kept)
    removed = tuple(Dropped(dropped.rule, dropped.points & ~included) for dropped in removed)
    expansion = Expansion(matrix, grid, kept, removed)
    _check_possible(expansion)
    if not expansion.cells:
        why = f"The excludes drop all {grid.size} combinations of the axes."
        raise matrix_error(matrix, "no cell is left", "Take away an exclude, or add a value to an axis.", why)
    return expansion


def cell_at(point: Point) -> Cell:
    """The cell with these values, which are in axis order."""
    backend, world_size, gpu_count, init_method, nodes, torch = point
    return Cell(
        backend=str(backend),
        world_size=int(world_size),
        gpu_count=int(gpu_count),
        init_method=str(init_method),
        nodes=int(nodes),
        torch=str(torch),
    )


def matrix_error(matrix: Matrix, what: str, remedy: str, why: str = "") -> MatrixError:
    """An error about the cells of a matrix as a whole."""
    return MatrixError(f"{place(matrix.path, matrix.line, 'matrix')}: {what}.", why=why, remedy=remedy)


def _all_axes(matrix: Matrix) -> Mapping[str, tuple[AxisValue, ...]]:
    """The values on each axis, in axis order; the one that a matrix may do without has none but its absence."""
    return {axis: matrix.axes.get(axis, (NO_TORCH,)) if axis == "torch" else matrix.axes[axis] for axis in AXES}


def _check_size(matrix: Matrix) -> None:
    size = prod(len(values) for values in matrix.axes.values())
    if size > MOST_POINTS:
        axes = " x ".join(f"{axis} {len(values):,}" for axis, values in matrix.axes.items() if values != (NO_TORCH,))
        why = f"The axes have {axes} values; {MOST_POINTS:,} combinations are the limit."
        raise matrix_error(matrix, f"{size:,} combinations are too many to expand", "Shorten the longest axis.", why)


def _excluded(matrix: Matrix, grid: Grid) -> tuple[PointSet, tuple[Dropped, ...]]:
    """The points that no rule drops, and for each rule those at which it is the first to hold."""
    left, removed = grid.full, list[Dropped]()
    for rule in matrix.excludes:
        removed.append(Dropped(rule, left & grid.where(rule.when)))
        left ^= removed[-1].points
    return left, tuple(removed)


def _included(matrix: Matrix, grid: Grid, kept: PointSet) -> PointSet:
    """The points of the grid that an include brings back."""
    points, seen = 0, set[Cell]()
    for include in matrix.includes:
        number = grid.index(include.cell.axes())
        if include.cell in seen or (number is not None and kept >> number & 1):
            raise _include_error(matrix, include, "is in the matrix already", "Remove the include.")
        seen.add(include.cell)
        points |= 0 if number is None else 1 << number
    return points


def _check_possible(expansion: Expansion) -> None:
    """Refuses cells that no host can run: they belong out of the file, where the reader sees why."""
    for impossible in IMPOSSIBLE:
        bad = expansion.grid.where(impossible.when) & expansion.kept & ~_made_possible(expansion, impossible)
        if bad:
            raise _impossible(expansion, impossible, bad)
        for include in expansion.matrix.includes:
            environment = expansion.matrix.environment_of(include.cell)
            if impossible.when.holds(include.cell.axes()) and environment.get(impossible.unless) != "1":
                what = f"can never run: {impossible.reason}"
                raise _include_error(expansion.matrix, include, what, "Remove the include, or change its numbers.")


def _made_possible(expansion: Expansion, impossible: Impossible) -> PointSet:
    """The points at which the file sets the variable to 1; of two rules the later wins."""
    points = 0
    for rule in expansion.matrix.env:
        if impossible.unless in rule.set:
            there = expansion.grid.where(rule.when)
            points = points | there if rule.set[impossible.unless] == "1" else points & ~there
    return points


def _impossible(expansion: Expansion, impossible: Impossible, bad: PointSet) -> MatrixError:
    cell = cell_at(next(expansion.grid.points(bad)))
    others = f", and {bad.bit_count() - 1:,} others like it" if bad.bit_count() > 1 else ""
    remedy = f'Add an exclude:  [[matrix.exclude]]  when = "{impossible.when.source}"  reason = "{impossible.reason}"'
    return matrix_error(
        expansion.matrix,
        f"the cell {cell.id} can never run{others}",
        f"{remedy}\n{impossible.remark}".rstrip(),
        why=f"{impossible.reason[0].upper()}{impossible.reason[1:]}.",
    )


def _include_error(matrix: Matrix, include: Include, what: str, remedy: str) -> MatrixError:
    where = place(matrix.path, include.line, "matrix.include")
    return MatrixError(f"{where}: the cell {include.cell.id} {what}.", remedy=remedy)
