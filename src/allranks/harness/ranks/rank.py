"""A rank: a fork of the agent that runs the tests it is told to, and writes down what became of each."""

import os
import random
import sys
import traceback
import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch
from _pytest.capture import CaptureManager
from torch import distributed

from allranks.harness.channel import End, Report, Run, decode_command, send_report
from allranks.harness.config import AgentConfig
from allranks.harness.events import EventLog, rank_events
from allranks.harness.gangs.late_imports import ImportWatch
from allranks.harness.gangs.symptoms import is_symptom
from allranks.harness.outcome import Outcome
from allranks.harness.phases import Phase, is_good_subtest, overall, phase_of, shorten
from allranks.harness.ranks.printing import flush_output
from allranks.harness.ranks.rank_setup import live
from allranks.harness.ranks.terminal import silence_terminal
from allranks.testing.skips.requirement import EnvironmentSkip
from allranks.testing.skips.skipcodes import SkipCode


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """All that one rank of one gang needs to know.

    Attributes:
        local_ranks: The ranks of its node.
        gang: Number of the gang in its job, from 1.
        url: What ``init_process_group`` takes as ``init_method``; None for a gang without a process group.
        environment: Variables that the ranks need to meet.
        hardware_skip: Why no test of this cell can run on this host, with torch's skip code.
        first_test: Node id of the first test: a process group that cannot be made is an error of this one.
        shared: Folder that all ranks of the gang see, and no other gang uses.
        commands: File object that the agent's commands are read from.
        reports: Descriptor that reports go to.
    """

    config: AgentConfig
    rank: int
    local_ranks: Sequence[int]
    gang: int
    url: str | None
    environment: Mapping[str, str]
    hardware_skip: tuple[SkipCode, str] | None
    first_test: str
    results: Path
    shared: Path
    commands: int
    reports: int


def run_rank(session: pytest.Session, assignment: Assignment) -> NoReturn:
    """Be a rank until the agent says that it is over. Never returns: the fork must not run the agent's code."""

    def work() -> int:
        _leave_capture_to_the_agent(session)
        silence_terminal(session.config)
        _Rank(session, assignment).run()
        return 0

    stacks = assignment.results / f"rank-{assignment.rank}.stacks.txt"
    live(work, stacks=stacks, environment=_rank_environment(assignment))


def _rank_environment(assignment: Assignment) -> dict[str, str]:
    return {
        "RANK": str(assignment.rank),
        "LOCAL_RANK": str(assignment.local_ranks.index(assignment.rank)),
        "WORLD_SIZE": str(assignment.config.world_size),
        "LOCAL_WORLD_SIZE": str(len(assignment.local_ranks)),
        "ALLRANKS_GANG": str(assignment.gang),
        "ALLRANKS_SHARED": str(assignment.shared),
        **assignment.environment,
    }


def _leave_capture_to_the_agent(session: pytest.Session) -> None:
    """Have pytest capture nothing but for ``capsys`` and ``capfd``: the agent reads all that this process prints."""
    manager = cast("CaptureManager | None", session.config.pluginmanager.get_plugin("capturemanager"))
    if manager is not None:
        # pytest reads it once, from the command line, and has no other way to change it.
        setattr(manager, "_method", "no")  # noqa: B010 - declared final
        manager.start_global_capturing()


class _Rank:
    """The loop of a rank, and the pytest plugin that listens to its tests."""

    def __init__(self, session: pytest.Session, assignment: Assignment) -> None:
        self._session = session
        self._assignment = assignment
        self._events = EventLog(rank_events(assignment.results, assignment.rank))
        self._phases: list[Phase] = []
        self._is_condemned = False
        self._errors: dict[str, BaseException] = {}
        self._last: pytest.Item | None = None
        self._group: distributed.ProcessGroup | None = None
        self._imports = ImportWatch()
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
                    self._report(replace(self._end(command), imported=self._imports.take()))
                    if not command.is_condemned:
                        commands.readline()
                    return
                self._report(self._run_test(command))

    def _report(self, report: Report) -> None:
        send_report(self._assignment.reports, report)

    def _join(self) -> Report:
        """Join the process group of the cell; trouble with that is an error of the gang's first test."""
        if self._assignment.url is None:
            return Report(outcome=Outcome.PASSED)
        try:
            init_process_group(self._assignment, self._assignment.url)
        except Exception as error:  # noqa: BLE001 - whatever torch raises here is the result
            phase = self._add_error("setup", "the process group could not be made", error)
            return Report(outcome=phase.outcome, message=phase.message)
        return Report(outcome=Outcome.PASSED)

    def _leave(self) -> None:
        """Leave what process groups there are; trouble with that is an error of the gang's last test."""
        if not distributed.is_initialized():
            return
        try:
            distributed.destroy_process_group()
        except Exception as error:  # noqa: BLE001 - whatever torch raises here is the result
            self._add_error("teardown", "the process group could not be destroyed", error)

    def _add_error(self, when: str, what: str, error: Exception) -> Phase:
        message = f"{what}: {error}".splitlines()[0]
        text = "".join(traceback.format_exception(error))
        phase = Phase(when=when, outcome=Outcome.ERRORED, duration=0.0, message=message, text=text)
        self._add_phase(self._last.nodeid if self._last else self._assignment.first_test, phase, error)
        return phase

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
        os.environ["ALLRANKS_SEED"] = str(seed)
        seed_everything(seed)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            # pytest ends its session on these and reports nothing; a rank ends its session when the agent says so.
            self._add_phase(item.nodeid, _broken_off(error), error)
        flush_output()
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
        self._leave()
        flush_output()
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

    def _add_phase(self, nodeid: str, phase: Phase, error: BaseException | None) -> None:
        """Write a phase down; the first bad one of a step is reported at once, because peers may be waiting."""
        is_first_bad = phase.outcome.is_bad and not any(earlier.outcome.is_bad for earlier in self._phases)
        self._phases.append(phase)
        late = {"late": True} if self._is_condemned else {}
        self._events.write("phase", nodeid=nodeid, rank=self._assignment.rank, **phase.fields(), **late)
        if is_first_bad:
            flush_output()
            self._report(
                Report(outcome=phase.outcome, message=phase.message, is_symptom=is_symptom(error), is_final=False)
            )

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
        error = self._errors.pop(report.when, None)
        self._add_phase(report.nodeid, phase_of(report, error), error)


def _broken_off(error: BaseException) -> Phase:
    """The phase of a test that pytest's own way out has left without a report."""
    text = "".join(traceback.format_exception(error))
    message = f"the test broke off the whole session: {error!r}"
    return Phase(when="call", outcome=Outcome.CRASHED, duration=0.0, message=message, text=shorten(text))


def init_process_group(assignment: Assignment, url: str) -> None:
    """Join the default process group of the cell."""
    config = assignment.config
    if config.backend == "nccl":
        torch.cuda.set_device(assignment.local_ranks.index(assignment.rank) % torch.cuda.device_count())
    distributed.init_process_group(
        config.backend,
        init_method=url,
        rank=assignment.rank,
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
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        # The whole costs 0.7 ms: each kind of accelerator puts the seed off, and formats its caller's stack for that.
        torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
