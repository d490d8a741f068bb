"""summary.md: the run on one page of Markdown, for the step summary of a CI service."""

from collections.abc import Iterator
from typing import Final

from allranks.report.judged import Counts, Failure, MergedRun, SuiteRow
from allranks.report.table import failures, left_out, seconds
from allranks.report.xml_text import readable

LISTED: Final = 50
"""Failures that are listed: a step summary may have 1 MiB, and nobody reads more."""

_SPECIAL: Final = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>()#+!|~&$@"})


def write_summary(merged: MergedRun) -> None:
    """Writes the summary of a run to its place, replacing what is there in one step.

    Raises:
        OSError: The file cannot be written.
    """
    unfinished = merged.summary.with_name(f".{merged.summary.name}.unfinished")
    try:
        unfinished.write_text(render_summary(merged), encoding="utf-8")
        unfinished.replace(merged.summary)
    finally:
        unfinished.unlink(missing_ok=True)


def render_summary(merged: MergedRun) -> str:
    """The run in Markdown: failures first, then a table of cells and suites, then the notes."""
    return "\n".join([*_head(merged), *_failures(merged), *_table(merged), *_notes(merged)]) + "\n"


def _head(merged: MergedRun) -> Iterator[str]:
    counts = merged.counts
    bad = counts.failed + counts.errors
    yield f"## allranks: {counts.tests} tests, {bad or 'none'} went wrong"
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
    yield f"- **{failure.kind}** {_escaped(failure.place)}: {_escaped(failure.nodeid)}<br>"
    yield f"  {_escaped(failure.message)}" + (f" (and {failure.alike} more alike)" if failure.alike else "")


def _table(merged: MergedRun) -> Iterator[str]:
    yield "| cell | suite | tests | passed | failed | errors | skipped | time |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for suite in merged.suites:
        yield f"| {_escaped(suite.cell)} | {_escaped(suite.suite)} | {_figures(suite.counts, _time(suite))} |"
    yield f"| **total** | | {_figures(merged.counts, sum(map(_time, merged.suites)))} |"


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


def _escaped(text: str) -> str:
    """``text`` as one line that Markdown takes literally."""
    return " ".join(readable(text).split()).translate(_SPECIAL)
