"""The log of a rank's calls, in shared memory that the rank writes and its supervisor reads.

For each group, the log has counters by kind and peer, a digest of the order, and the last calls. So it shows where a
rank is and whether its calls match those of its peers, even after the rank has died. A call updates its counter, the
digest and one entry in place; nothing is serialized when a test ends. A group or counter that does not fit into the log
counts as a failed call: then the gang is not kept, and a mismatch is not an error.
"""

import mmap
import os
import re
from collections.abc import Iterator, Sequence
from ctypes import Structure, c_byte, c_char, c_double, c_int64, c_ubyte, sizeof
from dataclasses import dataclass
from math import isnan, nan, prod
from threading import RLock
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from allranks.protocol.typed_json import Bits

DEFAULT_GROUP = "default"
"""The name of the gang's own process group, whose name in torch is a number."""

NEW_GROUP = "new_group"
"""The kind of the calls that create groups, and their group name in the log. torch names groups by their number, so a
rank that creates fewer groups than its peers cannot stay in its gang; its test may pass."""

MESSAGES = ("send", "recv")
"""The kinds of calls that are not collectives."""

EVEN = ("all_reduce", "broadcast", "reduce")
"""Collectives whose tensors have the same number of elements on all ranks."""

OF = " of "
"""The separator between a reduction and its dtype, in the kind of a counter."""

_WORD_BYTES = 36
"""Maximum size of a call's kind, dtype and shape, and of a group's name."""

_KEPT = 16
"""Number of collectives, and of messages, that are kept for each group."""

_COMPARED = 4
"""Number of newest collectives of each group that decide which rank is the cause; others only show a test's course."""

_MOST_GROUPS = 200
"""Maximum number of groups of a rank, including those that it closed in the running test."""

_MOST_COUNTERS = 400
"""Maximum number of counters of a group in one test: enough for messages to and from 190 peers."""

_MOST_MEMBERS = 2048

_MOST = 2**52
"""The largest valid number, except for times of calls."""

_MOST_SECONDS = 1e12
"""The longest valid wait."""

TAGS = 2**32
"""The modulus of the sums of digests of tags."""

_PHASES = ("set-up", "call", "tear-down")

_SHAPE = re.compile(r"(\d+(x\d+)*)?")


def size_of(shape: str) -> int:
    """The number of elements of a tensor of this shape, as in ``4x2``."""
    return prod(map(int, shape.split("x"))) if shape else 1


class LastCall(NamedTuple):
    """A call, which may have ended since."""

    group: str  # name of the group, as in :class:`GroupCalls`
    number: int  # from 1: of a collective in its group, or of a message among those of its kind, peer and tag
    kind: str  # ``all_reduce``, ``send``, ``recv``, …
    # The other rank of a message, or the root of a collective; None for collectives without a root, and for receives
    # from any source.
    peer: int | None = None
    dtype: str = ""  # of the first tensor, ``float32``; empty without a tensor
    shape: str = ""  # of the first tensor, ``4x2``
    order: int = 0  # its index among all calls of the rank, from 1
    at: int = 0  # its start in nanoseconds on the monotonic clock; 0 if unknown
    tag: int = 0  # of a message
    mask: Bits = Bits(0)  # the ranks of its group as a bit mask; 0 for a call that creates a group

    @property
    def essence(self) -> tuple[object, ...]:
        """What must be equal on all ranks; shapes may differ (views), as may sizes unless :data:`EVEN` has the kind."""
        return self.kind, self.dtype, self.peer, size_of(self.shape) if self.kind in EVEN else None


_SHORTEST_WAIT = 0.1
"""Seconds: a call that fails faster did not wait for a peer; its arguments were invalid, or a peer was gone."""


@dataclass(frozen=True)
class Wait:
    """A current wait for other ranks, or the last failed one."""

    # The order of the collective or message; 0 for anything else that other ranks do, such as setting a key of a store
    # or answering a remote call.
    order: int = 0
    seconds: float | None = None  # from the start of the call to its failure; None if its end is unknown

    @property
    def was_long(self) -> bool:
        """Whether it took so long that a peer may have been late."""
        return self.seconds is None or self.seconds >= _SHORTEST_WAIT


