"""The live table of jobs below the lines of a run, fitted to the terminal."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal, TextIO

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from allranks.engines.base import Placement
from allranks.interruption import uninterrupted
from allranks.protocol.records import RankEnded, Record, Repeated
from allranks.protocol.xml_text import for_terminal, printable
from allranks.report.judged import MergedRun
from allranks.report.run_files import JobError
from allranks.runner.log_lines import LiveView, failure_of
from allranks.runner.progress import STATES, Board, Picture, Row, State, Tests, rate_so_far, words
from allranks.runner.run_detail import Detail

_GAP: Final = 2
_LEAST: Final = 20
"""If the first column would get fewer cells than this, another column is dropped."""

_FAILURE_LINES: Final = 3
_STYLES: Final = {"running": "bold", "preparing": "", "waiting": "dim", "done": "green"}


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A column of the table."""

    title: str
    cell: Callable[[Row], str]
    justify: Literal["left", "right"] = "left"
    takes_rest: bool = False  # whether it gets the remaining width, and never more than that


def render(picture: Picture, width: int, height: int) -> Group:
    """Render the table and the lines below it.

    Args:
        picture: See :func:`rows_that_fit`.
        width: Cells of a line.
        height: Lines.
    """
    below = [Text(_summary(picture), no_wrap=True, overflow="ellipsis")]
    below += [Text(line, style="red") for line in _cut_lines(picture.first_failure, width)]
    if not picture.rows:
        return Group(*below[:height])
    return Group(_table(picture.rows, width), *below)


def rows_that_fit(height: int, *, jobs: int) -> int:
    """How many jobs fit into this many lines, beside a title, a summary and the first failure."""
    # The last line stays free: a terminal that is written to its last cell scrolls.
    return max(0, min(jobs, height - 1 - 1 - 1 - _FAILURE_LINES))


def _table(rows: Sequence[Row], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    columns = _fitting(rows, width)
    for column, cells in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=True, overflow="ellipsis", width=cells)
    for row in rows:
        texts = (Text(printable(column.cell(row))) for column, _ in columns)
        table.add_row(*texts, style="red" if row.is_bad else _STYLES.get(row.state, "bold"))
    return table


def _fitting(rows: Sequence[Row], width: int) -> list[tuple[_Column, int]]:
    """The columns that fit, each with its width; the least important are dropped first."""
    columns = [_COLUMNS[0], *(column for column in _COLUMNS[1:] if any(map(column.cell, rows)))]
    widest = _natural(columns[0], rows)
    for title in _DROPPED_FIRST:
        # Names of jobs differ at their right end, so they stay whole; only columns of `_DROPPED_LAST` justify a cut.
        wanted = min(widest, _LEAST) if title in _DROPPED_LAST else widest
        if _room_for_first(columns, rows, width) >= wanted:
            break
        columns = [column for column in columns if column.title != title]
    room = _room_for_first(columns, rows, width)
    first, rest = max(1, min(widest, room)), max(0, room - widest)
    return [(columns[0], first), *((each, _natural(each, rows) + rest * each.takes_rest) for each in columns[1:])]


def _room_for_first(columns: Sequence[_Column], rows: Sequence[Row], width: int) -> int:
    return width - sum(_natural(column, rows) + _GAP for column in columns[1:])


def _natural(column: _Column, rows: Sequence[Row]) -> int:
    widest = max((cell_len(printable(column.cell(row))) for row in rows), default=0)
    return max(cell_len(column.title), 0 if column.takes_rest else widest)


def _cut_lines(text: str, width: int) -> list[str]:
    """The text, cut to the lines that a failure may have."""
    lines = chop_cells(printable(text), width)
    if len(lines) > _FAILURE_LINES:
        lines[_FAILURE_LINES - 1 :] = [f"{set_cell_size(lines[_FAILURE_LINES - 1], width - 1)}…"]
    return lines


def _summary(picture: Picture) -> str:
    jobs = [f"{picture.states[state]} {state}" for state in STATES if picture.states[state]]
    bad = f" ({picture.bad_jobs} bad)" if picture.bad_jobs else ""
    tests = words(picture.tests) or "none yet"
    return f"jobs: {', '.join(jobs) or 'none'}{bad}; tests: {tests}; {_clock(picture.seconds)}"


