"""A rank's current phase and last calls, in memory that its supervisor reads while it waits."""

import mmap
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan, prod
from struct import Struct
from typing import NamedTuple
from zlib import crc32

_LINE_BYTES = 320
_WORD_BYTES = 36
"""Most bytes of a call's group, kind, dtype and shape: with its numbers, they fit on its line."""

_MOST_MEMBERS = 256

_KEPT = 16
"""Collectives kept for each group, and messages."""

_BLAMED = 4
"""The newest collectives of each group, which decide who is to blame; the others only show how a test went."""

_SLOT_BYTES = 2 * _KEPT * _LINE_BYTES
_SLOTS = 64

_PHASE = slice(_SLOT_BYTES * _SLOTS, _SLOT_BYTES * _SLOTS + 15)
"""The place of the current phase."""

_WAIT = Struct("<qd")
"""One more than the order of a wait, 0 for none, and its seconds, no number for one that goes on."""

_WAIT_AT = _PHASE.stop

_SHAPE = re.compile(r"(\d+(x\d+)*)?")

_PHASES = ("set-up", "call", "tear-down")

BOARD_BYTES = _WAIT_AT + _WAIT.size

MESSAGES = ("send", "recv")
"""The kinds of calls that are not collectives."""


EVEN = ("all_reduce", "broadcast", "reduce")
"""Collectives whose tensors have one number of elements on all ranks."""


def size_of(shape: str) -> int:
    """The number of elements of a tensor of this shape, as in ``4x2``."""
    return prod(map(int, shape.split("x"))) if shape else 1


def mask_of(members: Iterable[int]) -> int:
    """Ranks as :attr:`LastCall.mask`."""
    ranks = tuple(members)
    return sum(1 << rank for rank in ranks) if max(ranks, default=0) < _MOST_MEMBERS else 0


class LastCall(NamedTuple):
    """A call, which may have ended since.

    Attributes:
        group: Name of the group, as in :class:`allranks.agent.gangs.unmatched_calls.GroupCalls`.
        number: A collective's number in its group, from 1; a message's number among those of its kind, peer and tag.
        kind: ``all_reduce``, ``send``, ``recv``, …
        peer: The other rank of a message, or the root of a collective that has one; None for other collectives, and for
            a receive from any source.
        dtype: Of the first tensor, ``float32``; empty without a tensor.
        shape: Of the first tensor, ``4x2``.
        order: Its place among all calls of the rank.
        at: Nanoseconds on the monotonic clock, when it began; 0 if unknown.
        mask: The ranks of its group, a bit for each; 0 if unknown, as in a group with a rank of 256 or more.
        tag: Of a message.
    """

    group: str
    number: int
    kind: str
    peer: int | None = None
    dtype: str = ""
    shape: str = ""
    order: int = 0
    at: int = 0
    mask: int = 0
    tag: int = 0

    @property
    def essence(self) -> tuple[object, ...]:
        """What no two ranks may differ in: a backend may pair views of one size, and parts of different sizes."""
        return self.kind, self.dtype, self.peer, size_of(self.shape) if self.kind in EVEN else None


_SHORTEST = 0.1
"""Seconds: a call that fails sooner has not waited for a peer, but refused its arguments, or found a peer gone."""


@dataclass(frozen=True)
class Wait:
    """What a rank waits for, or has waited for without success.

    Attributes:
        order: The place of the collective or message among all calls of the rank; 0 for anything else that other ranks
            do, as set the key of a store or answer a remote call.
        seconds: From the beginning of the call to its failure; None if its end is not known.
    """

    order: int = 0
    seconds: float | None = None

    @property
    def was_long(self) -> bool:
        """Whether it has taken so long that a peer may have been late."""
        return self.seconds is None or self.seconds >= _SHORTEST


