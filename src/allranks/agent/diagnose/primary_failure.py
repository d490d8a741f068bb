"""Finds the rank that caused a failure or a hang, from stacks and from the calls of all ranks.

A failure or a hang in a call of torch.distributed is *secondary* if a rank that the call depends on never entered it,
entered another call, failed before, or died in it. A collective depends on its group, a message on the peer, and a call
of a store or of RPC on all ranks that do not wait themselves.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter

from allranks.agent import clock
from allranks.agent.call_log import DEFAULT_GROUP, MESSAGES, NEW_GROUP, LastCall, Wait
from allranks.agent.channel import RankHang
from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.diagnose.unmatched_calls import format_ranks
from allranks.agent.stacks import Stacks
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Location

_Calls = Mapping[int, Sequence[LastCall]]
"""The last calls of each rank in its process groups, newest first."""

_UNEVEN = ("all_to_all",)
"""Calls whose tensors may have different shapes on different ranks."""


def diagnose(
    step: Step, hangs: Mapping[int, RankHang], calls: _Calls, *, reason: str, first_skip: StepOutcome | None
) -> None:
    """Decide which failures of a step are primary, and add the outcomes of the ranks that had to be stopped.

    Args:
        step: The step so far.
        hangs: The state of each rank that has not ended the step.
        calls: The last calls of each rank of the gang.
        reason: Why these ranks had to be stopped: the time limit that they reached.
        first_skip: The rank that skipped, or failed as expected, if its peers had to do the same.
    """
    analysis = FailureAnalysis(step, hangs, calls)
    step.classify_failures(analysis.is_secondary)
    if hangs:
        late = analysis.late_ranks(has_failed=step.has_failed)
        for outcome in _stopped_outcomes(step, hangs, late, reason=reason, first_skip=first_skip):
            step.add(outcome)


def explain(step: Step, calls: _Calls, first_skip: StepOutcome | None) -> None:
    """Explain a failed step by the ranks' last calls, and attribute secondary failures to their cause."""
    if step.cause is not None:
        death = step.cause.stacks if step.cause.outcome is Outcome.CRASHED else None
        step.promote_outliers(outliers(calls, step.cause.rank, death))
    odd, cause = odd_ones_out(calls), step.cause
    # Calls in different groups can explain the timeout of a rank whose call is odd, or of all ranks: a circle.
    is_circle = all(outcome.outcome is Outcome.TIMED_OUT for outcome in step.outcomes)
    is_odd = cause is not None and cause.outcome is Outcome.TIMED_OUT and cause.observed and cause.rank in odd
    may_diverge = cause is None or is_odd or is_circle
    step.attribute_secondary_failures(first_skip, odd)
    step.explain(
        describe_conflicting_call(calls)
        or (describe_diverging_groups(calls) if may_diverge else "")
        or step.describe_unmatched_call()
    )


