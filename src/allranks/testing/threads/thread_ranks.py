"""Run a body in one thread for each rank, to the end of the last of them."""

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome
from allranks.testing.threads.report import Ending, ending_of, frame_of, place_of
from allranks.testing.threads.thread_world import ThreadedWorld, threaded_world


@dataclass(frozen=True, kw_only=True)
class JoinLimits:
    """How long to wait for ranks, in seconds.

    Attributes:
        total: The time limit of a whole test.
        settling: After a rank failed, for its peers to end by themselves, as they do if all fail alike.
        grace: The same after a rank skipped; also for every rank to end after a request.
    """

    total: TimeLimit
    settling: float = 0.2
    grace: float = 3.0


def run_ranks(size: int, body: Callable[[int], None], patience: JoinLimits) -> list[Ending]:
    """Run ``body(rank)`` in a thread for each rank, each with a default process group.

    Args:
        size: The number of ranks.
        body: Runs in each rank.
        patience: The time limits.

    Returns:
        How each rank ended, in the order of their ends; those that were stopped come last.

    Raises:
        ThreadedWorldError: Ranks cannot be threads here.
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
