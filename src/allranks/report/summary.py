"""summary.md: the run on one page of Markdown, for the step summary of a CI service."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from allranks.report.judged import Counts, Failure, MergedRun, SuiteRow
from allranks.report.table import failures, left_out, seconds, shorten
from allranks.report.untrusted import fresh
from allranks.xml_text import readable

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
    unfinished = fresh(merged.summary.with_name(f".{merged.summary.name}.unfinished"))
    try:
        unfinished.write_text(render_summary(merged), encoding="utf-8")
        unfinished.replace(merged.summary)
    finally:
        unfinished.unlink(missing_ok=True)


def render_summary(merged: MergedRun) -> str:
    """The run in Markdown, in at most :data:`MOST_BYTES`: failures first, then cells and suites, then the notes."""
    lines = [*_head(merged), *_failures(merged), *_table(merged)]
    room = MOST_BYTES - _size(lines)
    return "\n".join([*lines, *_within(room, list(_notes(merged)), "notes")]) + "\n"


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
    for failure in shown:
        yield from _failure(failure)
    if more := left_out(merged, shown):
        yield f"- and {more} more, in `{merged.junit.name}`"
    if shown:
        yield ""


def _failure(failure: Failure) -> Iterator[str]:
    place, test = (_escaped(shorten(text, _NAME)) for text in (failure.place, failure.nodeid))
    yield f"- **{failure.kind}** {place}: {test}<br>"
    yield f"  {_escaped(failure.message)}" + (f" (and {failure.alike} more alike)" if failure.alike else "")


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


def _notes(merged: MergedRun) -> Iterator[str]:
    yield ""
    yield from (f"- {_escaped(note)}" for note in merged.notes)
    if merged.counts.skip_but_pass:
        yield f"- {merged.counts.skip_but_pass} environment skip(s) counted as passed."
    if merged.counts.flaky:
        yield f"- {merged.counts.flaky} flaky test(s): they went wrong in an earlier attempt, and then did not."


def _escaped(text: str) -> str:
    """``text`` as one line that Markdown takes literally."""
    return " ".join(readable(text).split()).translate(_SPECIAL)
