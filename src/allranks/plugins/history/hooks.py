"""``allranks history``, ``compare`` and ``show``, and the recording of runs in a history."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.parser import option, writable_file
from allranks.cli.variables import BATCH_VARIABLE
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
    """The options that this plug-in adds to ``allranks report``."""

    history: Path | None = option(
        "--history FILE",
        "what is written",
        "record the run in this file, and report what is new, fixed or flaky (default: none)",
        type=writable_file,
    )


def history_file(matrix: "Matrix | None") -> Path | None:
    """The file with a matrix's history; None without ``[history]``."""
    return matrix.root / HISTORY_FILE if matrix and "history" in matrix.tables else None


def matrix_here(path: Path | None = None) -> "Matrix | None":
    """The matrix at a path, or the nearest one in this folder and its parents; None if it cannot be read."""
    from allranks.matrix.declaration import find_matrix, load  # noqa: PLC0415 - hooks are imported by many commands

    with suppress(AllranksError):
        return load(path or find_matrix(Path.cwd())).matrix
    return None


@implements
def allranks_commands() -> Sequence[Command]:
    """Add ``history``, ``compare`` and ``show``."""
    package = "allranks.plugins.history"
    return (
        Command("history", f"{package}.command", CAN_FAIL, "show the outcomes of a test over runs and cells"),
        Command("compare", f"{package}.compare", _COMPARE_CODES, "show what differs between two runs or cells"),
        Command("show", f"{package}.show", CAN_FAIL, "show the tests of a JUnit report, of any writer"),
    )


@implements
def allranks_options(command: str) -> type | None:
    """Add ``--history`` to ``report``; for runs, the matrix file decides."""
    return HistoryOptions if command == "report" else None


@implements
def allranks_sections(options: "CommandOptions", matrix: "Matrix | None") -> "Sequence[SectionMaker]":
    """Record a merged report in the file that the command line names, and a run in the matrix's file."""
    given = options.added.get(HistoryOptions)
    path = given.history if given else None
    # A run on several machines is recorded when its parts are merged; repetitions of a test are not recorded.
    if matrix and not os.environ.get(BATCH_VARIABLE) and "stress" not in getattr(options, "plugins", ()):
        path = history_file(matrix)
    if path is None:
        return ()
    from allranks.plugins.history.recorder import HistoryRecorder  # noqa: PLC0415 - only for a report

    matrix = matrix or matrix_here()  # `report` passes none
    return (HistoryRecorder(path, keep=_runs_to_keep(path, matrix)),)


def _runs_to_keep(path: Path, matrix: "Matrix | None") -> int | None:
    """The number of runs to keep in a history; None if it is not the history of this matrix."""
    own = history_file(matrix)
    if matrix is None or own is None or os.path.realpath(path) != os.path.realpath(own):
        return None
    table: History = matrix.tables["history"]
    return table.runs
