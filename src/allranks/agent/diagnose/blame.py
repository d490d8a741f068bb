"""Finds the rank to blame for a step that did not end: by stacks, and by calls of collectives."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from allranks.agent import clock
from allranks.agent.call_log import DEFAULT_GROUP, MESSAGES, NEW_GROUP, LastCall, Wait
from allranks.agent.channel import RankHang
from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.diagnose.unmatched_calls import words_for_ranks
from allranks.agent.stacks import Stacks
from allranks.protocol.outcomes import Outcome

_Calls = Mapping[int, Sequence[LastCall]]
"""The last calls of each rank in its process groups, the newest first."""

_UNEVEN = ("all_to_all",)
"""Calls whose tensors may have another shape on each rank."""


class Blame:
    """Decides whose fault it is that a step went wrong, or did not end.

    Whatever failed or hangs in a call of torch.distributed follows from the other ranks if one that the call depends on
    never entered it, entered another one, failed before, or died in it. A collective depends on its group, a message on
    the peer, and what a rank sees of a store or of RPC on all ranks that do not wait themselves.

    Args:
        step: The step. If it has not ended, its ranks that did not end it are in `hangs`.
        hangs: Where these ranks are.
        calls: The last calls of each rank of the gang.
    """

    def __init__(self, step: Step, hangs: Mapping[int, RankHang], calls: _Calls) -> None:
        self._hangs = hangs
        self._calls = calls
        # At whatever time: the end of a process may be noticed later than its effects.
        self._left = {each.rank for each in step.outcomes if each.has_left}
        self._bad = {each.rank: each for each in step.outcomes if each.outcome.is_bad}
        self._alone = {rank for rank, each in self._bad.items() if not (each.is_symptom or each.waits_for)}
        self._elsewhere = {rank for rank, hang in hangs.items() if not self._is_waiting(rank, hang)}
        self._idle: set[int] = set()
        waits = {rank: self._wait_of(rank, hang) for rank, hang in hangs.items()}
        self._waits = {rank: wait for rank, wait in waits.items() if wait is not None}
        polling = {rank for rank, wait in self._waits.items() if wait.order == 0 or self._missing(rank, wait)}
        self._idle = self._elsewhere - polling

    def _is_waiting(self, rank: int, hang: RankHang) -> bool:
        """Whether a rank hangs in a call of torch.distributed.

        A rank without stacks, or with none of the user's code in them, is taken to wait in its last call or to report
        it, unless it is behind: on a busy host that takes seconds.
        """
        return waits_for_peers(hang) or _has_called(rank, hang, self._calls)

    def _wait_of(self, rank: int, hang: RankHang) -> Wait | None:
        """What a rank waits for that hangs; None if it is not known to wait for anything."""
        if hang.waits_for is not None or rank in self._elsewhere:
            return hang.waits_for
        newest = next(iter(self._calls.get(rank, ())), None)
        return Wait() if newest is None else Wait(newest.order)

    def follows(self, outcome: StepOutcome) -> bool:
        """Whether a bad outcome of a rank that had waited for something follows from what other ranks did."""
        return bool(self._missing_at(outcome))

    def _missing_at(self, outcome: StepOutcome) -> set[int]:
        """The ranks for which a rank had waited in vain when it went wrong."""
        rank, wait = outcome.rank, outcome.waits_for
        if wait is None:
            return set()
        missing = self._missing(rank, wait) if wait.was_long else set()
        call = _find(self._calls.get(rank, ()), wait.order)
        other = {peer for peer, own in self._calls.items() if call is not None and _has_entered_another(call, own)}
        failed = {peer for peer in self._needed(rank, call) if peer in self._left or self._had_failed(peer, outcome.at)}
        return missing | other | failed

    def _missing(self, rank: int, wait: Wait) -> set[int]:
        """The ranks that did not come to what a rank waits for."""
        call = _find(self._calls.get(rank, ()), wait.order)
        needed = self._needed(rank, call)
        if call is None:
            return needed & (self._idle | self._alone)
        return {peer for peer in needed if not _has_entered(call, rank, self._calls.get(peer, ()))}

    def _needed(self, rank: int, call: LastCall | None) -> set[int]:
        """The ranks that a call depends on; all others for None."""
        others = {*self._calls, *self._hangs, *self._bad} - {rank}
        return others if call is None else {peer for peer in others if _depends_on(call, peer)}

    def _had_failed(self, rank: int, at: float) -> bool:
        """Whether a rank had failed at some time."""
        bad = self._bad.get(rank)
        return bad is not None and bad.at < at

    def late(self, *, is_over: bool) -> Sequence[int]:
        """The ranks that did not end the step and that others wait for; if it is over, there may be none."""
        missing = {rank: self._missing(rank, wait) for rank, wait in self._waits.items()}
        wanted = set().union(*missing.values(), *map(self._missing_at, self._bad.values()))
        if self._elsewhere:
            found = (self._idle & wanted, self._elsewhere & wanted, self._idle, self._elsewhere)
            return sorted(next(filter(None, found)))
        calls = self._calls if is_over else {rank: self._calls[rank] for rank in self._hangs if rank in self._calls}
        odd = [rank for rank in odd_ones_out(calls) if rank in self._hangs]
        free = sorted(rank for rank, found in missing.items() if not found and (rank in wanted or not is_over))
        return odd or free or ([] if is_over else list(self._hangs))


def given_up(
    step: Step, hangs: Mapping[int, RankHang], late: Sequence[int], *, reason: str, skipper: StepOutcome | None
) -> list[StepOutcome]:
    """The outcomes of ranks that had to be stopped, with the ranks to blame first.

    Args:
        step: The step so far: with a bad outcome, the grace after it is over; with none, the time limit is.
        hangs: Where each of them was.
        late: Those of them that others wait for.
        reason: Why they had to be stopped, in words: the time limit that they reached.
        skipper: The rank that skipped, or failed as expected, if its peers had to do the same.
    """
    first = step.cause or skipper
    if first is not None and first.outcome is Outcome.XFAILED and not all(map(waits_for_peers, hangs.values())):
        first = None  # where the test is expected to fail on each rank, a hang is not
    if first is not None:
        return [_aborted(rank, hangs[rank], first) for rank in hangs]
    if step.has_gone_wrong:
        waited = {each.rank for each in step.outcomes if each.outcome.is_bad}
        waited |= {rank for rank in hangs if rank not in late and waits_for_peers(hangs[rank])}
        reason = f"{words_for_ranks(sorted(waited))} waited for it in vain; {reason}"
    blamed = [_timed_out(rank, hangs[rank], reason, hangs[rank].phase or step.phase_under_way(rank)) for rank in late]
    first = next(iter(blamed), step.leader)
    waiting = sorted(set(hangs) - {each.rank for each in blamed})
    return [*blamed, *(_aborted(rank, hangs[rank], first) for rank in waiting if first is not None)]


def _find(calls: Sequence[LastCall], order: int) -> LastCall | None:
    """The call at this place among all calls of its rank; None if it is not known any more."""
    return next((call for call in calls if call.order == order), None) if order else None


def _depends_on(call: LastCall, peer: int) -> bool:
    """Whether a call can only end if a peer makes one."""
    if call.kind in MESSAGES:
        return call.peer in (peer, None)
    return bool(call.mask >> peer & 1) if call.mask else True


def _has_entered(call: LastCall, rank: int, others: Sequence[LastCall]) -> bool:
    """Whether a peer with these calls has entered a collective of a rank, or made the other end of its message."""
    if call.kind in MESSAGES:
        other = "send" if call.kind == "recv" else "recv"
        ends = [each for each in others if (each.group, each.kind) == (call.group, other) and each.peer in (rank, None)]
        return any(each.number >= call.number for each in ends if call.peer is None or each.tag == call.tag)
    same = _same_place(call, others)
    in_group = (each for each in _collectives(others) if each.group == call.group)
    return same.essence == call.essence if same else any(each.number > call.number for each in in_group)


def _has_entered_another(call: LastCall, others: Sequence[LastCall]) -> bool:
    """Whether a peer with these calls has entered another collective in the place of a rank's."""
    same = _same_place(call, others)
    return same is not None and same.essence != call.essence


