"""Reads a run job by job, keeps a compact form of each job, and writes ``report.html`` at the end."""

import heapq
from pathlib import Path
from typing import Any, Final, NamedTuple

from allranks.errors import counted
from allranks.protocol.xml_text import cut, first_line, readable
from allranks.report.axis_correlation import Blame, Evidence
from allranks.report.failure_groups import OTHERS, Failure, GroupKey, message_of
from allranks.report.judged import CellSuite, MergedRun, SuiteRow
from allranks.report.page.case_list import Details, Index, files_of_ranks, folder_to_link
from allranks.report.page.page import GENERATOR, Static, document
from allranks.report.results import PassedRanks, TestVerdict, VerdictRule, compact
from allranks.report.status import Status
from allranks.report.untrusted import head, write_whole

MOST_REASONS: Final = 1000
"""The most distinct skip reasons."""

_SLOWEST: Final = 50
_REASON: Final = 200
_OTHER_REASONS: Final = "other reasons"
TEST: Final = "{}"
"""The placeholder that the script replaces by a test's node id in the rerun command."""


class SlowTest(NamedTuple):
    """One of the slowest testcases, ordered by time."""

    seconds: float
    job: int
    nodeid: str
    status: Status


class PageWriter:
    """Writes the page of a run, ``report.html`` in its folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs = 0
        self._usual: dict[int, str] = {}
        self._index, self._details = Index(), Details()
        self._groups: dict[GroupKey, int] = {}
        self._reasons: dict[str, list[int]] = {}  # number, tests that were skipped, skips that count as passed
        self._slowest: list[SlowTest] = []

    def add(self, suite: CellSuite) -> None:
        """Add a job with its tests; jobs must be added in the order of the run's rows."""
        job = self._jobs
        self._jobs += 1
        key_of = {id(test): key for key, tests in suite.groups.items() for test in tests}
        for test in suite.tests:
            nodeid, status = readable(test.nodeid), test.verdict.status
            self._keep_if_slow(job, nodeid, status, test.time)
            if test.verdict.rule is VerdictRule.PASSED and status is Status.PASSED and not test.earlier:
                self._add_passed(job, nodeid, test)
                continue
            reason = None if test.verdict.is_bad or test.verdict.rule is VerdictRule.PASSED else self._reason(test)
            if self._index.has_room(status, nodeid):
                extra: dict[str, Any] = {"r": compact(test.ranks), "s": reason}
                if test.verdict.is_bad:
                    group = self._groups.setdefault(key_of[id(test)], len(self._groups))
                    extra |= {"g": group, "w": test.verdict.reason, "m": message_of(test)}
                if test.verdict.is_bad or test.earlier:
                    extra["d"] = self._details.add(test, suite.timeline_of(test))
                extra |= {"f": 1 if test.is_flaky else None, "l": test.verdict.leading, "c": test.verdict.skip_code}
                extra = {name: value for name, value in extra.items() if value is not None}
                self._index.add(job, nodeid, status, test.time, extra)

    def write(self, merged: MergedRun, evidence: Evidence) -> None:
        """Write the page, replacing an existing one atomically."""
        blames: dict[Blame, int] = {}
        index_of = {failure.key: index for index, failure in enumerate(merged.failures)}
        rest = {
            **self._rest(merged),
            "groups": [_group(failure, blames) for failure in merged.failures],
            "order": [index_of.get(key, index_of.get(OTHERS)) for key in self._groups],
            "tests": self._blamed_tests(evidence, blames),
            "blames": [
                {"p": readable(b.predicate), "f": b.fails, "n": b.passes, "a": list(map(readable, b.also))}
                for b in blames
            ],
        }
        static = Static(merged=merged, omitted=self._omitted(merged))
        write_whole(self._path, document(static, self._index.finish(rest), self._details.chunks))

    def _blamed_tests(self, evidence: Evidence, blames: dict[Blame, int]) -> dict[str, dict[int, int]]:
        """The number of the predicate that separates a test's failures from its passes, by suite and name number."""
        predicates: dict[str, dict[int, int]] = {}
        for key, blame in evidence.of_tests():
            if (name := self._index.name_number(key.nodeid)) is not None:
                predicates.setdefault(key.suite, {})[name] = blames.setdefault(blame, len(blames))
        return predicates

    def _add_passed(self, job: int, nodeid: str, test: TestVerdict) -> None:
        # The page lists a job's usual ranks once: those of its first plain pass.
        ranks = compact(test.ranks)
        usual = self._usual.setdefault(job, ranks) if isinstance(test.ranks, PassedRanks) else self._usual.get(job)
        if self._index.has_room(Status.PASSED, nodeid):
            self._index.add(job, nodeid, Status.PASSED, test.time, {"r": ranks} if ranks != usual else None)

    def _reason(self, test: TestVerdict) -> int:
        text = cut(first_line(readable(test.verdict.message)), _REASON).replace("\n", " ") or "no reason given"
        text = f"xfail: {text}" if test.verdict.reason == "pytest.xfail" else text
        text = text if text in self._reasons or len(self._reasons) < MOST_REASONS else _OTHER_REASONS
        reason = self._reasons.setdefault(text, [len(self._reasons), 0, 0])
        reason[2 if test.verdict.is_skip_but_pass else 1] += 1
        return reason[0]

    def _keep_if_slow(self, job: int, nodeid: str, status: Status, seconds: float) -> None:
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, SlowTest(seconds, job, nodeid, status))
        elif seconds > self._slowest[0].seconds:
            heapq.heapreplace(self._slowest, SlowTest(seconds, job, nodeid, status))

    def _rest(self, merged: MergedRun) -> dict[str, Any]:
        slowest = sorted(self._slowest, key=lambda slow: (-slow.seconds, slow.job, slow.nodeid))
        return {
            "run": readable(merged.run_id),
            "policy": merged.policy,
            "statuses": [[status, status.word] for status in Status if status is not Status.ABSENT],
            "jobs": [self._job(number, row) for number, row in enumerate(merged.suites)],
            "reasons": [[text, *counts] for text, (_, *counts) in self._reasons.items()],
            "slowest": [[round(s.seconds * 1000), s.job, s.nodeid, s.status] for s in slowest],
            "out": sum(self._index.left_out.values()),
        }

    def _job(self, number: int, row: SuiteRow) -> dict[str, Any]:
        counts, folder = row.counts, folder_to_link(row)
        has_details = counts.bad + counts.flaky > 0
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
            "rerun": [list(map(readable, row.rerun_command(nodeid))) for nodeid in ("", TEST)],
            "engine": readable(row.engine),
            "image": readable(row.image),
            "attempt": row.attempt,
            "folder": folder,
            "files": files_of_ranks(self._path.parent, folder) if has_details else {},
        }

    def _omitted(self, merged: MergedRun) -> str:
        """A sentence about what the page omits; empty if it is complete."""
        counts = [f"{count:,} {status.word_for(count)}" for status in Status if (count := self._index.left_out[status])]
        omitted = [f"Not listed: {'; '.join(counts)}"] if counts else []
        if self._details.left_out:
            omitted.append(f"No text is shown for {counted(self._details.left_out, 'failure')}")
        return f"{'. '.join(omitted)}. {merged.junit.name}, next to this page, has all of them." if omitted else ""


def _group(failure: Failure, blames: dict[Blame, int]) -> dict[str, Any]:
    return {
        "m": failure.rank_message,
        "k": failure.kind.status,
        "w": failure.reason,
        "n": 1 + failure.more,
        "r": readable(failure.spread),
        "b": blames.setdefault(failure.blame, len(blames)) if failure.blame else None,
    }


def is_page(path: Path) -> bool:
    """True if allranks wrote this page, and may therefore overwrite it."""
    return GENERATOR.encode() in head(path, 1024)
