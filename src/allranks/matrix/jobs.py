"""Turns cells into jobs, each with its suite, image and environment."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from allranks.errors import UsageError, did_you_mean
from allranks.matrix.cell_images import image_for
from allranks.matrix.model import Cell, Job, Matrix, Shard, Suite

Shards = Sequence[tuple[Suite, Sequence[Shard | None]]]
"""The suites to run, and the shards of each."""

NO_PATHS_AFTER = ("-k", "-m", "-c", "--deselect", "--ignore", "--ignore-glob")
"""Options of pytest whose value can look like a path but does not select tests."""


def plan(matrix: Matrix, cells: Iterable[Cell], suite_names: Sequence[str] | None = None) -> tuple[Job, ...]:
    """The jobs of some cells, in the order of the cells, then of the suites in the file.

    Args:
        matrix: The matrix.
        cells: The cells.
        suite_names: Names of suites or shards (``NAME@2of4``); None for the suites that run by default.
    """
    shards = [(suite, chosen_shards(suite, suite_names)) for suite in chosen_suites(matrix, suite_names)]
    return tuple(job for cell in cells for job in _jobs(matrix, cell, shards))


def chosen_suites(matrix: Matrix, names: Sequence[str] | None = None) -> tuple[Suite, ...]:
    """The suites that names of suites or shards select, in the file's order; without names, the default suites."""
    chosen = {_suite_name(matrix, name) for name in names or ()}
    return tuple(
        suite for suite in matrix.suites.values() if (suite.default if names is None else suite.name in chosen)
    )


def chosen_shards(suite: Suite, names: Sequence[str] | None = None) -> tuple[Shard | None, ...]:
    """The selected shards of a suite, or all if the suite itself is selected; ``(None,)`` if it is not split."""
    shards = shards_of(suite)
    is_whole = names is None or suite.name in names
    return tuple(shard for shard in shards if is_whole or (shard and names and shard.of(suite.name) in names))


def shards_of(suite: Suite) -> tuple[Shard | None, ...]:
    """All shards of a suite; ``(None,)`` if it is not split."""
    if suite.shards == 1:
        return (None,)
    return tuple(Shard(number=number, count=suite.shards) for number in range(1, suite.shards + 1))


def _suite_name(matrix: Matrix, name: str) -> str:
    suite = matrix.suites.get(name.partition("@")[0])
    if suite is None:
        raise UsageError(what=f"There is no suite {name!r}.", remedy=did_you_mean(name, matrix.suites))
    shards = [shard.of(suite.name) for shard in shards_of(suite) if shard]
    if name not in (suite.name, *shards):
        what = f"There is no shard {name!r}."
        if not shards:
            remedy = f"{suite.name} is not split: set shards in [suites.{suite.name}] of the matrix file."
            raise UsageError(what, remedy=remedy)
        raise UsageError(what, remedy=f"{suite.name} has {len(shards)} shards, {shards[0]} to {shards[-1]}.")
    return suite.name


def optional_suites(matrix: Matrix, cells: Sequence[Cell]) -> tuple[Suite, ...]:
    """The suites that run in these cells only if ``--suite`` names them."""
    optional = [suite for suite in matrix.suites.values() if not suite.default]
    return tuple(suite for suite in optional if any(cell.matches(suite.when) for cell in cells))


def suites_with_tests(matrix: Matrix, pytest_args: Sequence[str]) -> tuple[str, ...]:
    """The suites that contain a path or a node id in the arguments of pytest."""
    arguments = [argument for before, argument in pairwise(("", *pytest_args)) if before not in NO_PATHS_AFTER]
    paths = [Path(argument.partition("::")[0]) for argument in arguments if not argument.startswith("-")]
    suites = (suite for suite in matrix.suites.values() if any(_contains(suite, matrix.root, path) for path in paths))
    return tuple(suite.name for suite in suites)


def _contains(suite: Suite, root: Path, path: Path) -> bool:
    # An argument may be the value of another option, so the path must exist.
    is_ignored = any(path.is_relative_to(ignored) for ignored in suite.ignored)
    exists = ((suite.home or root) / path).exists()
    return exists and not is_ignored and any(path.is_relative_to(suite_path) for suite_path in suite.paths)


def _jobs(matrix: Matrix, cell: Cell, shards_of_suites: Shards) -> list[Job]:
    image, environment = image_for(matrix, cell), matrix.environment_of(cell)
    return [
        Job(cell=cell, suite=suite, image=image, environment=environment, shard=shard)
        for suite, shards in shards_of_suites
        if cell.matches(suite.when)
        for shard in shards
    ]
