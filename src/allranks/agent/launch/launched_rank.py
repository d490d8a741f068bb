"""A rank of a multi-process test: a fork of the launching process, and its reports."""

import gc
import os
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from _pytest._code import Traceback
from torch import distributed as dist

from allranks.agent.call_log import CallLog, Wait, map_log
from allranks.agent.channel import Command, PhasesEnded, RankEnd, StepEnded
from allranks.agent.clock import monotonic
from allranks.agent.rank import debugging, rank_setup
from allranks.agent.rank.call_counter import CallCounter
from allranks.agent.rank.imports import ImportWatch
from allranks.agent.rank.rank_setup import flush_output, run_in_fork, save_coverage, seed_everything
from allranks.agent.rank.reports import CodedSkip, failed_before, skip_with_code, waited_for, with_cause
from allranks.protocol.launcher_variables import TORCHRUN, variables_of_rank
from allranks.protocol.outcomes import MESSAGE_LIMIT, Outcome, Phase, SkipKind, shorten
from allranks.protocol.tracebacks import headline

_PACKAGE = Path(__file__).parents[2]  # allranks

_NO_TEST = ""
"""The node id in reports of the setup before the first test, and of the teardown after the last."""


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """The options of one test for its ranks."""

    nodeid: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The parameters of one rank."""

    rank: int
    world_size: int
    results: Path
    connection: int  # file descriptor of the connection to the launching process
    call_log: int  # file descriptor of the call log
    parent: int  # process id of the launching process


class LaunchedRank:
    """Reports a rank's outcomes to the launching process, and receives commands from it."""

    def __init__(self, spec: RankSpec) -> None:
        self.number = spec.rank
        self.world_size = spec.world_size
        self._connection = RankEnd(spec.connection)
        self._running: RankOptions | None = None
        self._began = 0.0
        self._reported_error: Exception | None = None
        self._wait: Wait | None = None
        self._imports = ImportWatch()
        self._calls = CallCounter(CallLog(map_log(spec.call_log)), spec.world_size)
        rank_setup.announce_to(self._connection)
        debugging.set_rank(spec.rank)

    def start(self, body: Callable[[], object]) -> bool:
        """Run the setup before the first test, and report its errors; returns whether it passed."""
        phase, error = self._attempt("setup", body)
        if phase.outcome is not Outcome.PASSED:
            self._report(_NO_TEST, phase, error)
        self._conclude(_NO_TEST, phase)
        return phase.outcome is Outcome.PASSED

    def run(self, options: RankOptions, body: Callable[[], object], when: str = "call") -> Outcome:
        """Run one test, or a fixture (``when="setup"``), and report its outcome."""
        self._running, self._reported_error, self._began = options, None, monotonic()
        self._calls.begin()
        rank_setup.set_running_test(options.nodeid)
        if when == "call":
            # The launching process has set up the test. After this report, a hang counts as a hang in the call phase.
            self._report(options.nodeid, Phase(when="setup", outcome=Outcome.PASSED, duration=0.0), None)
        os.environ["ALLRANKS_SEED"] = str(options.seed)
        seed_everything(options.seed)
        phase, error = self._attempt(when, body)
        is_reported = error is not None and error is self._reported_error
        if not is_reported:
            self._report(options.nodeid, phase, error)
        self._conclude(options.nodeid, phase)
        return phase.outcome

    def report_failure(self, error: Exception) -> None:
        """Report that the running test has failed, before it cleans up."""
        if self._running is None:
            return
        self._reported_error = error
        self._note(error)
        phase = _phase_ended_by(error, "call", monotonic() - self._began)
        flush_output()
        self._report(self._running.nodeid, phase, error)

    def end(self, body: Callable[[], object]) -> None:
        """Run the teardown after the last test, and report its errors."""
        phase, error = self._attempt("teardown", body)
        if phase.outcome.is_bad:
            self._report(_NO_TEST, phase, error)
        self._conclude(_NO_TEST, phase)

    def commands(self) -> Iterator[Command]:
        """The commands of the launching process, as they arrive."""
        while (command := self._connection.command()) is not None:
            yield command

    def _attempt(self, when: str, body: Callable[[], object]) -> tuple[Phase, BaseException | None]:
        began = monotonic()
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - every exception is a result
            self._note(error)
            phase = _phase_ended_by(error, when, monotonic() - began)
            if phase.outcome.is_bad:
                debugging.post_mortem(error)
            return phase, error
        return Phase(when=when, outcome=Outcome.PASSED, duration=monotonic() - began), None

    def _note(self, error: BaseException) -> None:
        """Store what the rank was waiting for when it failed, before the slow report."""
        self._wait = self._calls.wait_of_failure(error)

    def _report(self, nodeid: str, phase: Phase, error: BaseException | None) -> None:
        wait = waited_for(error, self._wait)
        self._wait = None
        had_failed = wait is not None and failed_before(error) is not None
        self._connection.send(PhasesEnded(nodeid=nodeid, phases=(phase,), waits_for=wait, had_failed=had_failed))

    def _conclude(self, nodeid: str, phase: Phase) -> None:
        save_coverage()
        flush_output()
        self._calls.settle()
        self._connection.send(StepEnded(nodeid=nodeid, imported=self._imports.take()))
        rank_setup.end_fork(is_bad=phase.outcome.is_bad, text=lambda: phase.text)


