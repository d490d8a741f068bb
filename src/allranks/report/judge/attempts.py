"""Several attempts at a job: the state of a test after each of them, as a table.

:data:`AFTER` has two rules. A bad result stands until the test executes and ends well on the ranks that went wrong: a
skip does not settle it, nor does an attempt that does not reach the test or no longer has it. An xfail does settle it,
since the test ran and can end no better. And an attempt that reran a part of the job overrides only the tests that it
ran.

The tries of a test within one attempt (``<rerun>``, ``<flakyFailure>``, a journal's further starts) go through the same
table.
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
from allranks.report.results import PassedRanks, RankFile, TestVerdict, Verdict, VerdictKind, VerdictRule, strip
from allranks.report.run_files import NO_RECORD


class State(Enum):
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


class _Standing(NamedTuple):
    """A test after some attempts."""

    state: State = State.ABSENT
    test: TestVerdict | None = None  # its last result since the whole job ran
    tries: tuple[TestVerdict, ...] = ()  # what went wrong in the attempt of this result before it
    bad: tuple[TestVerdict, ...] = ()  # that attempt, if the test went wrong in it
    earlier: tuple[TestVerdict, ...] = ()  # the attempts before that one in which it went wrong
    failure: TestVerdict | None = None  # the last failure, if the state is BAD
    wrong: frozenset[int] = frozenset()  # the ranks that went wrong, and on which it has not ended well since

    def then(self, new: "_Standing") -> "_Standing":
        """The test after one more attempt or try."""
        wrong = new.wrong | (self.wrong - new.ranks_that_ended_well() if self.wrong else self.wrong)
        came = State.SKIPPED if new.state is State.GOOD and wrong else new.state
        state = AFTER[self.state][came]
        leaves_it = came is State.ABSENT or (came is State.NOT_RUN and state is not State.NOT_RUN)
        if self.test and leaves_it:
            return self._replace(state=state)
        failure = (new.failure or self.failure) if state is State.BAD else None
        earlier = (*self.earlier, *self.bad, *new.earlier)
        return new._replace(state=state, failure=failure, earlier=earlier, wrong=wrong)

    def ranks_that_ended_well(self) -> frozenset[int]:
        """The ranks that executed the test, if it is good."""
        ranks = self.test.ranks if self.test and self.state is State.GOOD else ()
        return frozenset(rank.rank for rank in ranks if rank.outcome not in NEVER_RAN)

    def judged(self, newest: Attempt) -> Iterator[TestVerdict]:
        """The verdict over all attempts up to the newest; none if nothing is known."""
        test, earlier = self.test, (*self.earlier, *self.tries)
        if self.failure and not (test and test.verdict.is_bad):
            then = f"attempt {newest.number} did not have it"
            test = _still_bad(self.failure, f"then {test.verdict.message or strip(test.ranks)}" if test else then)
        if test:
            yield replace(test, earlier=earlier) if earlier else test


_NOTHING: Final = _Standing()


class Attempts:
    """The tests of a job over its attempts, which are taken in from the oldest to the newest."""

    def __init__(self, newest: Attempt, setting: VerdictPolicy) -> None:
        whole = newest
        while whole.base:
            whole = whole.base
        self._whole = whole.number  # the last attempt that ran the whole job: those after it reran a part
        self._setting = setting
        self._known: dict[str, _Standing] = {}

    def counts(self, attempt: Attempt) -> bool:
        """True if results of an attempt are in the report, and not only its failures."""
        return attempt.number >= self._whole

    def take(self, attempt: Attempt, files: Sequence[RankFile]) -> None:
        """Add an attempt before the newest one, with the results in its files."""
        after = self._after(attempt, files)
        counts = self.counts(attempt)
        self._known = {nodeid: each for nodeid, each in after if each.earlier or each.bad or counts}

    def settled(self, newest: Attempt, files: Sequence[RankFile]) -> Iterator[TestVerdict]:
        """The tests after the newest attempt, each with its verdict over all attempts and what went wrong before."""
        for _, standing in self._after(newest, files):
            yield from standing.judged(newest)

    def _after(self, attempt: Attempt, files: Sequence[RankFile]) -> Iterator[tuple[str, _Standing]]:
        tests = {test.nodeid: test for test in judge(attempt, files, self._setting)}
        is_part = attempt.number > self._whole
        order = chain(self._known, tests) if is_part else chain(tests, self._known)
        for nodeid in dict.fromkeys(order):
            before, test = self._known.get(nodeid, _NOTHING), tests.get(nodeid)
            if not is_part:
                before = before._replace(state=anew(before.state), test=None)
            after = before.then(_in_attempt(attempt, test, self._setting) if test else _NOTHING)
            if before.test and before.state is State.NOT_RUN and not test:
                after = after._replace(test=_left_out(before.test, attempt))
            yield nodeid, after


def settled(attempt: Attempt, files: Sequence[RankFile], setting: VerdictPolicy) -> Iterator[TestVerdict]:
    """The tests of a job, each with its verdict over all attempts; the files are those of the newest attempt."""
    attempts = Attempts(attempt, setting)
    for each in attempt.earlier:
        attempts.take(each, files_of(each))
    return attempts.settled(attempt, files)


def _in_attempt(attempt: Attempt, test: TestVerdict, setting: VerdictPolicy) -> _Standing:
    """A test after one attempt alone, which may have tried it several times."""
    tries = tuple(_reruns(test, setting))
    lacks_result = _lacks_result(attempt, test)
    last = _Standing(state=State.NO_RESULT, test=test) if lacks_result else _after_one(test)
    after = reduce(_Standing.then, map(_after_one, tries), _NOTHING).then(last)
    wrong = after.failure or (test if test.verdict.is_bad and not _was_ended(attempt) else None)
    bad = (replace(wrong, number=attempt.number),) if wrong else ()
    return after._replace(tries=tuple(each for each in tries if each.verdict.is_bad), bad=bad)


def _after_one(test: TestVerdict) -> _Standing:
    if test.verdict.is_bad:
        wrong = frozenset(rank.rank for rank in test.ranks if rank.outcome not in _DID_NOT_GO_WRONG)
        return _Standing(state=State.BAD, test=test, failure=test, wrong=wrong)
    if has_not_run(test):
        return _Standing(state=State.NOT_RUN, test=test)
    return _Standing(state=State.GOOD if test.verdict.executed else State.SKIPPED, test=test)


_ENDED_FROM_OUTSIDE: Final = frozenset({"interrupted", "stopped", "infrastructure"})
_NO_RESULT: Final = frozenset({Outcome.MISSING, Outcome.ABORTED})
_DID_NOT_GO_WRONG: Final = GOOD | {Outcome.ABORTED}
"""The outcomes of ranks that were well to their end, or until they were stopped."""


def _was_ended(attempt: Attempt) -> bool:
    """True if an attempt was ended from outside; no record means that the process that writes it was killed."""
    return attempt.record is None or _error_of(attempt) in _ENDED_FROM_OUTSIDE


def _error_of(attempt: Attempt) -> str:
    """The kind of the job's error; empty for none."""
    error = (attempt.record or NO_RECORD).error
    return error.kind if error else ""


def _lacks_result(attempt: Attempt, test: TestVerdict) -> bool:
    """True if a test is an error without a failure of its own: cut short, or not begun when its agent died."""
    if not test.verdict.is_bad:
        return False
    was_cut_short = _was_ended(attempt) and has_no_result(test)
    return was_cut_short or (_error_of(attempt) == "agent" and _never_began(test))


def has_not_run(test: TestVerdict) -> bool:
    """True if the job ended before it reached this test."""
    return test.verdict.rule is VerdictRule.JOB and not test.verdict.executed


def has_no_result(test: TestVerdict) -> bool:
    """True if no rank ended a bad test: it was cut short or left out. A rank that failed by itself is a result."""
    bad = {rank.outcome for rank in test.ranks if rank.outcome.is_bad}
    return bad.issubset(_NO_RESULT) and bool(bad or not test.ranks)


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
    reruns = () if isinstance(test.ranks, PassedRanks) else [rank.reruns for rank in test.ranks]
    for number, tries in enumerate(zip_longest(*reruns), start=1):
        ranks = tuple(filter(None, tries))
        yield replace(test, verdict=verdict(ranks, setting), ranks=ranks, number=number)
