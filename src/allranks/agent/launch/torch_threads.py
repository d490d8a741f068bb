"""Adapts torch's ``MultiThreadedTestCase``: its ranks remain threads, and the outcome of every thread counts.

torch only considers exceptions derived from ``Exception``, and torch's exit codes, that a test raises in a thread.
Without the adapter, a thread would pass if it was never started, or if it ended outside of its test, by another exit or
by ``pytest.fail``; and if one thread skipped, the whole test would be skipped.
"""

import sys
import traceback
import unittest
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import pytest

from allranks.agent.launch.own_ranks import no_ranks_error
from allranks.agent.launch.torch_processes import check_world, launch_context_of
from allranks.agent.rank.reports import skip_with_code
from allranks.protocol.skip_codes import is_success

HOOKS = ("_run", "_spawn_threads", "_join_threads", "_check_return_codes")
"""Methods that torch's class must have."""

_Info = tuple[type[BaseException], BaseException, TracebackType | None]


def adapt_threads(base: Any) -> None:  # noqa: ANN401 - torch's class has no types
    """Make torch's class, and all classes derived from it, consider the outcome of every thread."""
    run, join, check = (vars(base)[name].__func__ for name in ("_run", "_join_threads", "_check_return_codes"))
    spawn = base._spawn_threads  # noqa: SLF001
    groups = sys.modules[base.__module__].ProcessLocalGroup

    def run_to_its_end(cls: Any, /, test: str, rank: int, *args: object, **kwargs: object) -> None:  # noqa: ANN401
        try:
            run(cls, test, rank, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - like torch inside of the test
            cls.exception_queue.put((rank, sys.exc_info()))
            groups.exception_handle(error)

    def spawn_threads(self: Any) -> None:  # noqa: ANN401
        check_world(self.world_size)
        spawn(self)

    def join_threads(cls: Any, /, threads: Sequence[object], fn: Callable[[], object]) -> None:  # noqa: ANN401
        if not threads:
            raise no_ranks_error(fn.__qualname__, "_spawn_threads")
        try:
            join(cls, threads, fn)
        except (unittest.SkipTest, pytest.xfail.Exception) as skip:
            case: Any = getattr(fn, "__self__", None)
            if cls.allranks_left < len(threads) and not launch_context_of(case).launch_options(case).may_disagree:
                msg = f"ranks disagree: {cls.allranks_left} of {len(threads)} did not pass, the others did: {skip}"
                raise AssertionError(msg) from skip
            raise

    def check_all(cls: Any, /, failed: Sequence[tuple[int, _Info]], *args: object, **kwargs: object) -> None:  # noqa: ANN401
        judged = list(_judged(failed))
        cls.allranks_left = len(judged)
        if failed and all(isinstance(error, pytest.xfail.Exception) for _, (_, error, _) in failed):
            raise failed[0][1][1]
        check(cls, judged, *args, **kwargs)

    base._run, base._spawn_threads = classmethod(run_to_its_end), spawn_threads  # noqa: SLF001
    base._join_threads, base._check_return_codes = classmethod(join_threads), classmethod(check_all)  # noqa: SLF001


def _judged(failed: Sequence[tuple[int, _Info]]) -> Iterator[tuple[int, _Info]]:
    """Convert the ends of threads to what torch considers: failures, its skips, and consequences of these."""
    ends = [(rank, end) for rank, end in failed if not (isinstance(end[1], SystemExit) and is_success(end[1].code))]
    has_cause = not all(_was_ended(error, trace) for _, (_, error, trace) in ends)
    for rank, (kind, error, trace) in ends:
        if isinstance(error, Exception) or skip_with_code(error) or (has_cause and _was_ended(error, trace)):
            yield rank, (kind, error, trace)
        elif isinstance(error, pytest.skip.Exception):
            yield rank, (unittest.SkipTest, unittest.SkipTest(str(error)), trace)
        else:
            msg = f"the rank's thread ended during the test: {type(error).__name__}: {error}"
            yield rank, (RuntimeError, RuntimeError(msg), trace)


def _was_ended(error: BaseException, trace: TracebackType | None) -> bool:
    """Whether torch ended a thread in a collective, because another thread had left the test."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    own = frames[-1].f_globals.get("__name__", "") if frames else ""
    return isinstance(error, SystemExit) and own.endswith(".multi_threaded_pg")