def forget_rank() -> None:
    """Remove the variables that identify a rank from this process's environment."""
    for name in (TORCHRUN.rank, TORCHRUN.local_rank, TORCHRUN.local_world_size):
        os.environ.pop(name, None)


def destroy_group() -> None:
    """Destroy the default process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def run_launched_rank(spec: RankSpec, work: Callable[[LaunchedRank], int], variables: Mapping[str, str]) -> NoReturn:
    """Run as a rank until `work` is done. Never returns: the fork must not run the launching process's code."""

    def work_in_fork() -> int:
        # A garbage collection over the launching process's objects would only copy their memory.
        gc.freeze()
        # OpenMP's threads do not survive a fork, and the rank would wait for those of the launching process.
        torch.set_num_threads(1)
        return work(LaunchedRank(spec))

    environment = {**variables_of_rank(spec.rank, spec.world_size, spec.rank, spec.world_size), **variables}
    stacks = spec.results / f"rank-{spec.rank}.stacks.txt"
    run_in_fork(work_in_fork, spec.parent, stacks=stacks, environment=environment)


def _phase_ended_by(error: BaseException, when: str, duration: float) -> Phase:
    """The phase that ended with this exception."""
    skip = None if when == "teardown" else _skip_of(error)
    if skip is not None:
        return skip.phase(when, duration)
    info = pytest.ExceptionInfo.from_exception(error)
    return Phase(
        when=when,
        outcome=_outcome(error, when),
        duration=duration,
        message=shorten(with_cause(headline(info.exconly(tryshort=True)), error), MESSAGE_LIMIT),
        text=shorten(str(info.getrepr(style="long", tbfilter=_test_frames))),
        raised=tuple(cls.__name__ for cls in type(error).__mro__),
    )


def _test_frames(info: pytest.ExceptionInfo[BaseException]) -> Traceback:
    """The traceback without frames of allranks and unittest; the full traceback if it has no others."""
    frames = info.traceback.filter(
        lambda frame: _PACKAGE not in Path(frame.path).parents and "__unittest" not in frame.frame.f_globals
    )
    return frames or info.traceback


def _skip_of(error: BaseException) -> CodedSkip | None:
    coded = skip_with_code(error)
    if coded is None and isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return CodedSkip(SkipKind.PLAIN, None, str(error))
    return coded


def _outcome(error: BaseException, when: str) -> Outcome:
    if isinstance(error, SystemExit | KeyboardInterrupt | pytest.exit.Exception):
        return Outcome.CRASHED
    if isinstance(error, pytest.xfail.Exception):
        return Outcome.XFAILED
    return Outcome.FAILED if when == "call" else Outcome.ERRORED
