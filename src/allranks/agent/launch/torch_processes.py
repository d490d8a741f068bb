"""Adapts torch's ``MultiProcessTestCase``: every rank becomes a fork whose outcome counts.

torch's class starts ranks in ``_start_processes`` and waits for them in ``_join_processes``. These two methods are
replaced on the class itself, so derived classes use the replacements. Everything else remains torch's, also in the
ranks: ``_run`` and ``run_test`` with their overrides in derived classes, the pipes, the random seed, and destroying the
process group.
"""

import functools
import inspect
import logging
import signal
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from allranks.agent import clock
from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.launch.launch import LaunchContext, LaunchedRanks
from allranks.agent.launch.launched_rank import LaunchedRank, RankOptions, forget_rank
from allranks.agent.launch.own_ranks import ExpectedExits, OwnRanks, exit_process, expected_exits, no_ranks_error
from allranks.agent.launch.plain import PlainLaunchContext
from allranks.protocol.skip_codes import SkipCode, is_success

MakeProcess = Callable[..., BaseProcess]
"""Creates a process, not started, from the arguments of ``multiprocessing.Process``."""


class RankHandle:
    """A rank as the launching process sees it; replaces a process that torch prepared, but which is never started."""

    def __init__(self, process: BaseProcess, number: int) -> None:
        self._process = process
        self._number = number
        self._ranks: LaunchedRanks | None = None

    @property
    def name(self) -> str:
        return self._process.name

    @property
    def pid(self) -> int:
        """The process id; before the fork, a unique negative number."""
        return -1 - self._number if self._ranks is None else self._ranks.pids[self._number]

    @property
    def exitcode(self) -> int | None:
        """The exit status, negative for a signal; None while the rank is running."""
        return None if self._ranks is None else self._ranks.exit_status(self._number)

    def start(self) -> None:
        """Do nothing: all ranks are forked together later."""

    def started(self, ranks: LaunchedRanks) -> None:
        """Connect the handle to its rank after the fork."""
        self._ranks = ranks

    def run(self) -> None:
        """Run the target of the process; called in the rank."""
        self._process.run()

    def is_alive(self) -> bool:
        return self._ranks is not None and self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        if self._ranks is not None:
            self._ranks.wait_for_end(self._number, timeout)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._ranks is not None:
            self._ranks.signal(self._number, number)


def handle_factory(make_process: MakeProcess) -> tuple[Callable[..., RankHandle], list[RankHandle]]:
    """A function that creates handles instead of processes, and the list of the handles that it has created."""
    handles: list[RankHandle] = []

    def make_handle(*args: Any, **kwargs: Any) -> RankHandle:  # noqa: ANN401 - passed on unchanged
        handles.append(RankHandle(make_process(*args, **kwargs), len(handles)))
        return handles[-1]

    return make_handle, handles


HOOKS = ("_start_processes", "_join_processes", "_check_return_codes", "_run", "run_test")
"""Methods that torch's class must have."""

END_GRACE = 5.0
"""Seconds for a rank to exit after its report, if the class checks exit statuses itself."""

_RANKS = "allranks_ranks"
_EXCEPTION_STATUS = 10


def launch_context_of(case: unittest.TestCase) -> LaunchContext:
    """The launch context that the agent has set, or the one for tests without an agent."""
    return getattr(case, "allranks_launch_context", None) or PlainLaunchContext()


def adapt_processes(base: Any) -> None:  # noqa: ANN401 - torch's class has no types
    """Make torch's class, and all classes derived from it, start their ranks through allranks."""
    log = logging.getLogger(base.__module__)
    start, join, check = base._start_processes, base._join_processes, base._check_return_codes  # noqa: SLF001

    @functools.wraps(start)
    def start_processes(self: Any, proc: MakeProcess) -> None:  # noqa: ANN401 - as above
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            warn_of_cuda(self.id())
            start(self, proc)
            return
        make, handles = handle_factory(proc)
        with _silent(log):
            start(self, make)
        if not handles:
            check_world(self.world_size)
        _fork(self, handles)

    @functools.wraps(join)
    def join_processes(self: Any, fn: Callable[[], object]) -> None:  # noqa: ANN401 - as above
        __tracebackhide__ = True
        ranks: OwnRanks | None = vars(self).get(_RANKS)
        if ranks is not None:
            _join(self, fn, ranks, check)
        elif self.processes:
            join(self, fn)
        else:
            raise no_ranks_error(self.id())

    base._start_processes = start_processes  # noqa: SLF001
    base._join_processes = join_processes  # noqa: SLF001


