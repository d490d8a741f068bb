"""The live table of jobs below the lines of a run, drawn by rich."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from allranks.colors import painted
from allranks.interruption import block_signals
from allranks.protocol.outcomes import compact_numbers
from allranks.protocol.xml_text import for_terminal, printable
from allranks.report.judged import MergedRun
from allranks.runner.console import watching
from allranks.runner.listener import Detail, RunListener
from allranks.runner.progress import JobProgress, format_duration, format_locations, summary

_GAP: Final = 2
_MIN_NOW_WIDTH: Final = 16
"""The minimum width of the last column; a narrower one is omitted."""

_STYLES: Final = {"running": "bold", "preparing": "", "waiting": "dim", "done": "green"}


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[JobProgress], str]
    justify: Literal["left", "right"] = "left"


def render(listener: RunListener, width: int, height: int) -> Group:
    """The table of as many jobs as fit, a summary of all, and the first failure."""
    with listener.lock:
        jobs = listener.jobs
        below = [Text(summary(jobs, listener.seconds), no_wrap=True, overflow="ellipsis")]
        if listener.first_failure:
            below.append(Text(printable(listener.first_failure), style="red", no_wrap=True, overflow="ellipsis"))
        # One line is for the titles. The bottom line stays empty: a character in its last column would make the
        # terminal scroll.
        shown = _most_urgent(jobs, height - len(below) - 2)
        return Group(*([_table(shown, width)] if shown else ()), *below[: max(1, height - 1)])


def _most_urgent(jobs: Sequence[JobProgress], height: int) -> Sequence[JobProgress]:
    """As many jobs as fit, in the order of the plan; slow ones are preferred, then running ones, then failed ones."""
    if len(jobs) <= height:
        return jobs
    chosen = sorted(range(len(jobs)), key=lambda index: _urgency(jobs[index]))[: max(0, height)]
    return [jobs[index] for index in sorted(chosen)]


def _urgency(job: JobProgress) -> int:
    if job.state == "running":
        return 0 if job.has_slow_test else 1
    return 2 if job.has_failed else {"preparing": 3, "waiting": 4, "done": 5}[job.state]


def _table(jobs: Sequence[JobProgress], width: int) -> Table:
    columns, now = _columns(jobs, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=True, overflow="ellipsis")
    if now:
        table.add_column("now", no_wrap=True, overflow="ellipsis", width=now)
    for job in jobs:
        cells = [Text(printable(column.cell(job))) for column in columns]
        style = "red" if job.has_failed else _STYLES[job.state]
        table.add_row(*cells, *([_now(job)] if now else ()), style=style)
    return table


def _columns(jobs: Sequence[JobProgress], width: int) -> tuple[Sequence[_Column], int]:
    """The columns that fit, and the width that remains for the column *now*; 0 if it is too narrow or empty."""
    columns = [column for column in _COLUMNS if column is _COLUMNS[0] or any(map(column.cell, jobs))]
    for title in ("", *_DROPPED_FIRST):
        columns = [column for column in columns if column.title != title]
        rest = width - sum(max(cell_len(column.title), *_widths(column, jobs)) + _GAP for column in columns)
        if rest + _GAP >= 0:
            break
    return columns, rest if rest >= _MIN_NOW_WIDTH and any(map(_now, jobs)) else 0


def _widths(column: _Column, jobs: Sequence[JobProgress]) -> Iterator[int]:
    return (cell_len(printable(column.cell(job))) for job in jobs)


def _now(job: JobProgress) -> Text:
    """The test that has been running for longest, with its duration; if none is running, the first failure."""
    if (test := job.longest) is None or job.state != "running":
        return Text(printable(job.error or job.tests.first_failed.rpartition("::")[2]))
    others = len(job.tests.running) - 1
    more = f" and {others} more" if others > 0 else ""
    text = f"{format_duration(test.seconds)} {test.nodeid.rpartition('::')[2]}{more}"
    if test.slow is None:
        return Text(printable(text))
    return Text(printable(f"slow: {text}: {format_locations(test.slow)}"), style="bold yellow")


def _tests(job: JobProgress) -> str:
    if job.state in {"waiting", "preparing"}:
        return ""
    tests = job.tests
    return f"{tests.counts.total()}/{'?' if tests.collected is None else tests.collected}"


_COLUMNS: Final = (
    _Column("job", lambda job: job.job_id),
    _Column("state", lambda job: job.rate or job.queue_status or job.state),
    _Column("tests", _tests, "right"),
    _Column("failed", lambda job: str(job.tests.counts["failed"] or ""), "right"),
    _Column("GPUs", lambda job: compact_numbers(job.gpus)),
    _Column("time", lambda job: format_duration(job.seconds), "right"),
)
_DROPPED_FIRST: Final = ("GPUs", "time", "failed", "tests", "state")


class TerminalConsole:
    """A console with a table below its lines while jobs run."""

    def __init__(self, file: TextIO, detail: Detail = "usual") -> None:
        self._detail = detail
        self._file = file
        # The caller has checked that it is a terminal; the output of tests is not markup.
        self._rich = RichConsole(
            file=file, force_terminal=True, force_interactive=True, markup=False, emoji=False, highlight=False
        )

    def say(self, line: str) -> None:
        """Print one line, above the table if there is one."""
        with suppress(OSError):  # the terminal is closed: the output is lost, but the run continues
            self._rich.print(Text.from_ansi(for_terminal(line)), soft_wrap=True)

    @contextmanager
    def watch(self, job_ids: Sequence[str]) -> Iterator[RunListener]:
        """Show the table while the context lasts, then erase it."""
        listener = RunListener(self.say, self._detail, partial(painted, stream=self._file))
        live = Live(
            console=self._rich,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
            vertical_overflow="crop",
        )

        def draw() -> None:
            with suppress(OSError):
                live.update(render(listener, *self._rich.size), refresh=True)

        with block_signals(), suppress(OSError):  # an interrupt here would leave the terminal without its cursor
            live.start()
        try:
            with watching(listener, job_ids, draw):
                yield listener
        finally:
            with block_signals(), suppress(OSError):
                live.stop()

    def annotate(self, merged: MergedRun) -> None:
        """Do nothing: the table of results is enough."""
