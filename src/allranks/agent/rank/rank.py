"""A rank: a fork of the fork server that runs tests on command and reports their outcomes."""

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
import torch
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter
from torch import distributed

from allranks.agent import child_observer
from allranks.agent.call_log import CallLog, Wait, map_log
from allranks.agent.channel import End, GpuLost, PhasesEnded, RankEnd, RunTest, StepEnded
from allranks.agent.child_processes import (
    ChildProcess,
    children_folder,
    primary,
    read_children,
    table,
    workers_that_raised,
)
from allranks.agent.clock import monotonic
from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.evidence import DiskUse
from allranks.agent.gpus import compute, error_of
from allranks.agent.marks import CHILDREN_MAY_FAIL
from allranks.agent.orphans import Mark
from allranks.agent.program import StartRanks
from allranks.agent.rank import debugging, rank_setup
from allranks.agent.rank.call_counter import CallCounter
from allranks.agent.rank.imports import ImportWatch
from allranks.agent.rank.marker_options import has_thread_ranks, never_runs
from allranks.agent.rank.rank_setup import flush_output, run_in_fork, save_coverage, seed_everything
from allranks.agent.rank.reports import (
    Subtests,
    aborted_by_hook,
    changed_collection,
    failed_before,
    is_from_a_worker,
    missing_call,
    phase_of,
    raise_unraisable,
    session_aborted,
    waited_for,
    with_remedy,
)
from allranks.agent.rank.script_folders import FOLDERS
from allranks.agent.rank.state import InitialState, UnusedState
from allranks.agent.rendezvous import rotate_ports, wait_for_store
from allranks.protocol.config import AgentConfig, TimeLimit
from allranks.protocol.launcher_variables import variables_of_rank
from allranks.protocol.outcomes import MESSAGE_LIMIT, Outcome, Phase, following, overall, shorten
from allranks.protocol.skip_codes import SkipCode

if TYPE_CHECKING:
    from allranks.agent.rank.warm_children import WarmChildren

INSTRUCTIONS = pytest.StashKey[str]()
"""The key for :attr:`RunTest.instructions` in the stash of pytest's configuration."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The parameters of one rank of a gang."""

    config: AgentConfig
    rank: int
    request: StartRanks  # how its gang is started
    # Why this host can run no test of this cell: the arguments of an ``EnvironmentSkip``.
    hardware_skip: tuple[SkipCode, str, int | None] | None
    shared: Path  # the folder that the ranks of the gang share
    connection: int  # descriptor of the rank's end of its connection
    call_log: int  # descriptor of its call log
    supervisor: int  # process id of the supervisor
    # The tests by their index in the job, if the rank has not collected all of them.
    items: Mapping[int, pytest.Item] | None = None
    # Ends the rank's own pytest session after the last report: takes the exit status, and returns the one after hooks.
    end_session: Callable[[int], int] | None = None


_MOST_CHILDREN = 5
"""Maximum number of child processes of a test that notices list."""

_MOST_UNREPORTED = 10
"""Maximum number of unreported phases; a test has three, unless a plugin adds some."""


def run_rank(session: pytest.Session, assignment: Assignment) -> NoReturn:
    """Run as a rank until the supervisor ends it. Never returns, because the fork must not run its parent's code."""

    def work() -> int:
        _disable_capture(session)
        _silence_terminal(session.config)
        return _Rank(session, assignment).run()

    stacks = assignment.request.results / f"rank-{assignment.rank}.stacks.txt"
    run_in_fork(work, assignment.supervisor, stacks=stacks, environment=_rank_environment(assignment))


def _warm_children(code: Path, config: AgentConfig) -> "WarmChildren | None":
    if config.start_children == "cold":
        return None
    from allranks.agent.rank import warm_children  # noqa: PLC0415 - few suites need what it imports

    return warm_children.WarmChildren(code, config.paths)


def _rank_environment(assignment: Assignment) -> dict[str, str]:
    config, request = assignment.config, assignment.request
    local_rank = config.local_ranks.index(assignment.rank)
    rank = variables_of_rank(assignment.rank, config.world_size, local_rank, len(config.local_ranks))
    return {
        **({} if config.launches_ranks else rank),
        **Mark.of_gang(request.gang).environment(assignment.rank),
        child_observer.FOLDER: str(children_folder(assignment.shared, assignment.rank)),
        "PYTHONPATH": os.pathsep.join(filter(None, (child_observer.PYTHON_PATH, os.environ.get("PYTHONPATH", "")))),
        "ALLRANKS_GANG": str(request.gang),
        "ALLRANKS_SHARED": str(assignment.shared),
        **request.environment,
    }


