"""The tests of each attempt at a job, judged, and what went wrong before the last attempt."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from allranks.errors import ExitCode
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import JOURNAL
from allranks.protocol.xml_text import first_line, split_nodeid, xml_id
from allranks.report.folder import Attempt, is_named_like_a_rank
from allranks.report.journal import read_journal
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.rank_names import rank_of
from allranks.report.rank_xml import RankReader
from allranks.report.results import (
    EarlierAttempt,
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
from allranks.report.run_files import JobRecord


def read_ranks(paths: Sequence[Path]) -> list[RankFile]:
    """The results in the files of one job, in the order of the files."""
    return next(read_jobs([paths]))


def read_jobs(jobs: Sequence[Sequence[Path]]) -> Iterator[list[RankFile]]:
    """The results in the files of each job, in job order: a journal holds all ranks, any other file one."""
    reader = RankReader()
    for paths in jobs:
        texts: dict[str, str] = {}
        files: list[RankFile] = []
        for path in paths:
            files += read_journal(path, texts) if path.name == JOURNAL else [reader.read(path, texts)]
        yield files


_SIZE: Final = re.compile("[0-9]{1,18}").fullmatch

_EXPLAINS_WHAT_DID_NOT_RUN: Final = frozenset({"collection", "timeout", "interrupted", "stopped"})
"""Errors after which tests without results are known not to have begun; the error itself is reported once."""


def judge(attempt: Attempt, files: Sequence[RankFile], setting: VerdictPolicy) -> Iterator[TestVerdict]:
    """A verdict for each test that was collected, or that any rank reports."""
    record, teams = attempt.record, teams_of(files)
    gpus = -(-len(record.gpus) // max(record.nodes, 1)) if record else 0
    setting = replace(setting, gpus=gpus, job_has_ended=_has_ended(record, files))
    reported = (nodeid for team in teams for nodeid in team.places)
    collected = map(xml_id, record.collected or ()) if record else ()
    not_run = _reasons_not_to_run(record) if record else {}
    expected, absent = expected_ranks(attempt, files), _absences(attempt, files)
    good = _Good.of(teams, expected, setting)
    for nodeid in dict.fromkeys((*collected, *reported)):
        if passed := good and good.verdict_of(nodeid):
            yield passed
        elif (results := results_of(nodeid, teams)) or nodeid not in not_run:
            judged = _judge(nodeid, results, expected, absent, setting)
            file, line = _place_of(nodeid, teams)
            yield replace(judged, file=file, line=line) if file else judged
        else:
            yield _not_run(nodeid, not_run[nodeid])


@dataclass(frozen=True)
class _Good:
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
        key = team.files[0].keys[place]
        ranks = PassedRanks(team, place)
        return TestVerdict(
            nodeid=nodeid,
            classname=key.classname,
            name=key.name,
            verdict=self.verdict,
            ranks=ranks,
            slowest=ranks.time,
            file=key.file,
            line=key.line,
        )


def _has_ended(record: JobRecord | None, files: Sequence[RankFile]) -> bool:
    """Whether the job is known to have ended, and all its results could be read; foreign results do not tell."""
    has_ended = record is not None and record.error is None
    return has_ended and not any(file.is_unfinished or file.problem for file in files)


def _reasons_not_to_run(record: JobRecord) -> dict[str, str]:
    """The reason for each collected test that may have no result."""
    error = record.error if record.error and record.error.kind in _EXPLAINS_WHAT_DID_NOT_RUN else None
    explained = record.collected or () if error else ()
    ended = first_line(error.text) or error.kind if error else ""
    stopped = f"stopped by {record.stop_reason or 'the job'}"
    reasons = {**dict.fromkeys(explained, ended), **dict.fromkeys(record.not_run, stopped)}
    return {xml_id(nodeid): f"not run: {reason}" for nodeid, reason in reasons.items()}


def _judge(
    nodeid: str, results: Sequence[RankResult], expected: range, absent: Mapping[int, str], setting: VerdictPolicy
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


def _place_of(nodeid: str, teams: Iterable[RankGroup]) -> tuple[str, int]:
    """The source file and the line of a test, as the first rank's XML that states them has them."""
    keys = (team.files[0].keys[team.places[nodeid]] for team in teams if nodeid in team.places)
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


