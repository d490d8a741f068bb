"""What went wrong with a test before the attempt that counts: in attempts at its job, or in reruns on its ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from allranks.errors import ExitCode
from allranks.harness.outcome import Outcome
from allranks.report.columns import RankFile
from allranks.report.folder import Attempt
from allranks.report.judging import judge
from allranks.report.model import EarlierAttempt, RankResult, Rerun, Rule, TestVerdict, Verdict, VerdictKind
from allranks.report.reading import read_ranks
from allranks.report.verdict import Setting, verdict

_ENDED_FROM_OUTSIDE: Final = frozenset({"interrupted", "stopped", "infrastructure"})
_NO_RESULT: Final = frozenset({Outcome.MISSING, Outcome.ABORTED})


def with_base(attempt: Attempt, files: Sequence[RankFile], setting: Setting) -> Iterator[tuple[TestVerdict, Attempt]]:
    """The tests of a job, each with the attempt whose verdict counts.

    An attempt that ran a part of the job again has new verdicts for these tests; the others are those of the attempt
    that it goes on with.

    Args:
        attempt: The newest.
        files: What its ranks left.
        setting: How skips are read.
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
    """Whether the job ended before it came to this test."""
    return test.verdict.rule is Rule.JOB and not test.verdict.executed


def _left_out(test: TestVerdict, attempt: Attempt) -> TestVerdict:
    """A test that an attempt should have run, since the one before it had not, and that it did not run either."""
    message = f"{test.verdict.message}, and attempt {attempt.number}, which went on with it, did not run it either"
    return replace(
        test,
        verdict=Verdict(
            kind=VerdictKind.ERROR,
            rule=Rule.UNACCOUNTED,
            reason="missing",
            message=message,
            text=message,
            exit_code=ExitCode.UNACCOUNTED,
            executed=False,
        ),
    )


def has_no_result(test: TestVerdict) -> bool:
    """Whether nothing is known of a bad test but that it was cut short: a rank that failed by itself is a result."""
    bad = {rank.outcome for rank in test.ranks if rank.outcome.is_bad}
    return bool(bad) and bad <= _NO_RESULT


def settled(attempt: Attempt, files: Sequence[RankFile], setting: Setting) -> Iterator[TestVerdict]:
    """The tests of a job, each with its verdict over all attempts, and with the earlier tries that went wrong.

    What went wrong stays so until the test runs and ends well: a skip after it, on the same rank or in a later attempt,
    says nothing of what went wrong, nor does an attempt that does not have the test any more. An xfail settles it, as
    the test ran, and can end no better.

    Args:
        attempt: The newest, with those before it.
        files: What its ranks left.
        setting: How skips are read.
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
    """Whether a test has a result that counts whatever came before: it ran, or is bad anyway."""
    return test.verdict.executed or test.verdict.is_bad


def _before(test: TestVerdict, tries: Sequence[EarlierAttempt]) -> TestVerdict:
    """A test as it was before its ranks tried it for the last time."""
    return replace(test, verdict=tries[-1].verdict)


def _still_bad(test: TestVerdict, then: str) -> TestVerdict:
    """A test that went wrong, and of which nobody knows that it is well."""
    message = f"{test.verdict.message.rstrip('.')}; {then}"
    return replace(test, verdict=replace(test.verdict, message=message))


class _Past:
    """What went wrong in attempts, in their order; to be ended by Ctrl-C is not to go wrong.

    Attributes:
        bad: The attempts in which a test went wrong, by node id.
        unsettled: The last bad verdicts of tests that have not run and ended well since.
    """

    def __init__(self, attempts: Sequence[Attempt], setting: Setting) -> None:
        self.bad: dict[str, tuple[EarlierAttempt, ...]] = {}
        self.unsettled: dict[str, TestVerdict] = {}
        for attempt in attempts:
            error = attempt.record.error if attempt.record else None
            # Without a record, whoever would have written it was killed.
            was_ended = attempt.record is None or (error is not None and error.kind in _ENDED_FROM_OUTSIDE)
            for test in judge(attempt, read_ranks(attempt.files), setting):
                was_cut_short = was_ended and has_no_result(test)
                tries = tuple(reruns(test, setting)) if was_cut_short or not is_settled(test) else ()
                bad = _before(test, tries) if tries else test
                if bad.verdict.is_bad and (tries or not was_cut_short):
                    ranks = tries[-1].ranks if tries else test.ranks
                    entry = EarlierAttempt(number=attempt.number or 0, verdict=bad.verdict, ranks=ranks)
                    self.bad[test.nodeid] = (*self.bad.get(test.nodeid, ()), entry)
                    self.unsettled[test.nodeid] = bad
                elif is_settled(test) and not test.verdict.is_bad:
                    self.unsettled.pop(test.nodeid, None)


def reruns(test: TestVerdict, setting: Setting) -> Iterator[EarlierAttempt]:
    """The tries of a test that its ranks made, and that failed, before the one whose outcome they report.

    torch's own test/conftest.py writes ``<rerun>`` for one, Maven's Surefire ``<flakyFailure>`` and ``<rerunFailure>``.
    """
    tries = max((len(rank.reruns) for rank in _notable(test)), default=0)
    for number in range(tries):
        ranks = tuple(_as_result(rank, rank.reruns[number]) for rank in test.ranks if number < len(rank.reruns))
        yield EarlierAttempt(number=number + 1, verdict=verdict(ranks, setting), ranks=ranks)


def _as_result(rank: RankResult, rerun: Rerun) -> RankResult:
    return replace(
        rank,
        outcome=rerun.outcome,
        message=rerun.message,
        text=rerun.text,
        at=rank.at if rerun.at is None else rerun.at,
        consequence=rerun.consequence,
        caused_by=rerun.caused_by,
        stdout="",
        stderr="",
        reruns=(),
    )


def _notable(test: TestVerdict) -> Sequence[RankResult]:
    """The ranks that may have something to tell; none of those that simply passed."""
    return test.ranks if test.slowest is None else ()
