"""Combines several attempts at a job: the state of a test after each attempt, as a table.

:data:`AFTER` encodes two rules. First, a failure stands until the test passes or fails as expected on the ranks that
failed. It is not resolved by a skip, nor by an attempt that does not reach the test or no longer has it. An xfail does
resolve it, because the test ran and cannot end better. Second, an attempt that reran a part of the job overrides only
the tests that it ran.

The same table applies to the tries of a test within one attempt (``<rerun>``, ``<flakyFailure>``, further starts in a
journal).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import reduce
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Final, NamedTuple

from allranks.errors import ExitCode
from allranks.protocol.outcomes import GOOD, Outcome
from allranks.report.folder import Attempt
from allranks.report.judge.judging import files_of, judge
from allranks.report.judge.rules import NEVER_RAN, VerdictPolicy, verdict
from allranks.report.results import (
    PassedRanks,
    RankFile,
    TestVerdict,
    Verdict,
    VerdictKind,
    VerdictRule,
    rank_summary,
)
from allranks.report.run_files import NO_RECORD


class State(Enum):
    """What is known of a test after one or more attempts."""

    ABSENT = "absent"  # no attempt had the test
    NOT_RUN = "not run"  # the job ended before the test started, for a reason that is reported
    SKIPPED = "skipped"  # no rank executed it
    PASSED = "passed"  # it executed and ended well (xfail included)
    # An error, but not a failure of the test: the job was ended, or no attempt reached the test.
    NO_RESULT = "no result"
    FAILED = "failed"  # a failure or an error


def _table() -> Iterator[tuple[State, Mapping[State, State]]]:
    absent, not_run, skipped, passed, no_result, failed = State
    for before, *row in (
        #  before   absent     not_run    skipped  passed  no_result  failed    <- in the next attempt
        (absent,    absent,    not_run,   skipped, passed, no_result, failed),
        (not_run,   no_result, not_run,   skipped, passed, no_result, failed),
        (skipped,   skipped,   skipped,   skipped, passed, no_result, failed),
        (passed,    passed,    passed,    skipped, passed, no_result, failed),
        (no_result, no_result, no_result, skipped, passed, no_result, failed),
        (failed,    failed,    failed,    failed,  passed, failed,    failed),
    ):  # fmt: skip
        yield before, MappingProxyType(dict(zip(State, row, strict=True)))


AFTER: Final = MappingProxyType(dict(_table()))
"""The state of a test by its state before an attempt (or a try) and its state in that attempt alone."""


def before_whole_run(state: State) -> State:
    """The state of a test before an attempt that runs the whole job: only failures are remembered."""
    return state if state is State.FAILED else State.ABSENT


class _TestAttempts(NamedTuple):
    """A test over some attempts."""

    state: State = State.ABSENT
    test: TestVerdict | None = None  # the last result since the whole job last ran
    tries: tuple[TestVerdict, ...] = ()  # the failed tries before this result, in the same attempt
    failed: tuple[TestVerdict, ...] = ()  # that attempt, if the test failed in it
    earlier: tuple[TestVerdict, ...] = ()  # the attempts before that one in which the test failed
    failure: TestVerdict | None = None  # the last failure, if the state is FAILED
    failed_ranks: frozenset[int] = frozenset()  # the ranks that failed and have not ended the test well since

    def then(self, new: "_TestAttempts") -> "_TestAttempts":
        """The test after one more attempt or try."""
        failed_ranks = new.failed_ranks
        if self.failed_ranks:
            failed_ranks |= self.failed_ranks - new.ranks_that_ended_well()
        new_state = State.SKIPPED if new.state is State.PASSED and failed_ranks else new.state
        state = AFTER[self.state][new_state]
        is_unchanged = new_state is State.ABSENT or (new_state is State.NOT_RUN and state is not State.NOT_RUN)
        if self.test and is_unchanged:
            return self._replace(state=state)
        failure = (new.failure or self.failure) if state is State.FAILED else None
        earlier = (*self.earlier, *self.failed, *new.earlier)
        return new._replace(state=state, failure=failure, earlier=earlier, failed_ranks=failed_ranks)

    def ranks_that_ended_well(self) -> frozenset[int]:
        ranks = self.test.ranks if self.test and self.state is State.PASSED else ()
        return frozenset(rank.rank for rank in ranks if rank.outcome not in NEVER_RAN)

    def verdict(self, newest: Attempt) -> Iterator[TestVerdict]:
        """The verdict over all attempts up to the newest; nothing if no attempt had the test."""
        test, earlier = self.test, (*self.earlier, *self.tries)
        if self.failure and not (test and test.verdict.is_bad):
            absent = f"attempt {newest.number} did not have it"
            then = f"then {test.verdict.message or rank_summary(test.ranks)}" if test else absent
            test = _still_failed(self.failure, then)
        if test:
            yield replace(test, earlier=earlier) if earlier else test


_NO_ATTEMPTS: Final = _TestAttempts()


class Attempts:
    """The tests of a job over its attempts, which are added from the oldest to the newest."""

    def __init__(self, newest: Attempt, policy: VerdictPolicy) -> None:
        whole = newest
        while whole.base:
            whole = whole.base
        self._whole = whole.number  # the last attempt that ran the whole job: those after it reran a part
        self._policy = policy
        self._tests: dict[str, _TestAttempts] = {}

    def counts(self, attempt: Attempt) -> bool:
        """True if all results of an attempt count, and not only its failures."""
        return attempt.number >= self._whole

    def add(self, attempt: Attempt, files: Sequence[RankFile]) -> None:
        """Add the results of an attempt before the newest one."""
        counts = self.counts(attempt)
        self._tests = {
            nodeid: attempts
            for nodeid, attempts in self._after(attempt, files)
            if attempts.earlier or attempts.failed or counts
        }

    def verdicts(self, newest: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
        """The verdict on each test over all attempts, with its earlier failures."""
        for _, attempts in self._after(newest, files):
            yield from attempts.verdict(newest)

    def _after(self, attempt: Attempt, files: Sequence[RankFile]) -> Iterator[tuple[str, _TestAttempts]]:
        tests = {test.nodeid: test for test in judge(attempt, files, self._policy)}
        is_part = attempt.number > self._whole
        order = chain(self._tests, tests) if is_part else chain(tests, self._tests)
        for nodeid in dict.fromkeys(order):
            before, test = self._tests.get(nodeid, _NO_ATTEMPTS), tests.get(nodeid)
            if not is_part:
                before = before._replace(state=before_whole_run(before.state), test=None)
            after = before.then(_in_attempt(attempt, test, self._policy) if test else _NO_ATTEMPTS)
            if before.test and before.state is State.NOT_RUN and not test:
                after = after._replace(test=_never_run(before.test, attempt))
            yield nodeid, after


def final_verdicts(attempt: Attempt, files: Sequence[RankFile], policy: VerdictPolicy) -> Iterator[TestVerdict]:
    """The verdict on each test of a job over all attempts.

    Args:
        attempt: The newest attempt.
        files: Its results.
        policy: The policy of the run.
    """
    attempts = Attempts(attempt, policy)
    for earlier in attempt.earlier:
        attempts.add(earlier, files_of(earlier))
    return attempts.verdicts(attempt, files)


def _in_attempt(attempt: Attempt, test: TestVerdict, policy: VerdictPolicy) -> _TestAttempts:
    """A test in one attempt alone, which may have tried it several times."""
    tries = tuple(_reruns(test, policy))
    last = _TestAttempts(state=State.NO_RESULT, test=test) if _lacks_result(attempt, test) else _after_try(test)
    after = reduce(_TestAttempts.then, map(_after_try, tries), _NO_ATTEMPTS).then(last)
    failure = after.failure or (test if test.verdict.is_bad and not _was_ended(attempt) else None)
    failed = (replace(failure, number=attempt.number),) if failure else ()
    return after._replace(tries=tuple(one_try for one_try in tries if one_try.verdict.is_bad), failed=failed)


def _after_try(test: TestVerdict) -> _TestAttempts:
    if test.verdict.is_bad:
        failed_ranks = frozenset(rank.rank for rank in test.ranks if rank.outcome not in _DID_NOT_FAIL)
        return _TestAttempts(state=State.FAILED, test=test, failure=test, failed_ranks=failed_ranks)
    if was_not_reached(test):
        return _TestAttempts(state=State.NOT_RUN, test=test)
    return _TestAttempts(state=State.PASSED if test.verdict.executed else State.SKIPPED, test=test)


_ENDED_FROM_OUTSIDE: Final = frozenset({"interrupted", "stopped", "infrastructure"})
_NO_RESULT: Final = frozenset({Outcome.MISSING, Outcome.ABORTED})
_DID_NOT_FAIL: Final = GOOD | {Outcome.ABORTED}


def _was_ended(attempt: Attempt) -> bool:
    """True if an attempt was ended from outside; without a record, the process that writes records was killed."""
    return attempt.record is None or _error_kind(attempt) in _ENDED_FROM_OUTSIDE


def _error_kind(attempt: Attempt) -> str:
    error = (attempt.record or NO_RECORD).error
    return error.kind if error else ""


def _lacks_result(attempt: Attempt, test: TestVerdict) -> bool:
    """True if a test is an error but did not fail itself: it was cut short, or had not started when its agent died."""
    if not test.verdict.is_bad:
        return False
    was_cut_short = _was_ended(attempt) and has_no_result(test)
    return was_cut_short or (_error_kind(attempt) == "agent" and _never_started(test))


def was_not_reached(test: TestVerdict) -> bool:
    """True if the job ended before it reached this test."""
    return test.verdict.rule is VerdictRule.JOB and not test.verdict.executed


def has_no_result(test: TestVerdict) -> bool:
    """True if no rank completed a failed test. A rank that failed on its own is a result."""
    failed = {rank.outcome for rank in test.ranks if rank.outcome.is_bad}
    return failed.issubset(_NO_RESULT) and bool(failed or not test.ranks)


def _never_started(test: TestVerdict) -> bool:
    """True if the journal does not even record that the test was about to start."""
    return all(rank.outcome is Outcome.MISSING and not rank.text for rank in test.ranks)


def _never_run(test: TestVerdict, attempt: Attempt) -> TestVerdict:
    """The verdict on a test that neither an attempt nor the attempt that it continues ran."""
    message = f"{test.verdict.message}, and attempt {attempt.number}, which continued the job, did not run it either"
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


def _still_failed(test: TestVerdict, then: str) -> TestVerdict:
    message = f"{test.verdict.message.rstrip('.')}; {then}"
    return replace(test, verdict=replace(test.verdict, message=message))


def _reruns(test: TestVerdict, policy: VerdictPolicy) -> Iterator[TestVerdict]:
    """The tries before the one whose outcome counts.

    torch's own test/conftest.py writes ``<rerun>`` for a try, Maven Surefire ``<flakyFailure>`` or ``<rerunFailure>``.
    """
    # The ranks of a plain pass have no earlier tries, and building their results would take time.
    reruns = () if isinstance(test.ranks, PassedRanks) else [rank.reruns for rank in test.ranks]
    for number, tries in enumerate(zip_longest(*reruns), start=1):
        ranks = tuple(filter(None, tries))
        yield replace(test, verdict=verdict(ranks, policy), ranks=ranks, number=number)
