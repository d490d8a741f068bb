"""From cells to jobs: which suite runs where, in which image and with which environment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

from allranks.errors import MatrixError, UsageError
from allranks.matrix.axes import NO_TORCH
from allranks.matrix.document import place
from allranks.matrix.expand import Expansion, cell_at
from allranks.matrix.grid import PointSet
from allranks.matrix.model import Cell, Image, Job, Matrix, Shard, Suite
from allranks.matrix.suggest import did_you_mean
from allranks.matrix.versions import version_key
from allranks.matrix.when import Condition

Shards = Sequence[tuple[Suite, Sequence[Shard | None]]]
"""The suites to run, each with those of its shards that are to run."""
NO_PATHS_AFTER = ("-k", "-m", "-c", "--deselect", "--ignore", "--ignore-glob")
"""Options of pytest whose value can look like a path, and asks for no test."""


def plan(matrix: Matrix, cells: Iterable[Cell], suite_names: Sequence[str] | None = None) -> tuple[Job, ...]:
    """The jobs of some cells, cell by cell and for each the suites in the file's order.

    Args:
        matrix: The declaration.
        cells: What to run, for example ``expand(matrix).cells`` or a selection of them.
        suite_names: The suites to run, each with all its shards, and single shards (``NAME@2of4``); None for those that
            run by default.

    Raises:
        UsageError: There is no suite or shard of that name.
        MatrixError: A cell has no image, or more than one.
    """
    shards = [(suite, chosen_shards(suite, suite_names)) for suite in chosen_suites(matrix, suite_names)]
    return tuple(job for cell in cells for job in _jobs(matrix, cell, shards))


def chosen_suites(matrix: Matrix, names: Sequence[str] | None = None) -> tuple[Suite, ...]:
    """The suites of these names, or of shards of these names, in the file's order; for None, those that run by default.

    Raises:
        UsageError: There is no suite or shard of that name.
    """
    wanted = {_suite_called(matrix, name) for name in names or ()}
    return tuple(
        suite for suite in matrix.suites.values() if (suite.default if names is None else suite.name in wanted)
    )


def chosen_shards(suite: Suite, names: Sequence[str] | None = None) -> tuple[Shard | None, ...]:
    """The shards of a chosen suite that are among these names, all of them for its own; ``(None,)`` if it is whole."""
    shards = shards_of(suite)
    is_whole = names is None or suite.name in names
    return tuple(shard for shard in shards if is_whole or (shard and names and shard.of(suite.name) in names))


def shards_of(suite: Suite) -> tuple[Shard | None, ...]:
    """Every shard of a suite; ``(None,)`` where it is not split."""
    if suite.shards == 1:
        return (None,)
    return tuple(Shard(number=number, count=suite.shards) for number in range(1, suite.shards + 1))


def _suite_called(matrix: Matrix, name: str) -> str:
    """The suite that a name means, its own or that of one of its shards."""
    suite = matrix.suites.get(name.partition("@")[0])
    if suite is None:
        raise UsageError(what=f"There is no suite {name!r}.", remedy=did_you_mean(name, matrix.suites))
    shards = [shard.of(suite.name) for shard in shards_of(suite) if shard]
    if name not in (suite.name, *shards):
        what = f"There is no shard {name!r}."
        if not shards:
            remedy = f"{suite.name} is not split: give suites.{suite.name} its number of shards in the matrix file."
            raise UsageError(what, remedy=remedy)
        raise UsageError(what, remedy=f"{suite.name} has {len(shards)} shards, {shards[0]} to {shards[-1]}.")
    return suite.name


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
    """The one image of a cell; where it has no torch of its own, one for each version, which is in its name too.

    Raises:
        MatrixError: No ``[images.NAME]`` holds for the cell, more than one does, or it has another torch.
    """
    values = cell.axes()
    images = [image for image in matrix.images.values() if _holds(image.when, values)]
    if len(images) != 1:
        raise _image_error(matrix, cell, images)
    image = _with_torch(images[0], matrix, cell)
    return replace(image, image=matrix.finished.get(image.name, image.image))


def _with_torch(image: Image, matrix: Matrix, cell: Cell) -> Image:
    if image.image is not None or not cell.torch:
        return image
    if image.torch is not None and version_key(image.torch) != version_key(cell.torch):
        raise _torch_error(matrix, cell, image)
    return image if image.torch else replace(image, name=f"{image.name}-t{cell.torch}", torch=cell.torch)


def check_images(expansion: Expansion) -> None:
    """Sees to it that each cell has exactly one image.

    Raises:
        MatrixError: For the first cell that has none, or more than one.
    """
    some = several = other_torch = 0
    for image in expansion.matrix.images.values():
        points = expansion.grid.where(image.when)
        several |= some & points
        some |= points
        other_torch |= points & _points_of_other_torch(expansion, image)
    bad = (several | ~some | other_torch) & expansion.kept
    wrong = (cell_at(point) for point in expansion.grid.points(bad))
    for cell in chain(wrong, (include.cell for include in expansion.matrix.includes)):
        image_for(expansion.matrix, cell)


def _points_of_other_torch(expansion: Expansion, image: Image) -> PointSet:
    """The points whose torch is not the image's own."""
    if image.torch is None:
        return 0
    same = (NO_TORCH, image.torch)
    return expansion.grid.full & ~expansion.grid.restricted({"torch": same})


def _torch_error(matrix: Matrix, cell: Cell, image: Image) -> MatrixError:
    where = place(matrix.path, image.line, f"images.{image.name}")
    what = f"{where}: the cell {cell.id} would run in an image with torch {image.torch}."
    remedy = f"""Leave torch away, to have an image for each version, or add when = "torch == '{image.torch}'"."""
    return MatrixError(what, remedy=remedy)


def _jobs(matrix: Matrix, cell: Cell, shards_of_suites: Shards) -> list[Job]:
    values = cell.axes()
    image, environment = image_for(matrix, cell), matrix.environment_of(cell)
    return [
        Job(cell=cell, suite=suite, image=image, environment=environment, shard=shard)
        for suite, shards in shards_of_suites
        if _holds(suite.when, values)
        for shard in shards
    ]


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
