"""The log of a rank's calls, in memory that the rank writes and its supervisor reads.

All of it is in shared memory: for each group its counters by kind and peer, a digest of the order, and its last calls,
so one log says where a rank is and whether its calls match those of its peers, also of a rank that has died.
A call updates its counter, the digest and one line in place; nothing is serialized when a test ends.
A group or a counter that finds no room counts as a failed call: the gang is not kept, and no mismatch is an error.
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
"""The name of the gang's own process group, which torch names by a number."""

NEW_GROUP = "new_group"
"""The kind of the calls that make groups. torch names groups by their number, so a rank that makes fewer than its peers
cannot stay in its gang; its test may pass. It is also the name under which the log has these calls."""

MESSAGES = ("send", "recv")
"""The kinds of calls that are not collectives."""

EVEN = ("all_reduce", "broadcast", "reduce")
"""Collectives whose tensors have one number of elements on all ranks."""

OF = " of "
"""Between a reduction and its dtype, in the kind of a counter."""

_WORD_BYTES = 36
"""Most bytes of a call's kind, dtype and shape, and of a group's name."""

_KEPT = 16
"""Collectives kept for each group, and messages."""

_BLAMED = 4
"""The newest collectives of each group, which decide who is to blame; the others only show how a test went."""

_MOST_GROUPS = 200
"""Groups that a rank has at one time, with those that it closed in the running test."""

_MOST_COUNTERS = 400
"""Counters of a group in one test: enough for messages to and from 190 peers."""

_MOST_MEMBERS = 2048

_MOST = 2**52
"""No honest number is greater, except a time of a call, and one from another node must be less than twice that."""

_MOST_SECONDS = 1e12
"""Seconds that a wait may have lasted at most."""

TAGS = 2**32
"""Sums of the digests of tags are equal if they are so modulo this."""

_PHASES = ("set-up", "call", "tear-down")

_SHAPE = re.compile(r"(\d+(x\d+)*)?")


def size_of(shape: str) -> int:
    """The number of elements of a tensor of this shape, as in ``4x2``."""
    return prod(map(int, shape.split("x"))) if shape else 1


class LastCall(NamedTuple):
    """A call, which may have ended since."""

    group: str  # name of the group, as in :class:`GroupCalls`
    number: int  # a collective's number in its group, from 1; a message's number among those of its kind, peer and tag
    kind: str  # ``all_reduce``, ``send``, ``recv``, …
    # The other rank of a message, or the root of a collective that has one; None for other collectives, and for a
    # receive from any source.
    peer: int | None = None
    dtype: str = ""  # of the first tensor, ``float32``; empty without a tensor
    shape: str = ""  # of the first tensor, ``4x2``
    order: int = 0  # its place among all calls of the rank
    at: int = 0  # nanoseconds on the monotonic clock, when it began; 0 if unknown
    tag: int = 0  # of a message
    mask: Bits = Bits(0)  # the ranks of its group, a bit for each; 0 for a call that makes a group

    @property
    def essence(self) -> tuple[object, ...]:
        """What no two ranks may differ in: a backend may pair views of one size, and parts of different sizes."""
        return self.kind, self.dtype, self.peer, size_of(self.shape) if self.kind in EVEN else None


_SHORTEST = 0.1
"""Seconds: a call that fails sooner has not waited for a peer, but refused its arguments, or found a peer gone."""


@dataclass(frozen=True)
class Wait:
    """What a rank waits for, or has waited for without success."""

    # The place of the collective or message among all calls of the rank; 0 for anything else that other ranks do, as
    # set the key of a store or answer a remote call.
    order: int = 0
    seconds: float | None = None  # from the beginning of the call to its failure; None if its end is not known

    @property
    def was_long(self) -> bool:
        """Whether it has taken so long that a peer may have been late."""
        return self.seconds is None or self.seconds >= _SHORTEST


@dataclass(frozen=True)
class Count:
    """How often a rank made calls of one kind in one group during one test."""

    kind: str  # as of :class:`LastCall`; of a reduction with its dtype, ``all_reduce of float32``
    number: int  # a receive counts from its start
    peer: int | None = None  # the other rank of messages, or None for collectives, and for receives from any source
    # The sum of the digests of all tags modulo 2^32: equal if the same tags were used equally often, in any order.
    tags: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupCalls:
    """What one rank called in one process group during one test."""

    name: str  # torch's name of the group, or :data:`DEFAULT_GROUP`
    members: tuple[int, ...]  # ranks in the gang
    counts: tuple[Count, ...] = ()  # each kind and peer may occur several times
    order: int = 0  # a digest of the collectives in order: kinds, types, roots, and sizes where they must be equal
    # Calls that torch counted and this rank's Python code did not make (DDP's reducer, functional collectives), and an
    # offset that is the same on all ranks if all else is: only a difference means something.
    unseen: int = 0
    is_closed: bool = False  # it was destroyed: unmatched calls in it reach no other test


