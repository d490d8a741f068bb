"""From cells to jobs: which suite runs where, in which image and with which environment."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from allranks.errors import UsageError, did_you_mean
from allranks.matrix.cell_images import image_for
from allranks.matrix.model import Cell, Job, Matrix, Shard, Suite

Shards = Sequence[tuple[Suite, Sequence[Shard | None]]]
"""The suites to run, each with the shards to run."""

NO_PATHS_AFTER = ("-k", "-m", "-c", "--deselect", "--ignore", "--ignore-glob")
"""Options of pytest whose value can look like a path but selects no test."""


def plan(matrix: Matrix, cells: Iterable[Cell], suite_names: Sequence[str] | None = None) -> tuple[Job, ...]:
    """The jobs of some cells, cell by cell, with the suites of each in the file's order.

    Suites are named, or one of their shards is (``NAME@2of4``); None stands for the suites that run by default.
    """
    shards = [(suite, chosen_shards(suite, suite_names)) for suite in chosen_suites(matrix, suite_names)]
    return tuple(job for cell in cells for job in _jobs(matrix, cell, shards))


def chosen_suites(matrix: Matrix, names: Sequence[str] | None = None) -> tuple[Suite, ...]:
    """The suites with these names, or shards of these names, in the file's order; None: those that run by default."""
    wanted = {_suite_called(matrix, name) for name in names or ()}
    return tuple(
        suite for suite in matrix.suites.values() if (suite.default if names is None else suite.name in wanted)
    )


def chosen_shards(suite: Suite, names: Sequence[str] | None = None) -> tuple[Shard | None, ...]:
    """The named shards of a chosen suite, or all if the suite itself is named; ``(None,)`` if it is not split."""
    shards = shards_of(suite)
    is_whole = names is None or suite.name in names
    return tuple(shard for shard in shards if is_whole or (shard and names and shard.of(suite.name) in names))


def shards_of(suite: Suite) -> tuple[Shard | None, ...]:
    """Every shard of a suite; ``(None,)`` if it is not split."""
    if suite.shards == 1:
        return (None,)
    return tuple(Shard(number=number, count=suite.shards) for number in range(1, suite.shards + 1))


def _suite_called(matrix: Matrix, name: str) -> str:
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


def unnamed_suites(matrix: Matrix, cells: Sequence[Cell]) -> tuple[Suite, ...]:
    """The suites that run in one of these cells only if they are named."""
    waiting = [suite for suite in matrix.suites.values() if not suite.default]
    return tuple(suite for suite in waiting if any(cell.matches(suite.when) for cell in cells))


def suites_holding(matrix: Matrix, pytest_args: Sequence[str]) -> tuple[str, ...]:
    """The suites that contain a path or a test given to pytest, in the report's notation."""
    asked = [argument for before, argument in pairwise(("", *pytest_args)) if before not in NO_PATHS_AFTER]
    paths = [Path(argument.partition("::")[0]) for argument in asked if not argument.startswith("-")]
    held = (suite for suite in matrix.suites.values() if any(_holds(suite, matrix.root, path) for path in paths))
    return tuple(suite.name for suite in held)


def _holds(suite: Suite, root: Path, path: Path) -> bool:
    # An argument may also be another option's value: only existing paths count.
    is_ignored = any(path.is_relative_to(ignored) for ignored in suite.ignored)
    is_there = ((suite.home or root) / path).exists()
    return is_there and not is_ignored and any(path.is_relative_to(each) for each in suite.paths)


def _jobs(matrix: Matrix, cell: Cell, shards_of_suites: Shards) -> list[Job]:
    image, environment = image_for(matrix, cell), matrix.environment_of(cell)
    return [
        Job(cell=cell, suite=suite, image=image, environment=environment, shard=shard)
        for suite, shards in shards_of_suites
        if cell.matches(suite.when)
        for shard in shards
    ]
