"""Compares the calls of the ranks of a kept gang: an unmatched one would reach the next test."""

import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

DEFAULT_GROUP = "default"
"""The name of the gang's own process group, which torch names by a number."""

NEW_GROUP = "new_group"
"""The kind of the calls that make groups. torch names groups by their number, so a rank that makes fewer than its peers
cannot stay in its gang; its test may pass."""

_TIMES = {0: "not at all", 1: "once", 2: "twice"}


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Point-to-point messages between two ranks.

    Attributes:
        tags: The sum of the hashes of all tags: equal if the same tags were used equally often, in any order.
    """

    number: int = 0
    tags: int = 0

    def __add__(self, other: "Messages") -> "Messages":
        """The messages of both."""
        return Messages(number=self.number + other.number, tags=self.tags + other.tags)

    def __sub__(self, other: "Messages") -> "Messages":
        """The messages beyond those of the other; may be negative."""
        return Messages(number=self.number - other.number, tags=self.tags - other.tags)


@dataclass(frozen=True, kw_only=True)
class GroupCalls:
    """What one rank called in one process group during one test.

    Attributes:
        name: torch's name of the group, or :data:`DEFAULT_GROUP`.
        members: Ranks in the gang.
        collectives: Number of calls by kind.
        sent: By destination.
        received: By source; a receive counts from its start.
        received_from_any: Receives from any source that have not reported a source.
        order: A digest of the collectives in order: kinds, types, roots, and sizes where they must be equal.
        unseen: Calls that torch counted and this rank's Python code did not make (DDP's reducer, functional
            collectives), and an offset that is the same on all ranks if all else is: only a difference means something.
    """

    name: str
    members: tuple[int, ...]
    collectives: Mapping[str, int] = field(default_factory=dict)
    sent: Mapping[int, Messages] = field(default_factory=dict)
    received: Mapping[int, Messages] = field(default_factory=dict)
    received_from_any: Messages = Messages()
    order: int = 0
    unseen: int = 0

    def __add__(self, other: "GroupCalls") -> "GroupCalls":
        """The calls of both, in one group."""
        return replace(
            self,
            collectives=Counter(self.collectives) + Counter(other.collectives),
            sent=_added(self.sent, other.sent),
            received=_added(self.received, other.received),
            received_from_any=self.received_from_any + other.received_from_any,
            unseen=self.unseen + other.unseen,
        )


@dataclass(frozen=True, kw_only=True)
class Calls:
    """What one rank called during one test.

    Attributes:
        groups: The groups in which it called anything.
        closed: Names of groups that were destroyed: unmatched calls in them reach no other test.
        failures: The number of calls, and of waits for their results, that raised.
    """

    groups: tuple[GroupCalls, ...] = ()
    closed: tuple[str, ...] = ()
    failures: int = 0

    def as_fields(self) -> dict[str, Any]:
        """These calls as JSON-able values, which :func:`calls_of` reads."""
        groups = [{**vars(group), **_messages_as_fields(group)} for group in self.groups]
        return {"groups": groups, "closed": list(self.closed), "failures": self.failures}


def _messages_as_fields(group: GroupCalls) -> dict[str, Any]:
    return {
        "sent": [[peer, each.number, each.tags] for peer, each in group.sent.items()],
        "received": [[peer, each.number, each.tags] for peer, each in group.received.items()],
        "received_from_any": [group.received_from_any.number, group.received_from_any.tags],
    }


def calls_of(fields: Mapping[str, Any]) -> Calls:
    """The calls that :meth:`Calls.as_fields` wrote.

    Raises:
        ValueError: A field is missing or has a wrong type.
    """
    try:
        groups = tuple(_group_of(**group) for group in fields["groups"])
        return Calls(groups=groups, closed=tuple(map(str, fields["closed"])), failures=int(fields["failures"]))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        msg = f"these are no calls of a rank: {error!r}"
        raise ValueError(msg) from error


def _group_of(**fields: Any) -> GroupCalls:  # noqa: ANN401 - parsed JSON
    number, tags = fields["received_from_any"]
    return GroupCalls(
        name=str(fields["name"]),
        members=tuple(map(int, fields["members"])),
        collectives={str(kind): int(count) for kind, count in fields["collectives"].items()},
        sent=_messages_of(fields["sent"]),
        received=_messages_of(fields["received"]),
        received_from_any=Messages(number=int(number), tags=int(tags)),
        order=int(fields["order"]),
        unseen=int(fields["unseen"]),
    )


def _messages_of(rows: Iterable[tuple[int, int, int]]) -> dict[int, Messages]:
    return {int(peer): Messages(number=int(number), tags=int(tags)) for peer, number, tags in rows}


def _added(one: Mapping[int, Messages], other: Mapping[int, Messages]) -> dict[int, Messages]:
    return {peer: one.get(peer, Messages()) + other.get(peer, Messages()) for peer in {**one, **other}}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Calls of a test that do not match: its gang must not run another test.

    Attributes:
        message: One sentence, without a full stop.
        ranks: The ranks to blame: those with a message or receive too many, or whose number of calls is unusual.
        is_error: The test is wrong. False if the mismatch has an innocent explanation: a call raised, as the test may
            have intended, or calls were made that cannot be counted by kind. Such a mismatch is a notice.
    """

    message: str
    ranks: tuple[int, ...]
    is_error: bool


