"""``allranks history``: what became of a test over runs and cells, and what the newest run changed."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.command_parser import CommandParser
from allranks.cli.options import add_json, add_matrix, moment, number, say, say_json, writable_file
from allranks.errors import ExitCode, MatrixError, UsageError, counted
from allranks.matrix.declaration import find_matrix, load
from allranks.plugins.history.hooks import file_of
from allranks.protocol.xml_text import readable

if TYPE_CHECKING:
    from allranks.plugins.history.timeline import RecordedRun
    from allranks.plugins.history.trends import Overview, TestLine

_SHOWN_RUNS = 60
_SHOWN_TESTS = 50
_ELSEWHERE = "."
_LEGEND = (
    "P passed, S skipped, F failed, E error, f passed after a failure, - no outcome, . the run did not have this job"
)


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks history``."""
    parser.usage = "allranks history [TEST] [options]"
    group = parser.add_argument_group("what to show")
    meaning = "a node id, or a part of it (default: what the newest run changed)"
    group.add_argument("test", nargs="?", metavar="TEST", help=meaning)
    meaning = f"the newest N runs; 0 for all (default: {_SHOWN_RUNS})"
    group.add_argument("--runs", type=number, default=_SHOWN_RUNS, metavar="N", help=meaning)
    meaning = "the file to read (default: [history] file in the matrix file)"
    group.add_argument("--history", type=writable_file, metavar="FILE", help=meaning)
    add_matrix(group)
    add_json(group)
    parser.set_defaults(command=_history)


def _history(options: argparse.Namespace) -> ExitCode:
    from allranks.plugins.history.trends import lookup, overview  # noqa: PLC0415 - no plan needs it

    path = options.history or _own_file(options.matrix)
    if options.test is None:
        (_say_overview_json if options.json else _say_overview)(path, overview(path))
        return ExitCode.OK
    runs, lines = lookup(path, options.test, options.runs)
    if options.json:
        say_json(file=str(path), runs=list(map(_run, runs)), tests=list(map(_line, lines)))
    else:
        _say_lines(runs, lines)
    return ExitCode.OK


def _own_file(matrix: Path | None) -> Path:
    found = None
    with suppress(MatrixError):
        expansion = load(matrix or find_matrix(Path.cwd()))
        found = file_of(expansion.matrix)
    if found is None:
        msg = "No history is named."
        raise UsageError(msg, remedy="Name its file: --history FILE. Or write [history] into the matrix file.")
    return found


def _say_lines(runs: "Sequence[RecordedRun]", lines: "Sequence[TestLine]") -> None:
    say(f"{counted(len(runs), 'run')}, oldest first: {_told(runs[0])} to {_told(runs[-1])}")
    width = max((len(line.cell) for line in lines), default=0)
    shown = None
    for line in lines:
        if shown != (shown := (line.suite, line.nodeid)):
            say(f"\n{readable(line.nodeid)} ({readable(line.suite)})")
        outcomes = "".join(code.letter if code else _ELSEWHERE for code in line.codes)
        say(f"  {readable(line.cell):<{width}}  {outcomes}  {readable(line.past.text) if line.past else ''}".rstrip())
    say(f"\n{_LEGEND}" if lines else "It has no outcome in these runs.")


def _say_overview(path: Path, found: "Overview") -> None:
    from allranks.plugins.history.trends import headline, plain_lines  # noqa: PLC0415

    size = path.stat().st_size / 1e6
    runs = found.runs
    say(f"{path}: {counted(len(runs), 'run')}, {_told(runs[0])} to {_told(runs[-1])}")
    say(f"{counted(found.tests, 'test')} in {counted(found.cells, 'cell')}, {size:.1f} MB")
    if found.begins.number > 1:
        say(f"older outcomes than those of {_told(found.begins)} were dropped, to keep it small")
    say(f"History: {headline(found.newest)}.")
    for line in plain_lines(found.newest, _SHOWN_TESTS):
        say(readable(line))


def _say_overview_json(path: Path, found: "Overview") -> None:
    from allranks.plugins.history.trends import as_object  # noqa: PLC0415

    tests = as_object(found.newest)["tests"]
    runs, counts = list(map(_run, found.runs)), {"tests": found.tests, "cells": found.cells}
    say_json(file=str(path), runs=runs, begins=_run(found.begins), counts=counts, newest=tests)


def _told(run: "RecordedRun") -> str:
    return f"{readable(run.id)} ({moment(run.started)})"


def _run(run: "RecordedRun") -> Mapping[str, str]:
    return {"id": run.id, "started": moment(run.started)}


def _line(line: "TestLine") -> Mapping[str, object]:
    return {
        "cell": line.cell,
        "suite": line.suite,
        "test": line.nodeid,
        "outcomes": [code and code.letter for code in line.codes],
        "ranks": [code and (code.ranks or None) for code in line.codes],
        "trend": line.past.trend.value if line.past else None,
        "text": line.past.text if line.past else "",
    }