def _disable_capture(session: pytest.Session) -> None:
    """Limit pytest's capture to ``capsys`` and ``capfd``, because the supervisor reads all output of this process."""
    manager = cast("CaptureManager | None", session.config.pluginmanager.get_plugin("capturemanager"))
    if manager is not None:
        # pytest reads it only once, from the command line, and has no public way to change it.
        setattr(manager, "_method", "no")  # noqa: B010 - declared final
        manager.start_global_capturing()


class _Rank:
    """The main loop of a rank, and the pytest plugin that observes its tests."""

    def __init__(self, session: pytest.Session, assignment: Assignment) -> None:
        self._session = session
        # A copy, because a test may change the session's list, but commands refer to the collected tests.
        items = assignment.items
        self._items: Mapping[int, pytest.Item] = dict(enumerate(session.items)) if items is None else items
        self._assignment = assignment
        self._connection = RankEnd(assignment.connection)
        self._nodeid = ""
        self._phases: list[Phase] = []
        self._unreported: list[Phase] = []
        self._test_began = self._phase_began = monotonic()
        self._has_exited = False
        self._errors: dict[str, BaseException] = {}  # by phase
        self._wait: Wait | None = None
        self._last_item: pytest.Item | None = None
        self._imports = ImportWatch()
        self._disk_use = DiskUse(assignment.request.results, assignment.shared, Path(tempfile.gettempdir()))
        self._call_log = CallLog(map_log(assignment.call_log))
        own_world = assignment.config.world_size if assignment.request.url is None else None
        self._calls = CallCounter(self._call_log, own_world)
        session.config.pluginmanager.register(self, "allranks-rank")
        rank_setup.announce_to(self._connection, self._take_unreported)
        child_observer.observe()
        self._warm = _warm_children(session.config.rootpath, assignment.config)
        debugging.set_rank(assignment.rank)

    def run(self) -> int:
        """Run the supervisor's commands until the last one, and return the exit status."""
        self._join()
        self._send(StepEnded())
        self._calls.watch(distributed.group.WORLD)
        self._initial_state = InitialState() if self._assignment.request.is_kept else UnusedState()
        while (command := self._connection.command()) is not None:
            if isinstance(command, End):
                self._send(self._end())
                if not command.is_condemned:
                    self._connection.command()
                end_session = self._assignment.end_session
                return end_session(int(command.is_condemned)) if end_session is not None else 0
            self._send(self._run_test(command))
        return 0

    def _send(self, step: StepEnded) -> None:
        self._connection.send(step)
        is_bad = any(phase.outcome.is_bad for phase in self._phases)
        rank_setup.end_fork(is_bad=is_bad, text=lambda: overall(self._phases).text)

    def _join(self) -> None:
        """Join the process group of the cell; a failure is an error of the gang's first test."""
        url = self._assignment.request.url
        if url is None:
            rotate_ports()
            return
        began, limit = monotonic(), self._assignment.config.limits.limit("process_group")
        try:
            init_process_group(self._assignment, url)
        except Exception as error:  # noqa: BLE001 - whatever torch raises here is the result
            if error_of_gpu := self._gpu_error():
                self._connection.send(GpuLost(message=error_of_gpu))
            within = f" within {limit.words()}" if monotonic() - began >= limit.seconds else ""
            self._add_error("setup", f"the process group could not be created{within}", error)

    def _gpu_error(self) -> str:
        """The error of this rank's GPU in a health check; empty for none. No test is to blame for it."""
        config = self._assignment.config
        if not config.gpu_count:
            return ""
        return error_of(lambda: compute(f"{config.gpu_device}:{_gpu_of(self._assignment)}"))

    def _leave(self) -> None:
        """Destroy all process groups; a failure is an error of the gang's last test."""
        if not distributed.is_initialized():
            return
        try:
            distributed.destroy_process_group()
        except Exception as error:  # noqa: BLE001 - whatever torch raises here is the result
            self._add_error("teardown", "the process group could not be destroyed", error)

    def _add_error(self, when: str, what: str, error: Exception) -> None:
        self._calls.mark(error)
        message = f"{what}: {error}".splitlines()[0]
        self._add_phase(Phase.of_error(when, message, "".join(traceback.format_exception(error))), error)

    def _run_test(self, command: RunTest) -> StepEnded:
        self._begin_step(command.nodeid)
        item = self._items.get(command.index)
        if item is None or item.nodeid != command.nodeid:
            self._add_phase(changed_collection(command.nodeid, item), None)
            return self._conclude()
        self._last_item = item
        self._enter_folder(item.path)
        _renew(item)
        next_item = _next_item(self._items, command.index, command.following)
        os.environ["ALLRANKS_SEED"] = str(command.seed)
        item.config.stash[INSTRUCTIONS] = command.instructions
        if not self._assignment.config.launches_ranks:  # without peers there is no seed, as under plain pytest
            seed_everything(command.seed)
        self._disk_use.begin()
        child_observer.begin_test()
        self._test_began = monotonic()
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            # pytest reports nothing and ends its session after these; a rank ends its session only on command.
            self._add_phase(session_aborted(error), error)
        except BaseException as error:  # noqa: BLE001 - hooks of the suite may raise anything
            self._add_phase(aborted_by_hook(error), error)
        if (phase := missing_call(self._phases, self._session)) is not None:
            self._add_phase(phase, None)
        if (overrun := self._disk_use.overrun()) is not None:
            self._add_phase(Phase.of_error("teardown", overrun.message), None, is_symptom=not overrun.is_own)
        unchecked = self._check_children(item)
        flush_output()
        cold_starts = self._warm.take_reasons() if self._warm is not None else ()
        return replace(self._conclude(), unchecked_children=unchecked, cold_starts=cold_starts)

    def _children(self) -> Sequence[ChildProcess]:
        """The failed processes that the test has started."""
        child_observer.note_ends()
        if not child_observer.has_events():
            return ()
        return read_children(self._children_folder, self._inherited_rank, self._test_began)

    @property
    def _children_folder(self) -> Path:
        return children_folder(self._assignment.shared, self._assignment.rank)

    @property
    def _inherited_rank(self) -> int | None:
        return None if self._assignment.config.launches_ranks else self._assignment.rank

    def _check_children(self, item: pytest.Item) -> tuple[str, ...]:
        """Report an error if a process of a passed test crashed; return messages for other failed processes."""
        policy = self._assignment.config.unchecked_children
        if overall(self._phases).outcome is not Outcome.PASSED or item.get_closest_marker(CHILDREN_MAY_FAIL):
            return ()
        root = self._session.config.rootpath
        failed = [child for child in self._children() if not child.was_stopped]
        errors = [child for child in failed if (child.has_crashed or policy == "error") and not child.is_earlier]
        if errors:
            child = errors[0]
            message = f"{child.message(root)}, but the test passed"
            text = table(failed, root) + (child.left.text if child.left else "")
            self._add_phase(Phase.of_error("teardown", message, text), None)
        if errors or policy == "ignore":
            return ()
        messages = [shorten(child.message(root), MESSAGE_LIMIT) for child in failed]
        hidden = len(messages) - _MOST_CHILDREN
        more = [f"{hidden} more child process{'es' if hidden > 1 else ''} failed"] if hidden > 0 else []
        return (*messages[:_MOST_CHILDREN], *more)

    def _with_children(self, phase: Phase, error: BaseException | None) -> Phase:
        """Add the failed child processes to the message and text of a bad phase, starting with the primary failure."""
        children = self._children()
        if is_from_a_worker(error):
            workers = workers_that_raised(self._children_folder, self._inherited_rank, self._test_began)
            pids = {child.pid for child in workers}
            children = [*(child for child in children if child.pid not in pids), *workers]
        first = primary(children)
        if first is None:
            return phase
        root = self._session.config.rootpath
        message = f"{first.message(root)}; {phase.message}"
        raised = first.left.text if first.left else ""
        own = f"{raised}\nThe above exception was raised in {first.label}.\n\n" if raised else ""
        text = f"{own}{phase.text}\nChild processes:\n{table(children, root)}"
        return replace(phase, message=shorten(message, MESSAGE_LIMIT), text=shorten(text))

    def _enter_folder(self, file: Path) -> None:
        """Switch to the modules in the folder of a test file, if other folders have modules of the same name."""
        folders = self._session.config.stash.get(FOLDERS, None)
        if folders is not None and folders.has_conflict(file):
            with self._initial_state.extending():
                folders.enter(file)

    def _begin_step(self, nodeid: str) -> None:
        self._nodeid, self._phases, self._subtests = nodeid, [], Subtests()
        self._has_exited, self._phase_began = False, monotonic()
        self._calls.begin()
        self._call_log.enter("set-up" if nodeid else "")
        rank_setup.set_running_test(nodeid)

    def _conclude(self) -> StepEnded:
        deciding = overall(self._phases)
        item = self._last_item
        is_alone = self._assignment.config.ranks == 1 or (item is not None and has_thread_ranks(item))
        harmless = {Outcome.SKIPPED, Outcome.XFAILED} if is_alone else {Outcome.SKIPPED}
        restored, left = self._initial_state.restore()
        self._calls.settle()
        if is_alone:
            self._calls.begin()  # there are no peers to compare them with
        self._call_log.enter("")
        return StepEnded(
            nodeid=self._nodeid,
            phases=self._take_unreported(),
            early_skip=deciding.outcome in harmless and (deciding.when == "setup" or is_alone),
            restored=tuple(restored),
            left=tuple(left),
            has_exited=self._has_exited,
            skipped_subtests=self._subtests.skipped,
        )

    def _end(self) -> StepEnded:
        """Tear down the gang's remaining fixtures, as part of the last test that ran, and destroy the process group."""
        self._begin_step("")
        self._tear_down_fixtures()
        self._leave()
        save_coverage()
        flush_output()
        return StepEnded(phases=self._take_unreported(), imported=self._imports.take())

    def _tear_down_fixtures(self) -> None:
        """Tear down fixtures with wider scopes, which remain if pytest expected another test."""
        if self._last_item is None:
            return
        call = pytest.CallInfo.from_call(self._finish_session, when="teardown")
        report = pytest.TestReport.from_item_and_call(self._last_item, call)
        if call.excinfo is not None:
            self._errors["teardown"] = call.excinfo.value
            self.pytest_runtest_logreport(report)

    def _finish_session(self) -> None:
        # pytest has no public way to end a session early.
        self._session._setupstate.teardown_exact(None)  # noqa: SLF001
        raise_unraisable(self._session.config)

    def _add_phase(self, phase: Phase, error: BaseException | None, *, is_symptom: bool = False) -> None:
        """Report a phase immediately, because peers may be waiting; a plain pass can wait for the next report."""
        self._phases.append(phase)
        self._has_exited |= isinstance(error, SystemExit)  # pytest does not clean up a fixture that exits
        self._unreported.append(phase)
        self._call_log.enter(following(phase))
        self._phase_began = monotonic()
        if phase.is_plain and len(self._unreported) < _MOST_UNREPORTED:
            return
        if phase.outcome.is_bad:
            flush_output()
        wait = waited_for(error, self._wait or self._calls.waits.current)
        self._wait = None
        self._connection.send(
            PhasesEnded(
                nodeid=self._nodeid,
                phases=self._take_unreported(),
                is_symptom=is_symptom,
                waits_for=wait,
                had_failed=wait is not None and failed_before(error) is not None,
            )
        )

    def _take_unreported(self) -> tuple[Phase, ...]:
        """Return the unreported phases for a report that is about to be sent."""
        unreported, self._unreported = self._unreported, []
        return tuple(unreported)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Keep the changes of a fixture with a wider scope until its teardown."""
        if fixturedef.scope == "function":
            return (yield)
        with self._initial_state.extending():
            return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Keep the state that a fixture with a wider scope has restored."""
        if fixturedef.scope != "function":
            self._initial_state.accept_restored()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip all tests if this host lacks the hardware of the cell; fail a test that would pass without running."""
        if self._assignment.hardware_skip is not None:
            raise EnvironmentSkip(*self._assignment.hardware_skip)
        if never_runs(item):
            pytest.fail("its class never runs the body of this coroutine or generator", pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the exception, of which the report has only the text. An exit during the report is no skip."""
        rank_setup.set_running_test("")
        self._wait = None
        if call.excinfo is not None:
            self._wait = self._calls.wait_of_failure(call.excinfo.value)  # now, because making the report takes time
        report = yield
        if call.excinfo is not None:
            self._errors[call.when] = call.excinfo.value
            if report.failed:
                debugging.post_mortem(call.excinfo.value)
        elif call.when == "setup":
            rank_setup.set_running_test(self._nodeid)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a phase before the next one begins."""
        if self._subtests.take(report):
            return
        error = self._errors.pop(report.when, None)
        phase = phase_of(report, error, monotonic() - self._phase_began)
        if phase.outcome.is_bad:
            has_group = self._assignment.request.url is not None
            phase = self._with_children(with_remedy(phase, error, has_group=has_group), error)
            if has_group:
                message = with_group_limit(phase.message, self._assignment.config.limits.limit("process_group"))
                phase = replace(phase, message=message)
        self._add_phase(phase, error)


def _gpu_of(assignment: Assignment) -> int:
    """The index of a rank's GPU."""
    count = torch.cuda.device_count()
    if not count:
        msg = "no GPU is visible"
        raise RuntimeError(msg)
    return assignment.config.local_ranks.index(assignment.rank) % count


