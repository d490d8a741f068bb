"""Rates of failure under allranks and torch's own runner, side by side."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from allranks.protocol.repetitions import RepetitionTally, difference_in_words, rate_in_short
from allranks.protocol.xml_text import readable
from allranks.report.judged import SuiteRow

_HEAD: Final = ("test", "allranks", "torch's runner", "difference")
_MOST: Final = 50
"""Tests that are shown; report.json has all of them."""


def rows_of(suites: Iterable[SuiteRow]) -> list[tuple[str, ...]]:
    """The heads, and a row for each test that was repeated under both; no row if there is none."""
    rows = [
        (f"{suite.cell}: {nodeid}", *_rates(told))
        for suite in suites
        for nodeid, told in suite.repeated.items()
        if told.beside_runs
    ]
    left = len(rows) - _MOST
    more = [(f"and {left} more, in report.json", "", "", "")] if left > 0 else []
    return [_HEAD, *rows[:_MOST], *more] if rows else []


def _rates(told: RepetitionTally) -> tuple[str, str, str]:
    ours, theirs = (told.bad, told.runs), (told.beside_bad, told.beside_runs)
    return rate_in_short(*ours), rate_in_short(*theirs), difference_in_words(told)


def text_rows(suites: Iterable[SuiteRow]) -> Iterator[str]:
    """The table as lines of text: each test, and its rates below it."""
    head, *rows = rows_of(suites) or [()]
    if rows:
        yield ""
        yield f"Failures under allranks and under {head[2]}, with 95 % intervals:"
    for test, ours, theirs, difference in rows:
        yield f"  {readable(test)}"
        if ours:
            yield f"    {ours:<34} {theirs:<34} {difference}"


def markdown_rows(suites: Iterable[SuiteRow]) -> Sequence[tuple[str, ...]]:
    """The rows, with one of dashes below the heads."""
    rows = rows_of(suites)
    return [*rows[:1], ("--",), *rows[1:]] if rows else []
