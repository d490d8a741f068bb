"""``allranks history``, ``compare`` and ``show``, and the record of what became of each test in earlier runs."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.parser import option, writable_file
from allranks.cli.variables import PACK_VARIABLE
from allranks.errors import AllranksError, ExitCode
from allranks.plugin_manager import CAN_FAIL, Command, implements
from allranks.plugins.history.keys import HISTORY_FILE, History

if TYPE_CHECKING:
    from allranks.cli.parser import CommandOptions
    from allranks.matrix.model import Matrix
    from allranks.report.section import SectionMaker

WORSE = "B fails, lacks or skips a test that A did not"

_COMPARE_CODES = {**CAN_FAIL, ExitCode.OK: "B is not worse than A", ExitCode.TESTS_FAILED: WORSE}


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """What ``allranks report`` has of this plug-in."""

    history: Path | None = option(
        "--history FILE",
        "what is written",
        "record the run in this file, and report what is new, fixed or flaky (default: none)",
        type=writable_file,
    )


def file_of(matrix: "Matrix | None") -> Path | None:
    """The file of a matrix file's history; None without ``[history]``."""
    return matrix.root / HISTORY_FILE if matrix and "history" in matrix.tables else None


def matrix_here(path: Path | None = None) -> "Matrix | None":
    """The matrix at a path, or that of this folder or of the nearest parent that has one; None if it cannot be read."""
    from allranks.matrix.declaration import find_matrix, load  # noqa: PLC0415 - hooks are imported by many commands

    with suppress(AllranksError):
        return load(path or find_matrix(Path.cwd())).matrix
    return None


@implements
def allranks_commands() -> Sequence[Command]:
    """Add the three commands."""
    package = "allranks.plugins.history"
    return (
        Command("history", f"{package}.command", CAN_FAIL, "show the outcomes of a test over runs and cells"),
        Command("compare", f"{package}.compare", _COMPARE_CODES, "show what differs between two runs or cells"),
        Command("show", f"{package}.show", CAN_FAIL, "show the tests of a JUnit report, of any writer"),
    )


@implements
def allranks_options(command: str) -> type | None:
    """Add ``--history`` to ``report``; runs have it in the matrix file."""
    return HistoryOptions if command == "report" else None


@implements
def allranks_sections(options: "CommandOptions", matrix: "Matrix | None") -> "Sequence[SectionMaker]":
    """Record a report in the file that the command line names, and a run in that of the matrix file."""
    given = options.added.get(HistoryOptions)
    path = given.history if given else None
    # The parts of a run on several machines are recorded where they are merged; repetitions of a test are no run.
    if matrix and not os.environ.get(PACK_VARIABLE) and "stress" not in getattr(options, "plugins", ()):
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
    table: History = matrix.tables["history"]
    return table.runs
