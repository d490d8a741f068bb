"""Collects the outcomes of a run while it is merged, and adds them to a history.

The file may be missing, locked or damaged. The report describes such a problem in one sentence, and is otherwise the
same.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final

from allranks.plugins.history.changes import MANY, StatusesByJob, record
from allranks.plugins.history.database import LOCK_TIMEOUT, HistoryError, written
from allranks.plugins.history.trends import History, RunHistory
from allranks.protocol.outcomes import numbers
from allranks.report.judged import MANIFEST_KEY, CellSuite, MergedRun
from allranks.report.page.page import escaped
from allranks.report.results import RankResult, TestVerdict, own_failures
from allranks.report.section import Section, SectionMaker
from allranks.report.status import Status
from allranks.report.summary import FAILURES, LISTED, markdown, shorten
from allranks.report.untrusted import LAST_MOMENT

_MOST_RANKS: Final = 8
"""The most ranks that a status names: more of them do not characterize a test."""

SHOWN_TRENDS: Final = 500
"""The most tests that the HTML report lists with their trends."""

_NAME: Final = 300

_SHARD: Final = re.compile(r"@\d+of\d+$")


def without_shard(suite: str) -> str:
    """The name of a suite without the number of a shard: ``rpc`` for ``rpc@2of4``."""
    return _SHARD.sub("", suite)


def recorded_status(test: TestVerdict) -> str:
    """The status of a test as a history keeps it, with the ranks that caused it."""
    status = test.status.without_policy
    if status.is_bad:
        return f"{status}{_ranks(test.ranks)}"
    return f"{status}{_ranks(test.earlier[-1].ranks)}" if status is Status.FLAKY else status.value


def _ranks(ranks: Sequence[RankResult]) -> str:
    """The ranks with primary failures; empty if these are all ranks, or none is known."""
    own = own_failures(ranks)
    if not own or len(own) == len(ranks):
        return ""
    return numbers(own) if len(own) <= _MOST_RANKS else MANY


@dataclass
class HistoryRecorder(SectionMaker):
    """Collects the jobs of a run one by one, and records them at its end."""

    name = "history"

    path: Path  # the file, which is created if necessary
    keep: int | None = None  # the number of runs to keep; None for the number in the file
    timeout: float = LOCK_TIMEOUT  # seconds to wait for another process that writes
    _statuses: StatusesByJob = field(default_factory=StatusesByJob)
    _started: float | None = None
    _digest: blake2b = field(default_factory=lambda: blake2b(digest_size=6))

    def __call__(self, suite: CellSuite) -> None:
        if (suite.cell, suite.suite) == MANIFEST_KEY:
            return
        nodeids, statuses = [test.nodeid for test in suite.tests], list(map(recorded_status, suite.tests))
        self._statuses.add(suite.cell, without_shard(suite.whole_suite), nodeids, statuses)
        if suite.started is not None and 0 <= suite.started < LAST_MOMENT:
            self._started = min(suite.started, suite.started if self._started is None else self._started)
        self._digest.update("\n".join((suite.cell, suite.suite, *nodeids, *statuses, "")).encode())
        self._digest.update(array("d", [test.time for test in suite.tests]).tobytes())

    def section(self, merged: MergedRun) -> Section:
        """Record the run, and list what it changed."""
        # Results without a run id are identified by their content, whatever folder they are in.
        history = self.record(merged.run_id if merged.is_own else self._digest.hexdigest())
        return Section(
            title="History",
            headline=history.headline,
            object=history.as_object(),
            problem=history.problem,
            lines=tuple(history.lines(FAILURES)),
            markdown=tuple(_markdown(history)),
            html="".join(_html(history)),
        )

    def record(self, run_id: str) -> RunHistory:
        """Record the run, replacing an earlier record of the same id, and compare it with the runs before it."""
        try:
            with written(self.path, self.timeout) as database:
                number = record(database, run_id, self._started, self._statuses, self.keep)
                return History(database, number).newest(self.path)
        except HistoryError as error:
            return RunHistory(path=self.path, problem=f"{self.path} does not have this run: it {error}.")


def _markdown(history: RunHistory) -> Iterator[str]:
    rows = history.rows()
    for text, nodeid, job in rows[:LISTED]:
        yield f"- **{markdown(text)}**: {markdown(shorten(nodeid, _NAME))} ({markdown(job)})"
    if len(rows) > LISTED:
        yield f"- and {len(rows) - LISTED} more, in `report.json`"


def _html(history: RunHistory) -> Iterator[str]:
    rows = history.rows()
    if rows:
        head = '<th scope="col">by earlier runs</th><th scope="col">test</th><th scope="col">where</th>'
        yield f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>'
        for text, nodeid, job in rows[:SHOWN_TRENDS]:
            yield f"<tr><td>{escaped(text)}</td><td><bdi>{escaped(nodeid[:_NAME])}</bdi></td>"
            yield f"<td><bdi>{escaped(job[:_NAME])}</bdi></td></tr>"
        yield "</tbody></table></div>"
    if len(rows) > SHOWN_TRENDS:
        yield f"<p>And {len(rows) - SHOWN_TRENDS:,} more, in report.json.</p>"
