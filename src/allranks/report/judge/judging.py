"""Judges one attempt at a job: a verdict on each test that was collected, or that any rank reports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

from allranks.errors import UsageError
from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import first_line, split_nodeid, xml_id
from allranks.report.folder import Attempt, ResultFile
from allranks.report.journal import read_journal
from allranks.report.judge.rules import NO_RESULT, VerdictPolicy, verdict
from allranks.report.rank_xml import RankReader, rejected_file
from allranks.report.results import (
    PassedRanks,
    RankFile,
    RankGroup,
    RankResult,
    TestVerdict,
    Verdict,
    VerdictKind,
    VerdictRule,
    rank_groups,
    results_of,
)
from allranks.report.run_files import NO_RECORD, JobRecord
from allranks.report.untrusted import whole_number


def read_ranks(files: Sequence[ResultFile], reader: RankReader | None = None) -> list[RankFile]:
    """Read the result files of one attempt: a journal has the results of all ranks, an XML file those of one."""
    reader = reader or RankReader()
    found: list[RankFile] = []
    for path, rank in files:
        found += read_journal(path) if rank is None else [reader.read(path, rank=rank)]
    reader.end_job()
    return found


def files_of(attempt: Attempt, reader: RankReader | None = None) -> list[RankFile]:
    """All rank files of one attempt, including a placeholder for each rejected file."""
    return [*read_ranks(attempt.files, reader), *map(rejected_file, attempt.rejected)]


_ERRORS_THAT_EXPLAIN_NOT_RUN: Final = frozenset({"collection", "timeout", "interrupted", "stopped"})
"""After these errors, tests without results are known not to have started; the error itself is reported once."""


def judge(attempt: Attempt, files: Sequence[RankFile], policy: VerdictPolicy) -> Iterator[TestVerdict]:
    """Judge each test of one attempt."""
    record, groups = attempt.record or NO_RECORD, rank_groups(files)
    gpus = -(-len(record.gpus) // record.nodes)
    policy = policy._replace(gpus=gpus, job_has_ended=_has_ended(attempt, files))
    reported = (nodeid for group in groups for nodeid in group.index)
    collected = map(xml_id, record.collected or ())
    not_run = _reasons_for_not_run(record)
    expected, reasons = expected_ranks(attempt, files), _reasons_for_missing(attempt, files)
    passes = _PlainPasses.of(groups, expected, policy)
    for nodeid in dict.fromkeys((*collected, *reported)):
        if passed := passes and passes.verdict_on(nodeid):
            yield passed
        elif (results := results_of(nodeid, groups)) or nodeid not in not_run:
            file, line = _source_of(nodeid, groups)
            yield replace(_judge(nodeid, results, expected, reasons, policy), file=file, line=line)
        else:
            yield _not_run(nodeid, not_run[nodeid])


class _PlainPasses(NamedTuple):
    """The fast path for tests that passed on every rank: nearly all tests, and all have the same verdict."""

    group: RankGroup
    verdict: Verdict

    @classmethod
    def of(cls, groups: Sequence[RankGroup], expected: range, policy: VerdictPolicy) -> Self | None:
        """Return None if the ranks did not run the same tests."""
        if len(groups) != 1 or groups[0].ranks != tuple(expected):
            return None
        group = groups[0]
        index = next((index for index in range(len(group.index)) if index not in group.notable), None)
        return None if index is None else cls(group, verdict(PassedRanks(group, index), policy))

    def verdict_on(self, nodeid: str) -> TestVerdict | None:
        """Return None if this test is not a plain pass on every rank, or other ranks took part."""
        group = self.group
        index = group.index.get(nodeid)
        if index is None or index in group.notable or group.world_sizes[index] not in {0, len(group.files)}:
            return None
        key = group.keys[index]
        return TestVerdict(
            nodeid=nodeid,
            classname=key.classname,
            name=key.name,
            verdict=self.verdict,
            ranks=PassedRanks(group, index),
            file=key.file,
            line=key.line,
        )


def _has_ended(attempt: Attempt, files: Sequence[RankFile]) -> bool:
    """Whether the job is known to have ended, and all its results could be read."""
    if attempt.record is None or attempt.record.error:
        return False
    return not any(file.is_unfinished or file.problem for file in files)


def _reasons_for_not_run(record: JobRecord) -> dict[str, str]:
    """Why collected tests may have no result, by node id."""
    reasons = {}
    if record.error and record.error.kind in _ERRORS_THAT_EXPLAIN_NOT_RUN:
        reasons = dict.fromkeys(record.collected or (), first_line(record.error.text) or record.error.kind)
    reasons |= dict.fromkeys(record.not_run, f"stopped by {record.stop_reason or 'the job'}")
    return {xml_id(nodeid): f"not run: {reason}" for nodeid, reason in reasons.items()}


def _judge(
    nodeid: str, results: Sequence[RankResult], expected: range, reasons: Mapping[int, str], policy: VerdictPolicy
) -> TestVerdict:
    first = next(iter(results), None)
    classname, name = (first.classname, first.name) if first else split_nodeid(nodeid)
    took_part = max((result.world_size for result in results if result.world_size), default=None)
    ranks = range(took_part) if took_part else expected
    reported = {result.rank for result in results}
    missing = [
        RankResult(
            nodeid=nodeid,
            classname=classname,
            name=name,
            rank=rank,
            outcome=Outcome.MISSING,
            message=reasons.get(rank, NO_RESULT),
        )
        for rank in ranks
        if rank not in reported
    ]
    all_ranks = tuple(sorted((*results, *missing), key=lambda result: result.rank))
    judged = verdict(all_ranks, policy)
    return TestVerdict(nodeid=nodeid, classname=classname, name=name, verdict=judged, ranks=all_ranks)


def _source_of(nodeid: str, groups: Iterable[RankGroup]) -> tuple[str, int]:
    """The source file and line of a test, from the first rank whose XML states them."""
    keys = (group.keys[group.index[nodeid]] for group in groups if nodeid in group.index)
    return next(((key.file, key.line) for key in keys if key.file), ("", 0))


def _not_run(nodeid: str, reason: str) -> TestVerdict:
    classname, name = split_nodeid(nodeid)
    judged = Verdict(
        kind=VerdictKind.SKIPPED,
        rule=VerdictRule.JOB,
        reason="pytest.skip",
        message=reason,
        text=reason,
        executed=False,
    )
    return TestVerdict(nodeid=nodeid, classname=classname, name=name, verdict=judged)


def stated_sizes(attempt: Attempt, files: Sequence[RankFile]) -> dict[str, int]:
    """The number of ranks of a job, by source: its record, its cell, an option, and its files."""
    sizes = dict(attempt.world_sizes)
    if attempt.record:
        sizes = {"job.json": attempt.record.world_size, **sizes}
    for file in files:
        if size := whole_number(file.properties.get("allranks.world_size")):
            sizes[file.path.name] = size
    return sizes


def expected_ranks(attempt: Attempt, files: Sequence[RankFile]) -> range:
    """The ranks that each test should have run on; UsageError if no source states their number."""
    if sizes := stated_sizes(attempt, files):
        return range(max(sizes.values()))
    if attempt.folder:  # its record is missing, which is reported as an error
        return range(max((file.rank + 1 for file in files if file.rank is not None), default=0))
    msg = f"The number of ranks of {attempt.cell} / {attempt.suite} is unknown."
    raise UsageError(
        msg,
        why="Its XML has no property allranks.world_size, and its cell is not an id such as gloo-w4-g0-env.",
        remedy="Add --world-size N to `allranks report`.",
    )


def _reasons_for_missing(attempt: Attempt, files: Sequence[RankFile]) -> dict[int, str]:
    """Why results may be missing, by rank."""
    error = (attempt.record or NO_RECORD).error
    why = f"{NO_RESULT} ({first_line(error.what)})" if error and error.what else NO_RESULT
    reasons = dict.fromkeys(expected_ranks(attempt, files), why)
    return reasons | {file.rank: file.problem for file in files if file.problem and file.rank is not None}
