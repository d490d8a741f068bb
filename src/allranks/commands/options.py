"""What commands share: options, their variables, the selection of jobs, and printing."""

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from allranks.engine_registry import AUTO, OWN_ENGINES, engine_names
from allranks.errors import UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, plan, suites_holding, unnamed_suites
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.select import select, select_where
from allranks.schedule.results_folder import RUN_ID_VARIABLE, new_run_id

ENGINE_VARIABLE = "ALLRANKS_ENGINE"
RESULTS_VARIABLE = "ALLRANKS_RESULTS"
GPU_MODE_VARIABLE = "ALLRANKS_GPU_MODE"

_DIGITS = 18
"""Digits of the largest number accepted: more is a mistake."""

_GPU_MODES = ("auto", "nvidia", "cdi", "rocm", "none")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Declare the options that select cells and suites."""
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help="a cell's id, or dist(backend='gloo', ...); default: every cell"
    )
    parser.add_argument(
        "--where", action="append", default=[], metavar="AXIS=VALUE,...", help="cells with these values (a|b: either)"
    )
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="NAME",
        help="only this suite, or NAME@2of4: one of its shards; repeatable (default: all without `default = false`)",
    )
    parser.add_argument(
        "--matrix", type=Path, default=Path(), metavar="PATH", help="matrix.toml, or the folder that holds it"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Declare the option for where jobs run."""
    meaning = "where to run: docker where a daemon answers, else process; or an engine that a package adds"
    _add_choice(parser, "engine", ENGINE_VARIABLE, (AUTO, *OWN_ENGINES), meaning, more=engine_names)


def add_gpu_mode(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the vendor and mode of GPUs."""
    _add_choice(parser, "GPU mode", GPU_MODE_VARIABLE, _GPU_MODES, "whose GPUs, and how containers are given them")


def _add_choice(  # noqa: PLR0913 - all but one are always given
    parser: argparse.ArgumentParser,
    what: str,
    variable: str,
    names: Sequence[str],
    meaning: str,
    *,
    more: Callable[[], Sequence[str]] = tuple,
) -> None:
    """An option that a variable can set too; the default is the first of the names, and `more` looks for others."""

    def named(name: str) -> str:
        # argparse does not check defaults against `choices`, and this one comes from the environment.
        if name not in names and name not in (found := more()):
            msg = f"{name!r} is no {what}: choose from {', '.join(dict.fromkeys((*names, *found)))}"
            raise argparse.ArgumentTypeError(msg)
        return name

    parser.add_argument(
        f"--{what.lower().replace(' ', '-')}",
        type=named,
        metavar="|".join(names),
        default=os.environ.get(variable) or names[0],
        help=f"{meaning} (default: ${variable}, or {names[0]})",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the results folder."""
    parser.add_argument(
        "--results",
        type=Path,
        default=os.environ.get(RESULTS_VARIABLE) or None,
        metavar="DIR",
        help=f"folder of all runs (default: ${RESULTS_VARIABLE}, or results beside the matrix file)",
    )


def existing_file(text: str) -> Path:
    """Parse the path of a file that a command reads.

    Raises:
        argparse.ArgumentTypeError: There is none.
    """
    return _checked(text, Path.is_file, "there is no file {}")


def existing_folder(text: str) -> Path:
    """Parse the path of a folder that a command reads.

    Raises:
        argparse.ArgumentTypeError: There is none.
    """
    return _checked(text, Path.is_dir, "there is no folder {}")


def writable_file(text: str) -> Path:
    """Parse the path of a file that a command writes, and perhaps creates.

    Raises:
        argparse.ArgumentTypeError: It is a folder, or its folder does not exist.
    """
    return _checked(text, lambda path: path.parent.is_dir() and not path.is_dir(), "{} cannot be a file")


def _checked(text: str, is_right: Callable[[Path], bool], otherwise: str) -> Path:
    try:
        if text and is_right(Path(text)):
            return Path(text)
    except (OSError, ValueError) as error:
        msg = f"{text!r} cannot be used: {error}"
        raise argparse.ArgumentTypeError(msg) from error
    raise argparse.ArgumentTypeError(otherwise.format(repr(text)))


def number(text: str) -> int:
    """Parse a number that is not negative.

    Raises:
        argparse.ArgumentTypeError: The text is not such a number.
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS:
        msg = f"{text!r} is no number: take 0 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def run_id() -> str:
    """The name of the run: from the environment, else a new one.

    Raises:
        UsageError: The name in the environment cannot name a folder and containers.
    """
    run_id = os.environ.get(RUN_ID_VARIABLE) or new_run_id()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", run_id):
        msg = f"{RUN_ID_VARIABLE} is {run_id!r}, and names a folder and containers."
        raise UsageError(msg, remedy="Use letters, digits, '_', '.' and '-', or leave it unset.")
    return run_id


def chosen_jobs(expansion: Expansion, options: argparse.Namespace) -> Sequence[Job]:
    """The jobs that the command line selects; all default jobs if it selects none.

    Raises:
        UsageError: The selection is empty.
    """
    cells = selected_cells(expansion, options)
    # A suite is named with --suite, or by the path of one of its tests.
    suites = options.suite or suites_holding(expansion.matrix, options.pytest_args) or None
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


def _nothing_to_run(matrix: Matrix, cells: Sequence[Cell], suites: Sequence[str] | None) -> UsageError:
    unnamed = [suite.name for suite in unnamed_suites(matrix, cells)] if suites is None else []
    if unnamed:
        msg = "There is nothing to run: the suites of the selected cells run only when they are named."
        return UsageError(msg, remedy=f"Name some: --suite {' --suite '.join(unnamed)}")
    msg = "There is nothing to run: no suite runs in the selected cells."
    conditions = [(suite.name, suite.when.source) for suite in chosen_suites(matrix, suites) if suite.when]
    why = "; ".join(f"{name} runs where {condition}" for name, condition in conditions)
    return UsageError(msg, why=why, remedy="Select other cells: `allranks plan` lists them.")


_NOBODY_READS = (errno.EPIPE, errno.EIO)


def say(line: str) -> None:
    """Print one line; a closed pipe or terminal is not an error."""
    try:
        # One write: each of the jobs that run side by side has a thread.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        # `allranks run | head`, or a closed terminal, must not end the run: only output is lost, not the report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def remark(line: str) -> None:
    """Print a line to standard error, apart from the output meant for programs."""
    print(line, file=sys.stderr)
