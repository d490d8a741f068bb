"""Test cases whose ranks are threads of one process: for tests that need neither processes nor network.

torch has no public process group for threads. Its own suites use the private module
``torch.testing._internal.distributed.multi_threaded_pg``. So does this module; no other module of allranks may.
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
from types import FrameType, ModuleType, TracebackType
from typing import Any, ClassVar, ParamSpec, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but not exported for mypy

from allranks.agent.diagnose.unmatched_calls import words_for_ranks
from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.launch.plain import default_limit, default_timeout
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome
from allranks.protocol.skip_codes import SkipCode
from allranks.testing.markers import unregistered_mark
from allranks.testing.tensors import TensorEquality


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended."""

    rank: int  # the rank
    outcome: Outcome  # ``passed``, ``failed``, ``skipped``, ``aborted`` or ``timed_out``
    error: BaseException | None = None  # the exception that it raised, if any
    place: str = ""  # where it was when it was stopped; empty for a rank that ended by itself
    is_waiting: bool = False  # whether it was stopped while it waited for its peers in a collective
    is_left: bool = False  # whether its thread still runs, in a call that Python cannot interrupt
    limit: TimeLimit | None = None  # the time limit of the test


def ending_of(rank: int, error: BaseException | None) -> Ending:
    """The ending of a rank that ended by itself.

    An exit with one of torch's skip codes is a skip. Every other exit is a failure: a rank that leaves in mid-test has
    not passed.
    """
    if error is None:
        return Ending(rank=rank, outcome=Outcome.PASSED)
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code in set(SkipCode):
        error = EnvironmentSkip(SkipCode(error.code))
    skipped = isinstance(error, unittest.SkipTest | pytest.skip.Exception)
    return Ending(rank=rank, outcome=Outcome.SKIPPED if skipped else Outcome.FAILED, error=error)


def frame_of(thread: int | None) -> FrameType | None:
    """The innermost frame of a live thread."""
    return None if thread is None else sys._current_frames().get(thread)  # noqa: SLF001 - documented, for debuggers


def place_of(frame: FrameType | None, *, below: str) -> str:
    """``FILE:LINE in NAME`` of the innermost call in the test that is not torch's or Python's own."""
    stack = traceback.extract_stack(frame) if frame is not None else []
    files = [summary.filename for summary in stack]
    start = len(files) - files[::-1].index(below) if below in files else 0
    inside = stack[start:] or stack
    own = [summary for summary in inside if not _is_library(summary.filename)] or inside
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library(filename: str) -> bool:
    return "/site-packages/" in filename or filename.startswith((sys.base_prefix, sys.prefix, "<"))


class RankThreadError(AssertionError):
    """A test was bad on at least one rank that is a thread.

    Its cause is the exception of the leading rank; the tracebacks of other failed ranks are in its notes.

    Args:
        message: The leading rank and its outcome, then one line for all peers that ended alike.
        leading: The rank that was bad first.
    """

    def __init__(self, message: str, leading: int) -> None:
        self.leading = leading
        super().__init__(message)