@dataclass(frozen=True)
class Count:
    """The number of calls of one kind that a rank made in one group during one test."""

    kind: str  # as of :class:`LastCall`; a reduction has its dtype, as in ``all_reduce of float32``
    number: int  # a receive counts from its start
    peer: int | None = None  # the other rank of messages; None for collectives and for receives from any source
    # The sum of the digests of all tags modulo 2^32: equal if the same tags were used equally often, in any order.
    tags: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupCalls:
    """The calls of one rank in one process group during one test."""

    name: str  # torch's name of the group, or :data:`DEFAULT_GROUP`
    members: tuple[int, ...]  # ranks in the gang
    counts: tuple[Count, ...] = ()  # each kind and peer may occur several times
    order: int = 0  # digest of the sequence of collectives: kinds, dtypes, roots, and sizes where they must be equal
    # Calls that torch counted but no Python code made (DDP's reducer, functional collectives), plus an offset. Only a
    # difference between ranks has a meaning.
    unseen: int = 0
    is_closed: bool = False  # the group was destroyed, so unmatched calls in it cannot affect another test


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The calls of one rank during one test."""

    groups: tuple[GroupCalls, ...] = ()
    failures: int = 0  # the number of calls, and of waits for their results, that raised


class _Call(Structure):
    """A :class:`LastCall` without the attributes of its group; number 0 for an unused entry."""

    _fields_ = (
        *((word, c_char * _WORD_BYTES) for word in ("kind", "dtype", "shape")),
        *((number, c_int64) for number in ("number", "peer", "order", "at", "tag")),
    )


class _Counter(Structure):
    """A :class:`Count`."""

    _fields_ = (("kind", c_char * 60), ("peer", c_int64), ("number", c_int64), ("tags", c_int64))


_FREE, _OPEN, _CLOSED = range(3)


_Mask = c_ubyte * (_MOST_MEMBERS // 8)


class _Group(Structure):
    """A group in one of the states above."""

    _fields_ = (
        ("state", c_byte),
        ("name", c_char * _WORD_BYTES),
        ("mask", _Mask),
        *((number, c_int64) for number in ("order", "unseen", "messages", "used")),
        ("calls", _Call * (2 * _KEPT)),  # the collectives, then the messages
        ("counters", _Counter * _MOST_COUNTERS),
    )
    __hash__ = object.__hash__  # by identity


class _Wait(Structure):
    """A :class:`Wait`: its order + 1 (0 for no wait), and its seconds (NaN for a current wait)."""

    _fields_ = (("next_order", c_int64), ("seconds", c_double))


class _Head(Structure):
    _fields_: ClassVar[Any] = (("phase", c_char * 16), ("wait", _Wait), ("failures", c_int64), ("used", c_int64))


class _Log(_Head):
    _fields_ = (("groups", _Group * _MOST_GROUPS),)


class CallLog:
    """The rank's side of a log."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._use(memory)

    def detach(self) -> None:
        """Use private memory from now on: the calls of a fork are not those of its rank."""
        self._use(mmap.mmap(-1, sizeof(_Log)))

    def _use(self, memory: mmap.mmap) -> None:
        self._log = _Log.from_buffer(memory)
        self._lock = RLock()  # threads may share a group, and a finalizer may close a group during a call
        self._counters: dict[tuple[_Group, str, int | None], _Counter] = {}

    def enter(self, phase: str) -> None:
        """Set the current phase; empty for none."""
        self._log.phase = phase.encode()

    def note_wait(self, wait: Wait | None) -> None:
        """Set the current wait, or the last failed one."""
        next_order, seconds = (0, None) if wait is None else (wait.order + 1, wait.seconds)
        self._log.wait = _Wait(next_order, nan if seconds is None else seconds)

    def begin(self) -> None:
        """Clear the counts of the last test, and the groups that it closed."""
        with self._lock:
            self._counters.clear()
            self._log.failures = 0
            for group in self._log.groups[: self._log.used]:
                group.order = group.unseen = group.used = 0
                group.state = _FREE if group.state == _CLOSED else group.state

    def open(self, name: str, members: Sequence[int]) -> _Group:
        """The entry of a new group; one outside of the log if the group does not fit into the log."""
        with self._lock:
            free = (index for index, group in enumerate(self._log.groups) if group.state == _FREE)
            index = next(free, None) if max(members, default=0) < _MOST_MEMBERS else None
            if index is None:
                return _Group()
            mask = sum(1 << int(rank) for rank in members).to_bytes(sizeof(_Mask), "little")
            self._log.groups[index] = _Group(_OPEN, _shortened(name), _Mask.from_buffer_copy(mask))
            self._log.used = max(self._log.used, index + 1)
            group: _Group = self._log.groups[index]
            return group

    def close(self, group: _Group) -> None:
        """Note that a group was destroyed."""
        group.state = _CLOSED if group.used else _FREE

    def note(self, group: _Group, call: LastCall) -> None:
        """Add a call that begins, in place of an older one."""
        index = call.number % _KEPT
        if call.kind in MESSAGES:
            index = _KEPT + group.messages % _KEPT
            group.messages += 1
        shape = call.shape if len(call.shape) <= _WORD_BYTES else str(size_of(call.shape))[:_WORD_BYTES]
        words = _shortened(call.kind), _shortened(call.dtype), shape.encode()
        peer = -1 if call.peer is None else call.peer
        group.calls[index] = _Call(*words, call.number, peer, call.order, call.at, call.tag)

    def count(self, group: _Group, kind: str, peer: int | None = None, tag: int = 0) -> None:
        """Add a call to its :class:`Count`."""
        with self._lock:
            counter = self._counters.get((group, kind, peer)) or self._new_counter(group, kind, peer)
            if counter is None:
                self._log.failures += 1
                return
            counter.number += 1
            if kind in MESSAGES:
                counter.tags = (counter.tags + crc32(str(tag).encode())) % TAGS

    def note_order(self, group: _Group, collective: LastCall) -> None:
        """Add the next collective to the digest of the sequence."""
        group.order = crc32(repr(collective.essence).encode(), group.order)

    def note_unseen(self, group: _Group, unseen: int) -> None:
        """Set the number of calls that only torch counted, at the end of a test."""
        group.unseen = unseen

    def fail(self) -> None:
        """Count a failed call, or a failed wait for its result."""
        with self._lock:
            self._log.failures += 1

    def _new_counter(self, group: _Group, kind: str, peer: int | None) -> _Counter | None:
        """A new counter; None if the group is not in the log or has no free counter."""
        if group.state != _OPEN or group.used == _MOST_COUNTERS:
            return None
        group.counters[group.used] = _Counter(_shortened(kind, _Counter.kind.size), -1 if peer is None else peer)
        counter: _Counter = group.counters[group.used]
        self._counters[group, kind, peer] = counter
        group.used += 1
        return counter


