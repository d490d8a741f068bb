"""Counts the calls of one rank in one process group: collectives by kind, messages by peer and tag."""

import itertools
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast
from zlib import crc32

import torch
from torch import distributed

from allranks.agent.gangs.call_log import LastCall, mask_of
from allranks.agent.gangs.unmatched_calls import NEW_GROUP, GroupCalls, Messages

UNEVEN = "monitored_barrier"
"""A collective that takes more of torch's sequence numbers on a group's first rank than on the others (torch 2.13)."""

_REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives that compute: if a rank has another dtype or operation, gloo passes, and the result is garbage."""

_OF = " of "
"""Between a reduction and its dtype, in a kind that counts the calls once more."""

ANY = -1
"""The peer of a receive from any source."""

_ANY_SOURCE = ("arg0", "arg1")

MESSAGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "send": ("send", ("tensors", "dstRank", "tag")),
    "recv": ("recv", ("tensors", "srcRank", "tag")),
    "recv_anysource": ("recv", _ANY_SOURCE),
}
"""Methods, the kind that each counts as, and the names of its parameters."""

_Counters = defaultdict[tuple[str, int | None, int], "itertools.count[int]"]
"""By kind, peer in the group (None for a collective), and tag."""


class CountedGroup:
    """One process group of the gang's world.

    Attributes:
        name: As in :class:`~allranks.agent.gangs.unmatched_calls.GroupCalls`.
        members: Also as there, in the order of their ranks in the group.
        reference: A weak reference to torch's object.
        slot: Its slot on the call board.
        mask: Its members as on the call board.
        begun: The number of collectives since the group was created.
    """

    def __init__(self, name: str, members: tuple[int, ...], group: distributed.ProcessGroup, slot: int | None) -> None:
        self.name = name
        self.members = members
        self.reference = weakref.ref(group)
        self.slot = slot
        self.mask = mask_of(members)
        self.begun = 0
        # NCCL ignores tags.
        self._is_gloo = distributed.get_backend(group) == distributed.Backend.GLOO
        self._counters: _Counters = defaultdict(itertools.count)
        self._order = 0
        self._sequence = 0
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._numbered = 0

    def number_message(self, kind: str, peer: int, tag: int) -> int:
        """The number of the next message among those of its kind, peer and tag since the group was created."""
        key = kind, peer, tag if self._is_gloo else 0
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return self._numbers[key]

    def count(self, kind: str, peer: int | None = None, tag: int = 0, dtype: str = "") -> None:
        """Count a call; a reduction of a dtype also as such."""
        # With +=, two threads that use one group could count two calls as one; next() is atomic.
        next(self._counters[kind, peer, tag if self._is_gloo else 0])
        self._numbered += self._is_numbered(kind, peer, tag)
        if kind in _REDUCTIONS:
            next(self._counters[f"{kind}{_OF}{dtype}", None, 0])

    def note_order(self, collective: LastCall) -> None:
        """Add the next collective to the digest of all in order."""
        self._order = crc32(repr(collective.essence).encode(), self._order)

    @property
    def uncounted(self) -> int:
        """The number of calls since the last :meth:`take` that torch has counted and this object has not."""
        return sequence_of(self.reference()) - self._sequence - self._numbered

    @property
    def has_calls(self) -> bool:
        """Whether there were any calls since the last :meth:`take`."""
        return bool(self._counters)

    def rank_of(self, peer: int | None) -> int | None:
        """The gang's rank for a rank of this group; None if there is none."""
        return dict(enumerate(self.members)).get(peer) if peer is not None else None

    def take(self) -> GroupCalls:
        """Return the calls since the last time, and reset the counters."""
        counters, self._counters = self._counters, defaultdict(itertools.count)
        counts = {key: next(counter) for key, counter in counters.items()}
        order, self._order, self._numbered = self._order, 0, 0
        received = self._messages("recv", counts)
        return GroupCalls(
            name=self.name,
            members=self.members,
            collectives={kind: count for (kind, peer, _), count in counts.items() if peer is None},
            sent=self._messages("send", counts),
            received_from_any=received.pop(ANY, Messages()),
            received=received,
            order=order,
            unseen=self._advance() - sum(count for key, count in counts.items() if self._is_numbered(*key)),
        )

    def _is_numbered(self, kind: str, peer: int | None, _tag: int) -> bool:
        """Whether calls of this kind take a sequence number: NCCL gives none to messages."""
        return kind not in (UNEVEN, NEW_GROUP) and _OF not in kind and (peer is None or self._is_gloo)

    def skip(self, numbers: int) -> None:
        """Exclude some of torch's sequence numbers from the count."""
        self._sequence += numbers

    def _messages(self, kind: str, counts: Mapping[tuple[str, int | None, int], int]) -> dict[int, Messages]:
        messages: dict[int, Messages] = defaultdict(Messages)
        for (of_kind, peer, tag), count in counts.items():
            if of_kind == kind and peer is not None:
                rank = self.rank_of(peer)
                messages[ANY if rank is None else rank] += Messages(number=count, tags=count * crc32(str(tag).encode()))
        return messages

    def _advance(self) -> int:
        """The increase of torch's sequence number since the last time."""
        before = self._sequence
        self._sequence = sequence_of(self.reference())
        return self._sequence - before


def sequence_of(group: distributed.ProcessGroup | None) -> int:
    """The number of calls in a group that torch has counted; 0 if the backend does not count."""
    try:
        return 0 if group is None else int(cast("Any", group)._get_sequence_number_for_group())  # noqa: SLF001
    except (RuntimeError, NotImplementedError):
        return 0


def describe(kind: str, arguments: Sequence[Any], place: int) -> tuple[str, str]:
    """The dtype and the shape of a call's first tensor: ``float32 sparse_coo max``, without what is usual, and ``4x2``.

    Args:
        kind: Of the call.
        arguments: Its arguments.
        place: Index of the one that has the tensor.
    """
    first: Any = arguments[place : place + 1]
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, torch.Tensor):
        return "", ""
    operation = getattr(arguments[-1], "reduceOp", None) if kind in _REDUCTIONS else None
    words = "" if operation is None or operation == distributed.ReduceOp.SUM else f" {operation.op.name.lower()}"
    if first.layout is not torch.strided:
        words = f" {str(first.layout).removeprefix('torch.')}{words}"
    return f"{str(first.dtype).removeprefix('torch.')}{words}", "x".join(map(str, first.shape))


def message_of(names: Sequence[str], arguments: Sequence[Any], options: Mapping[str, Any]) -> tuple[int, int]:
    """The peer and the tag of a message, by the names of its method's parameters."""
    values = {**dict(zip(names, arguments, strict=False)), **options}
    peer = ANY if names is _ANY_SOURCE else values.get(names[1], ANY)
    return peer, values.get(names[-1], 0)