def raise_for(endings: Sequence[Ending]) -> None:
    """Return if all ranks passed, skip if all skipped, else fail.

    Args:
        endings: How the ranks ended, in the order of their ends.

    Raises:
        RankThreadError: A rank failed or did not end; or only some ranks skipped.
        unittest.SkipTest, pytest.skip.Exception: All ranks skipped; this is the skip of the first.
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
    """The first failed rank; else one that timed out, preferably not while waiting for its peers; else a skip."""

    def among(outcome: Outcome) -> list[Ending]:
        return [ending for ending in endings if ending.outcome is outcome]

    # All timed out at the same moment, so the order in which they were stopped is meaningless.
    timed_out = sorted(among(Outcome.TIMED_OUT), key=lambda ending: (ending.is_waiting, ending.rank))
    return next(iter([*among(Outcome.FAILED), *timed_out, *among(Outcome.SKIPPED)]), None)


def _error(leading: Ending, endings: Sequence[Ending]) -> RankThreadError:
    peers = sorted((ending for ending in endings if ending is not leading), key=lambda ending: ending.rank)
    lines = [_headline(leading, endings), *_peer_lines(peers, leading)]
    error = RankThreadError("\n".join(lines), leading.rank)
    for peer in peers:
        if peer.outcome is Outcome.FAILED and peer.error is not None and not _is_alike(peer, leading):
            error.add_note(f"rank {peer.rank}:\n{''.join(traceback.format_exception(peer.error)).rstrip()}")
    return error


def _peer_lines(peers: Sequence[Ending], leading: Ending) -> Iterator[str]:
    """One line for all peers that ended alike."""
    alike: dict[tuple[str, str], list[int]] = {}
    for peer in peers:
        alike.setdefault((_peer_words(peer, leading), _where(peer)), []).append(peer.rank)
    for (words, place), ranks in alike.items():
        subject = "it" if len(ranks) == 1 else "each"
        yield f"  {words_for_ranks(ranks)} {words}{f': {subject} {place}' if place else ''}"


def _headline(leading: Ending, endings: Sequence[Ending]) -> str:
    who = f"rank {leading.rank} of {len(endings)}"
    match leading.outcome:
        case Outcome.FAILED:
            return f"{who} failed first: {_first_line(leading.error)}"
        case Outcome.TIMED_OUT:
            limit = f": no end after {leading.limit.words()}" if leading.limit else ""
            return f"{who} timed out{limit}; it {_where(leading)}"
        case _:
            return f"ranks disagree: {who} skipped ({_first_line(leading.error)})"


def _peer_words(peer: Ending, leading: Ending) -> str:
    match peer.outcome:
        case Outcome.FAILED if _is_alike(peer, leading):
            return "failed alike"
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
    """What a rank did when it was stopped, as in "was in file:line in name"; empty if it ended by itself."""
    if ending.outcome not in {Outcome.ABORTED, Outcome.TIMED_OUT}:
        return ""
    words = "waited for its peers" if ending.is_waiting else "was"
    words += f" in {ending.place}" if ending.place else " stopped"
    return f"{words}; its thread cannot be broken off and is left" if ending.is_left else words


def _is_alike(peer: Ending, leading: Ending) -> bool:
    return _first_line(peer.error) == _first_line(leading.error)


def _first_line(error: BaseException | None) -> str:
    if isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return str(error)
    text = "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    return next(iter(text.splitlines()), "")


_MODULE = "torch.testing._internal.distributed.multi_threaded_pg"
_NEEDED = ("_install_threaded_pg", "_uninstall_threaded_pg", "ProcessLocalGroup", "ThreadLocalWorld")


class ThreadedWorldError(RuntimeError):
    """Ranks cannot be threads here."""


class ThreadedWorld:
    """The process groups of ranks that are threads, within :func:`threaded_world`."""

    def __init__(self, backend: ModuleType, size: int) -> None:
        self._backend = backend
        self._group: Any = backend.ProcessLocalGroup
        self._world = _current_world()
        self._store = HashStore()
        self.size = size

    @contextmanager
    def member(self, rank: int, timeout: float) -> Iterator[None]:
        """Give the calling thread, which becomes this rank, a default process group."""
        dist.init_process_group(
            "threaded", rank=rank, world_size=self.size, store=self._store, timeout=timedelta(seconds=timeout)
        )
        try:
            yield
        finally:
            # A test may have destroyed its group itself. A thread that was left running, and ends after its world, must
            # not destroy the group of the process.
            if _current_world() is self._world and dist.is_initialized():
                dist.destroy_process_group()

    def terminate(self) -> None:
        """Wake every rank that waits in a collective, or enters one later: torch raises ``SystemExit`` in it."""
        # With the lock held, no rank can add a collective to those that are being woken.
        with self._group._coll_lock:  # noqa: SLF001 - torch has no other way
            self._group.exception_handle(None)

    def is_termination(self, error: BaseException) -> bool:
        """Whether an error is the one that :meth:`terminate` causes."""
        return isinstance(error, SystemExit) and self._is_inside(error.__traceback__)

    def _is_inside(self, traceback: TracebackType | None) -> bool:
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback is not None and self.has_file(traceback.tb_frame.f_code.co_filename)

    def has_file(self, filename: str) -> bool:
        """Whether a file is that of torch's threaded group."""
        return filename == self._backend.__file__

    def reset(self) -> None:
        """Clear all collectives and the termination."""
        self._group.reset()


@contextmanager
def threaded_world(size: int) -> Iterator[ThreadedWorld]:
    """Give each thread its own world, and restore the process's world at the end.

    A default process group of this process is hidden meanwhile, and stays intact.
    """
    backend = _backend()
    if isinstance(_current_world(), backend.ThreadLocalWorld):
        msg = "ranks that are threads cannot have ranks of their own: this process has a threaded world already"
        raise ThreadedWorldError(msg)
    backend._install_threaded_pg()  # noqa: SLF001 - torch has no other way
    _isolate_threads(True)
    world = ThreadedWorld(backend, size)
    try:
        yield world
    finally:
        world.reset()
        _isolate_threads(False)
        backend._uninstall_threaded_pg()  # noqa: SLF001 - torch has no other way


