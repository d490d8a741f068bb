"""Who is to blame for a step that did not end: each rank that is still out is asked where it is, and what it called."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from allranks.harness.gangs.arrival import Arrival, Step, was_in
from allranks.harness.gangs.call_board import MESSAGES, LastCall
from allranks.harness.gangs.crew import Stuck
from allranks.harness.gangs.unmatched_calls import DEFAULT_GROUP, words_for_ranks
from allranks.harness.outcome import Outcome
from allranks.harness.stacks.stacks import waits_in_distributed

_Calls = Mapping[int, Sequence[LastCall]]
"""What each rank called last in its process groups, the newest call first."""

_UNEVEN = ("all_to_all",)
"""Calls whose tensors may have another shape on each rank."""


def given_up(
    step: Step, stuck: Mapping[int, Stuck], calls: _Calls, *, late: str, skipper: Arrival | None
) -> list[Arrival]:
    """The outcomes of ranks that had to be stopped, those who are to blame first.

    Args:
        step: What has arrived so far: with a bad outcome, the grace after it is over; with none, the time limit is.
        stuck: Where each of them was.
        calls: What each rank of the gang called last.
        late: What they were late for, in words.
        skipper: The rank that skipped, where its peers may not do otherwise.
    """
    first = step.cause or skipper
    if first is not None:
        return [_aborted(rank, stuck[rank], first) for rank in stuck]
    if step.has_gone_wrong:
        late = "its peers waited for it in vain"
    to_blame = _to_blame(step, stuck, calls)
    blamed = [_timed_out(rank, stuck[rank], late, stuck[rank].phase or step.phase_under_way(rank)) for rank in to_blame]
    first = next(iter(blamed), step.leader)
    waiting = sorted(set(stuck) - {arrival.rank for arrival in blamed})
    return [*blamed, *(_aborted(rank, stuck[rank], first) for rank in waiting if first is not None)]


def _to_blame(step: Step, stuck: Mapping[int, Stuck], calls: _Calls) -> Sequence[int]:
    """The ranks that others wait for.

    Who waits in a collective is not to blame, unless it waits in another one than most, or nobody else can be. Of those
    who do something else, the ones to blame are behind their peers, if any are.
    """
    absent = [rank for rank in stuck if not waits_for_peers(stuck[rank])]
    if absent:
        return [rank for rank in absent if _is_behind(rank, calls)] or absent
    if step.has_gone_wrong:
        return []
    return _odd_ones_out({rank: calls[rank][0] for rank in stuck if calls.get(rank)}) or list(stuck)


def waits_for_peers(stuck: Stuck) -> bool:
    """Whether a rank does nothing but wait in torch.distributed."""
    return not stuck.held and waits_in_distributed(stuck.stacks)


def _is_behind(rank: int, calls: _Calls) -> bool:
    """Whether another rank has begun more collectives in a group of this one's."""
    # The newest come first, and are to be what is kept.
    own = {DEFAULT_GROUP: 0, **{call.group: call.number for call in reversed(calls.get(rank, ()))}}
    return any(call.number > own.get(call.group, call.number) for others in calls.values() for call in others)


def _odd_ones_out(current: Mapping[int, LastCall]) -> list[int]:
    """The ranks that wait in another call than most ranks; none where no call has a majority."""
    known = Counter(map(_identity, current.values()))
    most, count = max(known.items(), key=lambda each: each[1], default=(None, 0))
    if 2 * count <= sum(known.values()):
        return []
    return [rank for rank, call in current.items() if _identity(call) != most]


def _identity(call: LastCall) -> tuple[object, ...]:
    if call.kind in MESSAGES:
        return call.group, call.kind  # a chain of messages is no collective
    return call.group, call.number, *_signature(call)


def _signature(call: LastCall) -> tuple[str, ...]:
    return call.kind, call.dtype, "" if call.kind in _UNEVEN else call.shape


def name_crossing(calls: _Calls) -> str:
    """In words, the collective of one number in one group that is not the same on all ranks; empty if there is none."""
    return next(_crossings(calls), "")


def _crossings(calls: _Calls) -> Iterator[str]:
    by_place: dict[tuple[str, int], dict[int, LastCall]] = {}
    for rank, own in sorted(calls.items()):
        for call in own:
            if call.kind not in MESSAGES:
                by_place.setdefault((call.group, call.number), {})[rank] = call
    for (group, number), same in sorted(by_place.items(), key=lambda each: each[0][1]):
        if len(set(map(_signature, same.values()))) > 1:
            where = "" if group == DEFAULT_GROUP else f" of group {group}"
            yield _in_words(same, number) + where


def _in_words(calls: Mapping[int, LastCall], number: int) -> str:
    has_one_kind = len({call.kind for call in calls.values()}) == 1
    by_words: dict[str, list[int]] = {}
    for rank, call in calls.items():
        tensor = f" of {call.shape or 'no shape'} {call.dtype or 'no tensor'}" if has_one_kind else ""
        by_words.setdefault(f"{call.kind} #{number}{tensor}", []).append(rank)
    (first, ranks), *others = by_words.items()
    rest = "".join(f", {words_for_ranks(ranks)} {words}" for words, ranks in others)
    return f"{words_for_ranks(ranks)} called {first}{rest}"


def _aborted(rank: int, stuck: Stuck, first: Arrival) -> Arrival:
    why = ", which skipped" if first.outcome is Outcome.SKIPPED else ""
    return Arrival(
        rank=rank,
        outcome=Outcome.ABORTED,
        at=time.time(),
        message=f"aborted by rank {first.rank}{why}{was_in(stuck.stacks)}",
        text=stuck.stacks,
        consequence=True,
        caused_by=first.rank,
        observed=True,
    )


def _timed_out(rank: int, stuck: Stuck, late: str, under_way: str) -> Arrival:
    phase = f", in the {under_way} of this test" if under_way else ""
    where = f"; {stuck.held}" if stuck.held else was_in(stuck.stacks)
    return Arrival(
        rank=rank,
        outcome=Outcome.TIMED_OUT,
        at=time.time(),
        message=f"rank {rank} timed out: {late}{phase}{where}",
        text=stuck.stacks,
        observed=True,
    )
