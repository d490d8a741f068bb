"""``allranks history``: what became of a test over runs and cells, and what the newest run changed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from allranks.cli.options import json_option, matrix_option
from allranks.cli.parser import CommandOptions, option, whole, writable_file
from allranks.cli.printing import iso_time, say, say_json
from allranks.errors import ExitCode, UsageError, counted
from allranks.plugins.history.hooks import file_of, matrix_here
from allranks.protocol.xml_text import readable
from allranks.report.status import Status

if TYPE_CHECKING:
    from allranks.plugins.history.trends import History, RecordedRun, TestLine

_SHOWN_RUNS = 60
_SHOWN_TESTS = 50
_ELSEWHERE = "."


_SHOW = "what to show"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks history``."""

    usage: ClassVar = "allranks history [TEST] [options]"

    test: str | None = option(
        "TEST", _SHOW, "a node id, or a part of it (default: what the newest run changed)", nargs="?"
    )
    runs: int = option(
        "--runs N", _SHOW, f"the newest N runs; 0 for all (default: {_SHOWN_RUNS})", type=whole(), default=_SHOWN_RUNS
    )
    history: Path | None = option(
        "--history FILE",
        _SHOW,
        "the file to read (default: that of [history])",
        type=writable_file,
    )
    matrix: Path | None = matrix_option(_SHOW)
    json: bool = json_option(_SHOW)


def run(options: Options) -> ExitCode:
    """Show a test, or what the newest run changed."""
    path = options.history or file_of(matrix_here(options.matrix))
    if path is None:
        msg = "No history is named."
        raise UsageError(msg, remedy="Name its file: --history FILE. Or write [history] into the matrix file.")
    if options.test is None:
        _say_overview(path, options)
        return ExitCode.OK
    with _opened(path) as history:
        runs, lines = history.lookup(options.test, options.runs)
    if options.json:
        say_json(file=str(path), runs=list(map(_run, runs)), tests=list(map(_line, lines)))
    else:
        _say_lines(runs, lines)
    return ExitCode.OK


@contextmanager
def _opened(path: Path) -> "Iterator[History]":
    from allranks.plugins.history.database import HistoryError, read  # noqa: PLC0415 - no plan needs it
    from allranks.plugins.history.trends import History  # noqa: PLC0415

    try:
        with read(path) as database:
            yield History(database)
    except HistoryError as error:
        msg = f"{path} cannot be read as a history: it {error}."
        remedy = "A run with [history] in the matrix file, or `allranks report DIR --history FILE`, makes one."
        raise UsageError(msg, remedy=remedy) from error


def _say_overview(path: Path, options: Options) -> None:
    with _opened(path) as history:
        newest, counts, size = history.newest(path), history.counts(), path.stat().st_size
    if options.json:
        runs, tests = list(map(_run, history.runs)), newest.as_object()["tests"]
        say_json(file=str(path), size=size, runs=runs, counts=counts, newest=tests)
        return
    say(f"{path}: {counted(newest.runs, 'run')}, {_told(history.runs[0])} to {_told(history.runs[-1])}")
    say(f"{counted(counts['tests'], 'test')} in {counted(counts['cells'], 'cell')}, {size / 1e6:.1f} MB")
    say(f"History: {newest.headline}.")
    for line in newest.lines(_SHOWN_TESTS):
        say(readable(line))


def _say_lines(runs: "Sequence[RecordedRun]", lines: "Sequence[TestLine]") -> None:
    say(f"{counted(len(runs), 'run')}, oldest first: {_told(runs[0])} to {_told(runs[-1])}")
    width = max((len(line.place.cell_id) for line in lines), default=0)
    shown = None
    for line in lines:
        place = line.place
        if shown != (shown := place.test):
            say(f"\n{readable(place.nodeid)} ({readable(place.suite_name)})")
        letters = "".join(each.status if each else _ELSEWHERE for each in line.statuses)
        past = readable(line.past.text) if line.past else ""
        say(f"  {readable(place.cell_id):<{width}}  {letters}  {past}".rstrip())
    legend = ", ".join(f"{each} {each.word}" for each in Status if each is each.without_policy)
    say(f"\n{legend}, . the run did not have this job" if lines else "It has no outcome in these runs.")


def _told(run: "RecordedRun") -> str:
    return f"{readable(run.id)} ({iso_time(run.started)})"


def _run(run: "RecordedRun") -> Mapping[str, str]:
    return {"id": run.id, "started": iso_time(run.started)}


def _line(line: "TestLine") -> Mapping[str, object]:
    return {
        "cell": line.place.cell_id,
        "suite": line.place.suite_name,
        "test": line.place.nodeid,
        "outcomes": [each and each.status for each in line.statuses],
        "ranks": [each and (each.ranks or None) for each in line.statuses],
        "trend": line.past.trend.value if line.past else None,
        "text": line.past.text if line.past else "",
    }
