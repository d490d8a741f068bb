"""The verdict rules in order, and rules 1 to 5 as functions: the results of all ranks of a test become one verdict.

The first rule that applies to the ranks of a test decides its verdict in an attempt:

1. Unaccounted. A rank without a result is an error (exit code 3). So is a rank that was aborted although no other rank
   had failed or skipped. If the job has ended, another rank's failure accounts for a missing result. A timeout does
   not, because the missing rank may be its cause.
2. Primary failure. The rank with the primary failure decides: the first one that failed on its own. *Failed* is a
   failure; *crashed*, *timed out* and *errored* are errors (exit code 1). If the time of one of these failures is
   unknown, the worst outcome counts, then the lowest rank. A secondary failure, which another rank caused, decides only
   if there is no primary failure. A rank did not fail on its own if its wait failed because a peer skipped or
   failed as expected.
3. Ranks disagree. It is an error (exit code 1) if some ranks skipped and others did not, or if some failed as expected
   (xfail) and others passed, except unexpectedly (xpass). ``mixed_skip`` allows it for tests in which no rank failed
   or was aborted.
4. Skipped. A skip because of missing GPUs is an error (exit code 1) if a node of the job was given as many GPUs as the
   test needs. A test is skipped if ranks skipped or failed as expected, and none passed. If all ranks skipped
   because of their environment, ``skip = "pass"`` counts the test as passed.
5. Passed. All other tests passed. An unexpected pass (xpass) is a pass, unless the mark is strict.

Of jobs:

6. Errors of jobs. A problem of the job itself is reported as an error testcase of its own. Its exit code is 1 for a
   failed collection, a time limit, a stop by ``-x`` or low coverage. It is 2 for usage, 4 for infrastructure, 130 for
   an interrupt, 5 for a suite without tests, and 3 for everything else. Tests that did not run because of a stop, a
   time limit, an interrupt or a failed collection are skipped as *not run*.
7. Planned jobs. A planned job without results is an error (exit code 3). So is a missing shard if another shard of its
   suite has results, unless the plan in the merged folder leaves it out.
8. Trust. Results count only in the job and the run that they belong to. Results of another run or job are an error
   (exit code 3). The same goes for a file that cannot be read or was changed, two different files of one rank, a rank
   outside the world size and a journal without an end. It also goes for a missing attempt, shards that were divided
   differently, and tests whose parameters differ between attempts or shards.

Over attempts, and over the tries of a test within one:

9. Attempts. A failure stands until the test passes or fails as expected, in a later attempt or try, on each rank that
   failed. It is not resolved by a skip, nor by an attempt that did not run the test or no longer has it.
10. Reruns. An attempt that reran a part of a job overrides only the tests that it ran. An attempt that ran the whole
    job overrides everything except failures.
11. Cut short. If a job was ended from outside, a test without a result is an error of that attempt, but not a failure
    that stands. The same goes for a test that had not begun when the job's agent died. A test that neither this attempt
    nor the one that continues it ran is an error (exit code 3).

Of a run:

12. Baseline. A suite in which fewer tests executed than in the baseline is an error (exit code 1), unless tests were
    deselected, its job has errors, or a shard is missing.
13. Nothing ran. A run in which no rank executed a test has exit code 5, unless `allranks report --allow-nothing-ran`
    accepts it.
14. Exit code. The exit code of the run is the first of 130, 2, 4, 3, 1, 5 and 0 that applies.

These functions are pure: the same rank results, in any order, and the same policy give the same verdict. The other
rules are in the sibling modules: ``accounting`` and ``judging`` (6 to 8), ``attempts`` (9 to 11), ``baseline`` (12) and
``exit_code`` (6, 13 and 14).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from allranks.errors import ExitCode, counted
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import Outcome, SkipKind, disagree, may_disagree, named_ranks
from allranks.protocol.skip_codes import gpus_needed
from allranks.protocol.tracebacks import folded
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
    rank_summary,
    severity,
)

_RAN: Final = frozenset({Outcome.PASSED, Outcome.XPASSED, Outcome.XFAILED})
_LEFT_EARLY: Final = frozenset({Outcome.SKIPPED, Outcome.XFAILED})
_PASSES: Final = frozenset({Outcome.PASSED, Outcome.XPASSED})
NEVER_RAN: Final = frozenset({Outcome.SKIPPED, Outcome.MISSING})
"""The outcomes of ranks that did not execute the test."""

NO_RESULT: Final = "no result arrived"
"""The message of a missing rank."""


class VerdictPolicy(NamedTuple):
    """The input of the rules apart from the rank results."""

    skip: SkipPolicy = "skip"
    mixed_skip: tuple[str, ...] = ()  # node ids (``fnmatch`` patterns) of tests whose ranks may disagree on a skip
    gpus: int = 0  # the largest number of GPUs on one node of the cell
    job_has_ended: bool = False  # no more results can arrive, and no job error explains why one is missing


class PrimaryFailure(NamedTuple):
    """The rank result that caused the others to fail, and how certain that is."""

    result: RankResult
    caveat: str = ""  # a sentence if it was chosen without times of arrival


def verdict(results: Iterable[RankResult], policy: VerdictPolicy) -> Verdict:
    """Apply the first matching rule to one test.

    Args:
        results: The results of all ranks that the test should have run on, in any order; a rank without a result is
            ``missing``.
        policy: The policy of the run, and what is known of the job.
    """
    ranks = sorted(results, key=lambda result: result.rank)
    primary = primary_failure(ranks)
    return (
        _unaccounted(ranks, primary, policy)
        or _failed(ranks, primary)
        or _ranks_disagree(ranks, policy)
        or _skipped(ranks, policy)
        or _passed(ranks)
    )


def primary_failure(ranks: Sequence[RankResult]) -> PrimaryFailure | None:
    """The first failure to arrive; None if no rank failed on its own.

    An aborted or missing rank is never primary, nor is a rank whose wait failed because a peer skipped or failed as
    expected. A secondary failure is chosen only if there is no other failure.
    """
    left_early = {rank.rank for rank in ranks if rank.outcome in _LEFT_EARLY}
    failed = [
        rank
        for rank in ranks
        if rank.outcome.is_bad
        and rank.outcome not in {Outcome.ABORTED, Outcome.MISSING}
        and not (rank.consequence and rank.caused_by in left_early)
    ]
    candidates = [rank for rank in failed if not rank.consequence] or failed
    if not candidates:
        return None
    if all(rank.at is not None for rank in candidates):
        return PrimaryFailure(min(candidates, key=lambda rank: (rank.at, -severity(rank.outcome), rank.rank)))
    worst = min(candidates, key=lambda rank: (-severity(rank.outcome), rank.rank))
    return PrimaryFailure(worst, caveat="" if candidates == [worst] else _NO_TIMES)


_LONG: Final = 1.0
"""The shortest reported time between the ends of two ranks, in seconds: ranks in lockstep end within milliseconds."""

_MOST_PARTS: Final = 3
"""Messages, or groups of aborted ranks, that a verdict's message shows."""

