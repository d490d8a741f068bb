"""``allranks history``: the outcomes of a test over runs and cells, and the changes of the newest run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from allranks.cli.options import json_option, matrix_option
from allranks.cli.parser import CommandOptions, option, whole, writable_file
from allranks.cli.printing import iso_time, say, say_json
from allranks.errors import ExitCode, UsageError, counted
from allranks.plugins.history.hooks import history_file, matrix_here
from allranks.plugins.history.keys import HISTORY_FILE
from allranks.protocol.xml_text import readable
from allranks.report.status import Status

if TYPE_CHECKING:
    from allranks.plugins.history.trends import History, RecordedRun, TestLine

_SHOWN_RUNS = 60
_SHOWN_TESTS = 50
_NO_JOB = "."


_SHOW = "what to show"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks history``."""

    usage: ClassVar = "allranks history [TEST] [options]"

    test: str | None = option(
        "TEST", _SHOW, "a node id, or a part of it (default: what the newest run changed)", nargs="?"
    )
    runs: int = option(
        "--runs N",
        _SHOW,
        f"with TEST: the newest N runs; 0 for all (default: {_SHOWN_RUNS})",
        type=whole(),
        default=_SHOWN_RUNS,
    )
    history: Path | None = option(
        "--history FILE",
        _SHOW,
        f"the file to read (default with [history]: {HISTORY_FILE} next to the matrix file)",
        type=writable_file,
    )
    matrix: Path | None = matrix_option(_SHOW)
    json: bool = json_option(_SHOW)


def run(options: Options) -> ExitCode:
    """Print a test, or the changes of the newest run."""
    path = options.history or history_file(matrix_here(options.matrix))
    if path is None:
        msg = "There is no history: --history is missing, and the matrix file has no [history]."
        raise UsageError(msg, remedy="Pass --history FILE, or add [history] to the matrix file.")
    if options.test is None:
        _print_overview(path, options)
        return ExitCode.OK
    with _opened(path) as history:
        runs, lines = history.lookup(options.test, options.runs)
    if options.json:
        say_json(file=str(path), runs=list(map(_run, runs)), tests=list(map(_line, lines)))
    else:
        _print_tests(runs, lines)
    return ExitCode.OK


@contextmanager
def _opened(path: Path) -> "Iterator[History]":
    from allranks.plugins.history.database import HistoryError, read  # noqa: PLC0415 - few commands need it
    from allranks.plugins.history.trends import History  # noqa: PLC0415

    try:
        with read(path) as database:
            yield History(database)
    except HistoryError as error:
        msg = f"{path} cannot be read as a history: it {error}."
        remedy = "Run with [history] in the matrix file, or `allranks report DIR --history FILE`, to make one."
        raise UsageError(msg, remedy=remedy) from error


def _print_overview(path: Path, options: Options) -> None:
    with _opened(path) as history:
        newest, counts, size = history.newest(path), history.counts(), path.stat().st_size
    if options.json:
        runs, tests = list(map(_run, history.runs)), newest.as_object()["tests"]
        say_json(file=str(path), size=size, runs=runs, counts=counts, newest=tests)
        return
    say(f"{path}: {counted(newest.runs, 'run')}, {_run_title(history.runs[0])} to {_run_title(history.runs[-1])}")
    say(f"{counted(counts['tests'], 'test')} in {counted(counts['cells'], 'cell')}, {size / 1e6:.1f} MB")
    say(f"History: {newest.headline}.")
    for line in newest.lines(_SHOWN_TESTS):
        say(readable(line))


def _print_tests(runs: "Sequence[RecordedRun]", lines: "Sequence[TestLine]") -> None:
    say(f"{counted(len(runs), 'run')}, oldest first: {_run_title(runs[0])} to {_run_title(runs[-1])}")
    width = max((len(line.test.cell_id) for line in lines), default=0)
    shown = None
    for line in lines:
        test = line.test
        if shown != (shown := test.test):
            say(f"\n{readable(test.nodeid)} ({readable(test.suite_name)})")
        letters = "".join(recorded.status if recorded else _NO_JOB for recorded in line.statuses)
        trend = readable(line.trend.text) if line.trend else ""
        say(f"  {readable(test.cell_id):<{width}}  {letters}  {trend}".rstrip())
    legend = ", ".join(f"{status} {status.word}" for status in Status if status is status.without_policy)
    say(f"\n{legend}, . the run did not have this job" if lines else "No outcome in these runs.")


def _run_title(run: "RecordedRun") -> str:
    return f"{readable(run.id)} ({iso_time(run.started)})"


def _run(run: "RecordedRun") -> Mapping[str, str]:
    return {"id": run.id, "started": iso_time(run.started)}


def _line(line: "TestLine") -> Mapping[str, object]:
    return {
        "cell": line.test.cell_id,
        "suite": line.test.suite_name,
        "test": line.test.nodeid,
        "outcomes": [recorded and recorded.status for recorded in line.statuses],
        "ranks": [recorded and (recorded.ranks or None) for recorded in line.statuses],
        "trend": line.trend.trend.value if line.trend else None,
        "text": line.trend.text if line.trend else "",
    }
