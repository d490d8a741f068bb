"""A rank: a fork of the agent that runs the tests it is told to, and writes down what became of each."""

import faulthandler
import gc
import os
import random
import signal
import sys
import traceback
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch
from _pytest.capture import CaptureManager
from torch import distributed

from allranks.harness import kernel
from allranks.harness.channel import End, Report, Run, decode_command, send_report
from allranks.harness.config import AgentConfig
from allranks.harness.events import EventLog
from allranks.harness.outcome import Outcome
from allranks.harness.phases import Phase, is_good_subtest, overall, phase_of, shorten
from allranks.harness.rendezvous import Rendezvous
from allranks.harness.signals import ENDING
from allranks.harness.stacks import STACKS_SIGNAL
from allranks.testing.skipcodes import SkipCode
from allranks.testing.skips import EnvironmentSkip


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """All that one rank of one gang needs to know.

    Attributes:
        gang: Number of the gang in its job, from 1.
        rendezvous: Where the process group is made; None for a gang without one.
        hardware_skip: Why no test of this cell can run on this host, with torch's skip code.
        first_test: Node id of the first test: a process group that cannot be made is an error of this one.
        commands: File object that the agent's commands are read from.
        reports: Descriptor that reports go to.
    """

    config: AgentConfig
    rank: int
    gang: int
    rendezvous: Rendezvous | None
    hardware_skip: tuple[SkipCode, str] | None
    first_test: str
    results: Path
    commands: int
    reports: int


def run_rank(session: pytest.Session, assignment: Assignment) -> NoReturn:
    """Be a rank until the agent says that it is over. Never returns: the fork must not run the agent's code."""
    status = 1
    try:
        os.setsid()
        kernel.die_with_parent()
        _set_up_process(assignment)
        _rebuild_capture(session)
        _Rank(session, assignment).run()
        status = 0
    except BrokenPipeError:
        # The agent is gone, and the kernel is about to end this process too.
        pass
    except BaseException:  # noqa: BLE001 - the last frame of this process: there is nobody left to raise to
        traceback.print_exc()
    finally:
        _leave(status)


