"""The verdict rules, in order, and rules 1 to 5 as functions: many ranks, one verdict.

The first rule that applies to the ranks of a test decides its verdict in an attempt:

1. Unaccounted. A rank without a result is an error (exit code 3), and so is a rank that was aborted although none went
   wrong or skipped before. If the job has ended, a failure of another rank explains the missing result; a time-out
   explains nothing, because the missing rank may be its cause.
2. Went wrong. The rank that went wrong by itself decides, the first in time if several did. *Failed* is a failure;
   *crashed*, *timed out* and *errored* are errors (exit code 1). If one of them has no time, the worst outcome counts,
   then the lowest rank. A failure that followed from another rank's decides only if that rank did not go wrong. A rank
   that waited in vain for one that skipped did not go wrong by itself.
3. Ranks disagree. It is an error (exit code 1) if some ranks skipped and others did not, or if some failed as expected
   (xfail) and others passed. ``mixed_skip`` allows it for tests in which no rank went wrong or was aborted.
4. Skipped. A skip because GPUs are missing is an error (exit code 1) if a node of the cell was given as many as the
   test needs. A test is skipped if ranks skipped or failed as expected, and none passed. If all ranks skipped because
   of their environment, ``skip = "pass"`` counts it as passed.
5. Passed. All other tests are passed. An unexpected pass (xpass) is a pass, unless the mark is strict.

Of jobs:

6. Errors of jobs. What goes wrong with a job itself is a testcase of its own, an error. Its exit code is 1 for
   collection, time limit, stop and coverage, 2 for usage, 4 for infrastructure, 130 for an interrupt, 5 for a suite
   without tests, and 3 for all else. Tests that a stop, a time limit, an interrupt or a failed collection kept from
   running are skipped as *not run*.
7. Planned jobs. Every job of the plan has results, and so has every shard of a suite of which one is there, unless the
   plan in the merged folder itself leaves it out. One that has none is an error (exit code 3).
8. Trust. Results count in the job and the run that they are of. Results of another run or job are an error (exit code
   3). So are a file that cannot be read or was changed, two different files of a rank, and a rank outside the world. So
   are a journal without its end, an attempt that is gone, shards that were divided differently, and tests whose
   parameters differ between attempts or shards.

Over attempts, and over the tries of a test within one:

9. Attempts. A bad result stands until the test executes and ends well, in a later attempt or try, on each rank that
   went wrong. Neither a skip settles it, nor an attempt that did not run the test or no longer has it.
10. Reruns. An attempt that reran a part of a job overrides only the tests that it ran. An attempt that ran the whole
    job overrides all that is known but failures.
11. Cut short. A test without a result is an error of its attempt, but no failure that stands, if the job was ended from
    outside, or if its agent died before the test began. A test that was not run, and that the attempt which continues
    the job leaves out, is an error (exit code 3).

Of a run:

12. Baseline. A suite in which fewer tests executed than in the baseline is an error (exit code 1), unless tests were
    deselected, its job has errors, or a shard is not there.
13. Nothing ran. A run in which no rank executed a test has exit code 5, unless
    `allranks report --allow-nothing-ran` accepts it.
14. Exit code. The exit code of the run is the strongest of all: the first of 130, 2, 4, 3, 1, 5 and 0.

These functions are pure: the same rank results and the same setting give the same verdict, in any order. The other
rules are in the modules beside this one: ``accounting`` and ``judging`` (6 to 8), ``attempts`` (9 to 11), ``baseline``
(12), and ``exit_code`` (6, 13 and 14).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from allranks.errors import ExitCode
from allranks.protocol.outcomes import Outcome, SkipKind, disagree, may_disagree, numbers
from allranks.protocol.skip_codes import gpus_needed
from allranks.protocol.xml_text import TEXT_LIMIT, cut, first_line
from allranks.report.results import (
    XPASS,
    RankResult,
    SkipPolicy,
    Verdict,
    VerdictKind,
    VerdictRule,
    describe,
    kind_of,
    severity,
    strip,
)

_RAN: Final = frozenset({Outcome.PASSED, Outcome.XPASSED, Outcome.XFAILED})
_TAKES_NO_PART: Final = frozenset({Outcome.SKIPPED, Outcome.XFAILED})
_PASSES: Final = frozenset({Outcome.PASSED, Outcome.XPASSED})
NEVER_RAN: Final = frozenset({Outcome.SKIPPED, Outcome.MISSING})
"""The outcomes of ranks that did not execute the test."""


class VerdictPolicy(NamedTuple):
    """The input of the rules besides the rank results."""

    skip: SkipPolicy = "skip"
    mixed_skip: tuple[str, ...] = ()  # Node ids (``fnmatch`` patterns) whose ranks may disagree on a skip
    gpus: int = 0  # the largest number of GPUs that one node of the cell was given
    job_has_ended: bool = False  # no further result can come, and no error of the job says why one is missing


class Lead(NamedTuple):
    """The leading outcome, and how it was found."""

    result: RankResult
    caveat: str = ""  # a sentence if it was found without times of arrival; else empty


def verdict(results: Iterable[RankResult], setting: VerdictPolicy) -> Verdict:
    """Apply the first matching rule to the outcomes of one test's ranks, in any order.

    There is one for each rank that the test should have run on; ranks without a result are ``missing``.
    """
    ranks = sorted(results, key=lambda result: result.rank)
    lead = leading(ranks)
    return (
        _unaccounted(ranks, lead, setting)
        or _leading_outcome(ranks, lead)
        or _ranks_disagree(ranks, setting)
        or _skipped(ranks, setting)
        or _passed(ranks)
    )


def leading(ranks: Sequence[RankResult]) -> Lead | None:
    """The first bad outcome to arrive; None if no rank went wrong by itself.

    An aborted or a missing rank never leads, nor does one that waited in vain for a rank that skipped, or failed as
    expected; a consequence leads only if its cause is absent.
    """
    skipped = {rank.rank for rank in ranks if rank.outcome in _TAKES_NO_PART}
    bad = [
        rank
        for rank in ranks
        if rank.outcome.is_bad
        and rank.outcome not in {Outcome.ABORTED, Outcome.MISSING}
        and not (rank.consequence and rank.caused_by in skipped)
    ]
    candidates = [rank for rank in bad if not rank.consequence] or bad
    if not candidates:
        return None
    if all(rank.at is not None for rank in candidates):
        return Lead(result=min(candidates, key=lambda rank: (rank.at, -severity(rank.outcome), rank.rank)))
    worst = min(candidates, key=lambda rank: (-severity(rank.outcome), rank.rank))
    return Lead(result=worst, caveat="" if candidates == [worst] else _NO_TIMES)


_LONG: Final = 1.0
"""Seconds between the ends of two ranks that are worth reporting: lockstep tests end within milliseconds."""

_SHOWN_STOPPED: Final = 3

_HALF: Final = TEXT_LIMIT // 2

_NO_TIMES: Final = "No times show which rank went wrong first: the worst outcome leads, then the lowest rank."


def _unaccounted(ranks: Sequence[RankResult], lead: Lead | None, setting: VerdictPolicy) -> Verdict | None:
    """Rule 1: a rank is missing, or was aborted although no rank failed first."""
    missing = [] if setting.job_has_ended and _explains(lead) else _with(Outcome.MISSING, ranks)
    skipped = {rank.rank for rank in ranks if rank.outcome in _TAKES_NO_PART}
    aborted = [] if lead else _with(Outcome.ABORTED, ranks)
    unexplained = [rank for rank in aborted if rank.caused_by not in skipped]
    if ranks and not missing and not unexplained:
        return None
    return Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.UNACCOUNTED,
        reason="missing" if missing or not ranks else "aborted",
        exit_code=ExitCode.UNACCOUNTED,
        leading=lead.result.rank if lead else None,
        message=_unaccounted_message(missing, unexplained, lead),
        text=_text(ranks, lead),
        executed=_executed(ranks),
    )


def _with(outcome: Outcome, ranks: Sequence[RankResult]) -> list[RankResult]:
    return [rank for rank in ranks if rank.outcome is outcome]


def _explains(lead: Lead | None) -> bool:
    """Whether the leading outcome explains that nothing came from another rank."""
    return lead is not None and lead.result.outcome is not Outcome.TIMED_OUT and not lead.result.consequence


def _leading_outcome(ranks: Sequence[RankResult], lead: Lead | None) -> Verdict | None:
    """Rule 2: crashed, timed out and errored are errors, failed is a failure."""
    if lead is None:
        return None
    outcome = lead.result.outcome
    return Verdict(
        kind=kind_of(outcome),
        rule=VerdictRule.LEADING_OUTCOME,
        reason=outcome.value,
        exit_code=ExitCode.TESTS_FAILED,
        leading=lead.result.rank,
        message=_lead_message(lead) + _long_done(ranks, lead.result) + _still_running(ranks) + _absent(ranks),
        text=_text(ranks, lead),
    )


def _long_done(ranks: Sequence[RankResult], lead: RankResult) -> str:
    """The ranks that had ended the test long before: a rank that left early often caused its peers' time-out."""
    ended = [
        (rank.rank, lead.at - rank.at)
        for rank in ranks
        if not rank.outcome.is_bad and rank.at is not None and lead.at is not None and lead.at - rank.at >= _LONG
    ]
    if not ended:
        return ""
    seconds = min(waited for _, waited in ended)
    return f" ({_named([rank for rank, _ in ended])} had ended the test {seconds:.0f} s before)"


