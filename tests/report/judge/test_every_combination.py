"""All combinations of what up to four ranks, and two attempts, can come to: a verdict is good only if all went well.

What a rank does is one of few kinds. Rules that treat all ranks alike allow to try each set of kinds once, in one order
of ranks: that the order makes no difference is tried with all orders of three ranks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, permutations, product
from pathlib import Path
from typing import Any

import pytest
from long_lists import quick

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.report.folder import Attempt
from allranks.report.judge.attempts import Attempts
from allranks.report.judge.rules import VerdictPolicy, verdict
from allranks.report.results import Durations, Key, RankFile, RankResult, VerdictKind
from allranks.report.run_files import JobError, JobRecord

GPUS = 2
KINDS: dict[str, dict[str, Any]] = {
    "passed": {"outcome": "passed"},
    "xpassed": {"outcome": "xpassed"},
    "xfailed": {"outcome": "xfailed"},
    "skipped": {"outcome": "skipped", "skip_kind": SkipKind.PLAIN},
    "environment": {"outcome": "skipped", "skip_kind": SkipKind.ENVIRONMENT},
    "too few GPUs": {"outcome": "skipped", "skip_kind": SkipKind.HARDWARE, "gpus_needed": GPUS + 1},
    "GPUs were given": {"outcome": "skipped", "skip_kind": SkipKind.HARDWARE, "gpus_needed": GPUS},
    "failed": {"outcome": "failed"},
    "timed out": {"outcome": "timed_out"},
    "missing": {"outcome": "missing"},
    "aborted": {"outcome": "aborted"},
    "consequence": {"outcome": "failed", "consequence": True},
}
PASSES, SKIPS = {"passed", "xpassed"}, {"skipped", "environment", "too few GPUs"}
HAVE_A_CAUSE = {"aborted", "consequence"}
SETTINGS = [
    VerdictPolicy(skip="pass", mixed_skip=mixed, gpus=GPUS, job_has_ended=ended)
    for mixed, ended in product([(), ("t.py::*",)], [False, True])
]


def may_be_good(kinds: Sequence[str], setting: VerdictPolicy) -> bool:
    """Whether every rank passed, or was skipped as the rules allow."""
    found = set(kinds)
    is_one_of_these = found <= PASSES or found <= SKIPS or found <= {"xfailed", "xpassed"}
    return is_one_of_these or (bool(setting.mixed_skip) and found <= PASSES | SKIPS | {"xfailed"})


def result(kind: str, rank: int, **said: Any) -> RankResult:
    facts = KINDS[kind] | {"outcome": Outcome(KINDS[kind]["outcome"])}
    return RankResult(nodeid="t.py::x", classname="t", name="x", rank=rank, **facts, **said)


def with_causes(kinds: Sequence[str]) -> Iterator[list[RankResult]]:
    """The ranks, with each rank that was aborted, or failed as a consequence, caused by none or a rank of each kind."""
    causes = [None, *{kind: rank for rank, kind in enumerate(kinds)}.values()]
    for chosen in product(*(causes if kind in HAVE_A_CAUSE else [None] for kind in kinds)):
        yield [
            result(kind, rank, caused_by=cause) for rank, (kind, cause) in enumerate(zip(kinds, chosen, strict=True))
        ]


def in_orders(ranks: Sequence[RankResult]) -> Iterator[Sequence[RankResult]]:
    """The ranks without times and, if several of them could lead, with times from the last to the first."""
    yield ranks
    if sum(rank.outcome in {Outcome.FAILED, Outcome.TIMED_OUT} for rank in ranks) > 1:
        yield [replace(rank, at=10.0 - rank.rank) for rank in ranks]


@pytest.mark.parametrize("count", quick(1, [1, 2, 3, 4]))
def test_a_verdict_is_good_only_if_every_rank_passed_or_was_skipped_as_the_rules_allow(count):
    for kinds in combinations_with_replacement(KINDS, count):
        for ranks, setting in product(with_causes(kinds), SETTINGS):
            for given in in_orders(ranks):
                assert verdict(given, setting).is_bad != may_be_good(kinds, setting), (kinds, setting)


@pytest.mark.parametrize("skip", ["skip", "pass"])
def test_a_test_has_passed_only_if_a_rank_passed_or_a_skip_for_the_environment_counts_as_a_pass(skip):
    good = sorted(PASSES | SKIPS | {"xfailed"})
    for count, setting in product(range(1, 5), SETTINGS):
        for kinds in combinations_with_replacement(good, count):
            judged = verdict([result(kind, rank) for rank, kind in enumerate(kinds)], setting._replace(skip=skip))
            if judged.kind is VerdictKind.PASSED and not judged.is_skip_but_pass:
                assert PASSES & set(kinds)
            if judged.is_skip_but_pass:
                assert (skip, set(kinds) <= {"environment", "too few GPUs"}) == ("pass", True)
            assert judged.executed == bool(set(kinds) - SKIPS)


@pytest.mark.parametrize("setting", quick(1, map(pytest.param, SETTINGS[::3])), ids=["strict", "lenient"])
def test_the_numbers_of_ranks_make_no_difference_to_what_a_verdict_is(setting):
    for kinds in combinations_with_replacement(KINDS, 3):
        for ranks in with_causes(kinds):
            found = set()
            for order in permutations(range(3)):
                new = dict(enumerate(order))
                judged = verdict(
                    [replace(rank, rank=new[rank.rank], caused_by=new.get(rank.caused_by)) for rank in ranks], setting
                )
                found.add((judged.kind, judged.rule, judged.exit_code, judged.executed))
            assert len(found) == 1, (kinds, found)


FEW = ("passed", "skipped", "failed", "missing")
IN_ATTEMPTS = {1: (*FEW, "aborted", "xfailed"), 2: (*FEW, "aborted", "xfailed"), 3: (*FEW, "aborted"), 4: FEW}
"""Kinds by the number of ranks: attempts depend on their verdicts, which are tried for all kinds above."""
TEST = "t.py::x"


def attempt(number: int, kinds: Sequence[str] | None, error: str = "", **said: Any) -> tuple[Attempt, list[RankFile]]:
    """An attempt whose ranks came to this in its one test; None if it did not have the test."""
    record = JobRecord(
        world_size=len(kinds or "?"),
        collected=(TEST,) if kinds is not None else (),
        error=JobError(kind=error, what="It broke.") if error else None,
        **{name: value for name, value in said.items() if name == "not_run"},
    )
    base = said.get("base")
    files = [
        RankFile(path=Path(), rank=rank, keys=(Key("t", "x", TEST),), seconds=SECONDS, details={0: result(kind, rank)})
        for rank, kind in enumerate(kinds or ())
    ]
    return Attempt(cell="c", suite="s", files=(), number=number, record=record, base=base), files


def has_failed(kinds: Sequence[str], error: str) -> bool:
    """Whether ranks of an attempt went wrong in a way that a skip does not settle."""
    bad = set(kinds) - PASSES - SKIPS - {"xfailed"}
    was_cut_short = error == "interrupted" and bad and bad <= {"missing", "aborted"}
    had_not_begun = error == "agent" and set(kinds) == {"missing"}
    return not (may_be_good(kinds, STRICT) or was_cut_short or had_not_begun)


STRICT = SETTINGS[0]
SECONDS = Durations.of([0.5])


def is_good(first: tuple[Attempt, list[RankFile]], second: tuple[Attempt, list[RankFile]]) -> bool:
    """Whether the job's test is good, or not in the report, after two attempts."""
    newest = replace(second[0], earlier=(first[0],))
    attempts = Attempts(newest, STRICT)
    attempts.add(*first)
    return not any(test.verdict.is_bad for test in attempts.verdicts(newest, second[1]))