def with_group_limit(message: str, limit: TimeLimit) -> str:
    """Add the setting for the limit of the cell's process group to a message of torch with that limit.

    gloo, NCCL and the stores print it in ms: "Timed out waiting 60000ms", "Timeout(ms)=60000" (torch 2.6 to 2.13).
    """
    time = round(limit.seconds * 1000)
    if not re.search(rf"(?<!\d){time} ?ms\b|\(ms\)={time}\b", message):
        return message
    return shorten(f"{message.rstrip('.')} ({limit.setting} = {limit.value:g})", MESSAGE_LIMIT)


def init_process_group(assignment: Assignment, url: str) -> None:
    """Join the default process group of the cell."""
    config = assignment.config
    if config.backend == "nccl":
        torch.cuda.set_device(_gpu_of(assignment))
    port = assignment.request.environment.get("MASTER_PORT")
    if port and assignment.rank and 0 in assignment.config.local_ranks:
        wait_for_store(int(port))
    distributed.init_process_group(
        config.backend,
        init_method=url,
        rank=assignment.rank,
        world_size=config.world_size,
        timeout=timedelta(seconds=config.limits.process_group),
    )


_NAME = "terminalreporter"


class SilentReporter:
    """A terminal reporter without hooks, so that pytest never calls it.

    Plugins such as pytest-timeout get the terminal reporter by its name and write to it.
    """

    def __init__(self, reporter: TerminalReporter) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an attribute of any type
        """Return the attribute of the real reporter."""
        return getattr(self._reporter, name)


