"""Test cases whose ranks are threads of one process, for tests that need no processes and no network.

torch has no public process group for threads. Like torch's own suites, this module uses the private module
``torch.testing._internal.distributed.multi_threaded_pg``. No other module of allranks may use it.
"""

import copy
import ctypes
import functools
import importlib
import queue
import sys
import threading
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType, ModuleType
from typing import Any, ClassVar, ParamSpec

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.agent.diagnose.unmatched_calls import format_ranks
from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.launch.plain import default_limit, default_timeout
from allranks.protocol.config import TimeLimit
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import Outcome
from allranks.protocol.skip_codes import SkipCode
from allranks.testing.markers import unregistered_mark
from allranks.testing.tensors import TensorEquality


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended."""

    rank: int
    outcome: Outcome  # ``passed``, ``failed``, ``skipped``, ``aborted`` or ``timed_out``
    error: BaseException | None = None  # the exception that it raised, if any
    location: str = ""  # where it was when it was stopped; empty for a rank that ended by itself
    is_waiting: bool = False  # it was stopped while it waited for its peers in a collective
    is_abandoned: bool = False  # its thread still runs, in a call that Python cannot interrupt
    limit: TimeLimit | None = None  # the time limit of the test


def _ending_of(rank: int, error: BaseException | None) -> Ending:
    """The ending of a rank that ended by itself.

    An exit with one of torch's skip codes is a skip. Every other exit is a failure, because the test did not complete.
    """
    if error is None:
        return Ending(rank=rank, outcome=Outcome.PASSED)
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in set(SkipCode):
        error = EnvironmentSkip(SkipCode(error.code))
    skipped = isinstance(error, unittest.SkipTest | pytest.skip.Exception)
    return Ending(rank=rank, outcome=Outcome.SKIPPED if skipped else Outcome.FAILED, error=error)


def _location(frame: FrameType | None) -> str:
    """``FILE:LINE in NAME`` of the innermost call in the test that is not in torch or in Python's library."""
    stack = traceback.extract_stack(frame) if frame is not None else []
    files = [summary.filename for summary in stack]
    start = len(files) - files[::-1].index(__file__) if __file__ in files else 0
    inside = stack[start:] or stack
    own = [summary for summary in inside if not _is_library(summary.filename)] or inside
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library(filename: str) -> bool:
    return "/site-packages/" in filename or filename.startswith((sys.base_prefix, sys.prefix, "<"))


class RankThreadError(AssertionError):
    """A test failed on at least one rank that is a thread, or only some ranks skipped.

    The message names the leading rank, then has one line for each group of peers with the same outcome. The exception
    of the leading rank is the cause (``__cause__``) of this error; tracebacks of other failed ranks are in its notes.

    Attributes:
        leading: The rank that failed first; without one, a rank that timed out, else one that skipped.
    """

    def __init__(self, message: str, leading: int) -> None:
        self.leading = leading
        super().__init__(message)


def raise_for(endings: Sequence[Ending]) -> None:
    """Return if all ranks passed, skip if all ranks skipped, and fail otherwise.

    Args:
        endings: How the ranks ended, in the order in which they ended.

    Raises:
        RankThreadError: A rank failed or did not end, or only some ranks skipped.
        unittest.SkipTest, pytest.skip.Exception: All ranks skipped; this is the first skip.
        pytest.exit.Exception, KeyboardInterrupt: A rank ended the whole session.
    """
    __tracebackhide__ = True
    leading = _leading(endings)
    if leading is None:
        return
    if isinstance(leading.error, pytest.exit.Exception | KeyboardInterrupt):
        raise leading.error
    if leading.error is not None and all(ending.outcome is Outcome.SKIPPED for ending in endings):
        raise leading.error
    raise _error(leading, endings) from leading.error


def _leading(endings: Sequence[Ending]) -> Ending | None:
    """The first failed rank, else one that timed out (preferably one that did not wait), else one that skipped."""

    def with_outcome(outcome: Outcome) -> list[Ending]:
        return [ending for ending in endings if ending.outcome is outcome]

    # All of them timed out at the same moment, so the order in which they were stopped means nothing.
    timed_out = sorted(with_outcome(Outcome.TIMED_OUT), key=lambda ending: (ending.is_waiting, ending.rank))
    return next(iter([*with_outcome(Outcome.FAILED), *timed_out, *with_outcome(Outcome.SKIPPED)]), None)