def expected_ranks(attempt: Attempt, files: Sequence[RankFile]) -> range:
    """The ranks that each test should have run on.

    Without a record, the world size comes from the cell or any of the files; if it is unknown, the ranks are those
    between the lowest and the highest with a file, also of an earlier attempt. They count from 1 if none is 0, because
    some launchers do so; but files named as allranks names them count from 0 where nothing states their number.
    """
    if attempt.record:
        return range(attempt.record.world_size)
    ranks = [file.rank or 0 for file in files]
    if ranks:
        ranks += [rank_of(path) or 0 for before in attempt.earlier for path in before.files]
    texts = [file.properties.get("allranks.world_size", "") for file in files]
    size = max((attempt.world_size or 0, *map(int, filter(_SIZE, texts))))
    if size and (size not in ranks or 0 in ranks):
        return range(size)
    first = 0 if not size and any(is_named_like_a_rank(file.path.name) for file in files) else 1
    return range(min(first, *ranks), max(ranks) + 1) if ranks else range(0)


def _absences(attempt: Attempt, files: Sequence[RankFile]) -> dict[int, str]:
    """The reason for each rank whose results are known to be incomplete."""
    error = attempt.record.error if attempt.record else None
    why = f"nothing came back ({first_line(error.what)})" if error and error.what else "nothing came back"
    causes = dict.fromkeys(expected_ranks(attempt, files), why)
    return causes | {file.rank: file.problem for file in files if file.problem and file.rank is not None}


_ENDED_FROM_OUTSIDE: Final = frozenset({"interrupted", "stopped", "infrastructure"})
_NO_RESULT: Final = frozenset({Outcome.MISSING, Outcome.ABORTED})


def with_base(
    attempt: Attempt, files: Sequence[RankFile], setting: VerdictPolicy
) -> Iterator[tuple[TestVerdict, Attempt]]:
    """The tests of a job, each with the attempt whose verdict counts.

    An attempt that reran a part of the job has new verdicts for these tests; the other verdicts are those of the
    attempt that it continues.
    """
    if attempt.base is None:
        yield from ((test, attempt) for test in judge(attempt, files, setting))
        return
    again = {test.nodeid: test for test in judge(attempt, files, setting)}
    for test, of in with_base(attempt.base, read_ranks(attempt.base.files), setting):
        newer = again.pop(test.nodeid, None)
        if newer and not (has_not_run(newer) and test.verdict.is_bad):
            yield newer, attempt
        else:
            yield (_left_out(test, attempt), attempt) if newer is None and has_not_run(test) else (test, of)
    yield from ((test, attempt) for test in again.values())


def has_not_run(test: TestVerdict) -> bool:
    """True if the job ended before it reached this test."""
    return test.verdict.rule is VerdictRule.JOB and not test.verdict.executed


def _left_out(test: TestVerdict, attempt: Attempt) -> TestVerdict:
    """A test that neither an attempt nor the one it continues has run."""
    message = f"{test.verdict.message}, and attempt {attempt.number}, which continued it, did not run it either"
    return replace(
        test,
        verdict=Verdict(
            kind=VerdictKind.ERROR,
            rule=VerdictRule.UNACCOUNTED,
            reason="missing",
            message=message,
            text=message,
            exit_code=ExitCode.UNACCOUNTED,
            executed=False,
        ),
    )


def has_no_result(test: TestVerdict) -> bool:
    """True if a bad test was only cut short: a rank that failed by itself is a result."""
    bad = {rank.outcome for rank in test.ranks if rank.outcome.is_bad}
    return bool(bad) and bad <= _NO_RESULT


def never_began(test: TestVerdict) -> bool:
    """True if nothing was ever heard of a test, not even that ranks were told to begin it."""
    return all(rank.outcome is Outcome.MISSING and not rank.text for rank in test.ranks)