_HALF: Final = TEXT_LIMIT // 2

_NO_TIMES: Final = (
    "The results do not show which rank failed first, so this verdict names the worst outcome, then the lowest rank."
)


def _unaccounted(ranks: Sequence[RankResult], primary: PrimaryFailure | None, policy: VerdictPolicy) -> Verdict | None:
    """Rule 1: a rank is missing, or was aborted although no rank failed first."""
    missing = [] if policy.job_has_ended and _explains_missing(primary) else _with(Outcome.MISSING, ranks)
    left_early = {rank.rank for rank in ranks if rank.outcome in _LEFT_EARLY}
    aborted = [] if primary else _with(Outcome.ABORTED, ranks)
    unexplained = [rank for rank in aborted if rank.caused_by not in left_early]
    if ranks and not missing and not unexplained:
        return None
    return Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.UNACCOUNTED,
        reason="missing" if missing or not ranks else "aborted",
        exit_code=ExitCode.UNACCOUNTED,
        leading=primary.result.rank if primary else None,
        message=_unaccounted_message(missing, unexplained, primary),
        text=_text(ranks, primary),
        executed=_executed(ranks),
    )


def _with(outcome: Outcome, ranks: Sequence[RankResult]) -> list[RankResult]:
    return [rank for rank in ranks if rank.outcome is outcome]


def _explains_missing(primary: PrimaryFailure | None) -> bool:
    """Whether the primary failure explains why another rank has no result."""
    if primary is None:
        return False
    return primary.result.outcome is not Outcome.TIMED_OUT and not primary.result.consequence


def _failed(ranks: Sequence[RankResult], primary: PrimaryFailure | None) -> Verdict | None:
    """Rule 2: the rank with the primary failure decides."""
    if primary is None:
        return None
    result = primary.result
    return Verdict(
        kind=kind_of(result.outcome),
        rule=VerdictRule.PRIMARY_FAILURE,
        reason=result.outcome.value,
        exit_code=ExitCode.TESTS_FAILED,
        leading=result.rank,
        message=_rank_message(result) + _finished_earlier(ranks, result) + _still_running(ranks) + _missing(ranks),
        text=_text(ranks, primary),
    )