def _still_running(ranks: Sequence[RankResult]) -> str:
    """Where the stopped ranks were, those at one place together: a peer's time-out often names the wrong one."""
    by_place: dict[str, list[int]] = {}
    for rank in _with(Outcome.ABORTED, ranks):
        by_place.setdefault(rank.message, []).append(rank.rank)
    places = [f"{_named(group)}: {message}" for message, group in by_place.items()]
    rest = sum(map(len, [*by_place.values()][_SHOWN_STOPPED:]))
    more = f"and {rest} more rank{'' if rest == 1 else 's'} elsewhere"
    shown = "; ".join([*places[:_SHOWN_STOPPED], *([more] if rest else [])])
    return f" ({shown})" if shown else ""


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {numbers(ranks)}"


def _absent(ranks: Sequence[RankResult]) -> str:
    """The ranks from which nothing came."""
    missing = _with(Outcome.MISSING, ranks)
    return f" ({_missing_message(missing)})" if missing else ""


def _ranks_disagree(ranks: Sequence[RankResult], setting: VerdictPolicy) -> Verdict | None:
    """Rule 3: some ranks skipped and others did not, and the policy does not allow it."""
    if not disagree({rank.outcome for rank in ranks}):
        return None
    if all(may_disagree(rank.nodeid, setting.mixed_skip) and not rank.outcome.is_bad for rank in ranks):
        return None
    return Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.RANKS_DISAGREE,
        reason="ranks disagree",
        exit_code=ExitCode.TESTS_FAILED,
        message=f"ranks disagree: {strip(ranks)}. {_reasons(ranks)}".strip(),
        text=_text(ranks, None),
    )


