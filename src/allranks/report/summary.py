"""A run in short: the table at its end, and ``summary.md`` for the step summary of a CI service."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from allranks.report.history.history_text import headline, plain_lines, told_tests
from allranks.report.judged import KEPT_TRACEBACKS, Counts, Failure, MergedRun, SuiteRow
from allranks.report.untrusted import write_whole
from allranks.xml_text import printable, readable

WIDTH: Final = 100
"""Columns that no line of the table exceeds."""

FAILURES: Final = 10
"""Failures that are listed; the report has all of them."""

TRACEBACKS: Final = 5
"""The first of them, which have the end of the leading rank's traceback, and a command."""

_NUMBERS: Final = ("tests", "passed", "failed", "errors", "skipped", "time")
_COLUMN: Final = 9
_MESSAGE_LINES: Final = 3
_CELL: Final = 26
_SUITE: Final = WIDTH - _CELL - 2 - len(_NUMBERS) * _COLUMN - 2


def render_table(merged: MergedRun) -> str:
    """The run in plain text: one line for each cell and suite, then the first failures and the notes."""
    return "\n".join([*_rows(merged), *_first_failures(merged), *_past(merged), *_table_notes(merged)])


def render_problems(merged: MergedRun) -> str:
    """The first failures and the notes alone; empty if there are none."""
    return "\n".join([*_first_failures(merged), *_table_notes(merged)]).strip("\n")


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
    yield _table_row(width, "cell", "suite", _NUMBERS)
    for suite in merged.suites:
        yield _table_row(width, suite.cell, suite.suite, _numbers(suite.counts, suite.elapsed))
    if len(merged.suites) > 1:
        yield _table_row(width, "total", "", _numbers(merged.counts, _elapsed(merged)))


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


def _table_row(cell_width: int, cell: str, suite: str, numbers: Sequence[str]) -> str:
    width = _CELL + _SUITE - cell_width
    names = f"{shorten(readable(cell), cell_width):<{cell_width}}  {shorten(readable(suite), width):<{width}}"
    return names + "".join(f"{number:>{_COLUMN}}" for number in numbers[:-1]) + f"{numbers[-1]:>{_COLUMN + 2}}"