def _clock(seconds: int | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _tests(row: Row) -> str:
    if row.state in {"waiting", "preparing"}:
        return ""
    return f"{row.done}/{'?' if row.collected is None else row.collected}"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as a person writes them: ``0-3,6``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(f"{each[0]}-{each[-1]}" if len(each) > 1 else str(each[0]) for each in found)


def _counted(number: int) -> str:
    return str(number) if number else ""


_COLUMNS: Final = (
    _Column(title="job", cell=lambda row: row.job_id),
    _Column(title="state", cell=lambda row: row.state),
    _Column(title="tests", cell=_tests, justify="right"),
    _Column(title="passed", cell=lambda row: _counted(row.passed), justify="right"),
    _Column(title="skipped", cell=lambda row: _counted(row.skipped), justify="right"),
    _Column(title="bad", cell=lambda row: _counted(row.bad), justify="right"),
    _Column(title="GPUs", cell=lambda row: ranges(row.gpus)),
    _Column(title="time", cell=lambda row: _clock(row.seconds), justify="right"),
    _Column(title="first bad", cell=lambda row: row.trouble or row.first_bad.rpartition("::")[2], takes_rest=True),
)
_DROPPED_LAST: Final = ("bad", "tests", "state")
_DROPPED_FIRST: Final = ("first bad", "skipped", "passed", "GPUs", "time", *_DROPPED_LAST)


_BETWEEN: Final = 0.25
"""Seconds between two updates of the table."""

_NO_FAULT: Final = frozenset({"interrupted", "stopped"})
"""Kinds of errors of jobs that were ended: no failures."""


@dataclass(kw_only=True)
class TableView(LiveView):
    """Prints events as lines, and counts them for the table."""

    board: Board

    def job_is(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """See :meth:`LiveView.job_is <allranks.runner.log_lines.LiveView.job_is>`."""
        self.board.move(job_id, state, gpus)

    def job_started(self, job_id: str, where: str) -> None:
        """See :meth:`LiveView.job_started <allranks.runner.log_lines.LiveView.job_started>`."""
        self.board.move(job_id, "running")
        super().job_started(job_id, where)

    def job_is_at(self, job_id: str, place: Placement) -> None:
        """See :meth:`LiveView.job_is_at <allranks.runner.log_lines.LiveView.job_is_at>`."""
        self.board.place(job_id, "running" if place.is_placed else place.text)
        super().job_is_at(job_id, place)

    def take(self, job_id: str, record: Record) -> None:
        """See :meth:`LiveView.take <allranks.runner.log_lines.LiveView.take>`."""
        if self.board.note(job_id, record) == "bad" and isinstance(record, RankEnded):
            self.board.fail(f"{job_id}: {failure_of(record)}")
        super().take(job_id, record)

    def _show_rate(self, job_id: str, record: Repeated) -> None:
        self.board.show(job_id, rate_so_far(record))

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """See :meth:`LiveView.job_ended <allranks.runner.log_lines.LiveView.job_ended>`."""
        self.board.end(job_id, seconds, error.what if error else "")
        if error and error.kind not in _NO_FAULT:
            self.board.fail(f"{job_id}: {error.what}")
        super().job_ended(job_id, tests, seconds, error)


class TerminalConsole:
    """A console with a table below its lines while jobs run."""

    def __init__(self, say: Callable[[str], None], file: TextIO, detail: Detail = "usual") -> None:
        self._say = say
        self._detail = detail
        # The caller has checked that it is a terminal; output of tests is no markup.
        self._rich = RichConsole(
            file=file, force_terminal=True, force_interactive=True, markup=False, emoji=False, highlight=False
        )
        self._table: _Table | None = None

    def say(self, line: str) -> None:
        """Print one line, above the table where there is one."""
        table = self._table
        if table is None or not table.say(line):
            self._say(line)

    @contextmanager
    def watch(self, job_ids: Sequence[str]) -> Iterator[LiveView]:
        """Show the table while the context lasts, then erase it."""
        board = Board(job_ids)
        # An interrupt in the middle would leave a terminal without its cursor.
        with uninterrupted():
            self._table = _Table(self._rich, board)
        try:
            yield TableView(say=self.say, board=board, detail=self._detail)
        finally:
            with uninterrupted():
                self._table.close()
                self._table = None

    def annotate(self, merged: MergedRun) -> None:
        """Do nothing: the table of results is enough."""


class _Table:
    """The table on the screen. All threads print under one lock."""

    def __init__(self, console: RichConsole, board: Board) -> None:
        self._console = console
        self._board = board
        self._jobs = board.count
        self._shown: tuple[Picture, tuple[int, int]] | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=sys.stderr.isatty(),
            vertical_overflow="crop",
        )
        with suppress(OSError):
            self._live.start()
        self._thread = threading.Thread(target=self._keep_fresh, name="allranks-table", daemon=True)
        self._thread.start()

    def say(self, line: str) -> bool:
        """Print one line above the table; False if the table is closed."""
        with self._lock:
            if self._is_over.is_set():
                return False
            with suppress(OSError):  # the terminal is gone: the output is lost, the run goes on
                self._console.print(Text.from_ansi(for_terminal(line)), soft_wrap=True)
            return True

    def close(self) -> None:
        """Erase the table, and restore the cursor."""
        with self._lock, suppress(OSError):
            self._is_over.set()
            self._live.update("")
            self._live.stop()
        self._thread.join()

    def _keep_fresh(self) -> None:
        while not self._is_over.is_set():
            with self._lock, suppress(OSError):
                if not self._is_over.is_set():
                    self._show()
            self._is_over.wait(_BETWEEN)

    def _show(self) -> None:
        width, height = self._console.size
        picture = self._board.picture(rows_that_fit(height, jobs=self._jobs))
        if (picture, (width, height)) != self._shown:
            self._shown = picture, (width, height)
            self._live.update(render(picture, width, height), refresh=True)
