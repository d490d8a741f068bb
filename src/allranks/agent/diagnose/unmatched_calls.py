"""Compares the calls of the ranks in one test: in a kept gang, an unmatched call would reach the next test."""

import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from allranks.agent.call_log import DEFAULT_GROUP, MESSAGES, NEW_GROUP, OF, TAGS, Calls, GroupCalls
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import named_ranks

_TIMES = {0: "not at all", 1: "once", 2: "twice"}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Calls of a test that do not match: its gang must not run another test."""

    message: str  # one sentence, without a period
    # The ranks responsible: those with a surplus send or receive, or with an unusual number of calls.
    ranks: tuple[int, ...]
    # The test is wrong. False if the mismatch may be harmless: a call raised, as the test may have intended, or calls
    # were made that cannot be counted by kind. Such a mismatch is a notice.
    is_error: bool


_Group = Mapping[int, GroupCalls]
"""The calls of each member of a group."""

_Surplus = Mapping[int | None, tuple[int, int]]
"""The messages sent to a receiver minus those received, by sender (None: receives from any rank): their number, and the
sum of the digests of their tags."""


def find_mismatch(calls: Mapping[int, Calls]) -> Mismatch | None:
    """Return the first mismatch of the calls of one test, errors first.

    All members of a group must make each kind of collective call equally often, and each send must have a receive of
    the same pair, direction and tag. Another order, type, root or size is a mismatch, but no error. A missing rank has
    called nothing.
    """
    groups = _groups(calls, {group.name for own in calls.values() for group in own.groups if group.is_closed})
    unseen = [mismatch for group in groups for mismatch in _differences_of_unseen(group)]
    found = [(group, mismatch) for group in groups for mismatch in _mismatches(group)]
    if not found:
        return next(itertools.chain(unseen, *map(_differences_of_order, groups)), None)
    # A split does not connect ranks by the name of the group, so they may have different names for it.
    has_raised = any(own.failures for own in calls.values())
    is_doubtful = has_raised or not any(next(_mismatches(group), None) for group in _merged(groups))
    errors = (
        mismatch
        for group, mismatch in found
        if mismatch.is_error and not (is_doubtful or _differences_of_unseen(group))
    )
    return next(errors, replace(found[0][1], is_error=False))


def describe_unmatched_call(calls: Mapping[int, Calls]) -> str:
    """Describe the first call that not all members of its group made; empty if there is none, or if a call failed."""
    if any(own.failures for own in calls.values()):
        return ""
    return next((mismatch.message for group in _groups(calls, ()) for mismatch in _mismatches(group)), "")


def _groups(calls: Mapping[int, Calls], closed: Collection[str]) -> list[_Group]:
    """Return all groups except closed ones, the default group first, with an entry for each of their members."""
    found: dict[tuple[bool, str, tuple[int, ...]], dict[int, GroupCalls]] = {}
    for rank, own in calls.items():
        for group in own.groups:
            if group.name not in closed and rank in group.members:
                found.setdefault((group.name != DEFAULT_GROUP, group.name, group.members), {})[rank] = group
    return [
        {rank: found[key].get(rank, GroupCalls(name=key[1], members=key[2])) for rank in sorted(key[2])}
        for key in sorted(found)
    ]


def _merged(groups: Iterable[_Group]) -> list[_Group]:
    """Merge the counts of groups of the same ranks."""
    merged: dict[tuple[int, ...], _Group] = {}
    for group in groups:
        known = merged.setdefault(tuple(group), group)
        if known is not group:
            merged[tuple(group)] = {
                rank: replace(own, counts=(*known[rank].counts, *own.counts)) for rank, own in group.items()
            }
    return list(merged.values())


def _mismatches(group: _Group) -> Iterator[Mismatch]:
    counted = {rank: _numbers(calls) for rank, calls in group.items()}
    for kind in sorted(set().union(*counted.values())):
        numbers = {rank: own[kind] for rank, own in counted.items()}
        if len(set(numbers.values())) > 1:
            message = _describe_numbers(kind, numbers, group)
            yield Mismatch(message=message, ranks=_unusual(numbers), is_error=kind != NEW_GROUP)
    for receiver, surplus in sorted(_surplus(group).items(), key=operator.itemgetter(0)):
        yield from _mismatches_of_receiver(receiver, surplus, group)


def _numbers(calls: GroupCalls) -> Counter[str]:
    """Count a rank's calls of each kind of collective; a reduction also counts without its dtype."""
    numbers: Counter[str] = Counter()
    for count in calls.counts:
        if count.kind not in MESSAGES:
            for kind in dict.fromkeys((count.kind, count.kind.partition(OF)[0])):
                numbers[kind] += count.number
    return numbers