def open_log() -> tuple[int, int]:
    """Create a log; return two descriptors of its memory, the supervisor's and the rank's.

    Raises:
        OSError: The system is out of descriptors or memory.
    """
    log = os.memfd_create("allranks-calls")
    try:
        os.ftruncate(log, sizeof(_Log))  # unused parts take no memory
        return log, os.dup(log)
    except OSError:
        os.close(log)
        raise


def map_log(descriptor: int) -> mmap.mmap:
    """Map the memory of a log into this process, and close its descriptor."""
    try:
        return mmap.mmap(descriptor, sizeof(_Log))
    finally:
        os.close(descriptor)


# The supervisor's side of a log: the rank may have written invalid data, or truncated the memory.


def read_calls(descriptor: int) -> Calls:
    """The calls of a rank since its test began.

    Invalid numbers and truncated memory count as a failed call, so that they blame no rank.
    """
    head = _head(descriptor)
    is_whole = os.fstat(descriptor).st_size >= sizeof(_Log)
    is_valid = is_whole and 0 <= head.failures <= _MOST and 0 <= head.used <= _MOST_GROUPS
    groups: list[GroupCalls] = []
    for group, mask in _groups(descriptor):
        members = tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)
        counters = [counter for counter in group.counters[: max(0, group.used)] if _is_valid_counter(counter)]
        has_valid_order = abs(group.unseen) <= _MOST and 0 <= group.order <= _MOST
        is_valid = is_valid and len(counters) == group.used and has_valid_order
        groups.append(
            GroupCalls(
                name=_text(group.name),
                members=members,
                counts=tuple(Count(_text(one.kind), one.number, _peer(one), one.tags % TAGS) for one in counters),
                order=group.order if has_valid_order else 0,
                unseen=group.unseen if has_valid_order else 0,
                is_closed=group.state == _CLOSED,
            )
        )
    failures = max(0, min(head.failures, _MOST))
    return Calls(groups=tuple(groups), failures=failures if is_valid else max(1, failures))