def _leave(status: int) -> NoReturn:
    """End this process, whatever a test has done to its output."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _set_up_process(assignment: Assignment) -> None:
    log = os.open(assignment.results / f"rank-{assignment.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.close(log)
    os.close(nothing)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGIO, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    stacks = (assignment.results / f"rank-{assignment.rank}.stacks.txt").open("a", encoding="utf-8")
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    # Standard error is where pytest's capture is, and lost with the process.
    faulthandler.enable(file=stacks, all_threads=True)
    os.environ.update(_rank_environment(assignment))
    gc.enable()


def _rank_environment(assignment: Assignment) -> dict[str, str]:
    world_size = str(assignment.config.world_size)
    return {
        "RANK": str(assignment.rank),
        "LOCAL_RANK": str(assignment.rank),
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        **(assignment.rendezvous.environment if assignment.rendezvous else {}),
    }


def _rebuild_capture(session: pytest.Session) -> None:
    """Give this rank capture files of its own: those of the agent share their offset with every fork."""
    manager = cast("CaptureManager", session.config.pluginmanager.get_plugin("capturemanager"))
    manager.start_global_capturing()
    manager.suspend_global_capture()


class _Rank:
    """The loop of a rank, and the pytest plugin that listens to its tests."""

    def __init__(self, session: pytest.Session, assignment: Assignment) -> None:
        self._session = session
        self._assignment = assignment
        self._events = EventLog(assignment.results / f"events-{assignment.rank}.jsonl")
        self._phases: list[Phase] = []
        self._is_condemned = False
        self._errors: dict[str, BaseException] = {}
        self._last: pytest.Item | None = None
        self._group: distributed.ProcessGroup | None = None
        session.config.pluginmanager.register(self, "allranks-rank")

    def run(self) -> None:
        """Obey the agent's commands until the last."""
        config = self._assignment.config
        self._events.write(
            "rank_started",
            rank=self._assignment.rank,
            world_size=config.world_size,
            gang=self._assignment.gang,
            pid=os.getpid(),
        )
        self._report(self._join())
        self._group = distributed.group.WORLD
        with os.fdopen(self._assignment.commands, "rb") as commands:
            for line in commands:
                command = decode_command(line)
                if isinstance(command, End):
                    self._report(self._end(command))
                    return
                self._report(self._run_test(command))

    def _report(self, report: Report) -> None:
        send_report(self._assignment.reports, report)

    def _join(self) -> Report:
        """Join the process group of the cell; trouble with that is an error of the gang's first test."""
        rendezvous = self._assignment.rendezvous
        if rendezvous is None:
            return Report(outcome=Outcome.PASSED)
        try:
            init_process_group(self._assignment.config, self._assignment.rank, rendezvous.url)
        except Exception as error:  # noqa: BLE001 - whatever torch raises here is the result
            message = f"the process group could not be made: {error}".splitlines()[0]
            phase = Phase(
                when="setup", outcome=Outcome.ERRORED, duration=0.0, message=message, text=traceback.format_exc()
            )
            self._add_phase(self._assignment.first_test, phase)
            return Report(outcome=phase.outcome, message=message)
        return Report(outcome=Outcome.PASSED)

    def _run_test(self, command: Run) -> Report:
        items = self._session.items
        item = self._last = items[command.index]
        following = None if command.following is None else items[command.following]
        self._phases = []
        seed = seed_of_test(self._assignment.config.seed, item.nodeid)
        self._events.write(
            "test_started",
            nodeid=item.nodeid,
            rank=self._assignment.rank,
            world_size=self._assignment.config.world_size,
            seed=seed,
        )
        seed_everything(seed)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            # pytest ends its session on these and reports nothing; a rank ends its session when the agent says so.
            self._add_phase(item.nodeid, _broken_off(error))
        return self._conclude(item)

    def _conclude(self, item: pytest.Item) -> Report:
        deciding = overall(self._phases)
        self._events.write("test_finished", nodeid=item.nodeid, outcome=deciding.outcome)
        return Report(
            outcome=deciding.outcome,
            message=deciding.message,
            early_skip=deciding.outcome is Outcome.SKIPPED and deciding.when == "setup",
            has_left_group=distributed.group.WORLD is not self._group,
        )

    def _end(self, command: End) -> Report:
        """Tear down what the gang's fixtures still hold, as teardown of the last test that ran, and leave the group."""
        self._phases = []
        self._is_condemned = command.is_condemned
        self._tear_down_fixtures()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._events.write("rank_finished", rank=self._assignment.rank)
        if not self._phases:
            return Report(outcome=Outcome.PASSED)
        deciding = overall(self._phases)
        return Report(outcome=deciding.outcome, message=deciding.message)

    def _tear_down_fixtures(self) -> None:
        """After a test that was not known to be the gang's last, fixtures of wider scope are still set up."""
        state = self._session._setupstate  # noqa: SLF001 - pytest has no public way to end a session early
        if self._last is None or not state.stack:
            return
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(None), when="teardown")
        report = pytest.TestReport.from_item_and_call(self._last, call)
        if call.excinfo is not None:
            self._errors["teardown"] = call.excinfo.value
            self.pytest_runtest_logreport(report)

    def _add_phase(self, nodeid: str, phase: Phase) -> None:
        """Write a phase down; the first bad one of a step is reported at once, because peers may be waiting."""
        is_first_bad = phase.outcome.is_bad and not any(earlier.outcome.is_bad for earlier in self._phases)
        self._phases.append(phase)
        late = {"late": True} if self._is_condemned else {}
        self._events.write("phase", nodeid=nodeid, rank=self._assignment.rank, **phase.fields(), **late)
        if is_first_bad:
            self._report(Report(outcome=phase.outcome, message=phase.message, is_final=False))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skip every test of a cell that this host lacks the hardware for."""
        if self._assignment.hardware_skip is not None:
            code, detail = self._assignment.hardware_skip
            raise EnvironmentSkip(code, detail)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the exception: the report holds only its text."""
        report = yield
        if call.excinfo is not None:
            self._errors[call.when] = call.excinfo.value
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write one phase down, before the next begins."""
        if is_good_subtest(report):
            # The test that it is a part of has a report of its own.
            return
        self._add_phase(report.nodeid, phase_of(report, self._errors.pop(report.when, None)))


def _broken_off(error: BaseException) -> Phase:
    """The phase of a test that pytest's own way out has left without a report."""
    text = "".join(traceback.format_exception(error))
    message = f"the test broke off the whole session: {error!r}"
    return Phase(when="call", outcome=Outcome.CRASHED, duration=0.0, message=message, text=shorten(text))


def init_process_group(config: AgentConfig, rank: int, url: str) -> None:
    """Join the default process group of the cell."""
    if config.backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    distributed.init_process_group(
        config.backend,
        init_method=url,
        rank=rank,
        world_size=config.world_size,
        timeout=timedelta(seconds=config.limits.process_group),
    )


def seed_of_test(seed: int, nodeid: str) -> int:
    """The seed of one test in a job, the same on all ranks and in every run."""
    return zlib.crc32(os.fsencode(nodeid), seed & 0xFFFFFFFF)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy (where it is loaded) and torch.

    Args:
        seed: 32 bits, which is what NumPy takes.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
