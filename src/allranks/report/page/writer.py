"""Takes a run job by job, keeps little of each, and writes ``report.html`` at its end."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from allranks.protocol.xml_text import cut, first_line, readable
from allranks.report.axis_correlation import Blame, CaseKey, Evidence, tells
from allranks.report.failure_groups import GroupKey, message_of, order_of, whose
from allranks.report.judged import CellSuite, MergedRun, SuiteRow
from allranks.report.page.case_list import Details, Index, files_of_ranks, folder_to_link
from allranks.report.page.page import GENERATOR, Groups, Static, document
from allranks.report.results import PassedRanks, TestVerdict, VerdictKind, VerdictRule, compact
from allranks.report.untrusted import head, write_whole

MOST_REASONS: Final = 1000
"""The most distinct skip reasons."""

_SLOWEST: Final = 50
_REASON: Final = 200
_OTHER_REASONS: Final = "other reasons"
TEST: Final = "{}"
"""In the command that runs a test again, the script puts the test's node id in the place of this word."""

_LETTERS: Final = {VerdictKind.FAILURE: "F", VerdictKind.ERROR: "E", VerdictKind.SKIPPED: "S", VerdictKind.PASSED: "P"}


class Slow(NamedTuple):
    """One of the slowest testcases; ordered by its time."""

    seconds: float
    job: int
    nodeid: str
    letter: str


@dataclass
class _Reason:
    text: str
    skipped: int = 0
    passed: int = 0