def _finished_earlier(ranks: Sequence[RankResult], primary: RankResult) -> str:
    """The ranks that had finished the test long before: a rank that left early often caused its peers' timeout."""
    finished = [
        (rank.rank, primary.at - rank.at)
        for rank in ranks
        if not rank.outcome.is_bad and rank.at is not None and primary.at is not None and primary.at - rank.at >= _LONG
    ]
    if not finished:
        return ""
    seconds = min(waited for _, waited in finished)
    return f" ({named_ranks([rank for rank, _ in finished])} had finished the test {seconds:.0f} s earlier)"


def _still_running(ranks: Sequence[RankResult]) -> str:
    """Where the aborted ranks were: the timeout of a peer often names the wrong rank."""
    shown = _by_rank(by_key((rank.message, rank.rank) for rank in _with(Outcome.ABORTED, ranks)))
    return f" ({shown})" if shown else ""


def _by_rank(messages: Mapping[str, Sequence[int]]) -> str:
    """The first messages, each with its ranks, and the number of ranks with others."""
    groups = [f"{named_ranks(group)}: {message}" for message, group in messages.items()]
    rest = sum(map(len, [*messages.values()][_MOST_PARTS:]))
    more = [f"and {counted(rest, 'more rank')}"] if rest else []
    return "; ".join([*groups[:_MOST_PARTS], *more])


def _missing(ranks: Sequence[RankResult]) -> str:
    missing = _with(Outcome.MISSING, ranks)
    return f" ({_missing_message(missing)})" if missing else ""


def _ranks_disagree(ranks: Sequence[RankResult], policy: VerdictPolicy) -> Verdict | None:
    """Rule 3: some ranks skipped and others did not, and the policy does not allow it."""
    if not disagree({rank.outcome for rank in ranks}):
        return None
    if all(may_disagree(rank.nodeid, policy.mixed_skip) and not rank.outcome.is_bad for rank in ranks):
        return None
    return Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.RANKS_DISAGREE,
        reason="ranks disagree",
        exit_code=ExitCode.TESTS_FAILED,
        message=f"ranks disagree: {rank_summary(ranks)}. {_reasons(ranks)}".strip(),
        text=_text(ranks, None),
    )


def _skipped(ranks: Sequence[RankResult], policy: VerdictPolicy) -> Verdict | None:
    """Rule 4: ranks skipped or failed as expected, and none passed."""
    skips = _with(Outcome.SKIPPED, ranks)
    if wrong := next((rank for rank in skips if _had_the_hardware(rank, policy)), None):
        return _skipped_despite_hardware(ranks, wrong, policy)
    ran = {rank.outcome for rank in ranks} & _RAN
    if Outcome.PASSED in ran or ran == {Outcome.XPASSED}:  # the others may have skipped, if mixed_skip allows it
        return None
    environment = not ran and all(rank.skip_kind in {SkipKind.ENVIRONMENT, SkipKind.HARDWARE} for rank in skips)
    return Verdict(
        kind=VerdictKind.PASSED if environment and policy.skip == "pass" else VerdictKind.SKIPPED,
        rule=VerdictRule.SKIPPED,
        reason="pytest.xfail" if ran else "pytest.skip",
        message=_reasons(ranks),
        text=_text(ranks, None),
        executed=_executed(ranks),
        skip_kind=next((rank.skip_kind for rank in skips if rank.skip_kind), None),
        skip_code=next((rank.skip_code for rank in skips if rank.skip_code is not None), None),
    )


def _passed(ranks: Sequence[RankResult]) -> Verdict:
    """Rule 5: everything else passed."""
    reason = XPASS if all(rank.outcome is Outcome.XPASSED for rank in ranks) else ""
    return Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED, reason=reason, executed=_executed(ranks))


def _had_the_hardware(rank: RankResult, policy: VerdictPolicy) -> bool:
    needed = rank.gpus_needed or (rank.skip_code and gpus_needed(rank.skip_code)) or 1
    return rank.skip_kind is SkipKind.HARDWARE and policy.gpus >= needed