def _same_place(call: LastCall, others: Sequence[LastCall]) -> LastCall | None:
    """The collective of a peer in the place of a rank's; None if there is none, and for a message."""
    place = call.group, call.number
    same = (each for each in _collectives(others) if (each.group, each.number) == place)
    return None if call.kind in MESSAGES else next(same, None)


def waits_for_peers(hang: RankHang) -> bool:
    """Whether a rank only waits in torch.distributed."""
    return not hang.held and hang.stacks.waits_in_distributed(is_logged=hang.waits_for is not None)


def _has_called(rank: int, hang: RankHang, calls: _Calls) -> bool:
    """Whether a rank shows no user code but has made the same calls as its peers."""
    return not (hang.stacks.innermost or hang.held) and bool(calls.get(rank)) and not _is_behind(rank, calls)


def _is_behind(rank: int, calls: _Calls) -> bool:
    """Whether another rank has begun more collectives in one of this rank's groups."""
    # Newest calls come first: reversed, the newest of each group is kept.
    own = {DEFAULT_GROUP: 0, **{each.group: each.number for each in reversed(_collectives(calls.get(rank, ())))}}
    return any(
        each.number > own.get(each.group, each.number) for others in calls.values() for each in _collectives(others)
    )


def _collectives(calls: Sequence[LastCall]) -> list[LastCall]:
    return [call for call in calls if call.kind not in MESSAGES]


