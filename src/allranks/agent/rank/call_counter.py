"""Counts this rank's calls in its process groups, and tracks which of them it waits for.

It wraps the Python methods of torch's C++ class ``ProcessGroup``. Functions of ``torch.distributed`` under any name,
object collectives, coalesced and batched calls, FSDP and a group's own methods all end there.

- Wrapping the functions of ``torch.distributed`` would miss names that a suite has imported before, and TorchDynamo
  recognizes these functions by identity.
- A kernel in torch's dispatcher would also see calls from C++ (DDP's reducer, functional collectives), but adds 11 µs
  to a call; a wrapped method adds 2 µs (torch 2.13). torch's own sequence number reveals those calls, see
  :attr:`allranks.agent.call_log.GroupCalls.unseen`.

Only groups of the gang's world are counted or, if the gang has none, those of a world of all its ranks that a test
creates. Any other world, such as that of a threaded test case, has other ranks and ends with its test.
"""

import functools
import itertools
import os
import threading
import traceback
import unittest
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import distributed
from torch.distributed import distributed_c10d

from allranks.agent.call_log import DEFAULT_GROUP, NEW_GROUP, OF, CallLog, LastCall, Wait
from allranks.agent.clock import monotonic_ns
from allranks.agent.diagnose.unmatched_calls import format_ranks

_POLLS = 3
"""Number of consecutive unsuccessful polls of a store after which a rank counts as waiting."""


class Waits:
    """Tracks the waits of a rank, and writes the current one to the call log for the supervisor.

    A call is identified by its order among all calls of the rank; 0 is a wait for something else, such as a store.
    """

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._began: dict[int, int] = {}
        self._others: list[int] = []  # one entry per wait: two threads could lose an update of a counter
        self._failed: Wait | None = None
        self._newest = self._newest_at_failure = 0
        self._polls = 0
        self._polls_since = 0

    @property
    def current(self) -> Wait | None:
        """The current wait of the rank or its last failed one; None for none.

        If the rank fails now, this wait may be the cause, even if the test has caught the exception of the wait.
        """
        if self._failed is not None:
            return self._failed
        if self._began:
            last = next(reversed(self._began))
            return Wait(last, _seconds_since(self._began[last]))
        return Wait(0, _seconds_since(self._polls_since)) if self._polls >= _POLLS else None

    def begin(self, order: int, at: int) -> None:
        """Note that a call that waits for other ranks has begun, or that the rank now waits for an earlier one."""
        self._newest = max(self._newest, order)
        self._began.pop(order, None)
        self._began[order] = at  # moved to the end, because the rank may now wait for an earlier call
        self._log.note_wait(Wait(order))

    def begin_other(self) -> None:
        """Note that the rank waits for something other than a call, such as a store, until :meth:`end_other`."""
        self._others.append(0)
        self._log.note_wait(Wait())

    def end_other(self) -> None:
        """Note the end of such a wait, successful or not."""
        self._others.pop()
        self._show_current()

    def succeed(self, order: int) -> None:
        """Note that a call, or a wait for a peer, has succeeded; failures before the call began no longer count."""
        self._began.pop(order, None)
        if order == 0 or order > self._newest_at_failure:
            self.forgive()
        else:
            self._show_current()

    def fail(self, order: int, began: int) -> Wait:
        """Note that a call, or a wait for it, has failed; return the failed wait that counts.

        After a long wait has failed, calls may fail at once, because the group is broken: then the long wait counts.
        """
        self._began.pop(order, None)
        wait = Wait(order, _seconds_since(began))
        if self._failed is None or wait.was_long or not self._failed.was_long:
            self._failed = wait
        self._newest_at_failure = self._newest
        self._show_current()
        return self._failed

    def forgive(self) -> None:
        """Ignore earlier failures: the test expects them, or a later wait has succeeded."""
        self._polls = 0
        self._failed = None
        self._show_current()

    def poll(self) -> None:
        """Count an unsuccessful poll of a store."""
        self._polls_since = self._polls_since if self._polls else monotonic_ns()
        self._polls += 1
        self._show_current()

    def clear(self) -> None:
        """Remove all waits at the end of a test."""
        self._began.clear()
        self._newest_at_failure = 0
        self.forgive()

    def _show_current(self) -> None:
        if self._others:
            self._log.note_wait(Wait())
        elif self._failed is None and self._began:
            self._log.note_wait(Wait(next(reversed(self._began))))
        else:
            self._log.note_wait(self.current)