def settled(attempt: Attempt, files: Sequence[RankFile], setting: VerdictPolicy) -> Iterator[TestVerdict]:
    """The tests of a job, each with its verdict over all attempts and the earlier tries that went wrong.

    A failure stands until the test runs and ends well: a later skip, on the same rank or in a later attempt, does not
    settle it, nor does an attempt that no longer has the test. An xfail does settle it, since the test ran and can end
    no better. A test that had not begun when its agent died has no failure to settle.
    """
    past = _Past(attempt.earlier, setting)
    for test, of in with_base(attempt, files, setting):
        tries = tuple(reruns(test, setting))
        bad = past.unsettled.pop(test.nodeid, None) or (_before(test, tries) if tries else None)
        before = tuple(each for each in past.bad.get(test.nodeid, ()) if each.number != of.number)
        judged = test if bad is None or is_settled(test) else _still_bad(bad, f"then {test.verdict.message}")
        yield replace(judged, earlier=(*before, *tries)) if before or tries else judged
    for bad in past.unsettled.values():
        yield replace(_still_bad(bad, f"attempt {attempt.number} did not have it"), earlier=past.bad[bad.nodeid])


def is_settled(test: TestVerdict) -> bool:
    """True if a test's result counts regardless of earlier ones: it ran, or is bad anyway."""
    return test.verdict.executed or test.verdict.is_bad


def _before(test: TestVerdict, tries: Sequence[EarlierAttempt]) -> TestVerdict:
    """A test as it was before its ranks' last try."""
    return replace(test, verdict=tries[-1].verdict)


def _still_bad(test: TestVerdict, then: str) -> TestVerdict:
    """A test that went wrong and has not passed since."""
    message = f"{test.verdict.message.rstrip('.')}; {then}"
    return replace(test, verdict=replace(test.verdict, message=message))


class _Past:
    """The failures in earlier attempts, in order; an end by Ctrl-C is not a failure."""

    def __init__(self, attempts: Sequence[Attempt], setting: VerdictPolicy) -> None:
        self.bad: dict[str, tuple[EarlierAttempt, ...]] = {}  # the attempts in which a test went wrong, by node id
        # The last bad verdicts of tests that have not run and ended well since.
        self.unsettled: dict[str, TestVerdict] = {}
        for attempt in attempts:
            error = attempt.record.error if attempt.record else None
            # A missing record means that the process that writes it was killed.
            was_ended = attempt.record is None or (error is not None and error.kind in _ENDED_FROM_OUTSIDE)
            for test in judge(attempt, read_ranks(attempt.files), setting):
                was_cut_short = was_ended and has_no_result(test)
                tries = tuple(reruns(test, setting)) if was_cut_short or not is_settled(test) else ()
                bad = _before(test, tries) if tries else test
                if bad.verdict.is_bad and (tries or not was_cut_short):
                    ranks = tries[-1].ranks if tries else test.ranks
                    entry = EarlierAttempt(number=attempt.number or 0, verdict=bad.verdict, ranks=ranks)
                    self.bad[test.nodeid] = (*self.bad.get(test.nodeid, ()), entry)
                    if not (error is not None and error.kind == "agent" and never_began(test)):
                        self.unsettled[test.nodeid] = bad
                elif is_settled(test) and not test.verdict.is_bad:
                    self.unsettled.pop(test.nodeid, None)


def reruns(test: TestVerdict, setting: VerdictPolicy) -> Iterator[EarlierAttempt]:
    """The tries of a test that its ranks made, and that failed, before the one whose outcome they report.

    torch's own test/conftest.py writes ``<rerun>`` for one, Maven's Surefire ``<flakyFailure>`` and ``<rerunFailure>``.
    """
    # Ranks of a plain pass have no such tries, and are built on access.
    tries = 0 if test.slowest is not None else max((len(rank.reruns) for rank in test.ranks), default=0)
    for number in range(tries):
        ranks = tuple(rank.reruns[number] for rank in test.ranks if number < len(rank.reruns))
        yield EarlierAttempt(number=number + 1, verdict=verdict(ranks, setting), ranks=ranks)
