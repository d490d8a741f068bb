"""The short forms of a report: the table on the terminal, and ``summary.md`` for the step summary of a CI service."""

import html
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from allranks.colors import Color, Paint, without_color
from allranks.errors import MEANING, ExitCode, counted
from allranks.protocol.repetitions import RepetitionTally, difference, short_rate
from allranks.protocol.tracebacks import line_kind
from allranks.protocol.xml_text import printable, readable, two_ends
from allranks.report.failure_groups import Failure
from allranks.report.judged import KEPT_TRACEBACKS, Counts, MergedRun, SuiteRow
from allranks.report.section import Section
from allranks.report.untrusted import head, write_whole

WIDTH: Final = 100
"""The maximum width of the table."""

FAILURES: Final = 10
"""Failures that the terminal lists; the report has all of them."""

TRACEBACKS: Final = 5
"""Failures on the terminal that have a traceback and a rerun command."""

_NUMBERS: Final = ("tests", "passed", "failed", "errors", "skipped", "time")
_COLUMN: Final = 8  # a million tests
_TIME_COLUMN: Final = 13  # a hundred hours
_MESSAGE_LINES: Final = 3
_FLAKY_SHOWN: Final = 4
_CELL: Final = 26
_SUITE: Final = WIDTH - _CELL - 2 - (len(_NUMBERS) - 1) * _COLUMN - _TIME_COLUMN


def render_table(merged: MergedRun, paint: Paint = without_color) -> str:
    """The run in plain text: one line for each job, then the first failures and the notices."""
    return "\n".join(
        [
            *_rows(merged, paint),
            *_first_failures(merged, paint),
            *_reference_lines(merged),
            *_sections(merged),
            *_table_notes(merged),
        ]
    )


def render_problems(merged: MergedRun, paint: Paint = without_color) -> str:
    """The first failures and the notices; empty if there are none."""
    return "\n".join([*_first_failures(merged, paint), *_table_notes(merged)]).strip("\n")


def first_cause(merged: MergedRun, code: ExitCode) -> str:
    """Why a run failed, in one line: its first failure, or else the meaning of its exit code."""
    first = next(iter(merged.failures), None)
    if first is None:
        return f"{MEANING[code]} (exit code {code:d})"
    where = "" if first.is_of_job else f"{first.job}: {first.nodeid}: "
    impact = f"{first.impact}; " if first.impact else ""
    return readable(f"{where}{first.message} ({impact}exit code {code:d})")