_Group = Mapping[int, GroupCalls]
"""The calls of each member of a group."""


def find_mismatch(calls: Mapping[int, Calls]) -> Mismatch | None:
    """Compare the calls of one test.

    All members of a group must make each kind of collective call equally often, and each send must have a receive of
    the same pair, direction and tag. It is suspicious if they make them in another order, or with another type, root or
    size.

    Args:
        calls: By rank. A missing rank has called nothing.

    Returns:
        The first mismatch, errors first; None if all calls match.
    """
    groups = _groups(calls)
    doubts = [mismatch for group in groups for mismatch in _differences_of_unseen(group)]
    found = [(group, mismatch) for group in groups for mismatch in _mismatches(group)]
    if not found:
        return next(itertools.chain(doubts, filter(None, map(_difference_of_order, groups))), None)
    # After a split each rank may have another name for a group of the same ranks: a split connects without names.
    is_doubtful = any(rank.failures for rank in calls.values()) or not any(map(_is_unmatched, _merged(groups)))
    errors = (each for group, each in found if each.is_error and not (is_doubtful or _differences_of_unseen(group)))
    return next(errors, replace(found[0][1], is_error=False))


def _groups(calls: Mapping[int, Calls]) -> list[_Group]:
    """The groups that outlived the test, the default group first."""
    closed = {name for rank in calls.values() for name in rank.closed}
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
            merged[tuple(group)] = {rank: known[rank] + group[rank] for rank in group}
    return list(merged.values())


def _is_unmatched(group: _Group) -> bool:
    return next(_mismatches(group), None) is not None


def _mismatches(group: _Group) -> Iterator[Mismatch]:
    for kind in sorted({kind for calls in group.values() for kind in calls.collectives}):
        numbers = {rank: calls.collectives.get(kind, 0) for rank, calls in group.items()}
        if len(set(numbers.values())) > 1:
            is_error = kind != NEW_GROUP
            yield Mismatch(message=_called(kind, numbers, group), ranks=_unusual(numbers), is_error=is_error)
    for receiver, left in sorted(_left(group).items(), key=operator.itemgetter(0)):
        yield from _mismatches_of_receiver(receiver, left, group)


def _left(group: _Group) -> dict[int, dict[int, Messages]]:
    """By receiver and sender: messages sent minus those received from this sender; negative if fewer were sent."""
    left: dict[int, dict[int, Messages]] = {rank: {} for rank, calls in group.items() if calls.received_from_any.number}
    for sender, calls in group.items():
        for receiver, messages in calls.sent.items():
            left.setdefault(receiver, {})[sender] = messages
    for receiver, calls in group.items():
        for sender, messages in calls.received.items():
            of_receiver = left.setdefault(receiver, {})
            of_receiver[sender] = of_receiver.get(sender, Messages()) - messages
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


def _mismatches_of_receiver(receiver: int, left: Mapping[int, Messages], group: _Group) -> Iterator[Mismatch]:
    from_any = group[receiver].received_from_any if receiver in group else Messages()
    where = "in this test" if _is_default(group) else f"in this test, in {_name(group)}"
    for sender, each in sorted(left.items()):
        if each.number < 0:
            text = f"rank {receiver} waits for {_messages(-each.number)} that rank {sender} did not send {where}"
            yield Mismatch(message=text, ranks=(receiver,), is_error=True)
    senders = tuple(sender for sender, each in sorted(left.items()) if each.number > 0)
    excess = sum(left[sender].number for sender in senders) - from_any.number
    if excess > 0:
        text = f"{words_for_ranks(senders)} sent {_messages(excess)} that rank {receiver} did not receive {where}"
        yield Mismatch(message=text, ranks=senders, is_error=True)
    elif excess < 0:
        text = f"rank {receiver} waits for {_messages(-excess)} from any rank that no rank sent {where}"
        yield Mismatch(message=text, ranks=(receiver,), is_error=True)
    elif _tags_differ(left, from_any):
        text = f"the tags of messages to rank {receiver} are not those that it received {where}"
        yield Mismatch(message=text, ranks=(receiver,), is_error=True)


def _tags_differ(left: Mapping[int, Messages], from_any: Messages) -> bool:
    """Whether tags differ; not compared if messages are missing, and only as a sum for receives from any source."""
    if any(each.number < 0 for each in left.values()):
        return False
    if from_any.number:
        return sum(each.tags for each in left.values()) != from_any.tags
    return any(each.tags for each in left.values())


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