class FailureAnalysis:
    """Decides which ranks others waited for in a step; arguments as for :func:`diagnose`."""

    def __init__(self, step: Step, hangs: Mapping[int, RankHang], calls: _Calls) -> None:
        self._hangs = hangs
        self._calls = calls
        # Regardless of the time: the end of a process may be noticed later than its effects.
        self._dead = {outcome.rank for outcome in step.outcomes if outcome.process_ended}
        self._failures = {outcome.rank: outcome for outcome in step.outcomes if outcome.outcome.is_bad}
        self._failed_alone = {
            rank for rank, failure in self._failures.items() if not (failure.is_secondary or failure.waits_for)
        }
        self._busy = {rank for rank, hang in hangs.items() if not self._is_waiting(rank, hang)}
        waits = {rank: self._wait_of(rank, hang) for rank, hang in hangs.items()}
        self._waits = {rank: wait for rank, wait in waits.items() if wait is not None}
        # A rank in user code waits for its peers, too, if that code polls for something.
        self._independent: set[int] = set()
        polling = {rank for rank, wait in self._waits.items() if wait.order == 0 or self._late_for(rank, wait)}
        self._independent = self._busy - polling

    def _is_waiting(self, rank: int, hang: RankHang) -> bool:
        """Return whether a rank hangs in a call of torch.distributed.

        Without stacks, or if complete stacks show no user code, a rank is assumed to wait in its last call, or to be
        about to report (on a busy host, that takes seconds), unless it is behind its peers.
        """
        if waits_for_peers(hang):
            return True
        shows_no_user_code = not (hang.stacks.innermost or hang.stacks.is_cut or hang.held)
        return shows_no_user_code and bool(self._calls.get(rank)) and not _is_behind(rank, self._calls)

    def _wait_of(self, rank: int, hang: RankHang) -> Wait | None:
        """Return what a hanging rank waits for, if that is known."""
        if hang.waits_for is not None or rank in self._busy:
            return hang.waits_for
        newest = next(iter(self._calls.get(rank, ())), None)
        return Wait() if newest is None else Wait(newest.order)

    def is_secondary(self, outcome: StepOutcome) -> bool:
        """Return whether the failure of a rank that had waited for something follows from what other ranks did."""
        return bool(self._culprits(outcome))

    def _culprits(self, failure: StepOutcome) -> set[int]:
        """Return the ranks that a rank had waited for without success when it failed."""
        rank, wait = failure.rank, failure.waits_for
        if wait is None:
            return set()
        late = self._late_for(rank, wait) if wait.was_long else set()
        call = _find(self._calls.get(rank, ()), wait.order)
        diverged = {peer for peer, own in self._calls.items() if call is not None and _has_entered_another(call, own)}
        failed = {peer for peer in self._needed(rank, call) if peer in self._dead or self._had_failed(peer, failure.at)}
        return late | diverged | failed

    def _late_for(self, rank: int, wait: Wait) -> set[int]:
        """Return the ranks that have not entered what a rank waits for."""
        call = _find(self._calls.get(rank, ()), wait.order)
        needed = self._needed(rank, call)
        if call is None:
            return needed & (self._independent | self._failed_alone)
        return {peer for peer in needed if not _has_entered(call, rank, self._calls.get(peer, ()))}

    def _needed(self, rank: int, call: LastCall | None) -> set[int]:
        """Return the ranks that a call depends on; all others if it is unknown."""
        others = {*self._calls, *self._hangs, *self._failures} - {rank}
        return others if call is None else {peer for peer in others if _depends_on(call, peer)}

    def _had_failed(self, rank: int, at: float) -> bool:
        failure = self._failures.get(rank)
        return failure is not None and failure.at < at

    def late_ranks(self, *, has_failed: bool) -> Sequence[int]:
        """Return the ranks that have not ended the step, and that others wait for.

        Args:
            has_failed: The step has failed already, so that none of them needs to be the cause.
        """
        late = {rank: self._late_for(rank, wait) for rank, wait in self._waits.items()}
        awaited = set().union(*late.values(), *map(self._culprits, self._failures.values()))
        if self._busy:
            candidates = (self._independent & awaited, self._busy & awaited, self._independent, self._busy)
            return sorted(next(filter(None, candidates)))
        calls = self._calls if has_failed else {rank: self._calls[rank] for rank in self._hangs if rank in self._calls}
        odd = [rank for rank in odd_ones_out(calls) if rank in self._hangs]
        free = sorted(rank for rank, peers in late.items() if not peers and (rank in awaited or not has_failed))
        return odd or free or ([] if has_failed else list(self._hangs))


def _stopped_outcomes(
    step: Step, hangs: Mapping[int, RankHang], late: Sequence[int], *, reason: str, first_skip: StepOutcome | None
) -> list[StepOutcome]:
    """Return the outcomes of ranks that had to be stopped, the late ones first, as for :func:`diagnose`."""
    first = step.cause or first_skip
    if first is not None and first.outcome is Outcome.XFAILED and not all(map(waits_for_peers, hangs.values())):
        first = None  # the test is expected to fail on each rank, but not to hang
    if first is not None:
        return [_aborted(rank, hang, first) for rank, hang in hangs.items()]
    if step.has_failed:
        waiting = {outcome.rank for outcome in step.outcomes if outcome.outcome.is_bad}
        waiting |= {rank for rank, hang in hangs.items() if rank not in late and waits_for_peers(hang)}
        reason = f"{format_ranks(sorted(waiting))} waited for it; {reason}"
    timed_out = [_timed_out(rank, hangs[rank], reason, hangs[rank].phase or step.current_phase(rank)) for rank in late]
    first = next(iter(timed_out), step.primary_failure)
    others = sorted(set(hangs) - set(late))
    return [*timed_out, *(_aborted(rank, hangs[rank], first) for rank in others if first is not None)]


