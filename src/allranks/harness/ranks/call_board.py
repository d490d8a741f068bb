"""The call that a rank began last in each process group, in memory that other processes can read while it waits."""

import mmap
from typing import NamedTuple

_SLOT_BYTES = 192
_SLOTS = 64

BOARD_BYTES = _SLOT_BYTES * _SLOTS


class LastCall(NamedTuple):
    """A call, which may have ended since.

    Attributes:
        group: Name of the group, as in :class:`allranks.harness.gangs.unmatched_calls.GroupCalls`.
        number: Of a collective in its group, from 1; of a message, that of the collective before it.
        kind: ``all_reduce``, ``send``, ``recv``, …
        peer: The other rank of a message; None for a collective and for a receive from any source.
        dtype: Of the first tensor, ``float32``; empty without a tensor.
        shape: Of the first tensor, ``4x2``.
    """

    group: str
    number: int
    kind: str
    peer: int | None = None
    dtype: str = ""
    shape: str = ""


class CallBoard:
    """The rank's side.

    Args:
        memory: :data:`BOARD_BYTES` of zeros, anonymous and mapped before the rank was forked.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._free = list(range(_SLOTS))

    def open(self) -> int | None:
        """A slot for a group; None if all are taken."""
        return self._free.pop(0) if self._free else None

    def close(self, slot: int | None) -> None:
        """Free the slot of a group that is gone."""
        if slot is not None:
            self._memory[_place(slot)] = bytes(_SLOT_BYTES)
            self._free.append(slot)

    def note(self, slot: int | None, call: LastCall) -> None:
        """Replace what the slot holds."""
        if slot is not None:
            line = ("\t".join(map(str, call)) + "\0").encode()[:_SLOT_BYTES]
            start = slot * _SLOT_BYTES
            self._memory[start : start + len(line)] = line


def read_board(memory: mmap.mmap) -> list[LastCall]:
    """The last calls on a board; a slot that is being written may be left out."""
    slots = (bytes(memory[_place(slot)]).partition(b"\0")[0] for slot in range(_SLOTS))
    return [call for slot in slots if (call := _call_of(slot.decode(errors="replace"))) is not None]


def _call_of(line: str) -> LastCall | None:
    try:
        group, number, kind, peer, dtype, shape = line.split("\t")
        known_peer = None if peer == "None" else int(peer)
        return LastCall(group, int(number), kind, known_peer, dtype, shape)
    except ValueError:
        return None


def _place(slot: int) -> slice:
    return slice(slot * _SLOT_BYTES, (slot + 1) * _SLOT_BYTES)
