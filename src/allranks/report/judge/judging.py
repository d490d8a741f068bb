"""The tests of one attempt at a job: a verdict for each that was collected, or that any rank reports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

from allranks.errors import UsageError
from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import first_line, split_nodeid, xml_id
from allranks.report.folder import Attempt, ResultFile
from allranks.report.journal import read_journal
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.rank_xml import RankReader, stray_file
from allranks.report.results import (
    PassedRanks,
    RankFile,
    RankGroup,
    RankResult,
    TestVerdict,
    Verdict,
    VerdictKind,
    VerdictRule,
    results_of,
    teams_of,
)
from allranks.report.run_files import NO_RECORD, JobRecord
from allranks.report.untrusted import whole_number


def read_ranks(files: Sequence[ResultFile], reader: RankReader | None = None) -> list[RankFile]:
    """The results in the files of one attempt, in the order of the files: a journal holds all ranks, others one."""
    reader = reader or RankReader()
    found: list[RankFile] = []
    for path, rank in files:
        found += read_journal(path) if rank is None else [reader.read(path, rank=rank)]
    reader.end_job()
    return found


def files_of(attempt: Attempt, reader: RankReader | None = None) -> list[RankFile]:
    """The rank files of one attempt, including those that are not read."""
    return [*read_ranks(attempt.files, reader), *map(stray_file, attempt.strays)]


_EXPLAINS_WHAT_DID_NOT_RUN: Final = frozenset({"collection", "timeout", "interrupted", "stopped"})
"""Errors after which tests without results are known not to have begun; the error itself is reported once."""


def judge(attempt: Attempt, files: Sequence[RankFile], setting: VerdictPolicy) -> Iterator[TestVerdict]:
    """A verdict for each test that was collected, or that any rank reports."""
    record, teams = attempt.record or NO_RECORD, teams_of(files)
    gpus = -(-len(record.gpus) // record.nodes)
    setting = setting._replace(gpus=gpus, job_has_ended=_has_ended(attempt, files))
    reported = (nodeid for team in teams for nodeid in team.places)
    collected = map(xml_id, record.collected or ())
    not_run = _reasons_not_to_run(record)
    expected, absent = expected_ranks(attempt, files), _absences(attempt, files)
    good = _Good.of(teams, expected, setting)
    for nodeid in dict.fromkeys((*collected, *reported)):
        if passed := good and good.verdict_of(nodeid):
            yield passed
        elif (results := results_of(nodeid, teams)) or nodeid not in not_run:
            file, line = _place_of(nodeid, teams)
            yield replace(_judge(nodeid, results, expected, absent, setting), file=file, line=line)
        else:
            yield _not_run(nodeid, not_run[nodeid])


class _Good(NamedTuple):
    """The fast path for tests that passed on every rank: nearly all tests, and all have the same verdict."""

    team: RankGroup
    verdict: Verdict

    @classmethod
    def of(cls, teams: Sequence[RankGroup], expected: range, setting: VerdictPolicy) -> Self | None:
        """Return None if the ranks did not run the same tests."""
        if len(teams) != 1 or teams[0].ranks != tuple(expected):
            return None
        team = teams[0]
        place = next((place for place in range(len(team.places)) if place not in team.notable), None)
        return None if place is None else cls(team, verdict(PassedRanks(team, place), setting))

    def verdict_of(self, nodeid: str) -> TestVerdict | None:
        """Return None if this test is not a plain pass on every rank, or other ranks took part."""
        team = self.team
        place = team.places.get(nodeid)
        if place is None or place in team.notable or team.world_sizes[place] not in {0, len(team.files)}:
            return None
        key = team.keys[place]
        ranks = PassedRanks(team, place)
        return TestVerdict(
            nodeid=nodeid,
            classname=key.classname,
            name=key.name,
            verdict=self.verdict,
            ranks=ranks,
            file=key.file,
            line=key.line,
        )


def _has_ended(attempt: Attempt, files: Sequence[RankFile]) -> bool:
    """Whether the job is known to have ended, and all its results could be read; foreign results do not tell."""
    if attempt.record is None or attempt.record.error:
        return False
    return not any(file.is_unfinished or file.problem for file in files)


def _reasons_not_to_run(record: JobRecord) -> dict[str, str]:
    """The reason for each collected test that may have no result."""
    reasons = {}
    if record.error and record.error.kind in _EXPLAINS_WHAT_DID_NOT_RUN:
        reasons = dict.fromkeys(record.collected or (), first_line(record.error.text) or record.error.kind)
    reasons |= dict.fromkeys(record.not_run, f"stopped by {record.stop_reason or 'the job'}")
    return {xml_id(nodeid): f"not run: {reason}" for nodeid, reason in reasons.items()}


def _judge(
    nodeid: str, results: Sequence[RankResult], expected: range, absent: Mapping[int, str], setting: VerdictPolicy
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
            message=absent.get(rank, "nothing came back"),
        )
        for rank in ranks
        if rank not in reported
    ]
    everything = sorted((*results, *missing), key=lambda result: result.rank)
    judged = verdict(everything, setting)
    return TestVerdict(nodeid=nodeid, classname=classname, name=name, verdict=judged, ranks=tuple(everything))


def _place_of(nodeid: str, teams: Iterable[RankGroup]) -> tuple[str, int]:
    """The source file and the line of a test, as the first rank's XML that states them has them."""
    keys = (team.keys[team.places[nodeid]] for team in teams if nodeid in team.places)
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
    """The numbers of ranks of a job, by who states them: its record, its cell, an option, and its files."""
    sizes = dict(attempt.world_sizes)
    if attempt.record:
        sizes = {"job.json": attempt.record.world_size, **sizes}
    for file in files:
        if size := whole_number(file.properties.get("allranks.world_size")):
            sizes[file.path.name] = size
    return sizes


def expected_ranks(attempt: Attempt, files: Sequence[RankFile]) -> range:
    """The ranks that each test should have run on; it is a UsageError if nothing states their number."""
    if sizes := stated_sizes(attempt, files):
        return range(max(sizes.values()))
    if attempt.folder:  # its record is missing, which is an error by itself
        return range(max((file.rank + 1 for file in files if file.rank is not None), default=0))
    msg = f"Nothing states how many ranks {attempt.cell} / {attempt.suite} has."
    raise UsageError(
        msg,
        why="Its XML has no property allranks.world_size, and its cell is no id such as gloo-w4-g0-env.",
        remedy="Add --world-size N to `allranks report`.",
    )


def _absences(attempt: Attempt, files: Sequence[RankFile]) -> dict[int, str]:
    """The reason for each rank whose results are known to be incomplete."""
    error = (attempt.record or NO_RECORD).error
    why = f"nothing came back ({first_line(error.what)})" if error and error.what else "nothing came back"
    causes = dict.fromkeys(expected_ranks(attempt, files), why)
    return causes | {file.rank: file.problem for file in files if file.problem and file.rank is not None}
