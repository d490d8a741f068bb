"""``allranks history``, ``compare`` and ``show``, and the record of what became of each test in earlier runs."""

import argparse
import os.path
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.command_parser import OptionGroup
from allranks.cli.options import writable_file
from allranks.errors import AllranksError
from allranks.matrix.declaration import find_matrix, load
from allranks.plugin_manager import CAN_FAIL, Command, implements

if TYPE_CHECKING:
    from allranks.matrix.model import Matrix
    from allranks.report.section import SectionMaker

_DEFAULTS = {"run": " (default: [history] file)", "merge": " (default: none)", "report": " (default: none)"}


def file_of(matrix: "Matrix | None") -> Path | None:
    """The file of ``[history]`` in the matrix file; None without that table."""
    table = matrix.tables.get("history") if matrix else None
    return matrix.root / table["file"] if matrix and table else None


def matrix_here(path: Path | None = None) -> "Matrix | None":
    """The matrix at a path, or that of this folder or of the nearest parent that has one; None if it cannot be read."""
    with suppress(AllranksError):
        return load(path or find_matrix(Path.cwd())).matrix
    return None


@implements
def allranks_commands() -> Sequence[Command]:
    """Add the three commands."""
    from allranks.plugins.history import command, compare, show  # noqa: PLC0415 - only for a command line

    return (
        Command("history", command.add, CAN_FAIL, "show what became of a test over runs and cells"),
        Command("compare", compare.add, CAN_FAIL, "show what differs between two runs, torch versions or cells"),
        Command("show", show.add, CAN_FAIL, "show the tests of a JUnit report, of allranks or of another writer"),
    )


@implements
def allranks_options(command: str, groups: Mapping[str, OptionGroup]) -> None:
    """Add ``--history``."""
    meaning = f"record the run in this file, and report what is new, fixed or flaky{_DEFAULTS.get(command, '')}"
    groups["results"].add_argument("--history", type=writable_file, metavar="FILE", help=meaning)


@implements
def allranks_sections(options: argparse.Namespace, matrix: "Matrix | None") -> "Sequence[SectionMaker]":
    """Record the run in the file that the command line names, or else in that of the matrix file."""
    given = vars(options)
    path = given.get("history")
    # The parts of a run on several machines are recorded where they are merged; repetitions of a test are no run.
    if path is None and not given.get("pack") and "stress" not in given.get("plugins", ()):
        path = file_of(matrix)
    if path is None:
        return ()
    from allranks.plugins.history.recorder import HistoryRecorder  # noqa: PLC0415 - only for a report

    matrix = matrix or matrix_here()  # a merge has none
    return (HistoryRecorder(path, keep=_kept_in(path, matrix)),)


def _kept_in(path: Path, matrix: "Matrix | None") -> int | None:
    """How many runs the matrix file says are kept in a history; None if it is not the history of this matrix file."""
    own = file_of(matrix)
    if matrix is None or own is None or os.path.realpath(path) != os.path.realpath(own):
        return None
    runs: int = matrix.tables["history"]["runs"]
    return runs