def left_out(merged: MergedRun, shown: Sequence[Failure]) -> int:
    """The number of failed testcases that are not in a list of failures."""
    return merged.counts.bad - sum(1 + failure.more for failure in shown)


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters: the middle is cut out, between words."""
    return text if len(text) <= width else "…".join(two_ends(text, width - 1))


def seconds(value: float) -> str:
    """A time in the unit a reader would use: ``3.21 s``, ``4 min 05 s``, ``100 h 30 min``."""
    if value < 60:
        return f"{value:.2f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def times(merged: MergedRun) -> str:
    """The total time of the jobs, and the part that their tests took."""
    return f"jobs took {seconds(_time(merged))}, of which tests took {seconds(merged.counts.time)}"


def _time(merged: MergedRun) -> float:
    return sum(suite.time for suite in merged.suites)


def _rows(merged: MergedRun, paint: Paint) -> Iterator[str]:
    width = _cell_width(merged)
    yield _table_row(width, "cell", "suite", _NUMBERS)
    rows = [(suite.cell, suite.suite, suite.counts, suite.time) for suite in merged.suites]
    if len(rows) > 1:
        rows.append(("total", "", merged.counts, _time(merged)))
    for cell, suite, counts, time in rows:
        color: Color = "red" if counts.bad else "green" if counts.passed else "yellow"
        yield paint(_table_row(width, cell, suite, _numbers(counts, time)), color)


def _cell_width(merged: MergedRun) -> int:
    """The width of the cell column: narrower than usual if no cell needs it and a suite has a long name."""
    cells = [len(readable(suite.cell)) for suite in merged.suites]
    suites = [len(readable(suite.suite)) for suite in merged.suites]
    excess = max(suites, default=0) - _SUITE
    return min(_CELL, max(_CELL - max(excess, 0), *cells, len("total")))


def _numbers(counts: Counts, time: float) -> tuple[str, ...]:
    figures = (counts.tests, counts.passed, counts.failed, counts.errors, counts.skipped)
    return (*map(str, figures), seconds(time))


def _table_row(cell_width: int, cell: str, suite: str, numbers: Sequence[str]) -> str:
    width = _CELL + _SUITE - cell_width
    names = f"{shorten(readable(cell), cell_width):<{cell_width}}  {shorten(readable(suite), width):<{width}}"
    columns = (*((number, _COLUMN) for number in numbers[:-1]), (numbers[-1], _TIME_COLUMN))
    return names + "".join(f" {number:>{column - 1}}" for number, column in columns)


def _wrapped(text: str, indent: str = "") -> list[str]:
    # Names and paths have hyphens, at which they should not be broken.
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _first_failures(merged: MergedRun, paint: Paint) -> Iterator[str]:
    shown = merged.failures[:FAILURES]
    if shown:
        yield ""
        yield "First failures:"
    for index, failure in enumerate(shown):
        yield paint(shorten(f"  {failure.kind.upper()} {failure.job}: {readable(failure.nodeid)}", WIDTH), "red")
        message = shorten(readable(failure.message), _MESSAGE_LINES * (WIDTH - 8))
        yield from (paint(line, "red") for line in _wrapped(message, "    "))
        if failure.impact:
            yield from _wrapped(f"({failure.impact})", "    ")
        if index < TRACEBACKS:
            yield from (_traceback_line(line, paint) for line in failure.traceback)
        if index < TRACEBACKS and failure.rerun_command:
            yield f"    rerun: {failure.rerun_command}"
    if more := left_out(merged, shown):
        yield f"  and {more} more: see {merged.junit.name}"


def _traceback_line(line: str, paint: Paint) -> str:
    shown = shorten(f"      {line}", WIDTH)
    return paint(shown, "red") if line_kind(line) == "error" else shown


def _sections(merged: MergedRun) -> Iterator[str]:
    for section in _short_sections(merged):
        lines = (f"{section.title}: {section.headline}.", *section.lines)
        yield from ("", *(shorten(readable(line), 2 * WIDTH) for line in lines))


def _short_sections(merged: MergedRun) -> list[Section]:
    return [section for section in merged.shown_sections.values() if not section.page_only]


def _table_notes(merged: MergedRun) -> Iterator[str]:
    notes = [*merged.notes, *_not_run(merged), *_skip_but_pass(merged), *_flaky(merged)]
    if notes:
        yield ""
    for note in notes:
        yield from _wrapped(readable(note))


def _not_run(merged: MergedRun) -> Iterator[str]:
    if count := merged.counts.not_run:
        yield f"{count} of {merged.counts.skipped} skipped tests {'was' if count == 1 else 'were'} never started."


def _skip_but_pass(merged: MergedRun) -> Iterator[str]:
    count = merged.counts.skip_but_pass
    if count:
        skips = "skip counts" if count == 1 else "skips count"
        yield f'{count} environment {skips} as passed (policy skip = "pass").'


def _flaky(merged: MergedRun) -> Iterator[str]:
    if count := merged.counts.flaky:
        names = _flaky_names(merged)
        more = f" and {count - _FLAKY_SHOWN} more" if names and count > _FLAKY_SHOWN else ""
        named = f": {', '.join(names[:_FLAKY_SHOWN])}{more}" if names else ""
        yield f"{_flaky_count(count)}, which failed in an earlier attempt but not in the last one{named}."


def _flaky_count(count: int) -> str:
    return counted(count, "flaky or fixed test")


def _flaky_names(merged: MergedRun) -> list[str]:
    return [f"{suite.name}: {nodeid}" for suite in merged.suites for nodeid in suite.flaky]


LISTED: Final = 50
"""How many failures, and how many flaky tests, summary.md lists."""

MOST_BYTES: Final = 900_000
"""GitHub drops a step summary above 1 MiB entirely, and the step may already have written something."""

_ROW_BYTES: Final = 600_000
_LAST_LINE_BYTES: Final = 200  # of the line that gives the number of omitted lines
_NAME: Final = 300
_LONGEST: Final = 500
_CELLS_SHOWN: Final = 12
_PLAIN_LINK: Final = re.compile(r"[\w./:-]+", re.ASCII).fullmatch

_SPECIAL: Final = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>()#+!|~&$@"})


_TITLE: Final = "## allranks: "


def is_summary(path: Path) -> bool:
    """True if allranks wrote this file, and may therefore overwrite it."""
    return head(path, len(_TITLE)) == _TITLE.encode()


def write_summary(merged: MergedRun, environ: Mapping[str, str]) -> None:
    """Write summary.md; on GitHub, it links to the artifacts of the workflow run in ``environ``."""
    write_whole(merged.summary, render_summary(merged, environ))


def render_summary(merged: MergedRun, environ: Mapping[str, str]) -> str:
    """The run in Markdown, in at most :data:`MOST_BYTES`: result, jobs, failures and notices."""
    lines = [
        *_head(merged, environ),
        *_table(merged),
        "",
        *_failures(merged),
        *_flaky_list(merged),
        *_reference_table(merged),
    ]
    notes = [f"- {markdown(note)}" for note in (*merged.notes, *_not_run(merged), *_skip_but_pass(merged))]
    shown = _within(MOST_BYTES - _size(lines), [*_section_lines(merged), *notes], "- and {} more")
    return "\n".join([*lines, *shown]) + "\n"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _within(limit: int, lines: Sequence[str], more: str) -> Iterator[str]:
    """As many lines as fit into this many bytes, and the number of those left out."""
    for index, line in enumerate(lines):
        limit -= _size([line])
        if limit < _LAST_LINE_BYTES:
            yield more.format(len(lines) - index)
            return
        yield line


def _head(merged: MergedRun, environ: Mapping[str, str]) -> Iterator[str]:
    counts = merged.counts
    yield f"{_TITLE}{counted(counts.tests, 'test')}, {counts.bad or 'none'} failed"
    yield ""
    yield f"{counts.words or 'no tests'}; {times(merged)}. <br>"
    yield " · ".join(_links(merged, environ))
    yield ""
    if (first := next(iter(merged.failures), None)) and first.is_of_job:
        yield from (f"**Cause:** {markdown(first_cause(merged, first.code))}", "")


def _links(merged: MergedRun, environ: Mapping[str, str]) -> Iterator[str]:
    """Links to the reports; on GitHub, which shows a summary without its files, to the artifacts of the run."""
    files = [merged.page.name, *(file.name for file in merged.junit_files or [merged.junit])]
    run = [environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    if environ.get("GITHUB_ACTIONS") == "true" and all(map(_PLAIN_LINK, run)):
        yield from (f"`{name}`" for name in files)
        yield f"[artifacts of this run]({run[0]}/{run[1]}/actions/runs/{run[2]}#artifacts)"
    else:
        yield from (f"[{name}]({name})" for name in files)


def _failures(merged: MergedRun) -> Iterator[str]:
    shown = merged.failures[:LISTED]
    for index, failure in enumerate(shown):
        yield from _failure(failure, "<details open>" if not index else "<details>")
        if index < KEPT_TRACEBACKS:
            yield from fenced("text", failure.traceback)
            yield from fenced("sh", [failure.rerun_command] if failure.rerun_command else [])
        yield from ("", "</details>", "")
    if more := left_out(merged, shown):
        yield from (f"And {more} more, in `{merged.junit.name}`.", "")


def _failure(failure: Failure, start: str) -> Iterator[str]:
    """A group: its message and impact in the summary line, then its first test and its cells."""
    impact = f" ({_inert(failure.impact)})" if failure.impact else ""
    yield f"{start}<summary><b>{failure.kind}</b> {_inert(shorten(failure.message, _LONGEST))}{impact}</summary>"
    yield ""
    yield f"First: {markdown(shorten(failure.job, _NAME))}: {markdown(shorten(failure.nodeid, _NAME))}"
    if len(failure.cells) > 1:
        more = f" and {len(failure.cells) - _CELLS_SHOWN} more" if len(failure.cells) > _CELLS_SHOWN else ""
        shown = (markdown(shorten(cell, _NAME)) for cell in failure.cells[:_CELLS_SHOWN])
        yield f"<br>in {', '.join(shown)}{more}"


def _flaky_list(merged: MergedRun) -> Iterator[str]:
    if not (count := merged.counts.flaky):
        return
    yield f"<details><summary>{_flaky_count(count)}: failed in an earlier attempt but not in the last one</summary>"
    yield ""
    names = _flaky_names(merged)[:LISTED]
    yield from (f"- {markdown(shorten(name, _NAME))}" for name in names)
    if count > len(names):
        yield f"- and {count - len(names)} more"
    yield from ("", "</details>", "")


_REFERENCE_HEAD: Final = ("test", "allranks", "torch's runner", "difference")
_REFERENCE_SHOWN: Final = 50


def _reference_rows(merged: MergedRun) -> Iterator[tuple[str, ...]]:
    """The failure rates of each test that was also repeated under torch's own runner, the reference."""
    tallies = [
        (f"{suite.cell}: {nodeid}", tally)
        for suite in merged.suites
        for nodeid, tally in suite.repeated.items()
        if tally.beside_runs
    ]
    yield from ((name, *_rates(tally)) for name, tally in tallies[:_REFERENCE_SHOWN])
    if len(tallies) > _REFERENCE_SHOWN:
        yield f"and {len(tallies) - _REFERENCE_SHOWN} more, in report.json", "", "", ""