def _first_failures(merged: MergedRun) -> Iterator[str]:
    shown = failures(merged)[:FAILURES]
    if shown:
        yield ""
        yield "First failures:"
    for place, failure in enumerate(shown):
        yield shorten(f"  {failure.kind.upper()} {failure.place}: {readable(failure.nodeid)}", WIDTH)
        message = shorten(readable(failure.message), _MESSAGE_LINES * (WIDTH - 8))
        yield from textwrap.wrap(message, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if place < TRACEBACKS:
            yield from (shorten(f"      {line}", WIDTH) for line in failure.traceback)
        if failure.alike:
            yield f"    and {failure.alike} more tests of it with this message"
        if place < TRACEBACKS and failure.again:
            yield f"    again: {failure.again}"
    if more := left_out(merged, shown):
        yield f"  and {more} more: see {merged.junit.name}"


def _past(merged: MergedRun) -> Iterator[str]:
    lines = list(plain_lines(merged.history, FAILURES)) if merged.history else []
    yield from ("", *(shorten(readable(line), 2 * WIDTH) for line in lines)) if lines else ()


def _table_notes(merged: MergedRun) -> Iterator[str]:
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
        yield f"{count} flaky test(s): they went wrong in an earlier attempt, but not in the last."


LISTED: Final = 50
"""Failures that are listed: more would not be read."""

MOST_BYTES: Final = 900_000
"""GitHub drops a step summary above 1 MiB entirely, and the step may already have written something."""

_ROOM_FOR_ROWS: Final = 600_000
_NAME: Final = 300

_SPECIAL: Final = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>()#+!|~&$@"})


def write_summary(merged: MergedRun) -> None:
    """Writes the summary of a run, replacing an existing one atomically.

    Raises:
        OSError: The file cannot be written.
    """
    write_whole(merged.summary, render_summary(merged))


def render_summary(merged: MergedRun) -> str:
    """The run in Markdown, in at most :data:`MOST_BYTES`: failures first, then cells and suites, then the notes."""
    lines = [*_head(merged), *_failures(merged), *_table(merged)]
    room = MOST_BYTES - _size(lines)
    return "\n".join([*lines, *_within(room, [*_history(merged), *_notes(merged)], "notes")]) + "\n"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _within(room: int, lines: Sequence[str], what: str) -> Iterator[str]:
    """As many lines as fit, and the number of those left out."""
    for place, line in enumerate(lines):
        room -= _size([line])
        if room < 200:
            yield f"- and {len(lines) - place} more {what}"
            return
        yield line


def _head(merged: MergedRun) -> Iterator[str]:
    counts = merged.counts
    yield f"## allranks: {counts.tests} tests, {counts.bad or 'none'} went wrong"
    yield ""


def _failures(merged: MergedRun) -> Iterator[str]:
    shown = failures(merged)[:LISTED]
    for place, failure in enumerate(shown):
        yield from _failure(failure)
        if place < KEPT_TRACEBACKS:
            yield from _fenced("text", failure.traceback)
            yield from _fenced("sh", [failure.again] if failure.again else [])
    if more := left_out(merged, shown):
        yield f"- and {more} more, in `{merged.junit.name}`"
    if shown:
        yield ""


def _failure(failure: Failure) -> Iterator[str]:
    place, test = (_escaped(shorten(text, _NAME)) for text in (failure.place, failure.nodeid))
    yield f"- **{failure.kind}** {place}: {test}<br>"
    yield f"  {_escaped(failure.message)}" + (f" (and {failure.alike} more alike)" if failure.alike else "")


def _fenced(language: str, lines: Sequence[str]) -> Iterator[str]:
    """A block of code in a list's item: its fence is longer than any row of backticks in it."""
    if lines:
        fence = "`" * max(3, 1 + max(len(row) for row in re.findall("`*", "\n".join(lines))))
        yield from ("", f"  {fence}{language}", *(f"  {line}" for line in lines), f"  {fence}")


def _table(merged: MergedRun) -> Iterator[str]:
    yield "| cell | suite | tests | passed | failed | errors | skipped | time |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    rows = [(suite, _row(suite)) for suite in merged.suites]
    if _size(row for _, row in rows) > _ROOM_FOR_ROWS:
        yield from _shortened(rows)
    else:
        yield from (row for _, row in rows)
    yield f"| **total** | | {_figures(merged.counts, sum(map(_time, merged.suites)))} |"


def _row(suite: SuiteRow) -> str:
    return f"| {_escaped(suite.cell)} | {_escaped(suite.suite)} | {_figures(suite.counts, _time(suite))} |"


def _shortened(rows: Sequence[tuple[SuiteRow, str]]) -> Iterator[str]:
    """As many rows as fit, bad ones first."""
    room = _ROOM_FOR_ROWS
    ordered = sorted(rows, key=lambda row: not row[0].counts.bad)
    for place, (_, row) in enumerate(ordered):
        room -= _size([row])
        if room < 0:
            yield f"| and {len(rows) - place} more | in `report.html` | | | | | | |"
            return
        yield row


def _time(suite: SuiteRow) -> float:
    return suite.counts.time if suite.elapsed is None else suite.elapsed


def _figures(counts: Counts, time: float) -> str:
    figures = (counts.tests, counts.passed, counts.failed, counts.errors, counts.skipped)
    return " | ".join([*map(str, figures), seconds(time)])


def _history(merged: MergedRun) -> Iterator[str]:
    if not merged.history or merged.history.problem:
        return
    told = told_tests(merged.history)
    yield from ("", f"### History: {headline(merged.history)}", "")
    for test in told[:LISTED]:
        yield f"- **{_escaped(test.past.text)}**: {_escaped(shorten(test.past.nodeid, _NAME))} ({_escaped(test.place)})"
    if len(told) > LISTED:
        yield f"- and {len(told) - LISTED} more, in `report.json`"


def _notes(merged: MergedRun) -> Iterator[str]:
    yield ""
    yield from (f"- {_escaped(note)}" for note in merged.notes)
    yield from (f"- {note}" for note in (*_skip_but_pass(merged), *_flaky(merged)))


def _escaped(text: str) -> str:
    """``text`` as one line that Markdown takes literally."""
    return printable(" ".join(readable(text).split())).translate(_SPECIAL)