def _aborted(rank: int, hang: RankHang, first: StepOutcome) -> StepOutcome:
    why = "" if first.outcome.is_bad else f", which {first.outcome},"
    return StepOutcome(
        rank=rank,
        outcome=Outcome.ABORTED,
        at=clock.now(),
        message=f"aborted by rank {first.rank}{why}{hang.stacks.words_for_a_stop}".rstrip(","),
        text=hang.stacks.text,
        stacks=hang.stacks,
        consequence=True,
        caused_by=first.rank,
        observed=True,
    )


def _timed_out(rank: int, hang: RankHang, reason: str, phase: str) -> StepOutcome:
    when = f", in the {phase} of this test" if phase else ""
    where = f"; {hang.held}" if hang.held else hang.stacks.words
    return StepOutcome(
        rank=rank,
        outcome=Outcome.TIMED_OUT,
        at=clock.now(),
        message=f"{reason}{when}{where}{hang.children}",
        text=hang.stacks.text + hang.child_stacks,
        stacks=hang.stacks,
        observed=True,
    )


def waits_for_peers(hang: RankHang) -> bool:
    """Return whether a rank only waits in torch.distributed."""
    return not hang.held and hang.stacks.waits_in_distributed(is_logged=hang.waits_for is not None)


def locations(hangs: Mapping[int, RankHang]) -> tuple[Location, ...]:
    """Return where ranks are; those at the same place share a location."""
    places = by_key(((hang.stacks.innermost, waits_for_peers(hang)), rank) for rank, hang in sorted(hangs.items()))
    return tuple(
        Location(ranks=tuple(ranks), frame=frame, is_waiting=is_waiting)
        for (frame, is_waiting), ranks in places.items()
    )


def _find(calls: Sequence[LastCall], order: int) -> LastCall | None:
    """Return the call with this :attr:`LastCall.order`; None if it is no longer in the log."""
    return next((call for call in calls if call.order == order), None) if order else None


def _depends_on(call: LastCall, peer: int) -> bool:
    """Return whether a call can end only after a call of this peer."""
    if call.kind in MESSAGES:
        return call.peer in (peer, None)
    return bool(call.mask >> peer & 1) if call.mask else True


def _has_entered(call: LastCall, rank: int, peer_calls: Sequence[LastCall]) -> bool:
    """Return whether a peer has entered a rank's collective, or made the counterpart of its message."""
    if call.kind in MESSAGES:
        counterpart = "send" if call.kind == "recv" else "recv"
        return any(
            other.number >= call.number
            for other in peer_calls
            if (other.group, other.kind) == (call.group, counterpart) and other.peer in (rank, None)
            if call.peer is None or other.tag == call.tag
        )
    same = _same_number(call, peer_calls)
    if same is not None:
        return same.essence == call.essence
    return any(other.number > call.number for other in _collectives(peer_calls) if other.group == call.group)


def _has_entered_another(call: LastCall, peer_calls: Sequence[LastCall]) -> bool:
    """Return whether a peer's collective with the group and number of this call is a different one."""
    same = _same_number(call, peer_calls)
    return same is not None and same.essence != call.essence


def _same_number(call: LastCall, peer_calls: Sequence[LastCall]) -> LastCall | None:
    """Return the peer's collective with the same group and number as a rank's; None for a message."""
    key = call.group, call.number
    same = (other for other in _collectives(peer_calls) if (other.group, other.number) == key)
    return None if call.kind in MESSAGES else next(same, None)


def _is_behind(rank: int, calls: _Calls) -> bool:
    """Return whether another rank has begun more collectives in one of this rank's groups."""
    # Newest calls come first: reversed, the newest of each group is kept.
    newest = {call.group: call.number for call in reversed(_collectives(calls.get(rank, ())))}
    own = {DEFAULT_GROUP: 0, **newest}
    return any(
        call.number > own.get(call.group, call.number) for others in calls.values() for call in _collectives(others)
    )


def _collectives(calls: Sequence[LastCall]) -> list[LastCall]:
    return [call for call in calls if call.kind not in MESSAGES]


