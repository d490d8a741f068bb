"""Takes the outcomes of a run while it is merged, and adds them to a history.

The file may be missing, locked or damaged. The report does not depend on it: whatever is wrong with the file
becomes one sentence.
"""

import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from allranks.plugins.history.database import FIRST_CODES, MANY, PASSED, PATIENCE, Code, HistoryError, written
from allranks.plugins.history.timeline import Outcomes, Timeline
from allranks.plugins.history.trends import (
    RunHistory,
    ToldTest,
    as_object,
    headline,
    plain_lines,
    told_tests,
    transitions,
)
from allranks.protocol.outcomes import Outcome, numbers
from allranks.report.judged import MANIFEST_PLACE, CellSuite, MergedRun
from allranks.report.page.page import escaped
from allranks.report.results import EarlierAttempt, PassedRanks, TestVerdict, VerdictKind, VerdictRule
from allranks.report.section import Section, SectionMaker
from allranks.report.summary import FAILURES, LISTED, markdown, shorten

_MOST_RANKS: Final = 8
"""Ranks that an outcome names: more are no trait of a test."""

SHOWN_PASTS: Final = 500
"""Tests that the page lists with their past."""

_NAME: Final = 300


def code_of(test: TestVerdict) -> Code:
    """The outcome of a test as a history keeps it, however its skips are read."""
    verdict = test.verdict
    if verdict.is_bad:
        letter = "F" if verdict.kind is VerdictKind.FAILURE else "E"
        return Code(letter, _ranks(test))
    if verdict.rule is VerdictRule.JOB and not verdict.executed:
        return Code("-")  # it was not reached
    if test.earlier:
        return Code("f", _ranks(test.earlier[-1]))
    is_skip = verdict.kind is VerdictKind.SKIPPED or verdict.is_skip_but_pass
    return Code("S" if is_skip else "P")


def _ranks(test: TestVerdict | EarlierAttempt) -> str:
    """The ranks that went wrong by themselves; empty if all did, or if none is known."""
    own = [
        rank.rank
        for rank in test.ranks
        if rank.outcome.is_bad and rank.outcome is not Outcome.ABORTED and not rank.consequence
    ]
    if not own or len(own) == len(test.ranks):
        return ""
    return numbers(own) if len(own) <= _MOST_RANKS else MANY