@pytest.mark.parametrize("error", quick(1, ["", "interrupted", "agent"]))
@pytest.mark.parametrize("count", quick(1, [1, 2, 3, 4]))
def test_over_two_attempts_a_failure_stands_until_the_test_executes_and_ends_well(count, error):
    outcomes = [*combinations_with_replacement(IN_ATTEMPTS[count], count)]
    for before, after in product(outcomes, outcomes):
        first = attempt(1, before, error)
        expected = may_be_good(after, STRICT) and (not set(after) <= SKIPS or not has_failed(before, error))
        for base in (None, first[0]):
            assert is_good(first, attempt(2, after, base=base)) == expected, (before, after, base)


@pytest.mark.parametrize("error", ["", "interrupted", "agent"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_an_attempt_that_does_not_run_a_test_leaves_a_failure_and_a_rerun_leaves_all(count, error):
    for before in combinations_with_replacement(IN_ATTEMPTS[count], count):
        first = attempt(1, before, error)
        stands = has_failed(before, error)
        for kinds, not_run in ((None, ()), ((), (TEST,))):
            whole = attempt(2, kinds, not_run=not_run)
            rerun = attempt(2, kinds, not_run=not_run, base=first[0])
            assert is_good(first, whole) != stands, before
            assert is_good(first, rerun) == may_be_good(before, STRICT), before


@pytest.mark.parametrize("first", [None, "not run"])
def test_a_test_that_no_attempt_reached_is_an_error_only_where_a_rerun_left_it_out(first):
    before = attempt(1, () if first else None, not_run=(TEST,) if first else ())
    assert is_good(before, attempt(2, None))
    assert is_good(before, attempt(2, None, base=before[0])) == (first is None)
    assert is_good(before, attempt(2, (), not_run=(TEST,), base=before[0]))
