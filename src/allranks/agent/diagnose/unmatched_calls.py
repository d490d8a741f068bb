"""Compares the calls of the ranks of a kept gang: an unmatched one would reach the next test."""

import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from allranks.agent.call_log import DEFAULT_GROUP, MESSAGES, NEW_GROUP, OF, TAGS, Calls, GroupCalls

_TIMES = {0: "not at all", 1: "once", 2: "twice"}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Calls of a test that do not match: its gang must not run another test."""

    message: str  # one sentence, without a full stop
    # The ranks to blame: those with a message or receive too many, or whose number of calls is unusual.
    ranks: tuple[int, ...]
    # The test is wrong. False if the mismatch has an innocent explanation: a call raised, as the test may have
    # intended, or calls were made that cannot be counted by kind. Such a mismatch is a notice.
    is_error: bool


_Group = Mapping[int, GroupCalls]
"""The calls of each member of a group."""

_Left = Mapping[int | None, tuple[int, int]]
"""Of the messages of a receiver by their sender, None for any: the number of those sent minus those received, and the
same of the digests of their tags."""


def find_mismatch(calls: Mapping[int, Calls]) -> Mismatch | None:
    """Compare the calls of one test.

    All members of a group must make each kind of collective call equally often, and each send must have a receive of
    the same pair, direction and tag. It is suspicious if they make them in another order, or with another type, root or
    size. Returns the first mismatch, errors first. A missing rank has called nothing.
    """
    groups = _groups(calls, {group.name for rank in calls.values() for group in rank.groups if group.is_closed})
    doubts = [mismatch for group in groups for mismatch in _differences_of_unseen(group)]
    found = [(group, mismatch) for group in groups for mismatch in _mismatches(group)]
    if not found:
        return next(itertools.chain(doubts, filter(None, map(_difference_of_order, groups))), None)
    # After a split each rank may have another name for a group of the same ranks: a split connects without names.
    is_doubtful = any(rank.failures for rank in calls.values()) or not any(map(_is_unmatched, _merged(groups)))
    errors = (each for group, each in found if each.is_error and not (is_doubtful or _differences_of_unseen(group)))
    return next(errors, replace(found[0][1], is_error=False))


def name_unmatched(calls: Mapping[int, Calls]) -> str:
    """In words, the first call that not all members of its group made; empty for none, and if a call has failed."""
    if any(rank.failures for rank in calls.values()):
        return ""
    return next((each.message for group in _groups(calls, ()) for each in _mismatches(group)), "")


def _groups(calls: Mapping[int, Calls], closed: Collection[str]) -> list[_Group]:
    """All groups but those that were closed, the default group first."""
    found: dict[tuple[bool, str, tuple[int, ...]], dict[int, GroupCalls]] = {}
    for rank, own in calls.items():
        for group in own.groups:
            if group.name not in closed and rank in group.members:
                found.setdefault((group.name != DEFAULT_GROUP, group.name, group.members), {})[rank] = group
    return [_complete(found[key]) for key in sorted(found)]


def _complete(known: _Group) -> _Group:
    """The group with an entry for each of its members."""
    some = next(iter(known.values()))
    nothing = GroupCalls(name=some.name, members=some.members)
    return {rank: known.get(rank, nothing) for rank in sorted(some.members)}


def _merged(groups: Iterable[_Group]) -> list[_Group]:
    """Groups of the same ranks as one."""
    merged: dict[tuple[int, ...], _Group] = {}
    for group in groups:
        known = merged.setdefault(tuple(group), group)
        if known is not group:
            merged[tuple(group)] = {
                rank: replace(own, counts=(*known[rank].counts, *own.counts), unseen=known[rank].unseen + own.unseen)
                for rank, own in group.items()
            }
    return list(merged.values())


def _is_unmatched(group: _Group) -> bool:
    return next(_mismatches(group), None) is not None


def _mismatches(group: _Group) -> Iterator[Mismatch]:
    counted = {rank: _numbers(calls) for rank, calls in group.items()}
    for kind in sorted(set().union(*counted.values())):
        numbers = {rank: own[kind] for rank, own in counted.items()}
        if len(set(numbers.values())) > 1:
            is_error = kind != NEW_GROUP
            yield Mismatch(message=_called(kind, numbers, group), ranks=_unusual(numbers), is_error=is_error)
    for receiver, left in sorted(_left(group).items(), key=operator.itemgetter(0)):
        yield from _mismatches_of_receiver(receiver, left, group)


def _numbers(calls: GroupCalls) -> Counter[str]:
    """How often a rank called each kind of collective; a reduction also counts without its dtype."""
    numbers: Counter[str] = Counter()
    for each in calls.counts:
        if each.kind not in MESSAGES:
            for kind in dict.fromkeys((each.kind, each.kind.partition(OF)[0])):
                numbers[kind] += each.number
    return numbers


def _left(group: _Group) -> Mapping[int, _Left]:
    """What is left of the messages to each receiver."""
    left: dict[int, dict[int | None, tuple[int, int]]] = {}
    for rank, calls in group.items():
        for each in calls.counts:
            receiver, sender, sign = (each.peer, rank, 1) if each.kind == "send" else (rank, each.peer, -1)
            if each.kind in MESSAGES and receiver is not None:
                number, tags = left.setdefault(receiver, {}).get(sender, (0, 0))
                left[receiver][sender] = number + sign * each.number, tags + sign * each.tags
    return left


def _differences_of_unseen(group: _Group) -> list[Mismatch]:
    unseen = {rank: calls.unseen for rank, calls in group.items()}
    message = f"torch counted calls in {_name(group)} that not all of its ranks made"
    return [Mismatch(message=message, ranks=_unusual(unseen), is_error=False)] if len(set(unseen.values())) > 1 else []


def _difference_of_order(group: _Group) -> Mismatch | None:
    orders = {rank: calls.order for rank, calls in group.items()}
    if len(set(orders.values())) == 1:
        return None
    message = f"not all ranks of {_name(group)} called the same collectives in one order, with the same types and sizes"
    return Mismatch(message=message, ranks=_unusual(orders), is_error=False)


def _called(kind: str, numbers: Mapping[int, int], group: _Group) -> str:
    by_number: dict[int, list[int]] = {}
    for rank, number in numbers.items():
        by_number.setdefault(number, []).append(rank)
    # A sentence that begins with the ranks that called nothing reads badly.
    (number, ranks), *others = sorted(by_number.items(), key=lambda item: (item[0] == 0, item[1]))
    rest = "".join(f", {words_for_ranks(ranks)} {_times(number)}" for number, ranks in others)
    return f"{words_for_ranks(ranks)} called {kind} {_times(number)} in {_name(group)}{rest}"


def _unusual(numbers: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks whose number is not the most frequent one; the highest wins a tie."""
    frequencies = Counter(numbers.values())
    usual = max(frequencies, key=lambda number: (frequencies[number], number))
    return tuple(rank for rank, number in numbers.items() if number != usual)


