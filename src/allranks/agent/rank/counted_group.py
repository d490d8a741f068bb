"""Counts the calls of one rank in one process group: collectives by kind, messages by peer and tag."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import distributed

from allranks.agent.call_log import NEW_GROUP, OF, CallLog

UNEVEN = "monitored_barrier"
"""A collective that takes more of torch's sequence numbers on a group's first rank than on the others (torch 2.13)."""

_REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives that compute: if a rank has another dtype or operation, gloo passes, and the result is garbage."""

ANY = -1
"""The peer of a receive from any source."""

_ANY_SOURCE = ("arg0", "arg1")

MESSAGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "send": ("send", ("tensors", "dstRank", "tag")),
    "recv": ("recv", ("tensors", "srcRank", "tag")),
    "recv_anysource": ("recv", _ANY_SOURCE),
}
"""Methods, the kind that each counts as, and the names of its parameters."""


class CountedGroup:
    """One process group of the gang's world.

    Attributes:
        name: As in :class:`~allranks.agent.call_log.GroupCalls`.
        members: Also as there, in the order of their ranks in the group.
        reference: A weak reference to torch's object.
        entry: Its entry in the call log.
        begun: The number of collectives since the group was created.
    """

    def __init__(self, name: str, members: tuple[int, ...], group: distributed.ProcessGroup, log: CallLog) -> None:
        self.name = name
        self.members = members
        self.reference = weakref.ref(group)
        self.entry = log.open(name, members)
        self.begun = 0
        self._log = log
        # NCCL ignores tags.
        self._is_gloo = distributed.get_backend(group) == distributed.Backend.GLOO
        self._sequence = 0
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._numbered = 0

    def number_message(self, kind: str, peer: int, tag: int) -> int:
        """The number of the next message among those of its kind, peer and tag since the group was created."""
        key = kind, peer, tag if self._is_gloo else 0
        self._numbers[key] = self._numbers.get(key, 0) + 1
        return self._numbers[key]

    def count(self, kind: str, peer: int | None = None, tag: int = 0, dtype: str = "") -> None:
        """Count a call; a reduction as one of its dtype."""
        name = f"{kind}{OF}{dtype}" if kind in _REDUCTIONS else kind
        self._log.count(self.entry, name, self.rank_of(peer), tag if self._is_gloo else 0)
        # NCCL gives messages no sequence number.
        self._numbered += kind not in (UNEVEN, NEW_GROUP) and (peer is None or self._is_gloo)

    @property
    def uncounted(self) -> int:
        """The number of calls since the last :meth:`settle` that torch has counted and this object has not."""
        return sequence_of(self.reference()) - self._sequence - self._numbered

    def rank_of(self, peer: int | None) -> int | None:
        """The gang's rank for a rank of this group; None if there is none."""
        return self.members[peer] if peer is not None and 0 <= peer < len(self.members) else None

    def settle(self) -> None:
        """Complete the log at the end of a test."""
        self._log.note_unseen(self.entry, self.uncounted)
        self._sequence, self._numbered = sequence_of(self.reference()), 0

    def skip(self, numbers: int) -> None:
        """Exclude some of torch's sequence numbers from the count."""
        self._sequence += numbers


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
