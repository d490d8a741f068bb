"""Finds the rank to blame for a step that did not end: by stacks, and by calls of collectives."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from allranks.harness import clock
from allranks.harness.gangs.call_board import MESSAGES, LastCall
from allranks.harness.gangs.local_ranks import RankHang
from allranks.harness.gangs.step_outcome import Step, StepOutcome, stopped_at, was_in
from allranks.harness.gangs.unmatched_calls import DEFAULT_GROUP, NEW_GROUP, words_for_ranks
from allranks.harness.stacks.stacks import innermost, waits_in_distributed
from allranks.outcomes import Outcome

_Calls = Mapping[int, Sequence[LastCall]]
"""The last calls of each rank in its process groups, the newest first."""

_UNEVEN = ("all_to_all",)
"""Calls whose tensors may have another shape on each rank."""


def given_up(
    step: Step, hangs: Mapping[int, RankHang], calls: _Calls, *, reason: str, skipper: StepOutcome | None
) -> list[StepOutcome]:
    """The outcomes of ranks that had to be stopped, with the ranks to blame first.

    Args:
        step: The step so far: with a bad outcome, the grace after it is over; with none, the time limit is.
        hangs: Where each of them was.
        calls: The last calls of each rank of the gang.
        reason: Why they had to be stopped, in words: the time limit that they reached.
        skipper: The rank that skipped, or failed as expected, if its peers had to do the same.
    """
    first = step.cause or skipper
    if first is not None and first.outcome is Outcome.XFAILED and not all(map(waits_for_peers, hangs.values())):
        first = None  # where the test is expected to fail on each rank, a hang is not
    if first is not None:
        return [_aborted(rank, hangs[rank], first) for rank in hangs]
    to_blame = _to_blame(step, hangs, calls)
    if step.has_gone_wrong:
        waited = {each.rank for each in step.outcomes if each.outcome.is_bad}
        waited |= {rank for rank in hangs if rank not in to_blame and waits_for_peers(hangs[rank])}
        reason = f"{words_for_ranks(sorted(waited))} waited for it in vain; {reason}"
    blamed = [
        _timed_out(rank, hangs[rank], reason, hangs[rank].phase or step.phase_under_way(rank)) for rank in to_blame
    ]
    first = next(iter(blamed), step.leader)
    waiting = sorted(set(hangs) - {each.rank for each in blamed})
    return [*blamed, *(_aborted(rank, hangs[rank], first) for rank in waiting if first is not None)]


def _to_blame(step: Step, hangs: Mapping[int, RankHang], calls: _Calls) -> Sequence[int]:
    """The ranks that others wait for.

    A rank that waits in a collective is not to blame, unless most ranks wait in another one, or no other rank can be.
    Nor is one that waits for a key of a store, unless most ranks wait for it in a collective.
    Of the ranks that do something else, those behind their peers are to blame, or all if none is behind. A rank
    without stacks, or with none of the user's code in them, is taken to wait in its last call or to report it, unless
    it is behind: on a busy host that takes seconds.
    """
    absent = [rank for rank, each in hangs.items() if not (waits_for_peers(each) or _has_called(rank, each, calls))]
    if absent:
        return [rank for rank in absent if _is_behind(rank, calls)] or absent
    if step.has_gone_wrong:
        return [rank for rank in odd_ones_out(calls) if rank in hangs] or _left_behind(hangs, calls)
    odd = odd_ones_out({rank: calls[rank] for rank in hangs if rank in calls})
    return odd or _left_behind(hangs, calls) or list(hangs)


def _left_behind(hangs: Mapping[int, RankHang], calls: _Calls) -> list[int]:
    """The ranks that wait for a peer, as for a key of a store, where most ranks have gone on to a collective."""
    behind = [rank for rank in calls if _is_behind(rank, calls)]
    return [rank for rank in behind if rank in hangs] if 2 * len(behind) < len(calls) else []


def never_entered(calls: _Calls, rank: int, order: int) -> list[int]:
    """The ranks that have not entered a collective of another rank, or have entered another one in its place.

    Args:
        calls: The last calls of each rank.
        rank: The rank whose collective it is.
        order: The place of the collective among all its calls; none is found if that is not known any more.
    """
    own = next((call for call in calls.get(rank, ()) if call.order == order and call.kind not in MESSAGES), None)
    if own is None:
        return []
    return [peer for peer in calls if peer != rank and own.mask >> peer & 1 and not _has_entered(own, calls[peer])]


def _has_entered(call: LastCall, others: Sequence[LastCall]) -> bool:
    """Whether a peer with these calls has entered a collective of another rank."""
    in_group = [each for each in others if each.group == call.group and each.kind not in MESSAGES]
    same = next((each for each in in_group if each.number == call.number), None)
    return same.kind == call.kind if same else any(each.number > call.number for each in in_group)


def waits_for_peers(hang: RankHang) -> bool:
    """Whether a rank only waits in torch.distributed."""
    return not hang.held and waits_in_distributed(hang.stacks)


def _has_called(rank: int, hang: RankHang, calls: _Calls) -> bool:
    """Whether a rank shows no user code but has made the same calls as its peers."""
    return not (innermost(hang.stacks) or hang.held) and bool(calls.get(rank)) and not _is_behind(rank, calls)


def _is_behind(rank: int, calls: _Calls) -> bool:
    """Whether another rank has begun more collectives in one of this rank's groups."""
    # Newest calls come first: reversed, the newest of each group is kept.
    own = {DEFAULT_GROUP: 0, **{call.group: call.number for call in reversed(calls.get(rank, ()))}}
    return any(call.number > own.get(call.group, call.number) for others in calls.values() for call in others)


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


def strays(calls: _Calls, rank: int, death: str = "") -> list[int]:
    """The ranks that called something else than most where this rank made its last call; none if it is one of them.

    Such calls fail in any of the ranks, and may even kill it: gloo aborts on tensors of different size.

    Args:
        calls: The last calls of each rank.
        rank: A rank.
        death: Stacks of the signal that killed it. In a collective, another shape then counts as another call.
    """
    newest = next(iter(calls.get(rank, ())), None)
    same = {} if newest is None else _by_place(calls).get((newest.group, newest.number), {})
    traits = (_essence, _signature) if waits_in_distributed(death) else (_essence,)
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
        message=f"aborted by rank {first.rank}{why}{stopped_at(hang.stacks)}".rstrip(","),
        text=hang.stacks,
        consequence=True,
        caused_by=first.rank,
        observed=True,
    )


def _timed_out(rank: int, hang: RankHang, reason: str, under_way: str) -> StepOutcome:
    phase = f", in the {under_way} of this test" if under_way else ""
    where = f"; {hang.held}" if hang.held else was_in(hang.stacks)
    return StepOutcome(
        rank=rank,
        outcome=Outcome.TIMED_OUT,
        at=clock.now(),
        message=f"{reason}{phase}{where}{hang.children}",
        text=hang.stacks + hang.child_stacks,
        observed=True,
    )