def _error(leading: Ending, endings: Sequence[Ending]) -> RankThreadError:
    peers = sorted((ending for ending in endings if ending is not leading), key=lambda ending: ending.rank)
    lines = [_headline(leading, endings), *_peer_lines(peers, leading)]
    error = RankThreadError("\n".join(lines), leading.rank)
    for peer in peers:
        if peer.outcome is Outcome.FAILED and peer.error is not None and not _is_identical(peer, leading):
            error.add_note(f"rank {peer.rank}:\n{''.join(traceback.format_exception(peer.error)).rstrip()}")
    return error


def _peer_lines(peers: Sequence[Ending], leading: Ending) -> Iterator[str]:
    """One line for each group of peers with the same outcome."""
    groups = by_key(((_describe_peer(peer, leading), _where(peer)), peer.rank) for peer in peers)
    for (description, where), ranks in groups.items():
        subject = "it" if len(ranks) == 1 else "each"
        yield f"  {format_ranks(ranks)} {description}{f': {subject} {where}' if where else ''}"


def _headline(leading: Ending, endings: Sequence[Ending]) -> str:
    who = f"rank {leading.rank} of {len(endings)}"
    match leading.outcome:
        case Outcome.FAILED:
            return f"{who} failed first: {_first_line(leading.error)}"
        case Outcome.TIMED_OUT:
            limit = f": not finished after {leading.limit.words()}" if leading.limit else ""
            return f"{who} timed out{limit}; it {_where(leading)}"
        case _:
            return f"ranks disagree: {who} skipped ({_first_line(leading.error)})"


def _describe_peer(peer: Ending, leading: Ending) -> str:
    match peer.outcome:
        case Outcome.FAILED if _is_identical(peer, leading):
            return "failed with the same error"
        case Outcome.FAILED:
            return f"failed: {_first_line(peer.error)}"
        case Outcome.ABORTED:
            skipped = ", which skipped" if leading.outcome is Outcome.SKIPPED else ""
            return f"aborted by rank {leading.rank}{skipped}"
        case Outcome.TIMED_OUT:
            return "timed out"
        case Outcome.SKIPPED:
            return f"skipped: {_first_line(peer.error)}"
        case _:
            return str(peer.outcome)


def _where(ending: Ending) -> str:
    """What a rank was doing when it was stopped, such as "was in FILE:LINE in NAME"; empty if it ended by itself."""
    if ending.outcome not in {Outcome.ABORTED, Outcome.TIMED_OUT}:
        return ""
    where = "waited for its peers" if ending.is_waiting else "was"
    where += f" in {ending.location}" if ending.location else " stopped"
    return f"{where}; its thread could not be interrupted and still runs" if ending.is_abandoned else where


def _is_identical(peer: Ending, leading: Ending) -> bool:
    return _first_line(peer.error) == _first_line(leading.error)


def _first_line(error: BaseException | None) -> str:
    if isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return str(error)
    text = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    return next(iter(text.splitlines()), "")


_MODULE = "torch.testing._internal.distributed.multi_threaded_pg"
_NEEDED = ("_install_threaded_pg", "_uninstall_threaded_pg", "ProcessLocalGroup", "ThreadLocalWorld")


class ThreadedWorldError(RuntimeError):
    """Ranks cannot be threads: torch does not support it, or this process already has a threaded world."""


