"""The tests of one attempt at a job, each judged by what its ranks came to."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from allranks.harness.outcome import Outcome
from allranks.harness.rank_xml import legal, split_nodeid, xml_id
from allranks.report.columns import PassedRanks, RankFile, Team, results_of, teams_of
from allranks.report.folder import Attempt
from allranks.report.model import RankResult, Rule, TestVerdict, Verdict, VerdictKind
from allranks.report.run_files import JobRecord
from allranks.report.verdict import Setting, verdict
from allranks.report.xml_text import first_line

_SIZE: Final = re.compile("[0-9]{1,18}").fullmatch

_EXPLAINS_WHAT_DID_NOT_RUN: Final = frozenset({"collection", "timeout", "interrupted", "stopped"})
"""Errors after which it is known that no rank began the tests without results; the error itself is reported once."""


def judge(attempt: Attempt, files: Sequence[RankFile], setting: Setting) -> Iterator[TestVerdict]:
    """A verdict for each test that was collected, or that some rank reports.

    Args:
        attempt: What is known of the attempt besides the ranks' files.
        files: What the ranks left.
        setting: How skips are read; the GPUs of the job are filled in here.
    """
    record, teams = attempt.record, teams_of(files)
    setting = replace(setting, gpus=len(record.gpus) if record else 0)
    reported = dict.fromkeys(nodeid for team in teams for nodeid in team.places)
    collected = _names(record.collected or (), reported) if record else {}
    not_run = _reasons_not_to_run(record, collected) if record else {}
    expected, absent = _expected_ranks(attempt, files), _absences(attempt, files)
    good = _Good.of(teams, expected, setting)
    for nodeid in dict.fromkeys((*collected.values(), *reported)):
        if passed := good and good.verdict_of(nodeid):
            yield passed
        elif (results := results_of(nodeid, teams)) or nodeid not in not_run:
            yield _judge(nodeid, results, expected, absent, setting)
        else:
            yield _not_run(nodeid, not_run[nodeid])


@dataclass(frozen=True)
class _Good:
    """The short way to the verdict of tests that passed on every rank: nearly all, and all judged alike."""

    team: Team
    verdict: Verdict

    @classmethod
    def of(cls, teams: Sequence[Team], expected: range, setting: Setting) -> Self | None:
        """None where the ranks did not run the same tests."""
        if len(teams) != 1 or teams[0].ranks != tuple(expected):
            return None
        team = teams[0]
        place = next((place for place in range(len(team.places)) if place not in team.notable), None)
        return None if place is None else cls(team, verdict(PassedRanks(team, place), setting))

    def verdict_of(self, nodeid: str) -> TestVerdict | None:
        """None where a rank has more to say of this test than that it passed, or other ranks took part."""
        team = self.team
        place = team.places.get(nodeid)
        if place is None or place in team.notable or team.world_sizes[place] not in {0, len(team.files)}:
            return None
        key = team.files[0].keys[place]
        ranks = PassedRanks(team, place)
        return TestVerdict(
            nodeid=nodeid,
            classname=key.classname,
            name=key.name,
            verdict=self.verdict,
            ranks=ranks,
            slowest=ranks.time,
        )


def _names(collected: Iterable[str], reported: Container[str]) -> dict[str, str]:
    """How reports name each collected test.

    Older versions of allranks wrote ``#x01`` as it is, which :func:`xml_id` does not: where a rank reports a test by
    such a name, and it is no other test's, it is meant.
    """
    names = {nodeid: xml_id(nodeid) for nodeid in collected}
    changed = {nodeid: legal(nodeid) for nodeid, name in names.items() if name not in reported}
    taken = frozenset(names.values()) if changed else frozenset()
    older = {nodeid: name for nodeid, name in changed.items() if name in reported and name not in taken}
    return names | older


def _reasons_not_to_run(record: JobRecord, names: Mapping[str, str]) -> dict[str, str]:
    """For each collected test that may be without any result, why."""
    error = record.error if record.error and record.error.kind in _EXPLAINS_WHAT_DID_NOT_RUN else None
    explained = record.collected or () if error else ()
    ended = first_line(error.text) or error.kind if error else ""
    stopped = f"stopped by {record.stop_reason or 'the job'}"
    reasons = {**dict.fromkeys(explained, ended), **dict.fromkeys(record.not_run, stopped)}
    return {names.get(nodeid) or xml_id(nodeid): f"not run: {reason}" for nodeid, reason in reasons.items()}


def _judge(
    nodeid: str, results: Sequence[RankResult], expected: range, absent: Mapping[int, str], setting: Setting
) -> TestVerdict:
    classname, name = (results[0].classname, results[0].name) if results else split_nodeid(nodeid)
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


def _not_run(nodeid: str, reason: str) -> TestVerdict:
    classname, name = split_nodeid(nodeid)
    judged = Verdict(
        kind=VerdictKind.SKIPPED, rule=Rule.JOB, reason="pytest.skip", message=reason, text=reason, executed=False
    )
    return TestVerdict(nodeid=nodeid, classname=classname, name=name, verdict=judged)


def _expected_ranks(attempt: Attempt, files: Sequence[RankFile]) -> range:
    """The ranks that each test should have run on.

    Where there is no record, as many as the cell or any of the files says; where nothing says, those between the lowest
    and the highest that left a file. They are counted from 1 where none is 0, because some launchers do.
    """
    if attempt.record:
        return range(attempt.record.world_size)
    ranks = [file.rank or 0 for file in files]
    texts = [file.properties.get("allranks.world_size", "") for file in files]
    size = max((attempt.world_size or 0, *map(int, filter(_SIZE, texts))))
    if size and (size not in ranks or 0 in ranks):
        return range(size)
    return range(min(1, *ranks), max(ranks) + 1) if ranks else range(0)


def _absences(attempt: Attempt, files: Sequence[RankFile]) -> dict[int, str]:
    """For each rank whose results are known to be cut short, why."""
    error = attempt.record.error if attempt.record else None
    why = f"nothing came back ({first_line(error.what)})" if error and error.what else "nothing came back"
    causes = dict.fromkeys(_expected_ranks(attempt, files), why)
    return causes | {file.rank: file.problem for file in files if file.problem and file.rank is not None}