def _backend() -> ModuleType:
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        why = str(error)
        raise _lacking(why) from error
    lacking = [name for name in _NEEDED if not hasattr(module, name)]
    if lacking:
        why = f"{_MODULE} has no {', '.join(lacking)}"
        raise _lacking(why)
    return module


def _lacking(why: str) -> ThreadedWorldError:
    msg = f"torch {torch.__version__} has no process group for threads that allranks supports: {why}"
    return ThreadedWorldError(msg)


def _current_world() -> object:
    return dist.distributed_c10d._world  # noqa: SLF001 - torch has no other way


def _isolate_threads(is_on: bool) -> None:
    """Give each thread its own table of groups for functional collectives, if this torch can."""
    switch = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode", None)  # noqa: SLF001 - as above
    if switch is not None:
        switch(is_on)


@dataclass(frozen=True, kw_only=True)
class JoinLimits:
    """How long to wait for ranks, in seconds."""

    total: TimeLimit  # the time limit of a whole test
    settling: float = 0.2  # after a rank failed, for its peers to end by themselves, as they do if all fail alike
    grace: float = 3.0  # the same after a rank skipped; also for every rank to end after a request


def run_ranks(size: int, body: Callable[[int], None], patience: JoinLimits) -> list[Ending]:
    """Run ``body(rank)`` in a thread for each rank, each with a default process group.

    Returns how each rank ended, in the order of their ends; those that were stopped come last.
    """
    with threaded_world(size) as world:
        crew = _Crew(world, body, patience)
        try:
            crew.start()
            crew.wait()
        finally:
            crew.stop()
        return crew.endings


class _Crew:
    def __init__(self, world: ThreadedWorld, body: Callable[[int], None], patience: JoinLimits) -> None:
        self._world = world
        self._body = body
        self._patience = patience
        self._ended: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        # Daemons: a thread that cannot be interrupted must not keep the process alive.
        self._threads = {
            rank: threading.Thread(target=self._be, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(world.size)
        }
        self._stopped: dict[int, Ending] = {}
        self.endings: list[Ending] = []

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def _be(self, rank: int) -> None:
        error = None
        try:
            with self._world.member(rank, self._patience.total.seconds):
                self._body(rank)
        except BaseException as caught:  # noqa: BLE001 - whatever ends a rank is its outcome
            error = caught
        self._ended.put((rank, error))

    def wait(self) -> None:
        """Wait for all ranks, but only briefly once one has not passed."""
        deadline = time.monotonic() + self._patience.total.seconds
        while self._live and not self._went_wrong:
            if not self._take(deadline):
                self._mark_live(Outcome.TIMED_OUT)
                return
        self._collect(self._patience.settling if self._has_failed else self._patience.grace)

    def stop(self) -> None:
        """End all live ranks: first through their collectives, then by an exception; the rest is left running."""
        # Peers of a bad rank may still end well in the longer grace; ranks that timed out had their time.
        grace = self._patience.settling if self._stopped else self._patience.grace
        self._mark_live(Outcome.ABORTED)
        if self._live:
            self._world.terminate()
            self._collect(grace)
        for rank in self._live:
            _raise_in(self._threads[rank])
        self._collect(self._patience.grace)
        self.endings += [replace(self._stopped[rank], is_left=True) for rank in self._live]

    @property
    def _live(self) -> list[int]:
        gone = {ending.rank for ending in self.endings}
        return [rank for rank in self._threads if rank not in gone]

    @property
    def _has_failed(self) -> bool:
        return any(ending.outcome.is_bad for ending in self.endings)

    @property
    def _went_wrong(self) -> bool:
        return any(ending.outcome is not Outcome.PASSED for ending in self.endings)

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
        """How a rank ended; errors that our stop caused are ignored, and so is any end after a time-out."""
        stopped = self._stopped.get(rank)
        if stopped is None:
            return ending_of(rank, error)
        if stopped.outcome is Outcome.ABORTED and not self._is_end(error):
            return ending_of(rank, error)
        return stopped

    def _is_end(self, error: BaseException | None) -> bool:
        """Whether our stop caused an error: directly, or through a clean-up that raised another one."""
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
        frame = frame_of(self._threads[rank].ident)
        innermost, is_waiting = frame, False
        while innermost is not None:
            is_waiting = is_waiting or self._world.has_file(innermost.f_code.co_filename)
            innermost = innermost.f_back
        place, limit = place_of(frame, below=__file__), self._patience.total
        return Ending(rank=rank, outcome=outcome, place=place, is_waiting=is_waiting, limit=limit)


class StopRank(BaseException):
    """Ends the thread of a rank that does not end by itself; ``except Exception`` does not catch it."""


def _raise_in(thread: threading.Thread) -> None:
    """Raise :class:`StopRank` in a thread, at its next Python instruction."""
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(StopRank))