class CallLog:
    """The rank's side of a board.

    Args:
        memory: The result of :func:`map_log`.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._free = list(range(_SLOTS))
        self._messages = [0] * _SLOTS

    def enter(self, phase: str) -> None:
        """Note the current phase, in words; empty for none."""
        self._memory[_PHASE] = phase.encode().ljust(_PHASE.stop - _PHASE.start, b"\0")

    def note_wait(self, wait: Wait | None) -> None:
        """Note what the rank waits for, or has waited for without success."""
        place, seconds = (0, None) if wait is None else (wait.order + 1, wait.seconds)
        _WAIT.pack_into(self._memory, _WAIT_AT, place, nan if seconds is None else seconds)

    def open(self) -> int | None:
        """A slot for a group; None if all are taken."""
        return self._free.pop(0) if self._free else None

    def close(self, slot: int | None) -> None:
        """Free the slot of a group that is gone."""
        if slot is not None:
            self._memory[_place(slot)] = bytes(_SLOT_BYTES)
            self._free.append(slot)

    def note(self, slot: int | None, call: LastCall) -> None:
        """Note a call, overwriting an older one."""
        if slot is not None:
            line = _line_of(call)
            place = call.number % _KEPT
            if call.kind in MESSAGES:
                place = _KEPT + self._messages[slot] % _KEPT
                self._messages[slot] += 1
            start = slot * _SLOT_BYTES + place * _LINE_BYTES
            self._memory[start : start + len(line)] = line


def open_log() -> tuple[int, int]:
    """Create a board; return two descriptors of its memory, the supervisor's and the rank's.

    Raises:
        OSError: The system has no descriptor or memory left.
    """
    board = os.memfd_create("allranks-calls")
    try:
        os.ftruncate(board, BOARD_BYTES)
        return board, os.dup(board)
    except OSError:
        os.close(board)
        raise


def map_log(descriptor: int) -> mmap.mmap:
    """Map the memory of a board into this process; its descriptor is closed."""
    try:
        return mmap.mmap(descriptor, BOARD_BYTES)
    finally:
        os.close(descriptor)


def read_board(descriptor: int) -> list[LastCall]:
    """The last calls on a board, the newest first; a slot that is being written may be left out.

    The rank may have written anything there, or cut the memory short.
    """
    data = os.pread(descriptor, _PHASE.start, 0)
    lines = (data[start : start + _LINE_BYTES].partition(b"\0")[0] for start in range(0, len(data), _LINE_BYTES))
    calls = [call for line in lines if (call := _call_of(line.decode(errors="replace"))) is not None]
    return sorted(calls, key=lambda call: -call.order)


def blamed(calls: Sequence[LastCall]) -> list[LastCall]:
    """Those of a board's calls by which ranks are compared: messages, and the newest collectives of each group."""
    highest: dict[str, int] = {}
    for call in calls:
        highest[call.group] = max(call.number, highest.get(call.group, call.number))
    return [call for call in calls if call.kind in MESSAGES or call.number > highest[call.group] - _BLAMED]


def read_phase(descriptor: int) -> str:
    """The current phase, in words; empty for none, and if the rank has written anything else."""
    phase = os.pread(descriptor, _PHASE.stop - _PHASE.start, _PHASE.start).rstrip(b"\0").decode(errors="replace")
    return phase if phase in _PHASES else ""


def read_wait(descriptor: int) -> Wait | None:
    """What the rank waits for, or has waited for without success; None for nothing, and if it has cut the board."""
    data = os.pread(descriptor, _WAIT.size, _WAIT_AT)
    place, seconds = _WAIT.unpack(data) if len(data) == _WAIT.size else (0, nan)
    return None if place <= 0 else Wait(place - 1, None if isnan(seconds) else seconds)


def _line_of(call: LastCall) -> bytes:
    """The line of a call, in which long words end with a digest, so that those of two ranks differ as before."""
    short = call._replace(
        group=_shortened(call.group),
        kind=_shortened(call.kind),
        dtype=_shortened(call.dtype),
        shape=call.shape if len(call.shape) <= _WORD_BYTES else str(size_of(call.shape)),
    )
    return ("\t".join([*map(str, short[:-2]), f"{call.mask:x}", str(call.tag)]) + "\0").encode()


def _shortened(word: str) -> str:
    data = word.encode()
    if len(data) <= _WORD_BYTES:
        return word
    return f"{data[: _WORD_BYTES - 12].decode(errors='ignore')}… {crc32(data):08x}"


def _call_of(line: str) -> LastCall | None:
    try:
        group, number, kind, peer, dtype, shape, order, at, mask, tag = line.split("\t")
        known_peer = None if peer == "None" else int(peer)
        if not _SHAPE.fullmatch(shape):
            return None
        numbers = int(order), int(at), int(mask, 16), int(tag)
        return LastCall(group, int(number), kind, known_peer, dtype, shape, *numbers)
    except ValueError:
        return None


def _place(slot: int) -> slice:
    return slice(slot * _SLOT_BYTES, (slot + 1) * _SLOT_BYTES)