def _skipped(ranks: Sequence[RankResult], setting: VerdictPolicy) -> Verdict | None:
    """Rule 4: all ranks skipped or xfailed; a lost piece of coverage is an error, an environment skip may be a pass."""
    skips = _with(Outcome.SKIPPED, ranks)
    if lost := next((rank for rank in skips if _had_the_hardware(rank, setting)), None):
        return _coverage_lost(ranks, lost, setting)
    ran = {rank.outcome for rank in ranks} & _RAN
    if Outcome.PASSED in ran or ran == {Outcome.XPASSED}:  # beside skips in a mix that the policy allows by name
        return None
    environment = not ran and all(rank.skip_kind in {SkipKind.ENVIRONMENT, SkipKind.HARDWARE} for rank in skips)
    return Verdict(
        kind=VerdictKind.PASSED if environment and setting.skip == "pass" else VerdictKind.SKIPPED,
        rule=VerdictRule.SKIPPED,
        reason="pytest.xfail" if ran else "pytest.skip",
        message=_reasons(ranks),
        text=_text(ranks, None),
        executed=_executed(ranks),
        skip_kind=next((rank.skip_kind for rank in skips if rank.skip_kind), None),
        skip_code=next((rank.skip_code for rank in skips if rank.skip_code is not None), None),
    )


def _passed(ranks: Sequence[RankResult]) -> Verdict:
    """Rule 5: all ranks passed."""
    reason = XPASS if all(rank.outcome is Outcome.XPASSED for rank in ranks) else ""
    return Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED, reason=reason, executed=_executed(ranks))


def _had_the_hardware(rank: RankResult, setting: VerdictPolicy) -> bool:
    needed = rank.gpus_needed or (rank.skip_code and gpus_needed(rank.skip_code)) or 1
    return rank.skip_kind is SkipKind.HARDWARE and setting.gpus >= needed