@dataclass(frozen=True, kw_only=True)
class Calls:
    """What one rank called during one test."""

    groups: tuple[GroupCalls, ...] = ()  # its groups
    failures: int = 0  # the number of calls, and of waits for their results, that raised


class _Call(Structure):
    """A :class:`LastCall` without what is known of its group; number 0 for none."""

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
    """A :class:`Wait`: one more than its order, 0 for none, and its seconds, no number for one that goes on."""

    _fields_ = (("place", c_int64), ("seconds", c_double))


class _Head(Structure):
    _fields_: ClassVar[Any] = (("phase", c_char * 16), ("wait", _Wait), ("failures", c_int64), ("used", c_int64))


class _Log(_Head):
    _fields_ = (("groups", _Group * _MOST_GROUPS),)


class CallLog:
    """The rank's side of a log."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._use(memory)

    def detach(self) -> None:
        """Begin again, in memory that nobody reads: the calls of a fork are not those of its rank."""
        self._use(mmap.mmap(-1, sizeof(_Log)))

    def _use(self, memory: mmap.mmap) -> None:
        self._log = _Log.from_buffer(memory)
        self._lock = RLock()  # threads may share a group, and a finalizer may close one during a call
        self._counters: dict[tuple[_Group, str, int | None], _Counter] = {}

    def enter(self, phase: str) -> None:
        """Note the current phase, in words; empty for none."""
        self._log.phase = phase.encode()

    def note_wait(self, wait: Wait | None) -> None:
        """Note what the rank waits for, or has waited for without success."""
        place, seconds = (0, None) if wait is None else (wait.order + 1, wait.seconds)
        self._log.wait = _Wait(place, nan if seconds is None else seconds)

    def begin(self) -> None:
        """Forget the counts of the last test, and the groups that it has closed."""
        with self._lock:
            self._counters.clear()
            self._log.failures = 0
            for group in self._log.groups[: self._log.used]:
                group.order = group.unseen = group.used = 0
                group.state = _FREE if group.state == _CLOSED else group.state

    def open(self, name: str, members: Sequence[int]) -> _Group:
        """The place of a group, for the other methods; one that nobody reads if there is none left."""
        with self._lock:
            places = (place for place, group in enumerate(self._log.groups) if group.state == _FREE)
            place = next(places, None) if max(members, default=0) < _MOST_MEMBERS else None
            if place is None:
                return _Group()
            mask = sum(1 << int(rank) for rank in members).to_bytes(sizeof(_Mask), "little")
            self._log.groups[place] = _Group(_OPEN, _shortened(name), _Mask.from_buffer_copy(mask))
            self._log.used = max(self._log.used, place + 1)
            group: _Group = self._log.groups[place]
            return group

    def close(self, group: _Group) -> None:
        """Note that a group is gone."""
        group.state = _CLOSED if group.used else _FREE

    def note(self, group: _Group, call: LastCall) -> None:
        """Note a call that begins, overwriting an older one."""
        place = call.number % _KEPT
        if call.kind in MESSAGES:
            place = _KEPT + group.messages % _KEPT
            group.messages += 1
        shape = call.shape if len(call.shape) <= _WORD_BYTES else str(size_of(call.shape))[:_WORD_BYTES]
        words = _shortened(call.kind), _shortened(call.dtype), shape.encode()
        peer = -1 if call.peer is None else call.peer
        group.calls[place] = _Call(*words, call.number, peer, call.order, call.at, call.tag)

    def count(self, group: _Group, kind: str, peer: int | None = None, tag: int = 0) -> None:
        """Count a call that was made; see :class:`Count`."""
        with self._lock:
            counter = self._counters.get((group, kind, peer)) or self._new_counter(group, kind, peer)
            if counter is None:
                self._log.failures += 1
                return
            counter.number += 1
            if kind in MESSAGES:
                counter.tags = (counter.tags + crc32(str(tag).encode())) % TAGS

    def note_order(self, group: _Group, collective: LastCall) -> None:
        """Add the next collective to the digest of all in order."""
        group.order = crc32(repr(collective.essence).encode(), group.order)

    def note_unseen(self, group: _Group, unseen: int) -> None:
        """Note the calls that only torch has counted, at the end of a test."""
        group.unseen = unseen

    def fail(self) -> None:
        """Count a call, or a wait for its result, that has raised."""
        with self._lock:
            self._log.failures += 1

    def _new_counter(self, group: _Group, kind: str, peer: int | None) -> _Counter | None:
        """A new counter; None if there is no room."""
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
        OSError: The system has no descriptor or memory left.
    """
    log = os.memfd_create("allranks-calls")
    try:
        os.ftruncate(log, sizeof(_Log))  # what no call has touched takes no memory
        return log, os.dup(log)
    except OSError:
        os.close(log)
        raise