P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_WORLD_SIZE = 4


class MultiThreadedTestCase(TensorEquality, unittest.TestCase):
    """A test case whose test methods run once in each of several threads, which are the ranks.

    Every rank has a default process group of the backend ``threaded``, and a shallow copy of the test case with its
    own ``rank``, so each rank has the attributes that :meth:`setUp` sets on ``self``. The order for one test::

        setUp                                   in the main thread, where rank is MAIN_THREAD_RANK
            perThreadSetUp, test, perThreadTearDown, clean-ups of that rank       in each rank
        tearDown                                in the main thread

    A rank that fails, even in a hook, ends the test: its peers are woken if they wait in a collective. The error, a
    :class:`~allranks.testing.RankThreadError`, names the first bad rank and the outcome of each peer. The test is
    skipped if all ranks skip; if only some do, the ranks disagree, and that is an error.

    All threads share the random number generators of the process, its environment and its working directory. The group
    supports the collectives of torch's threaded group, but not ``send`` and ``recv``.
    """

    # Its ranks have their own world, so an agent need not create one.
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
        """The number of ranks. Override it to change that."""
        return DEFAULT_WORLD_SIZE

    @property
    def thread_timeout(self) -> float:
        """Time limit of a test in seconds, hooks included. Override it to change :func:`default_timeout`."""
        return default_timeout()

    def perThreadSetUp(self) -> None:  # noqa: N802 - torch's name
        """Run in each rank before the test, with its process group."""

    def perThreadTearDown(self) -> None:  # noqa: N802 - torch's name
        """Run in each rank after the test, however it ended, if :meth:`perThreadSetUp` did not fail."""

    def addCleanup(  # noqa: N802 - unittest's name
        self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call ``function`` at the end; in a rank, in its thread after its test, as a part of the test."""
        if self._cleanups_of_rank is None:
            super().addCleanup(function, *args, **kwargs)
        else:
            self._cleanups_of_rank.callback(function, *args, **kwargs)

    def assertEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Compare on one rank only, for instance values that depend on the shared random numbers."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def assertNotEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Compare on one rank only."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def _spawn_threads(self) -> None:
        """Do nothing: threads start with the test. Suites written for torch's class call this."""

    def _in_all_ranks(self, name: str, test: Callable[[], object]) -> Callable[[], None]:
        @functools.wraps(test)
        def in_all_ranks(self: MultiThreadedTestCase) -> None:
            is_own = type(self).thread_timeout is not MultiThreadedTestCase.thread_timeout
            limit = TimeLimit(value=self.thread_timeout, setting="thread_timeout") if is_own else default_limit()
            raise_for(run_ranks(self.world_size, lambda rank: self._be_rank(rank, name), JoinLimits(total=limit)))

        # A bound method, like the one that it replaces: unittest treats a function as a test factory.
        return types.MethodType(in_all_ranks, self)

    def _be_rank(self, rank: int, name: str) -> None:
        case = copy.copy(self)
        # Remove the wrapper, an attribute of the instance, so that the method itself is called.
        vars(case).pop(name, None)
        with ExitStack() as cleanups:
            # Without an _outcome, a failed subtest ends its rank: several threads cannot write to one result.
            vars(case).update(rank=rank, _cleanups_of_rank=cleanups, _outcome=None)
            case.perThreadSetUp()
            try:
                getattr(case, name)()
            finally:
                case.perThreadTearDown()


def spawn_threads_and_init_comms(
    *, world_size: int = DEFAULT_WORLD_SIZE, timeout: float | None = None
) -> Callable[[Callable[P, object]], Callable[P, None]]:
    """Run a test function or method in several threads, each with a rank of one threaded process group.

    The arguments are the same objects in all ranks; ``torch.distributed.get_rank()`` distinguishes the ranks.

    Args:
        world_size: The number of ranks.
        timeout: Time limit of the test in seconds; None for :func:`default_timeout`.

    Returns:
        A decorator. The decorated test raises the errors of a :class:`MultiThreadedTestCase`.
    """

    def decorate(test: Callable[P, object]) -> Callable[P, None]:
        @functools.wraps(test)
        def in_all_ranks(*args: P.args, **kwargs: P.kwargs) -> None:
            own = None if timeout is None else TimeLimit(value=timeout, setting="timeout of the decorator")
            patience = JoinLimits(total=own or default_limit())
            raise_for(run_ranks(world_size, lambda _rank: _discard(test(*args, **kwargs)), patience))

        return in_all_ranks

    return decorate


def _discard(_returned: object) -> None:
    """Drop the return value of a test."""
