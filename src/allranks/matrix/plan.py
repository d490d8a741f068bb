"""From cells to jobs: which suite runs where, in which image and with which environment."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path

from allranks.errors import MatrixError, UsageError
from allranks.matrix.document import place
from allranks.matrix.expand import Expansion, cell_at
from allranks.matrix.model import Cell, Image, Job, Matrix, Suite
from allranks.matrix.suggest import did_you_mean
from allranks.matrix.when import Condition

NO_PATHS_AFTER = ("-k", "-m", "-c", "--deselect", "--ignore", "--ignore-glob")
"""Options of pytest whose value can look like a path, and asks for no test."""


def plan(matrix: Matrix, cells: Iterable[Cell], suite_names: Sequence[str] | None = None) -> tuple[Job, ...]:
    """The jobs of some cells, cell by cell and for each the suites in the file's order.

    Args:
        matrix: The declaration.
        cells: What to run, for example ``expand(matrix).cells`` or a selection of them.
        suite_names: The suites to run; None for those that run by default.

    Raises:
        UsageError: There is no suite of that name.
        MatrixError: A cell has no image, or more than one.
    """
    suites = chosen_suites(matrix, suite_names)
    return tuple(job for cell in cells for job in _jobs(matrix, cell, suites))


def chosen_suites(matrix: Matrix, names: Sequence[str] | None = None) -> tuple[Suite, ...]:
    """The suites of these names in the file's order; for None, those that run by default.

    Raises:
        UsageError: There is no suite of that name.
    """
    for name in names or ():
        if name not in matrix.suites:
            raise UsageError(what=f"There is no suite {name!r}.", remedy=did_you_mean(name, matrix.suites))
    return tuple(suite for suite in matrix.suites.values() if (suite.default if names is None else suite.name in names))


def unnamed_suites(matrix: Matrix, cells: Iterable[Cell]) -> tuple[Suite, ...]:
    """The suites that would run in one of these cells if they were named, and do not run by default."""
    points = [cell.axes() for cell in cells]
    waiting = [suite for suite in matrix.suites.values() if not suite.default]
    return tuple(suite for suite in waiting if any(_holds(suite.when, values) for values in points))


def suites_holding(matrix: Matrix, pytest_args: Sequence[str]) -> tuple[str, ...]:
    """The suites that hold a path or a test which pytest is asked for, as the report names it.

    Args:
        matrix: The declaration.
        pytest_args: What follows ``--`` on the command line.
    """
    asked = [argument for before, argument in pairwise(("", *pytest_args)) if before not in NO_PATHS_AFTER]
    paths = [Path(argument.partition("::")[0]) for argument in asked if not argument.startswith("-")]
    # The value of any other option is told from a path by what is there.
    there = [path for path in paths if (matrix.root / path).exists()]
    held = (suite for suite in matrix.suites.values() if any(path.is_relative_to(suite.path) for path in there))
    return tuple(suite.name for suite in held)


def image_for(matrix: Matrix, cell: Cell) -> Image:
    """The one image of a cell.

    Raises:
        MatrixError: No ``[images.NAME]`` holds for the cell, or more than one does.
    """
    values = cell.axes()
    images = [image for image in matrix.images.values() if _holds(image.when, values)]
    if len(images) != 1:
        raise _image_error(matrix, cell, images)
    return images[0]


def environment_for(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """The variables that the file sets for a cell; of two rules for one variable the later wins."""
    values = cell.axes()
    environment: dict[str, str] = {}
    for rule in matrix.env:
        if _holds(rule.when, values):
            environment.update(rule.set)
    return environment


def check_images(expansion: Expansion) -> None:
    """Sees to it that each cell has exactly one image.

    Raises:
        MatrixError: For the first cell that has none, or more than one.
    """
    some = several = 0
    for image in expansion.matrix.images.values():
        points = expansion.grid.where(image.when)
        several |= some & points
        some |= points
    bad = (several | ~some) & expansion.kept
    wrong = (cell_at(point) for point in expansion.grid.points(bad))
    for cell in chain(wrong, (include.cell for include in expansion.matrix.includes)):
        image_for(expansion.matrix, cell)


def _jobs(matrix: Matrix, cell: Cell, suites: Iterable[Suite]) -> list[Job]:
    values = cell.axes()
    running = [suite for suite in suites if _holds(suite.when, values)]
    image, environment = image_for(matrix, cell), environment_for(matrix, cell)
    return [Job(cell=cell, suite=suite, image=image, environment=environment) for suite in running]


def _holds(condition: Condition | None, values: Mapping[str, str | int]) -> bool:
    return condition is None or condition.holds(values)


def _image_error(matrix: Matrix, cell: Cell, images: Sequence[Image]) -> MatrixError:
    candidates = images or list(matrix.images.values())
    rules = "; ".join(_described(image) for image in candidates) or "there is no [images.NAME]"
    where = place(matrix.path, candidates[-1].line if candidates else matrix.line, "images")
    if images:
        what = f"{where}: the cell {cell.id} has {len(images)} images."
        return MatrixError(what, why=f"All of these hold: {rules}.", remedy="Make their conditions exclude each other.")
    remedy = "Add an image whose condition holds there, or widen one of these."
    return MatrixError(
        f"{where}: the cell {cell.id} has no image.", why=f"None of these holds: {rules}.", remedy=remedy
    )


def _described(image: Image) -> str:
    rule = f"when = {image.when.source!r}" if image.when else "for every cell"
    return f"images.{image.name} in line {image.line}, {rule}"