def odd_ones_out(calls: _Calls) -> list[int]:
    """The ranks whose call differs from that of most ranks; none if no call has a majority.

    Calls with the same group and number are compared first: some ranks may have gone on from there.
    """
    places = _by_place(calls).values()
    for trait in (_kind, _essence):
        for same in places:
            if odd := _minority({rank: trait(call) for rank, call in same.items()}):
                return odd
    return _minority({rank: _identity(own[0]) for rank, own in calls.items() if own})


def strays(calls: _Calls, rank: int, death: Stacks | None = None) -> list[int]:
    """The ranks that called something else than most where this rank made its last call; none if it is one of them.

    Such calls fail in any of the ranks, and may even kill it: gloo aborts on tensors of different size.

    Args:
        calls: The last calls of each rank.
        rank: A rank.
        death: Stacks of the signal that killed it, if one did. In a collective, another shape is then another call.
    """
    newest = next(iter(calls.get(rank, ())), None)
    same = {} if newest is None else _by_place(calls).get((newest.group, newest.number), {})
    traits = (_essence, _signature) if death is not None and death.waits_in_distributed() else (_essence,)
    found = (_minority({each: trait(call) for each, call in same.items()}) for trait in traits)
    odd = next(filter(None, found), [])
    return [] if newest is None or newest.kind in MESSAGES or rank in odd else odd


def _kind(call: LastCall) -> str:
    return call.kind


def _essence(call: LastCall) -> tuple[object, ...]:
    return call.essence


def _minority(values: Mapping[int, object]) -> list[int]:
    """The ranks whose value differs from the majority's; none if there is no majority."""
    most, count = next(iter(Counter(values.values()).most_common(1)), (None, 0))
    return [rank for rank, each in values.items() if each != most] if 2 * count > len(values) else []


def _identity(call: LastCall) -> tuple[object, ...]:
    if call.kind in MESSAGES:
        return call.group, call.kind  # a chain of messages is no collective
    return call.group, call.number, *_signature(call)


def _signature(call: LastCall) -> tuple[object, ...]:
    return call.kind, call.dtype, "" if call.kind in _UNEVEN else call.shape, call.peer


def name_crossing(calls: _Calls) -> str:
    """In words, the first collective of a group that differs between ranks at the same number; empty if none does."""
    return next(_crossings(calls), "")


def _by_place(calls: _Calls) -> dict[tuple[str, int], dict[int, LastCall]]:
    """The collectives of one number in one group, by rank, the lowest numbers first."""
    places: dict[tuple[str, int], dict[int, LastCall]] = {}
    for rank, own in sorted(calls.items()):
        for call in own:
            if call.kind not in MESSAGES:
                places.setdefault((call.group, call.number), {})[rank] = call
    return dict(sorted(places.items(), key=lambda each: each[0][1]))


def _crossings(calls: _Calls) -> Iterator[str]:
    for (group, number), same in _by_place(calls).items():
        if len(set(map(_signature, same.values()))) > 1:
            where = "" if group in (DEFAULT_GROUP, NEW_GROUP) else f" of group {group}"
            yield _in_words(same, number) + where


def name_parting(calls: _Calls) -> str:
    """In words, the collectives in which ranks wait for each other in different groups; empty if they do not."""
    current = {rank: own[0] for rank, own in sorted(calls.items()) if own and own[0].kind not in MESSAGES}
    if len({call.group for call in current.values()}) < 2:
        return ""
    by_words: dict[str, list[int]] = {}
    for rank, call in current.items():
        by_words.setdefault(f"{call.kind} #{call.number} of group {call.group}", []).append(rank)
    return ", ".join(f"{words_for_ranks(ranks)} called {words}" for words, ranks in by_words.items())


def _in_words(calls: Mapping[int, LastCall], number: int) -> str:
    has_one_kind = len({call.kind for call in calls.values()}) == 1
    has_one_root = len({call.peer for call in calls.values()}) == 1
    by_words: dict[str, list[int]] = {}
    for rank, call in calls.items():
        tensor = f" of {call.shape or 'no shape'} {call.dtype or 'no tensor'}" if has_one_kind else ""
        root = f" with root {call.peer}" if has_one_kind and not has_one_root else ""
        by_words.setdefault(f"{call.kind} #{number}{tensor}{root}", []).append(rank)
    (first, ranks), *others = by_words.items()
    rest = "".join(f", {words_for_ranks(ranks)} {words}" for words, ranks in others)
    return f"{words_for_ranks(ranks)} called {first}{rest}"


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


def _timed_out(rank: int, hang: RankHang, reason: str, under_way: str) -> StepOutcome:
    phase = f", in the {under_way} of this test" if under_way else ""
    where = f"; {hang.held}" if hang.held else hang.stacks.words
    return StepOutcome(
        rank=rank,
        outcome=Outcome.TIMED_OUT,
        at=clock.now(),
        message=f"{reason}{phase}{where}{hang.children}",
        text=hang.stacks.text + hang.child_stacks,
        stacks=hang.stacks,
        observed=True,
    )
