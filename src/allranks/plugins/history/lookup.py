"""The outcomes of one test in all cells and runs of a history."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from allranks.errors import UsageError, did_you_mean
from allranks.plugins.history.catalogue import Code
from allranks.plugins.history.history_file import HistoryError, read
from allranks.plugins.history.timeline import RecordedRun, Timeline
from allranks.plugins.history.transitions import WINDOW, PastOfTest, RunHistory, codes_in, past_at, transitions

_MOST_TESTS: Final = 20
"""Tests that a text may match: for more, the outcomes of each would not be read."""


@dataclass(frozen=True, kw_only=True)
class TestLine:
    """The outcomes of a test in a cell."""

    __test__ = False  # not a test class, despite its name

    cell: str
    suite: str
    nodeid: str
    codes: Sequence[Code | None]  # in each run, oldest first; None where the run did not have the job
    past: PastOfTest | None  # its trend in the newest runs; None if it is of no interest


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A history without a question."""

    runs: Sequence[RecordedRun]
    begins: RecordedRun  # the oldest run whose outcomes are still in the file
    tests: int
    cells: int
    newest: RunHistory


def overview(path: Path) -> Overview:
    """What is in a history.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        with read(path) as database:
            line = Timeline(database)
            begins = next((run for run in line.runs if run.number >= line.begins), line.runs[-1])
            return Overview(
                runs=line.runs,
                begins=begins,
                tests=len(line.names.tests),
                cells=line.width,
                newest=transitions(line, path),
            )
    except HistoryError as error:
        raise _unreadable(path, error) from error


def lookup(path: Path, text: str, most_runs: int) -> tuple[Sequence[RecordedRun], list[TestLine]]:
    """The newest runs, and the outcomes of a test in them, by cell.

    Args:
        path: The file of the history.
        text: A node id, or a part of the ids of some tests.
        most_runs: How many runs.

    Raises:
        UsageError: The file cannot be read, or no test is meant, or too many are.
    """
    try:
        with read(path) as database:
            line = Timeline(database)
            tests = _meant(line, text)
            runs = [run for run in line.runs if run.number >= line.begins][-most_runs:]
            return runs, _lines(line, tests, runs)
    except HistoryError as error:
        raise _unreadable(path, error) from error


def _lines(line: Timeline, tests: Sequence[int], runs: Sequence[RecordedRun]) -> list[TestLine]:
    places = [test * line.width + cell for test in tests for cell in range(line.width)]
    changes = line.changes_at(places, min(runs[0].number, line.runs[-WINDOW:][0].number))
    since = line.bad_since(place for place in places if line.names.codes[line.now[place]].is_bad)
    found = []
    for place in places:
        job = line.job_at(place)
        codes = [line.names.codes[code] for code in codes_in(runs, line.now[place], changes.get(place, ()))]
        told = [code if run.jobs & job else None for run, code in zip(runs, codes, strict=True)]
        if any(code and code.letter != "-" for code in told):
            cell, suite, nodeid = line.name_of(place)
            newest = [run for run in line.runs[-WINDOW:] if run.jobs & job]
            past = past_at(line, place, newest, changes.get(place, ()), since)
            found.append(TestLine(cell=cell, suite=suite, nodeid=nodeid, codes=told, past=past))
    return found


def _meant(line: Timeline, text: str) -> list[int]:
    ids = [nodeid for _, nodeid in line.names.tests]
    found = [number for number, nodeid in enumerate(ids) if nodeid == text]
    found = found or [number for number, nodeid in enumerate(ids) if text in nodeid]
    if not found:
        msg = f"No test in the history has {text!r} in its id."
        raise UsageError(msg, why=did_you_mean(text, islice(ids, 20_000)))
    if len(found) > _MOST_TESTS:
        some = ", ".join(ids[number] for number in found[:3])
        msg = f"{len(found)} tests have {text!r} in their id: {some}, …"
        raise UsageError(msg, remedy="Give a whole node id, or more of it.")
    return found


def _unreadable(path: Path, error: HistoryError) -> UsageError:
    remedy = "A run with --history FILE, or `allranks merge DIR --history FILE`, makes one."
    return UsageError(f"{path} cannot be read as a history: it {error}.", remedy=remedy)