class ThreadedWorld:
    """The process groups of ranks that are threads, inside :func:`threaded_world`."""

    def __init__(self, backend: ModuleType, size: int) -> None:
        self._backend = backend
        self._group: Any = backend.ProcessLocalGroup
        self._world = _current_world()
        self._store = HashStore()
        self.size = size

    @contextmanager
    def member(self, rank: int, timeout: float) -> Iterator[None]:
        """Give the calling thread a default process group in which it is `rank`."""
        dist.init_process_group(
            "threaded", rank=rank, world_size=self.size, store=self._store, timeout=timedelta(seconds=timeout)
        )
        try:
            yield
        finally:
            # The test may have destroyed its group. An abandoned thread that ends after this world has been closed must
            # not destroy the process's own group.
            if _current_world() is self._world and dist.is_initialized():
                dist.destroy_process_group()

    def terminate(self) -> None:
        """End all ranks that wait in a collective, or enter one later: torch raises ``SystemExit`` in them."""
        # While the lock is held, no rank can start a collective.
        with self._group._coll_lock:  # noqa: SLF001 - torch has no public API for this
            self._group.exception_handle(None)

    def is_termination(self, error: BaseException) -> bool:
        """Whether :meth:`terminate` caused this error."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        return isinstance(error, SystemExit) and bool(frames) and self.defines(frames[-1].f_code.co_filename)

    def defines(self, filename: str) -> bool:
        """Whether this is the file of torch's threaded group."""
        return filename == self._backend.__file__

    def reset(self) -> None:
        """Clear all collectives, and the state that :meth:`terminate` sets."""
        self._group.reset()


@contextmanager
def threaded_world(size: int) -> Iterator[ThreadedWorld]:
    """Give each thread its own world during the ``with`` block, and restore the process's world at the end.

    The process's own default process group is hidden in the block, and remains intact.
    """
    backend = _backend()
    if isinstance(_current_world(), backend.ThreadLocalWorld):
        msg = "ranks that are threads cannot start other ranks: this process already has a threaded world"
        raise ThreadedWorldError(msg)
    backend._install_threaded_pg()  # noqa: SLF001 - torch has no public API for this
    _isolate_threads(True)
    world = ThreadedWorld(backend, size)
    try:
        yield world
    finally:
        world.reset()
        _isolate_threads(False)
        backend._uninstall_threaded_pg()  # noqa: SLF001 - torch has no public API for this


def _backend() -> ModuleType:
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        raise _unsupported_torch(str(error)) from error
    if missing := [name for name in _NEEDED if not hasattr(module, name)]:
        why = f"{_MODULE} has no {', '.join(missing)}"
        raise _unsupported_torch(why)
    return module


def _unsupported_torch(why: str) -> ThreadedWorldError:
    msg = f"allranks does not support the threaded process group of torch {torch.__version__}: {why}"
    return ThreadedWorldError(msg)


def _current_world() -> object:
    return dist.distributed_c10d._world  # noqa: SLF001 - torch has no public API for this


def _isolate_threads(is_on: bool) -> None:
    """Give each thread its own table of groups for functional collectives, if this version of torch supports it."""
    switch = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode", None)  # noqa: SLF001 - as above
    if switch is not None:
        switch(is_on)


@dataclass(frozen=True, kw_only=True)
class JoinLimits:
    """How long to wait for ranks, in seconds."""

    total: TimeLimit  # the time limit of the test
    settling: float = 0.2  # for the peers of a failed rank to end by themselves, for example with the same failure
    grace: float = 3.0  # for peers of a rank that skipped to end by themselves, and for ranks to end on request


def run_ranks(size: int, body: Callable[[int], object], limits: JoinLimits) -> list[Ending]:
    """Run ``body(rank)`` in one thread for each rank, with a default process group.

    Returns:
        How each rank ended, in the order in which they ended, followed by the ranks that were stopped.
    """
    with threaded_world(size) as world:
        threads = _RankThreads(world, body, limits)
        try:
            threads.start()
            threads.wait()
        finally:
            threads.stop()
        return threads.endings