def check_world(size: int) -> None:
    """Skip a test without ranks; torch's own class lets it pass, with a note that it "was likely skipped"."""
    if size < 0:
        msg = f"its world size is {size}"
        raise ValueError(msg)
    if not size:
        detail = "its world size is 0: it starts one rank per device, and none is available"
        raise EnvironmentSkip(SkipCode.NO_CUDA, detail)


def warn_of_cuda(name: str, who: str = "torch") -> None:
    """Warn that the library `who` starts the ranks of the test or class `name` itself, and why."""
    warnings.warn(
        f"{who} starts the ranks of {name} itself, because this process has initialized CUDA, and its forks could not "
        "use CUDA. The report will have one result for the test instead of one per rank.",
        RuntimeWarning,
        stacklevel=3,
    )


@contextmanager
def _silent(log: logging.Logger) -> Iterator[None]:
    """Suppress torch's log messages about started processes, which have only been prepared."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _fork(case: Any, handles: list[RankHandle]) -> None:  # noqa: ANN401 - as above
    """Start the ranks that torch has prepared."""
    ranks = OwnRanks(case, launch_context_of(case), len(handles), partial(_run_rank, handles), case.addCleanup)
    # torch maps process ids to pipes, and the process ids are only known after the fork.
    pipes = [case.pid_to_pipe.pop(handle.pid) for handle in handles]
    for handle, pipe in zip(handles, pipes, strict=True):
        handle.started(ranks.launch.ranks)
        case.pid_to_pipe[handle.pid] = pipe
        case.addCleanup(pipe.close)
    setattr(case, _RANKS, ranks)


def _join(case: Any, fn: Callable[[], object], ranks: OwnRanks, check: object) -> None:  # noqa: ANN401 - as above
    __tracebackhide__ = True
    if type(case)._check_return_codes is check:  # noqa: SLF001 - torch's own
        ranks.join(expected_exits(case, fn))
        return
    # The class checks exit statuses itself.
    began = clock.monotonic()
    ranks.join(ExpectedExits(expects_exit=lambda _rank, _status: True))
    for process in case.processes:
        process.join(END_GRACE)
    _check_as_the_class_does(case, check, fn, clock.monotonic() - began)


def _check_as_the_class_does(case: Any, check: Any, fn: Callable[[], object], elapsed: float) -> None:  # noqa: ANN401 - as above
    # Pass by position, as torch does: older versions pass only the time, and a class may use other names.
    arguments = {"fn": fn, "elapsed_time": elapsed}
    case._check_return_codes(*(arguments[name] for name in inspect.signature(check).parameters if name in arguments))  # noqa: SLF001


def _run_rank(handles: list[RankHandle], launched: LaunchedRank, options: RankOptions) -> int:
    """Run in a fork: run the target that torch prepared for a process."""
    # torch's ranks lack RANK and LOCAL_RANK, and one of torch's tests checks that ``env://`` reports them missing.
    forget_rank()
    outcome = launched.run(options, lambda: _run(handles[launched.number]))
    return _EXCEPTION_STATUS if outcome.is_bad else 0


def _run(handle: RankHandle) -> None:
    try:
        handle.run()
    except SystemExit as exit_:
        ended = exit_
    else:
        return
    _end_as(ended)  # not in the except block: an exception raised there would have the exit as its context


def _end_as(exit_: SystemExit) -> None:
    """Handle ``sys.exit``, which torch's class calls in a rank at the end of most tests."""
    cause = exit_.__context__
    if exit_.code in (_EXCEPTION_STATUS, SkipCode.GENERIC) and isinstance(cause, Exception):
        # torch has converted the exception of the test to an exit status.
        raise cause
    if not is_success(exit_.code):
        exit_process(exit_)
