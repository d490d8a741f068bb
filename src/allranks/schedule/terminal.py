"""What a person at a terminal sees: the lines of any run, and while jobs run a table below them of where they stand."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TextIO

from rich.console import Console as RichConsole
from rich.live import Live
from rich.text import Text

from allranks.interruption import uninterrupted
from allranks.records import RankEnded, Record
from allranks.report.judged import MergedRun
from allranks.schedule.job_facts import JobError
from allranks.schedule.live import LiveView, failure_of
from allranks.schedule.progress import Board, Picture, State, Tests
from allranks.schedule.table_text import render, rows_that_fit

_BETWEEN: Final = 0.25
"""Seconds between two looks at where jobs stand."""

_NO_FAULT: Final = frozenset({"interrupted", "stopped"})
"""Errors of jobs that were ended."""


@dataclass(kw_only=True)
class TableView(LiveView):
    """Says what happens in lines, and keeps count of it for the table.

    Args:
        board: Where the jobs stand.
    """

    board: Board

    def job_is(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """See :meth:`LiveView.job_is <allranks.schedule.live.LiveView.job_is>`."""
        self.board.move(job_id, state, gpus)

    def job_started(self, job_id: str, where: str) -> None:
        """See :meth:`LiveView.job_started <allranks.schedule.live.LiveView.job_started>`."""
        self.board.move(job_id, "running")
        super().job_started(job_id, where)

    def take(self, job_id: str, record: Record) -> None:
        """See :meth:`LiveView.take <allranks.schedule.live.LiveView.take>`."""
        if self.board.note(job_id, record) == "bad" and isinstance(record, RankEnded):
            self.board.fail(f"{job_id}: {failure_of(record)}")
        super().take(job_id, record)

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """See :meth:`LiveView.job_ended <allranks.schedule.live.LiveView.job_ended>`."""
        self.board.end(job_id, seconds, error.what if error else "")
        if error and error.kind not in _NO_FAULT:
            self.board.fail(f"{job_id}: {error.what}")
        super().job_ended(job_id, tests, seconds, error)


class TerminalConsole:
    """A console with a table below its lines while jobs run.

    Args:
        say: Prints one line, where there is no table.
        file: The terminal.
    """

    def __init__(self, say: Callable[[str], None], file: TextIO) -> None:
        self._say = say
        # Whether it is a terminal has been settled, and what tests print is no markup.
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
        """Show the table as long as the context lasts; afterwards nothing of it is left on the screen."""
        board = Board(job_ids)
        # An interrupt in the middle would leave a terminal without its cursor.
        with uninterrupted():
            self._table = _Table(self._rich, board)
        try:
            yield TableView(say=self.say, board=board)
        finally:
            with uninterrupted():
                self._table.close()
                self._table = None

    def annotate(self, merged: MergedRun) -> None:
        """The table of results is all that there is."""


class _Table:
    """The table on the screen. What is printed, by whichever thread, is printed under one lock."""

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
        """Print one line above it; False where it is no more."""
        with self._lock:
            if self._is_over.is_set():
                return False
            with suppress(OSError):  # the terminal is gone: what is printed is lost, the run is not
                self._console.print(Text.from_ansi(line), soft_wrap=True)
            return True

    def close(self) -> None:
        """Take it off the screen, and give the cursor back."""
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
        """Draw it anew, where anything of it has changed."""
        width, height = self._console.size
        picture = self._board.picture(rows_that_fit(height, jobs=self._jobs))
        if (picture, (width, height)) != self._shown:
            self._shown = picture, (width, height)
            self._live.update(render(picture, width, height), refresh=True)