class _RankThreads:
    def __init__(self, world: ThreadedWorld, body: Callable[[int], object], limits: JoinLimits) -> None:
        self._world = world
        self._body = body
        self._limits = limits
        self._ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        # Daemon threads: a thread that cannot be interrupted must not keep the process alive.
        self._threads = {
            rank: threading.Thread(target=self._run_rank, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(world.size)
        }
        self._stopped: dict[int, Ending] = {}
        self.endings: list[Ending] = []

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def _run_rank(self, rank: int) -> None:
        error = None
        try:
            with self._world.member(rank, self._limits.total.seconds):
                self._body(rank)
        except BaseException as caught:  # noqa: BLE001 - every exception is an outcome
            error = caught
        self._ended.put((rank, error))

    def wait(self) -> None:
        """Wait for all ranks, but only briefly after one has failed or skipped."""
        deadline = time.monotonic() + self._limits.total.seconds
        while self._live and all(ending.outcome is Outcome.PASSED for ending in self.endings):
            if not self._take(deadline):
                self._mark_live(Outcome.TIMED_OUT)
                return
        has_failed = any(ending.outcome.is_bad for ending in self.endings)
        self._collect(self._limits.settling if has_failed else self._limits.grace)

    def stop(self) -> None:
        """Stop the running ranks: first in their collectives, then by an exception; abandon the others."""
        # Peers of a failed rank may still pass during the longer grace period. Ranks that timed out cannot.
        grace = self._limits.settling if self._stopped else self._limits.grace
        self._mark_live(Outcome.ABORTED)
        if self._live:
            self._world.terminate()
            self._collect(grace)
        for rank in self._live:
            _raise_in(self._threads[rank])
        self._collect(self._limits.grace)
        self.endings += [replace(self._stopped[rank], is_abandoned=True) for rank in self._live]

    @property
    def _live(self) -> list[int]:
        ended = {ending.rank for ending in self.endings}
        return [rank for rank in self._threads if rank not in ended]

    def _collect(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._live and self._take(deadline):
            pass

    def _take(self, deadline: float) -> bool:
        """Wait for the next rank to end; returns whether one did before the deadline."""
        try:
            rank, error = self._ended.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            return False
        self._threads[rank].join()
        self.endings.append(self._ending(rank, error))
        return True

    def _ending(self, rank: int, error: BaseException | None) -> Ending:
        """How a rank ended, ignoring errors that were caused by stopping it, and any end after a timeout."""
        stopped = self._stopped.get(rank)
        if stopped is None or (stopped.outcome is Outcome.ABORTED and not self._was_stopped(error)):
            return _ending_of(rank, error)
        return stopped

    def _was_stopped(self, error: BaseException | None) -> bool:
        """Whether stopping the rank caused this error, possibly through a cleanup that raised another one."""
        while error is not None:
            if isinstance(error, StopRank) or self._world.is_termination(error):
                return True
            error = error.__context__
        return False

    def _mark_live(self, outcome: Outcome) -> None:
        for rank in self._live:
            if rank not in self._stopped:
                self._stopped[rank] = self._where(rank, outcome)

    def _where(self, rank: int, outcome: Outcome) -> Ending:
        frame = sys._current_frames().get(self._threads[rank].ident or 0)  # noqa: SLF001 - documented, for debuggers
        # walk_stack(None) would walk the stack of this thread.
        frames = traceback.walk_stack(frame) if frame is not None else ()
        is_waiting = any(self._world.defines(outer.f_code.co_filename) for outer, _ in frames)
        location, limit = _location(frame), self._limits.total
        return Ending(rank=rank, outcome=outcome, location=location, is_waiting=is_waiting, limit=limit)


class StopRank(BaseException):
    """Ends the thread of a rank that does not end by itself; not an ``Exception``, so that tests do not catch it."""


def _raise_in(thread: threading.Thread) -> None:
    """Raise :class:`StopRank` in a thread, at its next Python instruction."""
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(StopRank))


P = ParamSpec("P")

DEFAULT_WORLD_SIZE = 4


class MultiThreadedTestCase(TensorEquality, unittest.TestCase):
    """A test case in which each test method runs in several threads, which are the ranks.

    Each rank has a default process group with the backend ``threaded``, and a shallow copy of the test case with its
    own ``rank``, so attributes that ``setUp`` sets are available in all ranks. Each test runs in this order::

        setUp                                   in the main thread, where rank is MAIN_THREAD_RANK
            perThreadSetUp, test, perThreadTearDown, the rank's cleanups          in each rank
        tearDown                                in the main thread

    If a rank fails, even in a hook, the test ends, and peers that wait in a collective are stopped. The error, a
    :class:`~allranks.testing.RankThreadError`, names the leading rank and the outcomes of its peers. The test is
    skipped if all ranks skip. If only some ranks skip, the test fails.

    The threads share the random number generators, the environment variables and the working directory of the process.
    The group supports collectives, but not ``send`` and ``recv``.
    """

    # The class creates its own process groups, so the agent must not create one.
    pytestmark: ClassVar[pytest.MarkDecorator] = unregistered_mark("no_process_group")

    MAIN_THREAD_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case in the main thread."""

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803 - the name of unittest
        super().__init__(methodName)
        self.rank = self.MAIN_THREAD_RANK
        self._cleanups_of_rank: ExitStack | None = None
        test = getattr(self, methodName, None)
        if test is not None:
            setattr(self, methodName, self._in_all_ranks(methodName, test))

    @property
    def world_size(self) -> int:
        """The number of ranks; override this property to change it."""
        return DEFAULT_WORLD_SIZE

    @property
    def thread_timeout(self) -> float:
        """Time limit of a test in seconds, including hooks; override this property to change it.

        The default is the value of ``DISTRIBUTED_TESTS_DEFAULT_TIMEOUT``, or 300.
        """
        return default_timeout()

    def perThreadSetUp(self) -> None:  # noqa: N802 - torch's name
        """Called in each rank before the test, with its process group; override it to set up the rank."""

    def perThreadTearDown(self) -> None:  # noqa: N802 - torch's name
        """Called in each rank after the test, even if it failed, unless :meth:`perThreadSetUp` failed."""

    def addCleanup(  # noqa: N802 - unittest's name
        self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Register a function that is called after the test; in a rank, it is called in the rank's thread."""
        if self._cleanups_of_rank is None:
            super().addCleanup(function, *args, **kwargs)
        else:
            self._cleanups_of_rank.callback(function, *args, **kwargs)

    def assertEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Fail unless both values are equal, but only on the rank `rank`.

        Use it, for example, for values that depend on the shared random number generators.
        """
        if self.rank == rank:
            self.assertEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def assertNotEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Fail if both values are equal, but only on the rank `rank`."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def _spawn_threads(self) -> None:
        """Do nothing; called by suites that were written for torch's class. Threads start with the test."""

    def _in_all_ranks(self, name: str, test: Callable[[], object]) -> Callable[[], None]:
        @functools.wraps(test)
        def in_all_ranks(self: MultiThreadedTestCase) -> None:
            is_own = type(self).thread_timeout is not MultiThreadedTestCase.thread_timeout
            limit = TimeLimit(value=self.thread_timeout, setting="thread_timeout") if is_own else default_limit()
            raise_for(run_ranks(self.world_size, lambda rank: self._be_rank(rank, name), JoinLimits(total=limit)))

        # A bound method, because pytest and unittest expect one.
        return types.MethodType(in_all_ranks, self)

    def _be_rank(self, rank: int, name: str) -> None:
        case = copy.copy(self)
        # Remove the wrapper, an attribute of the instance, so that the method itself is called.
        vars(case).pop(name, None)
        with ExitStack() as cleanups:
            # Without an _outcome, a failed subtest ends its rank. Threads cannot share one result object.
            vars(case).update(rank=rank, _cleanups_of_rank=cleanups, _outcome=None)
            case.perThreadSetUp()
            try:
                getattr(case, name)()
            finally:
                case.perThreadTearDown()


def spawn_threads_and_init_comms(
    *, world_size: int = DEFAULT_WORLD_SIZE, timeout: float | None = None
) -> Callable[[Callable[P, object]], Callable[P, None]]:
    """Run a test function or method in several threads, each of which is a rank of a threaded process group.

    All ranks get the same objects as arguments. Use ``torch.distributed.get_rank()`` to distinguish the ranks.

    Args:
        world_size: The number of ranks.
        timeout: Time limit of the test in seconds; None for the value of ``DISTRIBUTED_TESTS_DEFAULT_TIMEOUT``, or 300.

    Returns:
        A decorator. The decorated test raises the same errors as a test of :class:`MultiThreadedTestCase`.
    """

    def decorate(test: Callable[P, object]) -> Callable[P, None]:
        @functools.wraps(test)
        def in_all_ranks(*args: P.args, **kwargs: P.kwargs) -> None:
            own = None if timeout is None else TimeLimit(value=timeout, setting="timeout of the decorator")
            limits = JoinLimits(total=own or default_limit())
            raise_for(run_ranks(world_size, lambda _rank: test(*args, **kwargs), limits))

        return in_all_ranks

    return decorate