def _mismatches_of_receiver(receiver: int, left: _Left, group: _Group) -> Iterator[Mismatch]:
    where = "in this test" if _is_default(group) else f"in this test, in {_name(group)}"
    known = {sender: number for sender, (number, _) in left.items() if sender is not None}
    for sender, number in sorted(known.items()):
        if number < 0:
            text = f"rank {receiver} waits for {_messages(-number)} that rank {sender} did not send {where}"
            yield Mismatch(message=text, ranks=(receiver,), is_error=True)
    senders = tuple(sender for sender, number in sorted(known.items()) if number > 0)
    from_any, _ = left.get(None, (0, 0))
    excess = sum(known[sender] for sender in senders) + from_any
    if excess > 0:
        text = f"{words_for_ranks(senders)} sent {_messages(excess)} that rank {receiver} did not receive {where}"
        yield Mismatch(message=text, ranks=senders, is_error=True)
    elif excess < 0:
        text = f"rank {receiver} waits for {_messages(-excess)} from any rank that no rank sent {where}"
        yield Mismatch(message=text, ranks=(receiver,), is_error=True)
    elif min(known.values(), default=0) >= 0 and _tags_differ([tags for _, tags in left.values()], from_any):
        text = f"the tags of messages to rank {receiver} are not those that it received {where}"
        yield Mismatch(message=text, ranks=(receiver,), is_error=True)


def _tags_differ(left: Collection[int], from_any: int) -> bool:
    """Whether tags differ: only as a sum if there were receives from any source."""
    return sum(left) % TAGS != 0 if from_any else any(tags % TAGS for tags in left)


def _is_default(group: _Group) -> bool:
    return next(iter(group.values())).name == DEFAULT_GROUP


def _name(group: _Group) -> str:
    return "group default" if _is_default(group) else f"the group of {words_for_ranks(group)}"


def words_for_ranks(ranks: Collection[int]) -> str:
    """``rank 0``, ``ranks 0 and 2``, ``ranks 0, 2 and 4-63``."""
    # Consecutive ranks have the same difference to their index in the list.
    runs = [[rank for _, rank in run] for _, run in itertools.groupby(enumerate(ranks), lambda at: at[1] - at[0])]
    words = [word for run in runs for word in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))]
    listed = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _times(number: int) -> str:
    return _TIMES.get(number, f"{number} times")


def _messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number} messages"