@dataclass
class HistoryRecorder(SectionMaker):
    """Takes the jobs of a run one by one, and records them at its end."""

    name = "history"

    path: Path  # the file, which is made if there is none
    patience: float = PATIENCE  # seconds to wait for another process that writes
    _names: dict[str, dict[str, int]] = field(default_factory=dict)
    _last: dict[str, "array[int]"] = field(default_factory=dict)
    _codes: dict[Code, int] = field(default_factory=lambda: {code: at for at, code in enumerate(FIRST_CODES)})
    _jobs: dict[tuple[str, str], list[tuple["array[int]", "array[int]"]]] = field(default_factory=dict)
    _started: float | None = None
    _digest: blake2b = field(default_factory=lambda: blake2b(digest_size=6))

    def __call__(self, suite: CellSuite) -> None:
        """Take the outcomes of a job."""
        if (suite.cell, suite.suite) == MANIFEST_PLACE:
            return
        tests, places = suite.tests, self._places(suite)
        plain = next((test.verdict for test in tests if isinstance(test.ranks, PassedRanks) and not test.earlier), None)
        codes = array(
            "H", [PASSED if test.verdict is plain and not test.earlier else self._code(test) for test in tests]
        )
        self._jobs.setdefault((suite.cell, suite.whole_suite), []).append((places, codes))
        if suite.started is not None:
            self._started = min(suite.started, suite.started if self._started is None else self._started)
        self._digest.update(f"{suite.cell}\n{suite.suite}\n{len(tests)}\n".encode())
        self._digest.update(codes.tobytes() + array("d", [test.time for test in tests]).tobytes())

    def _places(self, suite: CellSuite) -> "array[int]":
        """The number of each test of a job among those of its suite; most jobs of a suite share one array."""
        names, nodeids = self._names.setdefault(suite.whole_suite, {}), [test.nodeid for test in suite.tests]
        for nodeid in nodeids if not names.keys() >= set(nodeids) else ():
            names.setdefault(nodeid, len(names))
        places = array("I", map(names.__getitem__, nodeids))
        if self._last.get(suite.whole_suite) != places:
            self._last[suite.whole_suite] = places
        return self._last[suite.whole_suite]

    def _code(self, test: TestVerdict) -> int:
        return self._codes.setdefault(code_of(test), len(self._codes))

    def section(self, merged: MergedRun) -> Section:
        """Record the run, and say what it changed."""
        # Results that state no run are recognized by their content.
        name = merged.run_id if merged.is_own else f"{merged.run_id}-{self._digest.hexdigest()}"
        return _section(self.record(name))

    def record(self, name: str) -> RunHistory:
        """Record the run, in the place of an earlier record of that name, and compare it with the runs before."""
        try:
            with written(self.path, self.patience) as database:
                return self._recorded(Timeline(database), name)
        except HistoryError as error:
            return RunHistory(path=self.path, problem=f"{self.path} does not have this run: it {error}.")
        except Exception as error:  # noqa: BLE001 - a report must not be lost for a history
            said = f"{type(error).__name__}: {error}"
            return RunHistory(path=self.path, problem=f"{self.path} does not have this run: it is damaged ({said}).")

    def _recorded(self, line: Timeline, name: str) -> RunHistory:
        started = time.time() if self._started is None else self._started
        if self._started is None:
            started = next((run.started for run in line.runs if run.id == name), started)
        outcomes = self._numbered(line)
        line.fit()
        later = line.rewind(name, started)
        line.append(name, started, outcomes)
        found = transitions(line, self.path)
        line.replay(later)
        line.save()
        return found

    def _numbered(self, line: Timeline) -> Outcomes:
        """The outcomes under the numbers of the file."""
        names = line.names
        codes = [names.code(code) for code in self._codes]
        is_same = codes == list(range(len(codes)))
        tests = {suite: [names.test(names.suite(suite), test) for test in own] for suite, own in self._names.items()}
        numbered: dict[int, array[int]] = {}
        told: dict[tuple[int, int], Sequence[tuple[array[int], array[int]]]] = {}
        for (cell, suite), segments in self._jobs.items():
            for places, _ in segments:
                if id(places) not in numbered:
                    numbered[id(places)] = array("I", map(tests[suite].__getitem__, places))
            told[names.cell(cell), names.suite(suite)] = [
                (numbered[id(places)], own if is_same else array("H", map(codes.__getitem__, own)))
                for places, own in segments
            ]
        return told


def _section(history: RunHistory) -> Section:
    section = Section(title="History", headline=headline(history), object=as_object(history))
    if history.problem:
        return replace(section, problem=history.problem)
    told = told_tests(history)
    return replace(
        section,
        lines=tuple(plain_lines(history, FAILURES)),
        markdown=tuple(_markdown(told)),
        html="".join(_html(told)),
    )


def _markdown(told: Sequence[ToldTest]) -> Iterator[str]:
    for test in told[:LISTED]:
        yield f"- **{markdown(test.past.text)}**: {markdown(shorten(test.past.nodeid, _NAME))} ({markdown(test.place)})"
    if len(told) > LISTED:
        yield f"- and {len(told) - LISTED} more, in `report.json`"


def _html(told: Sequence[ToldTest]) -> Iterator[str]:
    rows = "".join(
        f"<tr><td>{escaped(test.past.text)}</td><td><bdi>{escaped(test.past.nodeid[:_NAME])}</bdi></td>"
        f"<td><bdi>{escaped(test.place[:_NAME])}</bdi></td></tr>"
        for test in told[:SHOWN_PASTS]
    )
    if rows:
        head = '<th scope="col">by earlier runs</th><th scope="col">test</th><th scope="col">where</th>'
        yield f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    if len(told) > SHOWN_PASTS:
        yield f"<p>And {len(told) - SHOWN_PASTS:,} more, in report.json.</p>"