class PageWriter:
    """Writes the page of a run, ``report.html`` in its folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs = 0
        self._usual: dict[int, str] = {}
        self._index, self._details = Index(), Details()
        self._groups, self._evidence = Groups(), Evidence()
        self._reasons: dict[str, int] = {}
        self._histogram: list[_Reason] = []
        self._slowest: list[Slow] = []

    def add(self, suite: CellSuite) -> None:
        """Add a job with its tests; jobs must come in the order of the run's rows."""
        job, cell = self._jobs, self._evidence.cell(suite)
        self._jobs += 1
        base = readable(suite.whole_suite)
        for test in suite.tests:
            nodeid = readable(test.nodeid)
            key = CaseKey(base, nodeid)
            if test.verdict.kind is VerdictKind.PASSED and test.verdict.rule is VerdictRule.PASSED and not test.earlier:
                self._add_passed(job, cell, key, test)
            else:
                self._add_notable(job, cell, key, test, suite)

    @property
    def blames(self) -> dict[GroupKey, str]:
        """The predicate that holds exactly where a group's tests fail, of each group that has one."""
        found = ((key, self._evidence.of_group(number)) for key, number in self._groups.numbers.items())
        return {key: readable(blame.predicate) for key, blame in found if blame}

    def write(self, merged: MergedRun) -> None:
        """Write the page, replacing an existing one atomically.

        Raises:
            OSError: The page cannot be written.
        """
        blames = Blames(self._evidence)
        groups = list(self._told_groups(blames))
        rest = {**self._rest(merged), "groups": groups, "tests": blames.of_tests(self._index), "blames": blames.told}
        static = Static(merged=merged, listed=self._listed(merged))
        write_whole(self._path, document(static, self._index.finish(rest), self._details.chunks))

    def _add_passed(self, job: int, cell: int, key: CaseKey, test: TestVerdict) -> None:
        # Only PassedRanks define a job's usual ranks: a test with more to report may be an exception.
        ranks = compact(test.ranks)
        usual = self._usual.setdefault(job, ranks) if isinstance(test.ranks, PassedRanks) else self._usual.get(job)
        extra = {"r": ranks} if ranks != usual else None
        self._index.add_passed(job, key.nodeid, test.time, extra)
        if test.verdict.executed:
            self._evidence.passed(key, cell)
        self._time(job, key.nodeid, "P", test.time)

    def _add_notable(self, job: int, cell: int, key: CaseKey, test: TestVerdict, suite: CellSuite) -> None:
        # A skip that counts as a pass has a letter of its own.
        letter = "K" if test.verdict.is_skip_but_pass else _LETTERS[test.verdict.kind]
        extra: dict[str, Any] = {"r": compact(test.ranks)}
        if test.verdict.is_bad:
            extra |= self._failure(cell, key, test)
        elif test.verdict.rule is not VerdictRule.PASSED:
            extra["s"] = self._reason(test)
        if tells(test) and letter == "P":
            self._evidence.passed(key, cell)
        if test.is_flaky:
            extra["f"] = 1
        if test.verdict.is_bad or test.earlier:
            extra["d"] = self._details.add(test, suite.course_of(test))
        if test.verdict.leading is not None:
            extra["l"] = test.verdict.leading
        if test.verdict.skip_code is not None:
            extra["c"] = test.verdict.skip_code
        self._index.add(job, key.nodeid, letter, test.time, extra)
        self._time(job, key.nodeid, letter, test.time)

    def _failure(self, cell: int, key: CaseKey, test: TestVerdict) -> dict[str, Any]:
        message, is_of_job = message_of(test), test.verdict.rule is VerdictRule.JOB
        order = order_of(test.verdict.exit_code, is_of_job=is_of_job)
        group = self._groups.number_of(test, message)
        if not is_of_job:
            # A job's own trouble has no matching pass in other cells, so it is not evidence.
            self._evidence.failed(key, group, cell)
        same = self._groups.groups[group].message == message
        more = {} if same else {"m": message}
        return {"g": group, "w": test.verdict.reason} | more | ({"o": order} if is_of_job else {})

    def _reason(self, test: TestVerdict) -> int:
        said = cut(first_line(readable(test.verdict.message)), _REASON).replace("\n", " ") or "no reason given"
        text = f"xfail: {said}" if test.verdict.reason == "pytest.xfail" else said
        text = text if text in self._reasons or len(self._reasons) < MOST_REASONS else _OTHER_REASONS
        number = self._reasons.setdefault(text, len(self._reasons))
        if number == len(self._histogram):
            self._histogram.append(_Reason(text))
        reason = self._histogram[number]
        reason.passed += test.verdict.is_skip_but_pass
        reason.skipped += not test.verdict.is_skip_but_pass
        return number

    def _time(self, job: int, nodeid: str, letter: str, seconds: float) -> None:
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, Slow(seconds, job, nodeid, letter))
        elif seconds > self._slowest[0].seconds:
            heapq.heapreplace(self._slowest, Slow(seconds, job, nodeid, letter))

    def _told_groups(self, blames: "Blames") -> Iterator[dict[str, Any]]:
        for number, group in enumerate(self._groups.groups):
            blamed = blames.number(self._evidence.of_group(number))
            told: dict[str, Any] = {"m": group.message, "k": _LETTERS[group.kind], "w": group.reason}
            if group.ranks:
                told["r"] = whose(group.ranks, group.world)
            yield told if blamed is None else {**told, "b": blamed}

    def _rest(self, merged: MergedRun) -> dict[str, Any]:
        slowest = sorted(self._slowest, key=lambda slow: (-slow.seconds, slow.job, slow.nodeid))
        return {
            "run": readable(merged.run_id),
            "policy": merged.policy,
            "jobs": [self._job(number, row) for number, row in enumerate(merged.suites)],
            "reasons": [[reason.text, reason.skipped, reason.passed] for reason in self._histogram],
            "slowest": [[round(s.seconds * 1000), s.job, s.nodeid, s.letter] for s in slowest],
            "cut": self._details.left_out,
        }

    def _job(self, number: int, row: SuiteRow) -> dict[str, Any]:
        counts, folder = row.counts, folder_to_link(row)
        tells_more = counts.bad + counts.flaky > 0
        return {
            "cell": readable(row.cell),
            "suite": readable(row.suite),
            "base": readable(row.whole_suite),
            "axes": {
                readable(axis): value if isinstance(value, int) else readable(value) for axis, value in row.axes.items()
            },
            "n": [
                counts.tests,
                counts.passed,
                counts.failed,
                counts.errors,
                counts.skipped,
                counts.skip_but_pass,
                counts.flaky,
            ],
            "time": round(row.time, 3),
            "ranks": self._usual.get(number, ""),
            "again": [list(map(readable, row.again(nodeid))) for nodeid in ("", TEST)],
            "out": self._index.left_out.get(number, 0),
            "engine": readable(row.engine),
            "image": readable(row.image),
            "attempt": row.attempt,
            "folder": folder,
            "files": files_of_ranks(self._path.parent, folder) if tells_more else {},
        }

    def _listed(self, merged: MergedRun) -> str:
        """A sentence on what the page leaves out; empty if it is complete."""
        out, cut_off = sum(self._index.left_out.values()), self._details.left_out
        said = []
        if out:
            said.append(f"{out:,} tests that passed on every rank are counted here and not listed")
        if cut_off:
            said.append(f"{cut_off:,} failures are listed without their texts")
        return f"{'; '.join(said)}: {merged.junit.name} beside this page has all of them." if said else ""


class Blames:
    """The distinct blamed predicates, numbered and written once each."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._numbers: dict[Blame, int] = {}

    @property
    def told(self) -> list[dict[str, Any]]:
        """The predicates, as data for the script."""
        return [
            {"p": readable(blame.predicate), "f": blame.fails, "n": blame.passes, "a": list(map(readable, blame.also))}
            for blame in self._numbers
        ]

    def number(self, blame: Blame | None) -> int | None:
        """The number of a blamed predicate; None for none."""
        return None if blame is None else self._numbers.setdefault(blame, len(self._numbers))

    def of_tests(self, index: Index) -> dict[str, dict[int, int]]:
        """For each suite, the number of the blamed predicate by the number of the test's name."""
        told: dict[str, dict[int, int]] = {}
        for key, blame in self._evidence.of_tests():
            name, number = index.name_number(key.nodeid), self.number(blame)
            if name is not None and number is not None:
                told.setdefault(key.suite, {})[name] = number
        return told


def is_page(path: Path) -> bool:
    """True if allranks wrote this page, and may therefore overwrite it."""
    return GENERATOR.encode() in head(path, 1024)