def _surplus(group: _Group) -> Mapping[int, _Surplus]:
    """Return the surplus of messages to each receiver."""
    surplus: dict[int, dict[int | None, tuple[int, int]]] = {}
    for rank, calls in group.items():
        for count in calls.counts:
            receiver, sender, sign = (count.peer, rank, 1) if count.kind == "send" else (rank, count.peer, -1)
            if count.kind in MESSAGES and receiver is not None:
                number, tags = surplus.setdefault(receiver, {}).get(sender, (0, 0))
                surplus[receiver][sender] = number + sign * count.number, tags + sign * count.tags
    return surplus


def _differences_of_unseen(group: _Group) -> list[Mismatch]:
    unseen = {rank: calls.unseen for rank, calls in group.items()}
    return _differences(unseen, f"torch counted calls in {_name(group)} that not all of its ranks made")


def _differences_of_order(group: _Group) -> list[Mismatch]:
    orders = {rank: calls.order for rank, calls in group.items()}
    message = (
        f"not all ranks of {_name(group)} called the same collectives in the same order, with equal types and sizes"
    )
    return _differences(orders, message)


def _differences(values: Mapping[int, int], message: str) -> list[Mismatch]:
    return [Mismatch(message=message, ranks=_unusual(values), is_error=False)] if len(set(values.values())) > 1 else []


def _describe_numbers(kind: str, numbers: Mapping[int, int], group: _Group) -> str:
    ranks_of = by_key((number, rank) for rank, number in numbers.items())
    # The ranks that called nothing come last: a sentence that begins with them reads badly.
    (number, ranks), *others = sorted(ranks_of.items(), key=lambda item: (item[0] == 0, item[1]))
    rest = "".join(f", {format_ranks(ranks)} {_times(number)}" for number, ranks in others)
    return f"{format_ranks(ranks)} called {kind} {_times(number)} in {_name(group)}{rest}"


def _unusual(numbers: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks whose number is not the most frequent one; on a tie, the highest is the usual one."""
    frequencies = Counter(numbers.values())
    usual = max(frequencies, key=lambda number: (frequencies[number], number))
    return tuple(rank for rank, number in numbers.items() if number != usual)


def _mismatches_of_receiver(receiver: int, surplus: _Surplus, group: _Group) -> Iterator[Mismatch]:
    where = "in this test" if _is_default(group) else f"in this test, in {_name(group)}"
    known = {sender: number for sender, (number, _) in surplus.items() if sender is not None}
    for sender, number in sorted(known.items()):
        if number < 0:
            text = f"rank {receiver} waits for {_messages(-number)} that rank {sender} did not send {where}"
            yield Mismatch(message=text, ranks=(receiver,), is_error=True)
    senders = tuple(sender for sender, number in sorted(known.items()) if number > 0)
    from_any, _ = surplus.get(None, (0, 0))
    excess = sum(known[sender] for sender in senders) + from_any
    if excess > 0:
        text = f"{format_ranks(senders)} sent {_messages(excess)} that rank {receiver} did not receive {where}"
        yield Mismatch(message=text, ranks=senders, is_error=True)
    elif excess < 0:
        text = f"rank {receiver} waits for {_messages(-excess)} that no rank sent {where}"
        yield Mismatch(message=text, ranks=(receiver,), is_error=True)
    elif all(number >= 0 for number in known.values()) and _tags_differ(
        [tags for _, tags in surplus.values()], from_any
    ):
        text = f"the messages to rank {receiver} and its receives have different tags {where}"
        yield Mismatch(message=text, ranks=(receiver,), is_error=True)


def _tags_differ(surplus: Collection[int], from_any: int) -> bool:
    """Return whether tags differ; only their sum is known if there were receives from any source."""
    return sum(surplus) % TAGS != 0 if from_any else any(tags % TAGS for tags in surplus)


def _is_default(group: _Group) -> bool:
    return next(iter(group.values())).name == DEFAULT_GROUP


def _name(group: _Group) -> str:
    return "the default group" if _is_default(group) else f"the group of {format_ranks(group)}"


def format_ranks(ranks: Collection[int]) -> str:
    """Format ranks: ``rank 0``, ``ranks 0 and 2``, ``ranks 0, 2 and 4-63``."""
    return " and ".join(named_ranks(ranks).rsplit(", ", 1))


def _times(number: int) -> str:
    return _TIMES.get(number, f"{number} times")


def _messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"