def read_last_calls(descriptor: int) -> list[LastCall]:
    """The last calls of a rank in groups that are not closed, the newest first."""
    calls: list[LastCall] = []
    for group, mask in _groups(descriptor):
        for call in group.calls if group.state == _OPEN else ():
            words = _text(call.kind), _peer(call), _text(call.dtype), _text(call.shape)
            # The time is not checked: it exceeds the limit on a host that has been up for 52 days.
            is_valid = max(map(abs, (call.number, call.peer, call.order, call.tag))) <= _MOST
            if is_valid and call.number > 0 and _SHAPE.fullmatch(words[-1]):
                calls.append(LastCall(_text(group.name), call.number, *words, call.order, call.at, call.tag, mask))
    return sorted(calls, key=lambda call: -call.order)


def compared(calls: Sequence[LastCall]) -> list[LastCall]:
    """The calls by which ranks are compared: messages, and the newest collectives of each group."""
    highest: dict[str, int] = {}
    for call in calls:
        highest[call.group] = max(call.number, highest.get(call.group, call.number))
    return [call for call in calls if call.kind in MESSAGES or call.number > highest[call.group] - _COMPARED]


def read_phase(descriptor: int) -> str:
    """The current phase; empty for none or for invalid data."""
    phase = _text(_head(descriptor).phase)
    return phase if phase in _PHASES else ""


def read_wait(descriptor: int) -> Wait | None:
    """The current wait of a rank, or its last failed one; None for none or for invalid data."""
    wait = _head(descriptor).wait
    is_valid = 0 < wait.next_order <= _MOST and (isnan(wait.seconds) or 0 <= wait.seconds <= _MOST_SECONDS)
    return Wait(wait.next_order - 1, None if isnan(wait.seconds) else wait.seconds) if is_valid else None


def _head(descriptor: int) -> _Head:
    head = _Head()
    return head if os.preadv(descriptor, [head], 0) == sizeof(_Head) else _Head(failures=1)


def _groups(descriptor: int) -> Iterator[tuple[_Group, Bits]]:
    """The groups in a log, each with a bit mask of its members."""
    for index in range(min(_head(descriptor).used, _MOST_GROUPS)):
        group = _Group()
        size = os.preadv(descriptor, [group], _Log.groups.offset + index * sizeof(_Group))
        if size == sizeof(_Group) and group.state in (_OPEN, _CLOSED):
            yield group, Bits(int.from_bytes(group.mask, "little"))


def _shortened(word: str, most: int = _WORD_BYTES) -> bytes:
    """A word in at most `most` bytes; a longer one ends with a digest, so that different words stay different."""
    data = word.encode()
    return data if len(data) <= most else f"{data[: most - 12].decode(errors='ignore')}… {crc32(data):08x}".encode()


def _is_valid_counter(counter: _Counter) -> bool:
    return bool(0 <= counter.number <= _MOST and -1 <= counter.peer <= _MOST)


def _peer(entry: _Call | _Counter) -> int | None:
    return None if entry.peer < 0 else int(entry.peer)


def _text(word: bytes) -> str:
    return word.decode(errors="replace")