def _seconds_since(at: int) -> float:
    return (monotonic_ns() - at) / 1e9


UNEVEN = "monitored_barrier"
"""A collective that takes more of torch's sequence numbers on a group's first rank than on the others (torch 2.13)."""

_REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives that compute: with different dtypes or operations, gloo succeeds with wrong results."""

ANY = -1
"""The peer of a receive from any source."""

_ANY_SOURCE = ("arg0", "arg1")

MESSAGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "send": ("send", ("tensors", "dstRank", "tag")),
    "recv": ("recv", ("tensors", "srcRank", "tag")),
    "recv_anysource": ("recv", _ANY_SOURCE),
}
"""Methods of messages, with the kind under which they are counted, and the names of their parameters."""


class CountedGroup:
    """One process group of the gang's world.

    Attributes:
        name: The name in :class:`~allranks.agent.call_log.GroupCalls`.
        members: The gang's ranks in the group, in the order of their ranks in it.
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
        """Count a call; reductions are counted by dtype."""
        name = f"{kind}{OF}{dtype}" if kind in _REDUCTIONS else kind
        self._log.count(self.entry, name, self.rank_of(peer), tag if self._is_gloo else 0)
        # NCCL gives messages no sequence number.
        self._numbered += kind not in (UNEVEN, NEW_GROUP) and (peer is None or self._is_gloo)

    @property
    def uncounted(self) -> int:
        """The number of calls since the last :meth:`settle` that torch has counted, but this object has not."""
        return sequence_of(self.reference()) - self._sequence - self._numbered

    def rank_of(self, peer: int | None) -> int | None:
        """The gang's rank for a rank in this group; None if there is none."""
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


def describe(kind: str, arguments: Sequence[Any], index: int) -> tuple[str, str]:
    """The dtype and shape of a call's first tensor, such as ``float32`` or ``float32 sparse_coo max``, and ``4x2``."""
    first: Any = arguments[index : index + 1]
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
    """The peer and the tag of a message, given the names of its method's parameters."""
    values = {**dict(zip(names, arguments, strict=False)), **options}
    peer = ANY if names is _ANY_SOURCE else values.get(names[1], ANY)
    return peer, values.get(names[-1], 0)


COLLECTIVES: Mapping[str, tuple[str, int]] = {
    method: (kind, index)
    for kind, index, methods in (
        ("all_gather", 1, "_allgather_base all_gather_single all_gather_single_coalesced"),
        ("all_gather", 1, "allgather allgather_coalesced allgather_into_tensor_coalesced"),
        ("all_reduce", 0, "allreduce allreduce_coalesced"),
        ("all_to_all", 1, "all_to_all_single alltoall alltoall_base"),
        ("barrier", 0, "barrier"),
        ("broadcast", 0, "broadcast"),
        ("gather", 1, "gather"),
        ("monitored_barrier", 0, "monitored_barrier"),
        ("reduce", 0, "reduce"),
        ("reduce_scatter", 0, "_reduce_scatter_base reduce_scatter reduce_scatter_single"),
        ("reduce_scatter", 0, "reduce_scatter_single_coalesced reduce_scatter_tensor_coalesced"),
        ("scatter", 0, "scatter"),
    )
    for method in methods.split()
}
"""Methods of torch 2.6 to 2.14 (no version has all), with the kind under which they are counted and the index of the
argument whose shape is equal on all ranks. Variants of a collective have the same kind: a backend may match them."""

_ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
"""Collectives with a root, which is equal on all ranks; it is in the last argument, the options."""

_WAITS = (
    (distributed.Work, "wait"),
    (distributed.Work, "synchronize"),
    (torch._C.Future, "wait"),  # noqa: SLF001 - returned by Work.get_future and calls of RPC
    (torch._C.Future, "value"),  # noqa: SLF001
)
"""Methods that wait for a call and raise its error."""

_WAIT = "allranks_wait"
"""The attribute of an exception with the failed wait of the call that raised it."""

_RAISES_REMOTE_ERROR = "_handle_exception"
"""torch's function that raises the exception of another worker of RPC (torch 2.6 to 2.14)."""