def map_log(descriptor: int) -> mmap.mmap:
    """Map the memory of a log into this process; its descriptor is closed."""
    try:
        return mmap.mmap(descriptor, sizeof(_Log))
    finally:
        os.close(descriptor)


# The rank may have written anything there, or cut the memory short.


def read_calls(descriptor: int) -> Calls:
    """What a rank has called since its test began.

    Numbers that no rank counts, and a memory that was cut short, count as a failed call, so that they blame nobody.
    """
    head = _head(descriptor)
    is_whole = os.fstat(descriptor).st_size >= sizeof(_Log)
    is_sound = is_whole and 0 <= head.failures <= _MOST and 0 <= head.used <= _MOST_GROUPS
    groups: list[GroupCalls] = []
    for group, mask in _groups(descriptor):
        members = tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)
        used = [each for each in group.counters[: max(0, group.used)] if _is_sound_counter(each)]
        is_sound_tally = abs(group.unseen) <= _MOST and 0 <= group.order <= _MOST
        is_sound = is_sound and len(used) == group.used and is_sound_tally
        counts = tuple(Count(_text(each.kind), each.number, _peer(each), each.tags % TAGS) for each in used)
        order, unseen = (group.order, group.unseen) if is_sound_tally else (0, 0)
        tally = {"order": order, "unseen": unseen, "is_closed": group.state == _CLOSED}
        groups.append(GroupCalls(name=_text(group.name), members=members, counts=counts, **tally))
    failures = max(0, min(head.failures, _MOST))
    return Calls(groups=tuple(groups), failures=failures if is_sound else max(1, failures))


def read_last_calls(descriptor: int) -> list[LastCall]:
    """The last calls of a rank in groups that are not closed, the newest first."""
    calls: list[LastCall] = []
    for group, mask in _groups(descriptor):
        for each in group.calls if group.state == _OPEN else ():
            words = _text(each.kind), _peer(each), _text(each.dtype), _text(each.shape)
            # A host that is up for 52 days has greater times.
            is_sound = max(map(abs, (each.number, each.peer, each.order, each.tag))) <= _MOST
            if is_sound and each.number > 0 and _SHAPE.fullmatch(words[-1]):
                calls.append(LastCall(_text(group.name), each.number, *words, each.order, each.at, each.tag, mask))
    return sorted(calls, key=lambda call: -call.order)


def blamed(calls: Sequence[LastCall]) -> list[LastCall]:
    """Those of a log's calls by which ranks are compared: messages, and the newest collectives of each group."""
    highest: dict[str, int] = {}
    for call in calls:
        highest[call.group] = max(call.number, highest.get(call.group, call.number))
    return [call for call in calls if call.kind in MESSAGES or call.number > highest[call.group] - _BLAMED]


def read_phase(descriptor: int) -> str:
    """The current phase, in words; empty for none, and if the rank has written anything else."""
    phase = _text(_head(descriptor).phase)
    return phase if phase in _PHASES else ""


def read_wait(descriptor: int) -> Wait | None:
    """What the rank waits for, or has waited for without success.

    None stands for nothing, for numbers that no wait has, and for a memory that was cut short.
    """
    wait = _head(descriptor).wait
    is_sound = 0 < wait.place <= _MOST and (isnan(wait.seconds) or 0 <= wait.seconds <= _MOST_SECONDS)
    return Wait(wait.place - 1, None if isnan(wait.seconds) else wait.seconds) if is_sound else None


def _head(descriptor: int) -> _Head:
    head = _Head()
    return head if os.preadv(descriptor, [head], 0) == sizeof(_Head) else _Head(failures=1)


def _groups(descriptor: int) -> Iterator[tuple[_Group, Bits]]:
    """The groups in a log, each with its members, a bit for each."""
    for place in range(min(_head(descriptor).used, _MOST_GROUPS)):
        group = _Group()
        size = os.preadv(descriptor, [group], _Log.groups.offset + place * sizeof(_Group))
        if size == sizeof(_Group) and group.state in (_OPEN, _CLOSED):
            yield group, Bits(int.from_bytes(group.mask, "little"))


def _shortened(word: str, most: int = _WORD_BYTES) -> bytes:
    """A word of at most so many bytes: a longer one ends with a digest, so that those of two ranks differ as before."""
    data = word.encode()
    return data if len(data) <= most else f"{data[: most - 12].decode(errors='ignore')}… {crc32(data):08x}".encode()


def _is_sound_counter(counter: _Counter) -> bool:
    return bool(0 <= counter.number <= _MOST and -1 <= counter.peer <= _MOST)


def _peer(entry: _Call | _Counter) -> int | None:
    return None if entry.peer < 0 else int(entry.peer)


def _text(word: bytes) -> str:
    return word.decode(errors="replace")