def _skipped_despite_hardware(ranks: Sequence[RankResult], wrong: RankResult, policy: VerdictPolicy) -> Verdict:
    return Verdict(
        kind=VerdictKind.ERROR,
        rule=VerdictRule.SKIPPED,
        reason="hardware skip",
        exit_code=ExitCode.TESTS_FAILED,
        leading=wrong.rank,
        message=f"coverage was lost: rank {wrong.rank} skipped because of missing hardware, although the cell has "
        f"{counted(policy.gpus, 'GPU')} on one node: {wrong.message}",
        text=_text(ranks, None),
        executed=_executed(ranks),
        skip_kind=wrong.skip_kind,
        skip_code=wrong.skip_code,
    )


def _executed(ranks: Sequence[RankResult]) -> bool:
    return any(rank.outcome not in NEVER_RAN for rank in ranks)


def _unaccounted_message(
    missing: Sequence[RankResult], unexplained: Sequence[RankResult], primary: PrimaryFailure | None
) -> str:
    if missing:
        cause = f" Primary failure: {_rank_message(primary.result)}" if primary else ""
        return f"{_missing_message(missing)}.{cause}"
    if unexplained:
        messages = by_key((rank.message.rstrip("."), rank.rank) for rank in unexplained if rank.message)
        why = next(iter(messages)) if len(messages) == 1 else _by_rank(messages) or "the supervisor itself failed"
        were = "was" if len(unexplained) == 1 else "were"
        who = named_ranks([rank.rank for rank in unexplained])
        return f"{who} {were} aborted, although no rank had failed: {why}."
    return "no rank reported this test."


def _missing_message(missing: Sequence[RankResult]) -> str:
    are = "is" if len(missing) == 1 else "are"
    return f"{named_ranks([rank.rank for rank in missing])} {are} missing: {_messages(missing) or NO_RESULT}"


def _messages(ranks: Sequence[RankResult]) -> str:
    """The first distinct messages of ranks."""
    messages = list(dict.fromkeys(rank.message.rstrip(".") for rank in ranks if rank.message))
    return "; ".join(messages[:_MOST_PARTS])


def _rank_message(result: RankResult) -> str:
    return _sentence([result], result.message or first_line(result.text))


def _sentence(ranks: Sequence[RankResult], message: str) -> str:
    """The outcome and message that ranks have in common, in one sentence."""
    first, *_ = ranks
    who, how = named_ranks([rank.rank for rank in ranks]), describe(first.outcome)
    # The agent writes whole sentences about how a process ended, and only the predicate for an aborted rank.
    if message.startswith(f"{who} "):
        return message
    return f"{who} {message}" if message.startswith(f"{how} by ") else f"{who} {how}: {message}".rstrip(": ")


def _reasons(ranks: Sequence[RankResult]) -> str:
    """The distinct reasons of skips and expected failures, in order of rank."""
    reasons = dict.fromkeys(rank.message for rank in ranks if rank.outcome not in _PASSES and rank.message)
    return "; ".join(reasons)


def _text(ranks: Sequence[RankResult], primary: PrimaryFailure | None) -> str:
    """All ranks in the first line, then the text of the primary failure, then the texts of the others."""
    first = primary.result if primary else None
    head = [rank_summary(ranks, first), primary.caveat if primary else ""]
    texts = [section.text for section in sections(ranks, first)]
    # The primary failure gets half of the space, however much text the other ranks have.
    first_text = cut(texts.pop(0), _HALF) if first else ""
    rest = cut("\n\n".join(texts), _HALF)
    return "\n\n".join(part for part in ("\n".join(line for line in head if line), first_text, rest) if part)


class RankSection(NamedTuple):
    """The part of a verdict's text about some ranks."""

    ranks: Sequence[RankResult]
    text: str
    own: str  # the end of the text: what :func:`own_text` returns for these ranks


def sections(ranks: Sequence[RankResult], primary: RankResult | None) -> Iterator[RankSection]:
    """The parts of a verdict's text: the primary failure, if any, then each group of ranks with equal reports."""
    if primary is not None:
        yield _section([primary])
    others = [rank for rank in ranks if rank.outcome not in _PASSES and rank is not primary]
    for group in by_key(((rank.outcome, rank.message, rank.text), rank) for rank in others).values():
        yield _section(group)


def _section(ranks: Sequence[RankResult]) -> RankSection:
    rank, *_ = ranks
    own = own_text(rank)
    body = f"\n{own}" if own != rank.message else ""
    return RankSection(ranks, f"{_sentence(ranks, rank.message)}{body}", own)


def own_text(rank: RankResult) -> str:
    """The end of a rank's section: its text without the frames of tools, or its message if the text adds nothing."""
    return folded(rank.text) if rank.text and rank.text.strip() != rank.message.strip() else rank.message
