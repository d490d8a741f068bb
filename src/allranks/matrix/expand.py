"""From a matrix to its cells, and for every other point the rule that dropped it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from allranks.errors import MatrixError
from allranks.matrix.axes import AXES, NO_TORCH
from allranks.matrix.model import Cell, Include, Matrix, Rule
from allranks.matrix.toml_file import place
from allranks.matrix.when import Condition, parse_condition

MOST_POINTS = 200_000
"""More combinations than a real matrix has: they take seconds to expand, and a larger number is a typing error."""


@dataclass(frozen=True)
class Impossible:
    """Cells that no host can run, and the rule that excludes them."""

    when: Condition
    reason: str
    unless: str = ""  # a variable that makes them possible if the file sets it to 1; empty for none
    remark: str = ""  # how it does so, for the error message


SHARED_GPU_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Lets NCCL put several ranks on one GPU (experimental in 2.30; older versions refuse at run time)."""

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


@dataclass(frozen=True)
class Expansion:
    """A matrix, expanded."""

    matrix: Matrix
    cells: tuple[Cell, ...]  # every cell, in the order of the axes and of their values; the included ones last
    # The other combinations of the axes, each under the first rule that applies to it, in the file's order.
    dropped: Mapping[Rule, Sequence[Cell]]

    @cached_property
    def by_id(self) -> Mapping[str, Cell]:
        """The cells by id."""
        return {cell.id: cell for cell in self.cells}


def expand(matrix: Matrix) -> Expansion:
    """Expands a matrix: every combination of its axes, minus the excluded cells, plus the included ones.

    Raises:
        MatrixError: There are too many combinations, none is left, a cell can never run, or an included cell
            already exists.
    """
    size = _checked_size(matrix)
    kept, dropped = list[Cell](), {rule: list[Cell]() for rule in matrix.excludes}
    included = {include.cell for include in matrix.includes}
    for cell in map(Cell.at, product(*(matrix.axes[axis] for axis in AXES))):
        rule = next((rule for rule in matrix.excludes if cell.matches(rule.when)), None)
        if rule is None:
            kept.append(cell)
        elif cell not in included:
            dropped[rule].append(cell)
    _check_includes(matrix, kept)
    _check_possible(matrix, kept)
    cells = (*kept, *(include.cell for include in matrix.includes))
    if not cells:
        why = f"The excludes drop all {size} combinations of the axes."
        raise _matrix_error(matrix, "no cell is left", "Remove an exclude, or add a value to an axis.", why)
    return Expansion(matrix, cells, dropped)


def _checked_size(matrix: Matrix) -> int:
    """The number of combinations, unless there are too many."""
    size = prod(len(values) for values in matrix.axes.values())
    if size > MOST_POINTS:
        axes = " x ".join(f"{axis} {len(values):,}" for axis, values in matrix.axes.items() if values != (NO_TORCH,))
        why = f"The axes have {axes} values; {MOST_POINTS:,} combinations are the limit."
        raise _matrix_error(matrix, f"{size:,} combinations are too many to expand", "Shorten the longest axis.", why)
    return size


def _check_includes(matrix: Matrix, kept: Sequence[Cell]) -> None:
    seen = set(kept)
    for include in matrix.includes:
        if include.cell in seen:
            raise _include_error(matrix, include, "is in the matrix already", "Remove the include.")
        seen.add(include.cell)


def _check_possible(matrix: Matrix, kept: Sequence[Cell]) -> None:
    """Refuses cells that no host can run: the file must exclude them, with a reason."""
    for impossible in IMPOSSIBLE:
        if bad := [cell for cell in kept if _never_runs(matrix, cell, impossible)]:
            raise _impossible(matrix, impossible, bad)
        for include in matrix.includes:
            if _never_runs(matrix, include.cell, impossible):
                what = f"can never run: {impossible.reason}"
                raise _include_error(matrix, include, what, "Remove the include, or change its numbers.")


def _never_runs(matrix: Matrix, cell: Cell, impossible: Impossible) -> bool:
    return cell.matches(impossible.when) and matrix.environment_of(cell).get(impossible.unless) != "1"


def _impossible(matrix: Matrix, impossible: Impossible, bad: Sequence[Cell]) -> MatrixError:
    others = f", and {len(bad) - 1:,} others like it" if len(bad) > 1 else ""
    remedy = f'Add an exclude:  [[matrix.exclude]]  when = "{impossible.when.source}"  reason = "{impossible.reason}"'
    return _matrix_error(
        matrix,
        f"the cell {bad[0].id} can never run{others}",
        f"{remedy}\n{impossible.remark}".rstrip(),
        why=f"{impossible.reason[0].upper()}{impossible.reason[1:]}.",
    )


def _matrix_error(matrix: Matrix, what: str, remedy: str, why: str) -> MatrixError:
    return MatrixError(f"{place(matrix.path, matrix.line, 'matrix')}: {what}.", why=why, remedy=remedy)


def _include_error(matrix: Matrix, include: Include, what: str, remedy: str) -> MatrixError:
    where = place(matrix.path, include.line, "matrix.include")
    return MatrixError(f"{where}: the cell {include.cell.id} {what}.", remedy=remedy)