def odd_ones_out(calls: _Calls) -> list[int]:
    """Return the ranks whose call differs from that of most ranks; none if no call has a majority.

    Calls with the same group and number are compared first: some ranks may have continued from there.
    """
    collectives = _by_number(calls).values()
    for trait in (attrgetter("kind"), attrgetter("essence")):
        for by_rank in collectives:
            if odd := _minority({rank: trait(call) for rank, call in by_rank.items()}):
                return odd
    return _minority({rank: _identity(own[0]) for rank, own in calls.items() if own})


def outliers(calls: _Calls, rank: int, death: Stacks | None = None) -> list[int]:
    """Return the ranks whose call at the group and number of this rank's last call differs from the majority's.

    There are none if this rank is one of them. Calls that differ may fail on any rank, or even kill it: gloo aborts on
    tensors of different size. If a signal killed the rank, `death` has its stacks: if it died in a collective, calls
    with other shapes differ, too.
    """
    newest = next(iter(calls.get(rank, ())), None)
    if newest is None or newest.kind in MESSAGES:
        return []
    by_rank = _by_number(calls)[newest.group, newest.number]
    is_in_collective = death is not None and death.waits_in_distributed()
    traits = (attrgetter("essence"), _signature) if is_in_collective else (attrgetter("essence"),)
    minorities = (_minority({peer: trait(call) for peer, call in by_rank.items()}) for trait in traits)
    odd = next(filter(None, minorities), [])
    return [] if rank in odd else odd


def _signature(call: LastCall) -> tuple[object, ...]:
    return call.kind, call.dtype, "" if call.kind in _UNEVEN else call.shape, call.peer


def _identity(call: LastCall) -> tuple[object, ...]:
    if call.kind in MESSAGES:
        return call.group, call.kind  # the messages of a chain differ in number and peer
    return call.group, call.number, *_signature(call)


def _minority(values: Mapping[int, object]) -> list[int]:
    """Return the ranks whose value differs from the majority's; none if there is no majority."""
    usual, count = next(iter(Counter(values.values()).most_common(1)), (None, 0))
    return [rank for rank, value in values.items() if value != usual] if 2 * count > len(values) else []


def _by_number(calls: _Calls) -> dict[tuple[str, int], dict[int, LastCall]]:
    """Return the collectives of each group and number, by rank; lowest numbers first."""
    found: dict[tuple[str, int], dict[int, LastCall]] = {}
    for rank, own in sorted(calls.items()):
        for call in _collectives(own):
            found.setdefault((call.group, call.number), {})[rank] = call
    return dict(sorted(found.items(), key=lambda item: item[0][1]))


def describe_conflicting_call(calls: _Calls) -> str:
    """Describe the first collective of a group that differs between ranks at the same number; empty if none does."""
    for (group, number), by_rank in _by_number(calls).items():
        if len(set(map(_signature, by_rank.values()))) > 1:
            where = "" if group in (DEFAULT_GROUP, NEW_GROUP) else f" of group {group}"
            return _describe(by_rank, number) + where
    return ""


def _describe(calls: Mapping[int, LastCall], number: int) -> str:
    has_one_kind = len({call.kind for call in calls.values()}) == 1
    has_one_root = len({call.peer for call in calls.values()}) == 1
    ranks_of: dict[str, list[int]] = {}
    for rank, call in calls.items():
        tensor = _tensor(call) if has_one_kind else ""
        root = f" with root {call.peer}" if has_one_kind and not has_one_root else ""
        ranks_of.setdefault(f"{call.kind} #{number}{tensor}{root}", []).append(rank)
    (first, ranks), *others = ranks_of.items()
    rest = "".join(f", {format_ranks(ranks)} {name}" for name, ranks in others)
    return f"{format_ranks(ranks)} called {first}{rest}"


def _tensor(call: LastCall) -> str:
    return f" of {call.shape or 'scalar'} {call.dtype}" if call.dtype else " without a tensor"


def describe_diverging_groups(calls: _Calls) -> str:
    """Describe the collectives in which ranks wait for each other in different groups; empty if they do not."""
    current = {rank: own[0] for rank, own in sorted(calls.items()) if own and own[0].kind not in MESSAGES}
    if len({call.group for call in current.values()}) < 2:
        return ""
    ranks_of = by_key((f"{call.kind} #{call.number} of group {call.group}", rank) for rank, call in current.items())
    return ", ".join(f"{format_ranks(ranks)} called {name}" for name, ranks in ranks_of.items())