def _rates(tally: RepetitionTally) -> tuple[str, str, str]:
    ours, reference = short_rate(tally.bad, tally.runs), short_rate(tally.beside_bad, tally.beside_runs)
    return ours, reference, difference(tally)


def _reference_lines(merged: MergedRun) -> Iterator[str]:
    for index, (test, ours, reference, difference_text) in enumerate(_reference_rows(merged)):
        if not index:
            yield from ("", f"Failure rates under allranks and under {_REFERENCE_HEAD[2]}, with 95 % intervals:")
        yield f"  {readable(test)}"
        if ours:
            yield f"    {ours:<34} {reference:<34} {difference_text}"


def _reference_table(merged: MergedRun) -> Iterator[str]:
    head, *rows = (f"| {' | '.join(map(markdown, row))} |" for row in (_REFERENCE_HEAD, *_reference_rows(merged)))
    if rows:
        yield from (head, "|---|---|---|---|", *rows, "")


def fenced(language: str, lines: Sequence[str]) -> Iterator[str]:
    """A code block whose fence is longer than any run of backticks in it."""
    if lines:
        fence = "`" * max(3, 1 + max(len(row) for row in re.findall("`*", "\n".join(lines))))
        yield from ("", f"{fence}{language}", *lines, fence)


def _table(merged: MergedRun) -> Iterator[str]:
    yield "| cell | suite | tests | passed | failed | errors | skipped | time |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    rows = [_row(suite) for suite in merged.suites]
    if _size(rows) > _ROW_BYTES:
        rows = [_row(suite) for suite in sorted(merged.suites, key=lambda suite: not suite.counts.bad)]
    yield from _within(_ROW_BYTES + _LAST_LINE_BYTES, rows, "| and {} more | in `report.html` | | | | | | |")
    yield f"| **total** | | {' | '.join(_numbers(merged.counts, _time(merged)))} |"


def _row(suite: SuiteRow) -> str:
    return f"| {markdown(suite.cell)} | {markdown(suite.suite)} | {' | '.join(_numbers(suite.counts, suite.time))} |"


def _inert(text: str) -> str:
    """``text`` on one line, as HTML without markup."""
    return html.escape(printable(" ".join(readable(text).split())))


def _section_lines(merged: MergedRun) -> Iterator[str]:
    for section in _short_sections(merged):
        yield from ("", f"### {section.title}: {section.headline}", "", *section.markdown)


def markdown(text: str) -> str:
    """``text`` on one line, with all Markdown syntax escaped."""
    return printable(" ".join(readable(text).split())).translate(_SPECIAL)
