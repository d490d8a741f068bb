"""The cells, suites and jobs that a command line selects."""

import argparse
from collections.abc import Sequence

from allranks.errors import UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, plan, suites_holding, unnamed_suites
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.select import select, select_where


def chosen_jobs(expansion: Expansion, options: argparse.Namespace) -> Sequence[Job]:
    """What the command line selects; all that runs by default where it selects nothing.

    Raises:
        UsageError: That is nothing at all.
    """
    cells, suites = selected_cells(expansion, options), _named_suites(expansion.matrix, options)
    jobs = plan(expansion.matrix, cells, suites)
    if not jobs:
        raise _nothing_to_run(expansion.matrix, cells, suites)
    return jobs


def selected_cells(expansion: Expansion, options: argparse.Namespace) -> Sequence[Cell]:
    """The cells that the command line names: those under ``--where``, and those given by name."""
    if not options.cells and not options.where:
        return expansion.cells
    named = [cell for text in options.cells for cell in select(expansion, text)]
    found = select_where(expansion, *options.where) if options.where else ()
    return tuple(dict.fromkeys((*named, *found)))


def _named_suites(matrix: Matrix, options: argparse.Namespace) -> Sequence[str] | None:
    """The suites that the command line names, with ``--suite`` or by the path of one of their tests; None without."""
    return options.suite or suites_holding(matrix, options.pytest_args) or None


def _nothing_to_run(matrix: Matrix, cells: Sequence[Cell], suites: Sequence[str] | None) -> UsageError:
    unnamed = [suite.name for suite in unnamed_suites(matrix, cells)] if suites is None else []
    if unnamed:
        msg = "There is nothing to run: the suites of the selected cells run only when they are named."
        return UsageError(msg, remedy=f"Name some: --suite {' --suite '.join(unnamed)}")
    msg = "There is nothing to run: no suite runs in the selected cells."
    conditions = [(suite.name, suite.when.source) for suite in chosen_suites(matrix, suites) if suite.when]
    why = "; ".join(f"{name} runs where {condition}" for name, condition in conditions)
    return UsageError(msg, why=why, remedy="Select other cells: `allranks plan` lists them.")
