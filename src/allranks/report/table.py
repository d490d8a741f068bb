"""The table at the end of a run: cells by suites with their counts, and the first failures."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from allranks.report.judged import Counts, Failure, MergedRun
from allranks.xml_text import readable

WIDTH: Final = 100
"""Columns that no line of the table exceeds."""

FAILURES: Final = 10
"""Failures that are listed; the report has all of them."""

_NUMBERS: Final = ("tests", "passed", "failed", "errors", "skipped", "time")
_COLUMN: Final = 9
_MESSAGE_LINES: Final = 3
_CELL: Final = 26
_SUITE: Final = WIDTH - _CELL - 2 - len(_NUMBERS) * _COLUMN - 2


def render_table(merged: MergedRun) -> str:
    """The run in plain text: one line for each cell and suite, then the first failures and the notes."""
    return "\n".join([*_rows(merged), *_failures(merged), *_notes(merged)])


def failures(merged: MergedRun) -> list[Failure]:
    """The bad verdicts, with equal ones of a suite grouped; errors of whole jobs come first."""
    found = [failure for suite in merged.suites for failure in suite.failures]
    return sorted(found, key=lambda failure: not failure.is_of_job)


def left_out(merged: MergedRun, shown: Sequence[Failure]) -> int:
    """The number of bad testcases that a list of failures leaves out."""
    return merged.counts.bad - sum(1 + failure.alike for failure in shown)


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters, with its middle left out."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def seconds(value: float) -> str:
    """A time in the unit a reader would use: ``3.21 s``, ``4 min 05 s``."""
    if value < 60:
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s"


def _rows(merged: MergedRun) -> Iterator[str]:
    width = _cell_width(merged)
    yield _row(width, "cell", "suite", _NUMBERS)
    for suite in merged.suites:
        yield _row(width, suite.cell, suite.suite, _numbers(suite.counts, suite.elapsed))
    if len(merged.suites) > 1:
        yield _row(width, "total", "", _numbers(merged.counts, _elapsed(merged)))


def _cell_width(merged: MergedRun) -> int:
    """The width of the cell column: less than usual if no cell needs it and a suite has a long name."""
    cells = [len(readable(suite.cell)) for suite in merged.suites]
    suites = [len(readable(suite.suite)) for suite in merged.suites]
    lack = max(suites, default=0) - _SUITE
    return min(_CELL, max(_CELL - max(lack, 0), *cells, len("total")))


def _elapsed(merged: MergedRun) -> float | None:
    known = [suite.elapsed for suite in merged.suites if suite.elapsed is not None]
    return sum(known) if known else None


def _numbers(counts: Counts, elapsed: float | None) -> tuple[str, ...]:
    figures = (counts.tests, counts.passed, counts.failed, counts.errors, counts.skipped)
    return (*map(str, figures), seconds(counts.time if elapsed is None else elapsed))


def _row(cell_width: int, cell: str, suite: str, numbers: Sequence[str]) -> str:
    width = _CELL + _SUITE - cell_width
    names = f"{shorten(readable(cell), cell_width):<{cell_width}}  {shorten(readable(suite), width):<{width}}"
    return names + "".join(f"{number:>{_COLUMN}}" for number in numbers[:-1]) + f"{numbers[-1]:>{_COLUMN + 2}}"


def _failures(merged: MergedRun) -> Iterator[str]:
    shown = failures(merged)[:FAILURES]
    if shown:
        yield ""
        yield "First failures:"
    for failure in shown:
        yield shorten(f"  {failure.kind.upper()} {failure.place}: {readable(failure.nodeid)}", WIDTH)
        message = shorten(readable(failure.message), _MESSAGE_LINES * (WIDTH - 8))
        yield from textwrap.wrap(message, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if failure.alike:
            yield f"    and {failure.alike} more tests of it with this message"
    if more := left_out(merged, shown):
        yield f"  and {more} more: see {merged.junit.name}"


def _notes(merged: MergedRun) -> Iterator[str]:
    notes = [*merged.notes, *_skip_but_pass(merged), *_flaky(merged)]
    if notes:
        yield ""
    for note in notes:
        yield from textwrap.wrap(readable(note), WIDTH)


def _skip_but_pass(merged: MergedRun) -> Iterator[str]:
    count = merged.counts.skip_but_pass
    if count:
        yield f'{count} environment skip(s) counted as passed (policy skip = "pass").'


def _flaky(merged: MergedRun) -> Iterator[str]:
    if count := merged.counts.flaky:
        yield f"{count} flaky test(s): they went wrong in an earlier attempt, and then did not."