def _silence_terminal(config: pytest.Config) -> None:
    """Disable progress reports; redirect what plugins write to the terminal to standard error."""
    reporter = config.pluginmanager.unregister(name=_NAME)
    if isinstance(reporter, TerminalReporter):
        reporter._tw._file = sys.stderr  # noqa: SLF001 - a terminal writer cannot be redirected otherwise
        config.pluginmanager.register(SilentReporter(reporter), _NAME)


def _next_item(items: Mapping[int, pytest.Item], index: int, following: int | None) -> pytest.Item | None:
    """The next item for pytest, which keeps the fixtures that both items need.

    Before a repetition of a test, this is a copy: for the same item, pytest would also keep function-scoped fixtures.
    """
    item = None if following is None else items.get(following)
    return copy(item) if following == index and item is not None else item


def _renew(item: pytest.Item) -> None:
    """If a test method has already run, give it a new instance of its class; pytest creates only one instance."""
    has_run = getattr(item, "_request", None) is False
    if has_run and isinstance(item, pytest.Function) and type(item.parent) is pytest.Class:
        instance = item.instance
        if instance is not None and getattr(item.obj, "__self__", None) is instance:
            renewed = item.parent.newinstance()  # type: ignore[no-untyped-call]
            setattr(item, "_instance", renewed)  # noqa: B010 - pytest 8.2 and newer; not public
            item.obj = getattr(renewed, item.originalname)
