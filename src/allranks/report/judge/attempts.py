"""Several attempts at a job: the state of a test after each of them, as a table.

:data:`AFTER` has two rules. A bad result stands until the test executes and ends well: a skip, on the same ranks or in
a later attempt, does not settle it, nor does an attempt that does not reach the test or no longer has it. An xfail does
settle it, since the test ran and can end no better. And an attempt that reran a part of the job overrides only the
tests that it ran.

The tries of a test within one attempt (``<rerun>``, ``<flakyFailure>``, a journal's further starts) go through the same
table.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from itertools import chain
from types import MappingProxyType
from typing import Final

from allranks.errors import ExitCode
from allranks.protocol.outcomes import Outcome
from allranks.report.folder import Attempt
from allranks.report.judge.judging import files_of, judge
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.results import RankFile, TestVerdict, Verdict, VerdictKind, VerdictRule


class State(StrEnum):
    """What is known of a test after one attempt, or after several."""

    ABSENT = "absent"  # nothing: no attempt had it
    NOT_RUN = "not run"  # the job ended before it, for a reason that is reported
    SKIPPED = "skipped"  # no rank executed it
    GOOD = "good"  # it executed and ended well
    NO_RESULT = "no result"  # an error, but no failure of the test: its job was ended, or no attempt reached it
    BAD = "bad"  # it went wrong


def _table() -> Iterator[tuple[State, Mapping[State, State]]]:
    absent, not_run, skipped, good, no_result, bad = State
    for before, *row in (
        #  before   absent     not_run    skipped  good  no_result  bad    <- in the next attempt
        (absent,    absent,    not_run,   skipped, good, no_result, bad),
        (not_run,   no_result, not_run,   skipped, good, no_result, bad),
        (skipped,   skipped,   skipped,   skipped, good, no_result, bad),
        (good,      good,      good,      skipped, good, no_result, bad),
        (no_result, no_result, no_result, skipped, good, no_result, bad),
        (bad,       bad,       bad,       bad,     good, bad,       bad),
    ):  # fmt: skip
        yield before, MappingProxyType(dict(zip(State, row, strict=True)))


AFTER: Final = MappingProxyType(dict(_table()))
"""The state of a test by its state before an attempt (or a try) and its state in that attempt alone."""


def anew(before: State) -> State:
    """The state of a test when an attempt begins that runs the whole job: only failures are remembered."""
    return before if before is State.BAD else State.ABSENT


@dataclass(frozen=True, kw_only=True, slots=True)
class _Standing:
    """A test after some attempts."""

    state: State = State.ABSENT
    test: TestVerdict | None = None  # its last result since the whole job ran
    number: int = 0  # the attempt that this result is of
    tries: tuple[TestVerdict, ...] = ()  # what went wrong in that attempt before this result
    failure: TestVerdict | None = None  # the last failure, if the state is BAD
    bad: tuple[TestVerdict, ...] = ()  # the attempts in which it went wrong

    def then(self, new: "_Standing") -> "_Standing":
        """The test after one more attempt or try."""
        state, bad = AFTER[self.state][new.state], (*self.bad, *new.bad)
        leaves_it = new.state is State.ABSENT or (new.state is State.NOT_RUN and state is not State.NOT_RUN)
        if self.test and leaves_it:
            return replace(self, state=state)
        failure = (new.failure or self.failure) if state is State.BAD else None
        return replace(new, state=state, failure=failure, bad=bad)

    def judged(self, newest: int) -> Iterator[TestVerdict]:
        """The verdict over all attempts, of which the newest has this number; none if nothing is known."""
        test, earlier = self.test, self.bad
        if test:
            earlier = (*(each for each in self.bad if each.number != self.number), *self.tries)
        if self.failure and not (test and test.verdict.is_bad):
            then = f"then {test.verdict.message}" if test else f"attempt {newest} did not have it"
            test = _still_bad(self.failure, then)
        if test:
            yield replace(test, earlier=earlier, number=0) if earlier else test


_NOTHING: Final = _Standing()


class Attempts:
    """The tests of a job over its attempts, which are taken in from the oldest to the newest.

    Args:
        newest: The newest of them.
        setting: How results are judged.
    """

    def __init__(self, newest: Attempt, setting: VerdictPolicy) -> None:
        whole = newest
        while whole.base:
            whole = whole.base
        self._whole = whole.number or 0  # the last attempt that ran the whole job: those after it reran a part
        self._setting = setting
        self._known: dict[str, _Standing] = {}

    def counts(self, attempt: Attempt) -> bool:
        """True if results of an attempt are in the report, and not only its failures."""
        return (attempt.number or 0) >= self._whole

    def take(self, attempt: Attempt, files: Sequence[RankFile]) -> None:
        """Add an attempt before the newest one, with the results in its files."""
        after = self._after(attempt, files)
        self._known = {nodeid: standing for nodeid, standing in after if standing.bad or self.counts(attempt)}

    def settled(self, newest: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
        """The tests after the newest attempt, each with its verdict over all attempts and what went wrong before."""
        for _, standing in self._after(newest, files):
            yield from standing.judged(newest.number or 0)

    def _after(self, attempt: Attempt, files: Sequence[RankFile]) -> Iterator[tuple[str, _Standing]]:
        tests = {test.nodeid: test for test in judge(attempt, files, self._setting)}
        is_part = (attempt.number or 0) > self._whole
        order = chain(self._known, tests) if is_part else chain(tests, self._known)
        for nodeid in dict.fromkeys(order):
            before, test = self._known.get(nodeid, _NOTHING), tests.get(nodeid)
            if not is_part:
                before = replace(before, state=anew(before.state), test=None)
            after = before.then(_in_attempt(attempt, test, self._setting) if test else _NOTHING)
            if before.test and before.state is State.NOT_RUN and not test:
                after = replace(after, test=_left_out(before.test, attempt), number=attempt.number or 0)
            yield nodeid, after


def settled(attempt: Attempt, files: Sequence[RankFile], setting: VerdictPolicy) -> Iterator[TestVerdict]:
    """The tests of a job, each with its verdict over all attempts; the files are those of the newest attempt."""
    attempts = Attempts(attempt, setting)
    for each in attempt.earlier:
        attempts.take(each, files_of(each))
    return attempts.settled(attempt, files)


def _in_attempt(attempt: Attempt, test: TestVerdict, setting: VerdictPolicy) -> _Standing:
    """A test after one attempt alone, which may have tried it several times."""
    number, tries = attempt.number or 0, tuple(_reruns(test, setting))
    lacks_result = _lacks_result(attempt, test)
    last = _Standing(state=State.NO_RESULT, test=test) if lacks_result else _after_one(test)
    after = reduce(_Standing.then, map(_after_one, tries), _NOTHING).then(last)
    wrong = after.failure or (test if test.verdict.is_bad and not _was_ended(attempt) else None)
    bad = (replace(wrong, number=number),) if wrong else ()
    return replace(after, number=number, tries=tuple(each for each in tries if each.verdict.is_bad), bad=bad)


def _after_one(test: TestVerdict) -> _Standing:
    if test.verdict.is_bad:
        return _Standing(state=State.BAD, test=test, failure=test)
    if has_not_run(test):
        return _Standing(state=State.NOT_RUN, test=test)
    return _Standing(state=State.GOOD if test.verdict.executed else State.SKIPPED, test=test)


_ENDED_FROM_OUTSIDE: Final = frozenset({"interrupted", "stopped", "infrastructure"})
_NO_RESULT: Final = frozenset({Outcome.MISSING, Outcome.ABORTED})


def _was_ended(attempt: Attempt) -> bool:
    """True if an attempt was ended from outside; no record means that the process that writes it was killed."""
    error = attempt.record.error if attempt.record else None
    return attempt.record is None or (error is not None and error.kind in _ENDED_FROM_OUTSIDE)


def _lacks_result(attempt: Attempt, test: TestVerdict) -> bool:
    """True if a test is an error without a failure of its own: cut short, or not begun when its agent died."""
    if not test.verdict.is_bad:
        return False
    error = attempt.record.error if attempt.record else None
    has_lost_its_agent = error is not None and error.kind == "agent"
    was_cut_short = _was_ended(attempt) and has_no_result(test)
    return was_cut_short or (has_lost_its_agent and _never_began(test))


def has_not_run(test: TestVerdict) -> bool:
    """True if the job ended before it reached this test."""
    return test.verdict.rule is VerdictRule.JOB and not test.verdict.executed


def has_no_result(test: TestVerdict) -> bool:
    """True if a bad test was only cut short: a rank that failed by itself is a result."""
    bad = {rank.outcome for rank in test.ranks if rank.outcome.is_bad}
    return bool(bad) and bad <= _NO_RESULT


def _never_began(test: TestVerdict) -> bool:
    """True if nothing was ever heard of a test, not even that ranks were told to begin it."""
    return all(rank.outcome is Outcome.MISSING and not rank.text for rank in test.ranks)


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


def _still_bad(test: TestVerdict, then: str) -> TestVerdict:
    """A test that went wrong and has not passed since."""
    message = f"{test.verdict.message.rstrip('.')}; {then}"
    return replace(test, verdict=replace(test.verdict, message=message))


def _reruns(test: TestVerdict, setting: VerdictPolicy) -> Iterator[TestVerdict]:
    """The tries of a test that its ranks made before the one whose outcome they report.

    torch's own test/conftest.py writes ``<rerun>`` for one, Maven's Surefire ``<flakyFailure>`` and ``<rerunFailure>``.
    """
    # Ranks of a plain pass have no such tries, and are built on access.
    tries = 0 if test.slowest is not None else max((len(rank.reruns) for rank in test.ranks), default=0)
    for number in range(tries):
        ranks = tuple(rank.reruns[number] for rank in test.ranks if number < len(rank.reruns))
        yield replace(test, verdict=verdict(ranks, setting), ranks=ranks, number=number + 1)