_STORE_WAITS = ("get", "wait", "multi_get", "queue_pop", "barrier")
"""Methods of a store that wait for other ranks; the stack of a waiting rank shows their wrappers."""

_STORE_POLLS = ("add", "compare_set", "num_keys")
"""Methods of a store with which a rank may poll for values of other ranks."""

_EXPECTATIONS: tuple[type, ...] = (
    type(pytest.raises(KeyError)),
    type(unittest.TestCase().assertRaises(KeyError)),  # noqa: PT027 - only its class is needed
)
"""The classes of ``pytest.raises`` and ``assertRaises``: failures that these expect do not count."""

_MOST_EXCEPTIONS = 100
"""Maximum number of exceptions to inspect in a chain."""

_TORCH = Path(torch.__file__).parent
_RPC = f"{_TORCH}/distributed/rpc/"
_CALLERS = (f"{_TORCH}/distributed/", f"{_TORCH}/autograd/", f"{_TORCH}/_ops.py")
"""Paths of code that calls collectives through C++: the tracebacks of their errors end in a frame of this code."""

_UNMET: Any = object()
"""Stands for the counters of a group that has not been used yet, and for the default group of no world."""

_Method = Callable[..., Any]


class CallCounter:
    """Wraps torch's methods once, for the life of the process.

    Args:
        log: The log for the calls.
        own_world: Number of ranks of a world that a test creates and that is counted; None if the gang has a world.
    """

    def __init__(self, log: CallLog, own_world: int | None = None) -> None:
        self._log = log
        self._own_world = own_world
        # Weak: calls in a destroyed world and its groups do not matter for the next one.
        self._world: Callable[[], distributed.ProcessGroup | None] = lambda: None
        # By the identity of torch's object; None for a group that is not counted.
        self._groups: dict[int, CountedGroup | None] = {}
        self._adding = threading.RLock()  # several threads may use a new group at the same time
        # Keeps groups alive until the end of the next test. If a thread of a group drops the last reference, for
        # example in a callback of a future, it waits for its own end, which aborts the process in a later test. If
        # Python drops it, it holds the GIL while it waits for threads that may need the GIL (torch 2.6).
        self._kept: tuple[list[distributed.ProcessGroup], ...] = ([], [])
        self._from_any: dict[int, tuple[CountedGroup, int, distributed.Work]] = {}
        self._order = itertools.count(1)
        self._made_groups = itertools.count(1)
        self._last_poll: tuple[object, ...] = ()
        self.waits = Waits(log)
        # By the identity of the object that a call returned, with a weak reference: identities are reused.
        self._works: dict[int, tuple[Callable[[], object], _Begun]] = {}
        for method, (kind, index) in COLLECTIVES.items():
            wrap(distributed.ProcessGroup, method, functools.partial(self._counted, kind=kind, index=index))
        for method, (kind, names) in MESSAGES.items():
            wrap(distributed.ProcessGroup, method, functools.partial(self._counted, kind=kind, index=0, names=names))
        wrap(distributed.ProcessGroup, UNEVEN, self._unnumbered)
        wrap(distributed_c10d, "_new_group_with_tag", self._made)
        wrap(distributed_c10d, "_new_process_group_helper", self._waiting)
        self._new_groups = log.open(NEW_GROUP, ())
        for owner, method in _WAITS:
            wrap(owner, method, self._waited)
        wrap(distributed.Work, "is_completed", self._completion)
        wrap(distributed.Work, "get_future", self._future)
        store = torch._C._distributed_c10d.Store  # noqa: SLF001
        wrap(store, "check", self._polled)
        for method in _STORE_POLLS:
            wrap(store, method, functools.partial(self._polled, has_news=functools.partial(self._has_news, method)))
        for expectation in _EXPECTATIONS:
            wrap(expectation, "__exit__", self._expected)
        for method in _STORE_WAITS:
            wrap(store, method, self._waiting)
        os.register_at_fork(after_in_child=self._be_fork)

    def _be_fork(self) -> None:
        """Keep the calls of a fork out of the rank's log, because a launcher forks its ranks."""
        self._log.detach()
        self._groups.clear()
        self._new_groups = self._log.open(NEW_GROUP, ())

    def wait_of_failure(self, error: BaseException) -> Wait | None:
        """Mark the exceptions of a failure, and return the rank's current wait."""
        self.mark(error)
        return self.waits.current

    def mark(self, error: BaseException) -> None:
        """Mark exceptions of calls that no method counts, such as DDP's backward pass and functional collectives.

        torch's sequence numbers show whether there were such calls. The creation of groups and stores has no sequence
        number, but its exceptions have a type of their own.
        """
        groups = [self._find(group) for group in list(distributed_c10d._world.pg_map)]  # noqa: SLF001 - see below
        has_uncounted = any(known.uncounted > 0 for known in groups if known is not None)
        kind = RuntimeError if has_uncounted else distributed.DistError
        for link in chain(error):
            frames = [frame for frame, _ in traceback.walk_tb(link.__traceback__)]
            is_from_torch = bool(frames) and frames[-1].f_code.co_filename.startswith(_CALLERS)
            if is_from_torch and isinstance(link, kind) and wait_of(link) is None:
                setattr(link, _WAIT, Wait())

    def watch(self, world: distributed.ProcessGroup | None) -> None:
        """Start to count calls in the gang's world, given its default group; None if the gang has none."""
        self._world = weakref.ref(world) if world else lambda: None
        self._groups.clear()
        self.settle()
        self.begin()

    def begin(self) -> None:
        """Clear the calls of the last test."""
        self._log.begin()

    def settle(self) -> None:
        """Complete the log at the end of a test."""
        self.waits.clear()
        self._works.clear()
        self._settle_receives()
        world = distributed_c10d._world  # noqa: SLF001 - torch has no public list of groups
        self._kept = (list(world.pg_map), self._kept[0])
        for identity, known in list(self._groups.items()):
            if known is not None and known.reference() not in world.pg_map:
                self._close(identity)
        self._adopt_own_world()
        if world.default_pg is (self._world() or _UNMET):
            for known in filter(None, map(self._find, list(world.pg_map))):
                known.settle()

    def _find(self, group: distributed.ProcessGroup) -> CountedGroup | None:
        """The counters of a group; None if it is not counted."""
        identity = id(group)
        if identity in self._groups:
            return self._groups[identity]
        with self._adding:
            if identity not in self._groups:  # another thread may have added it in the meantime
                self._groups[identity] = self._new(group)
                self._kept[0].append(group)
                weakref.finalize(group, self._forget, identity).atexit = False
            return self._groups[identity]

    def _new(self, group: distributed.ProcessGroup) -> CountedGroup | None:
        self._adopt_own_world()
        world = distributed_c10d._world  # noqa: SLF001 - see above
        if world.default_pg is not (self._world() or _UNMET) or group not in world.pg_group_ranks:
            return None
        name = DEFAULT_GROUP if group is world.default_pg else world.pg_names[group]
        ranks = world.pg_group_ranks[group]
        return CountedGroup(name, tuple(sorted(ranks, key=ranks.__getitem__)), group, self._log)

    def _adopt_own_world(self) -> None:
        """Count calls in a world that the suite has created itself, if it has all ranks of the gang."""
        world = distributed_c10d._world  # noqa: SLF001 - see above
        own = world.default_pg if self._own_world is not None else None
        if own is not None and len(world.pg_group_ranks.get(own, ())) == self._own_world:
            self._world = weakref.ref(own)

    def _forget(self, identity: int) -> None:
        """Remove a group whose object was deleted, because another object may get its identity."""
        self._close(identity)
        self._groups.pop(identity, None)

    def _close(self, identity: int) -> None:
        """Stop counting a destroyed group."""
        known = self._groups.get(identity)
        if known is not None:
            self._groups[identity] = None
            self._log.close(known.entry)

    def _counted(self, original: _Method, *, kind: str, index: int, names: Sequence[str] = ()) -> _Method:
        """Wrap a method so that its calls are counted.

        Args:
            original: torch's method.
            kind: The kind under which its calls are counted.
            index: Index of the argument whose first tensor describes the call.
            names: Parameter names of a message: tensors, peer (unless it may be any), tag; empty for a collective.
        """

        def call(group: distributed.ProcessGroup, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            known = self._groups.get(id(group), _UNMET)
            if known is _UNMET:
                known = self._find(group)
            if known is None:
                return original(group, *arguments, **options)
            peer, tag = message_of(names, arguments, options) if names else (None, 0)
            known.begun += peer is None
            dtype, shape = describe(kind, arguments, index)
            other = getattr(arguments[-1], "rootRank", None) if kind in _ROOTED and arguments else peer
            order, at = next(self._order), monotonic_ns()
            number = known.begun if peer is None else known.number_message(kind, peer, tag)
            begun = LastCall(known.name, number, kind, known.rank_of(other), dtype, shape, order, at, tag)
            self._log.note(known.entry, begun)
            call = _Begun(order, at, has_peers=len(known.members) > 1)
            if kind != "send" and call.has_peers:
                self.waits.begin(order, at)
            try:
                work = original(group, *arguments, **options)
            except BaseException as error:
                known.begun -= peer is None
                self._log.fail()
                self._note_failure(error, order, at)
                raise
            self._keep(work, call)
            if peer == ANY:
                self._from_any[id(work)] = (known, tag, work)
            else:
                known.count(kind, peer, tag, dtype)
            if peer is None:
                self._log.note_order(known.entry, begun)
            return work

        return call

    def _unnumbered(self, original: _Method) -> _Method:
        """Wrap a method so that torch's sequence numbers for it are excluded."""

        def call(group: distributed.ProcessGroup, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            before = sequence_of(group)
            try:
                return original(group, *arguments, **options)
            finally:
                known = self._find(group)
                if known is not None:
                    known.skip(sequence_of(group) - before)

        return call

    def _made(self, original: _Method) -> _Method:
        """Wrap the function that creates groups, which all ranks have to call in the same order."""

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            world = distributed_c10d._world.default_pg  # noqa: SLF001 - see above
            known = self._find(world) if world and not options.get("use_local_synchronization") else None
            if known and world:
                known.count(NEW_GROUP)
                ranks = next(iter(arguments), options.get("ranks"))
                with suppress(TypeError, ValueError):  # torch rejects such ranks
                    members = format_ranks(sorted(range(world.size()) if ranks is None else map(int, ranks)))
                    made = LastCall(NEW_GROUP, next(self._made_groups), f"{NEW_GROUP} of {members}", at=monotonic_ns())
                    self._log.note(self._new_groups, made._replace(order=next(self._order)))
            return original(*arguments, **options)

        return call

    def _keep(self, work: object, call: "_Begun") -> None:
        """Keep the call that returned an object, for the method that waits for the object."""
        with suppress(TypeError):  # None has no weak reference
            self._works[id(work)] = weakref.ref(work), call

    def _call_of(self, work: object) -> "_Begun | None":
        """The call that returned an object; None if unknown."""
        reference, call = self._works.get(id(work), (lambda: None, None))
        return call if reference() is work else None

    def _waited(self, original: _Method) -> _Method:
        """Wrap a method that waits for a call, and log its failures and the sources of messages."""

        def wait(work: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            call = self._call_of(work)
            if call is None and type(work) is torch.futures.Future:
                return original(work, *arguments, **options)  # made in Python: no other rank sets it
            at = monotonic_ns() if call is None else call.at
            if call is None:
                self.waits.begin_other()
            elif call.has_peers:
                self.waits.begin(call.order, at)
            try:
                result = original(work, *arguments, **options)
            except BaseException as error:
                if _is_remote(error):
                    self.waits.forgive()
                else:
                    self._log.fail()
                    self._note_failure(error, 0 if call is None else call.order, at)
                raise
            finally:
                if call is None:
                    self.waits.end_other()
            self._note_success(call)
            if self._from_any:
                self._settle_receive(id(work))
            return result

        return wait

    def _waiting(self, original: _Method) -> _Method:
        """Wrap a function that waits for something other than a call, such as a method of a store."""

        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            if _is_private(next(iter(arguments), None)):
                return original(*arguments, **options)
            at = monotonic_ns()
            self.waits.begin_other()
            try:
                return original(*arguments, **options)
            except BaseException as error:
                self._note_failure(error, 0, at)
                raise
            finally:
                self.waits.end_other()

        return call

    def _completion(self, original: _Method) -> _Method:
        """Wrap a method that returns whether a call has ended."""

        def call(work: Any) -> Any:  # noqa: ANN401 - torch's
            has_ended = original(work)
            if has_ended:
                self._note_success(self._call_of(work))
            return has_ended

        return call

    def _future(self, original: _Method) -> _Method:
        """Wrap a method that returns another object to wait for."""

        def call(work: Any) -> Any:  # noqa: ANN401 - torch's
            future = original(work)
            if (begun := self._call_of(work)) is not None:
                self._keep(future, begun)
            return future

        return call

    def _polled(self, original: _Method, *, has_news: _Method = lambda _, result: bool(result)) -> _Method:
        """Wrap a method with which a rank may poll a store.

        `has_news` returns whether the arguments and the result of a call mean that another rank has written the
        awaited value; None if the call was no poll.
        """

        def call(store: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - torch's
            __tracebackhide__ = True
            result = original(store, *arguments, **options)
            is_new = has_news(arguments, result)
            if is_new:
                self.waits.forgive()
            elif is_new is not None and not _is_private(store):
                self.waits.poll()
            return result

        return call

    def _expected(self, original: _Method) -> _Method:
        """Wrap the end of a block that expects an exception: an expected failure of a wait does not count."""

        def call(block: Any, kind: Any, error: Any, trace: Any) -> Any:  # noqa: ANN401 - pytest's and unittest's
            __tracebackhide__ = True
            is_expected = original(block, kind, error, trace)
            if is_expected and any(wait_of(link) is not None for link in chain(error)):
                self.waits.forgive()
            return is_expected

        return call

    def _has_news(self, method: str, arguments: Any, result: object) -> bool | None:  # noqa: ANN401 - torch's
        """Whether the result of a repeated call has changed; None for the first call, and for one that is no poll."""
        before, self._last_poll = self._last_poll, (method, arguments, result)
        if before[:2] != (method, arguments) or (method == "add" and arguments[1:] != (0,)):
            return None
        return before[2] != result

    def _note_failure(self, error: BaseException, order: int, began: int) -> None:
        """Note that a call, or a wait for one, has failed, and mark its exception."""
        setattr(error, _WAIT, self.waits.fail(order, began))

    def _note_success(self, call: "_Begun | None") -> None:
        """Note that a call, or (for None) a wait for something else, has succeeded."""
        if call is None or call.has_peers:
            self.waits.succeed(0 if call is None else call.order)

    def _settle_receive(self, identity: int) -> None:
        """Count a completed receive from any source under its actual source."""
        known, tag, work = self._from_any.pop(identity, (None, 0, None))
        if known is not None and work is not None:
            known.count("recv", work._source_rank(), tag)  # noqa: SLF001 - the only name in all versions

    def _settle_receives(self) -> None:
        """Count receives from any source for which the test has not waited."""
        for identity, (known, tag, work) in list(self._from_any.items()):
            if work.is_completed():
                self._settle_receive(identity)
            else:
                known.count("recv", ANY, tag)
        self._from_any.clear()


class _Begun(NamedTuple):
    """A call that has begun."""

    order: int  # its index among all calls of the rank, from 1
    at: int  # nanoseconds on the monotonic clock
    has_peers: bool  # its group has other ranks


def _is_private(store: object) -> bool:
    """Whether a store exists only in this process."""
    while isinstance(store, distributed.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    return isinstance(store, distributed.HashStore)  # type: ignore[attr-defined]


def wait_of(error: BaseException) -> Wait | None:
    """The failed wait of the call that raised an exception; None if no such call is known."""
    wait = getattr(error, _WAIT, None)
    return wait if isinstance(wait, Wait) else None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, its cause or context, and so on. The chain may be circular."""
    for _ in range(_MOST_EXCEPTIONS):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _is_remote(error: BaseException) -> bool:
    """Whether an exception is the reply of another worker of RPC, whose function raised it."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].co_name == _RAISES_REMOTE_ERROR and frames[-1].co_filename.startswith(_RPC)


def wrap(owner: object, name: str, wrapper: Callable[[_Method], _Method]) -> None:
    """Replace a method of one of torch's classes or a function of a module, if this version of torch has it."""
    original = getattr(owner, name, None)
    if original is None:
        return
    method = cast("FunctionType", wrapper(original))
    functools.update_wrapper(method, original)
    # pybind11 would call this Python function again, as if a subclass overrode the method, unless the calling frame has
    # the name of the method and the same first argument.
    method.__code__ = method.__code__.replace(co_name=name)
    setattr(owner, name, method)