def _coverage_lost(ranks: Sequence[RankResult], lost: RankResult, setting: VerdictPolicy) -> Verdict:
    return Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.SKIPPED,
        reason="hardware skip",
        exit_code=ExitCode.TESTS_FAILED,
        leading=lost.rank,
        message=f"coverage was lost: the cell was given {setting.gpus} GPU(s) on a node, "
        f"and rank {lost.rank} skipped because of missing hardware: {lost.message}",
        text=_text(ranks, None),
        executed=_executed(ranks),
        skip_kind=lost.skip_kind,
        skip_code=lost.skip_code,
    )


def _executed(ranks: Sequence[RankResult]) -> bool:
    return any(rank.outcome not in NEVER_RAN for rank in ranks)


def _unaccounted_message(missing: Sequence[RankResult], unexplained: Sequence[RankResult], lead: Lead | None) -> str:
    first = f" First to go wrong: {_lead_message(lead)}" if lead else ""
    if missing:
        return f"{_missing_message(missing)}.{first}"
    if unexplained:
        why = _said(unexplained) or "supervision itself failed"
        return f"{_ranks(unexplained)} aborted, and no rank went wrong before: {why}."
    return "no rank reported this test."


def _missing_message(missing: Sequence[RankResult]) -> str:
    return f"{_ranks(missing)} missing: {_said(missing) or 'nothing came back'}"


def _said(ranks: Sequence[RankResult]) -> str:
    """The first messages of ranks, each once."""
    said = list(dict.fromkeys(rank.message.rstrip(".") for rank in ranks if rank.message))
    return "; ".join(said[:_SHOWN_STOPPED])


def _ranks(ranks: Sequence[RankResult]) -> str:
    return f"{_named([rank.rank for rank in ranks])} {'is' if len(ranks) == 1 else 'are'}"


def _lead_message(lead: Lead) -> str:
    result = lead.result
    return _sentence([result], result.message or first_line(result.text))


def _sentence(ranks: Sequence[RankResult], message: str) -> str:
    """What became of ranks with the same outcome and message, in one sentence that names them once."""
    first, *_ = ranks
    who, how = _named([rank.rank for rank in ranks]), describe(first.outcome)
    # Where the agent saw how a process ended, the message is that sentence; of an aborted rank, it is the predicate.
    if message.startswith(f"{who} "):
        return message
    return f"{who} {message}" if message.startswith(f"{how} by ") else f"{who} {how}: {message}".rstrip(": ")


def _reasons(ranks: Sequence[RankResult]) -> str:
    """The reasons of the skips and expected failures, each once, in order of rank."""
    said = dict.fromkeys(rank.message for rank in ranks if rank.outcome not in _PASSES and rank.message)
    return "; ".join(said)


def _text(ranks: Sequence[RankResult], lead: Lead | None) -> str:
    """All ranks in the first line, then the leading rank's own text, then that of the others."""
    first = lead.result if lead else None
    head = [f"ranks: {strip(ranks, first)}", lead.caveat if lead else ""]
    told = [section for _, section in sections(ranks, first)]
    # The leading rank gets half of the space, however much its peers have.
    leads = cut(told.pop(0), _HALF) if first else ""
    rest = cut("\n\n".join(told), _HALF)
    return "\n\n".join(part for part in ("\n".join(line for line in head if line), leads, rest) if part)


def sections(ranks: Sequence[RankResult], first: RankResult | None) -> Iterator[tuple[Sequence[RankResult], str]]:
    """The leading rank, if there is one, and groups of others that say the same, each with its part of the text."""
    if first is not None:
        yield [first], _section([first])
    for group in _alike([rank for rank in ranks if rank.outcome not in _PASSES and rank is not first]):
        yield group, _section(group)


def _alike(ranks: Sequence[RankResult]) -> Iterable[Sequence[RankResult]]:
    groups: dict[tuple[str, ...], list[RankResult]] = {}
    for rank in ranks:
        groups.setdefault((rank.outcome.value, rank.message, rank.text), []).append(rank)
    return groups.values()


def _section(ranks: Sequence[RankResult]) -> str:
    """The common message and text of a group of ranks, under their numbers."""
    rank, *_ = ranks
    body = f"\n{rank.text}" if own_text(rank) != rank.message else ""
    return f"{_sentence(ranks, rank.message)}{body}"


def own_text(rank: RankResult) -> str:
    """The end of a rank's section: its text, or its message where the text says no more."""
    return rank.text if rank.text and rank.text.strip() != rank.message.strip() else rank.message
