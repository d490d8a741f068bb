"""The fork server's pytest session: its plugin collects, and forks ranks that run tests."""

import gc
import glob
import os
import platform
import random
import re
import shlex
import sys
import traceback
import unittest
import warnings
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, cast

import pytest
from _pytest.capture import CaptureManager

import allranks
from allranks.agent import linux
from allranks.agent.collect.capability_tags import tagged
from allranks.agent.collect.fork_server import Supervisor
from allranks.agent.collect.fresh_rank import FreshRank, become_fresh
from allranks.agent.collect.pytest_options import (
    AGENT,
    REFUSED_BY_PYTEST,
    ProcessPaths,
    cache_arguments,
    forget_plugin,
    note_outcomes,
    process_of_rank,
    refusal_in,
    refuse_options,
    refuse_stepwise_of_a_share,
    settle_hypothesis,
    share_seed,
    stop_at_first_failure,
    suite_configuration,
    take_over_reports,
    with_reruns,
)
from allranks.agent.collect.selection import shuffled, take_share
from allranks.agent.collect.suite_lists import SuiteListError, disable, expect_failures
from allranks.agent.environment_skips import FilesForDevices, watch_for_sandcastle_skips
from allranks.agent.gpus import cuda_in_this_process, missing_hardware
from allranks.agent.job_plugins import functions
from allranks.agent.launch.adapt import adapt_collected, adapt_torch_cases
from allranks.agent.launch.driver import run_driver
from allranks.agent.program import (
    Finish,
    ItemOptions,
    Program,
    ServerStart,
    SessionEnded,
    SkippedModule,
    StartRanks,
    parts_of,
)
from allranks.agent.rank import debugging
from allranks.agent.rank.coverage import Measurement
from allranks.agent.rank.imports import ThreadWatch, end_pools, preload, redirect_handlers
from allranks.agent.rank.marker_options import MarkerError, read_terms
from allranks.agent.rank.rank import Assignment, run_rank
from allranks.agent.rank.rank_setup import seed_generators
from allranks.agent.rank.reports import skip_reason
from allranks.agent.rank.script_folders import FOLDERS, ScriptFolders, exit_report, has_main
from allranks.protocol.config import AgentConfig, Folders, seed_of_test
from allranks.protocol.outcomes import MESSAGE_LIMIT, shorten
from allranks.protocol.parameter_values import digests
from allranks.protocol.records import (
    AgentFailed,
    CollectionFailed,
    FailureKind,
    FullCollection,
    Notice,
    Shared,
    SuiteWarning,
)
from allranks.protocol.skip_codes import SkipCode, installed_skips
from allranks.protocol.xml_text import xml_id

_BY_HOOK = "A hook of a plugin or a conftest file"

_TIMEOUT = "timeout"
"""The marker of pytest-timeout."""

_MOST_WARNINGS = 1000


class ServerPlugin:
    """Collects once, then forks ranks as the supervisor asks."""

    def __init__(self, config: AgentConfig, folders: Folders, supervisor: Supervisor) -> None:
        self._config = config
        self._folders = folders
        self._supervisor = supervisor
        self._deselected = 0
        self._skipped: dict[str, str] = {}
        self._has_failed = False
        self._uncollected = 0
        self._ignored = frozenset(folders.code.resolve() / path for path in config.ignored)
        self._threads = ThreadWatch()
        self._threaded: list[str] = []
        self._lack: tuple[SkipCode, str, int | None] | None = None
        self._measurement = Measurement(config, folders)
        self._script_folders = ScriptFolders()
        self._paths = ProcessPaths(config)
        self._bad_tests = 0
        self._digests: dict[str, str] = {}
        self._warnings: dict[SuiteWarning, None] = {}
        self._declared: Sequence[str] = ()
        self.remedy = ""  # for the import that failed last
        self.has_collected = False
        self.was_refused = False
        self.own_status: int | None = None  # pytest's own exit status, once its session ends

    @property
    def arguments(self) -> list[str]:
        """The command line of pytest; the user's own paths and node ids replace the suite's paths."""
        return [
            f"--rootdir={self._folders.code}",
            # pytest uses testpaths, which are patterns, if it gets no paths and runs in its root.
            *("-o", f"testpaths={shlex.join(map(glob.escape, self._config.paths))}"),
            *("-p", "allranks.testing.fixtures"),
            *suite_configuration(self._folders.code, self._config.paths),
            *cache_arguments(self._folders.results, self._config.pytest_args),
            *self._config.pytest_args,
        ]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        """Give this process its own paths; ``--debug`` is the first that pytest opens, right after this."""
        config = yield
        self._separate(config)
        return config

    def _separate(self, config: pytest.Config) -> None:
        self._paths.replace(config, AGENT)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, None, None]:
        """Set the path of coverage data: pytest-cov starts to measure in this hook."""
        self._measurement.begin(early_config)
        try:
            return (yield)
        except Exception as error:
            self.remedy = remedy_for_import(error, self._folders.code)
            raise

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Refuse unsupported options before any plugin acts on them."""
        try:
            refuse_options(config)
            self._measurement.redirect(config)
            if self._config.share:
                refuse_stepwise_of_a_share(config)
        except pytest.UsageError as error:
            self.was_refused = True
            self._supervisor.write(AgentFailed(message=str(error), kind=FailureKind.USAGE))
            raise
        self._declared = _markers(config)
        share_seed(config, self._config.seed)
        for configure in functions(self._config, "configure"):
            configure(config)
        config.pluginmanager.register(FilesForDevices(self._skipped))
        config.stash[FOLDERS] = self._script_folders
        for text in take_over_reports(config):
            self._supervisor.write(Notice(text=text, kind="pytest"))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Note a warning of a plugin, a conftest file or a module; a rank is a fork, and has this plugin, too."""
        if when == "runtest" or self.has_collected or len(self._warnings) == _MOST_WARNINGS:
            return
        warning = SuiteWarning(
            file=_below(self._folders.code.resolve(), warning_message.filename),
            line=warning_message.lineno,
            category=warning_message.category.__name__,
            text=shorten(" ".join(str(warning_message.message).split()), MESSAGE_LIMIT),
        )
        self._warnings[warning] = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Generator[None, None, None]:
        """Report threads of plugins and of the first conftest files, before any module is imported."""
        stop_at_first_failure(session.config)
        news = self._threads.news()
        self._note_threads("", "A plugin or a conftest file", (*news.python, *news.native))
        yield
        self._look_at_process("", _BY_HOOK)
        if self._threaded:
            # Each rank will have a pool of its own, and this one might hold a fixed port.
            end_pools()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffle the tests if asked to, set Hypothesis to lockstep, mark expected failures and disabled tests."""
        if self._config.shuffle is not None:
            items[:] = shuffled(items, self._config.shuffle)
            text = f"The order of the tests is that of --shuffle {self._config.shuffle}."
            self._supervisor.write(Notice(text=text))
        settle_hypothesis(items, lambda nodeid: seed_of_test(self._config.seed, nodeid))
        try:
            expect_failures(items, self._config, self._folders.code)
            disable(items, [self._folders.code / path for path in self._config.paths], os.environ)
        except SuiteListError as error:
            self._fail("", str(error))

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore what the suite excludes."""
        return True if collection_path in self._ignored else None

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Adapt torch's launcher test classes before pytest creates an instance of one."""
        for text in adapt_torch_cases():
            self._supervisor.write(Notice(nodeid=collector.nodeid, text=text))
        adapt_collected(getattr(collector, "obj", None) if isinstance(collector, pytest.Class) else None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Import each file as ``python FILE`` would: with its folder on ``sys.path``, and free to exit.

        What it draws at random, for parameters for example, depends on the run's seed alone, and not on the files that
        were collected before it: other processes collect other files. Where tests run as under pytest, a seed that a
        file has set is kept for them.
        """
        is_file = isinstance(collector, pytest.Module)
        if is_file:
            self._script_folders.enter(collector.path)
            if not self._config.launches_ranks:
                seed_generators(seed_of_test(self._config.seed, collector.nodeid))
        try:
            return (yield)
        except SystemExit as exit_:
            return exit_report(collector, exit_)
        finally:
            if is_file:
                self._script_folders.note(collector.path)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count the tests that ``-k``, ``-m`` and plugins deselect."""
        self._deselected += len(items)

    def pytest_exception_interact(self, call: pytest.CallInfo[object]) -> None:
        """See why a module failed to import, right before the report on it."""
        if not self.has_collected and call.excinfo is not None:
            self.remedy = remedy_for_import(call.excinfo.value, self._folders.code)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report modules that fail to import, initialise CUDA or start threads; note those that skip."""
        if report.failed:
            self._fail(report.nodeid, report.longreprtext, goes_on=True, remedy=self.remedy)
            return
        if report.skipped:
            self._skipped[report.nodeid] = shorten(skip_reason(report), MESSAGE_LIMIT)
        self._look_at_process(report.nodeid, "Importing it")

    def _look_at_process(self, nodeid: str, cause: str) -> None:
        """Check that it is safe to fork this process; otherwise report the cause."""
        if not self._has_failed and (initializes := cuda_in_this_process()):
            self._fail(nodeid, f"{cause} {initializes}, and no fork of this process could use CUDA then")
        news = self._threads.news()
        if news.python:
            self._threaded.append(nodeid)
            text = (
                f"{cause} starts {_threads(news.python)}, which no fork of this process has: the ranks of "
                f"{'these' if nodeid else 'all'} tests import their files again, in processes of their own. It is "
                "faster to start it in a fixture."
            )
            self._supervisor.write(Notice(nodeid=nodeid, text=text, kind="threads"))
        self._note_threads(nodeid, cause, news.native)

    def _note_threads(self, nodeid: str, cause: str, names: Sequence[str]) -> None:
        if names:
            text = f"{cause} starts {_threads(names)}, which ranks, forks of this process, do not have."
            self._supervisor.write(Notice(nodeid=nodeid, text=text, kind="threads"))

    def _note_ignored_timeouts(self, session: pytest.Session) -> None:
        """Tell of time limits that have no effect: no plugin or conftest file has added the marker ``timeout``."""
        limited = [item.nodeid for item in session.items if item.get_closest_marker(_TIMEOUT) is not None]
        if limited and _markers(session.config).count(_TIMEOUT) <= self._declared.count(_TIMEOUT):
            which = "this test" if len(limited) == 1 else f"this test and {len(limited) - 1} more"
            text = (
                f"The marker {_TIMEOUT} of {which} has no effect, since nothing in this job's Python reads it: install "
                "pytest-timeout there, use the marker time_limit, or set limits.test in the matrix file."
            )
            self._supervisor.write(Notice(nodeid=limited[0], text=text, kind="pytest"))

    def _fail(self, nodeid: str, text: str, *, goes_on: bool = False, remedy: str = "") -> None:
        self._has_failed = self._has_failed or not goes_on
        self._uncollected += goes_on
        self._supervisor.write(CollectionFailed(nodeid=nodeid, text=shorten(text), remedy=remedy))

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Report the error at once: pytest explains it in the log, and that may be the file that is not writable."""
        message = f"pytest, or a hook of the suite's, broke down: {excinfo.typename}: {excinfo.value}"
        text = shorten(str(excinfo.getrepr(style="short")))
        self._supervisor.write(AgentFailed(message=shorten(message, MESSAGE_LIMIT), text=text, kind=FailureKind.SUITE))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Report the collected tests, and fork ranks until all of them have run."""
        self.has_collected = True
        self._script_folders.settle()
        # Not earlier: plugins and conftest files of the suite may change which devices are visible.
        self._lack = missing_hardware(self._config)
        self._look_at_process("", _BY_HOOK)
        self._digests = digests(session.items)
        self._report_collection()
        self._keep_own_share(session)
        self._keep_what_runs_again(session)
        if not session.config.getoption("disable_warnings", default=False):
            for warning in self._warnings:
                self._supervisor.write(warning)
        self._note_ignored_timeouts(session)
        terms = self._terms(session)
        for record in tagged(session.items):
            self._supervisor.write(record)
        forget_plugin(session.config)
        debugging.take_over(self._config)
        is_collected_only = bool(session.config.option.collectonly)
        self._supervisor.write(
            Program(
                tests=tuple(item.nodeid for item in session.items),
                terms=tuple(terms),
                skipped=tuple(SkippedModule(nodeid=nodeid, reason=reason) for nodeid, reason in self._skipped.items()),
                deselected=self._deselected,
                maxfail=session.config.getvalue("maxfail") or 0,
                is_collected_only=is_collected_only,
                prints_at_once=self._prints_at_once(session),
                lacks=self._lack[1] if self._lack else "",
                goes_on=not self._has_failed,
                measures=self._measurement.is_requested,
                python=platform.python_version(),
            )
        )
        if not self._has_failed and session.items and not is_collected_only:
            _stop_capture(session)
            os.chdir(self._folders.shared)
        self._serve(session)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, None, None]:
        """Report coverage that is too low, and note the exit status, which a hook may change."""
        self.own_status = int(exitstatus)
        if too_low := self._measurement.verdict(session, self._bad_tests):
            self._supervisor.write(AgentFailed(message=too_low, kind=FailureKind.GATE))
        yield

    def ended_with(self, status: int) -> SessionEnded:
        """The end of the session with this exit status, whether a hook has set it or has left with it."""
        return SessionEnded(status=status, own=status if self.own_status is None else self.own_status)

    def _report_collection(self) -> None:
        for part in parts_of(list(self._digests)):
            self._supervisor.write(FullCollection(tests=part, digests=tuple(self._digests[test] for test in part)))

    def _prints_at_once(self, session: pytest.Session) -> bool:
        return bool(session.config.getoption("capture", "no") == "no")

    def _terms(self, session: pytest.Session) -> list[ItemOptions]:
        if self._has_failed:
            return []
        try:
            terms = zip(session.items, read_terms(session.items, self._config), strict=True)
            return [
                replace(self._in_a_fresh_process(with_reruns(item, each), item.nodeid), is_script=_is_script(item))
                for item, each in terms
            ]
        except MarkerError as error:
            self._fail(error.nodeid, str(error))
            return []

    def _in_a_fresh_process(self, terms: ItemOptions, nodeid: str) -> ItemOptions:
        """The options of a test; if what it imports starts threads, those of one whose ranks are no forks."""
        if not any(
            each in ("", ".", nodeid) or nodeid.startswith((f"{each}/", f"{each}::")) for each in self._threaded
        ):
            return terms
        return replace(terms, is_fresh=True, gang=(*terms.gang, "fresh"))

    def _serve(self, session: pytest.Session) -> None:
        """Carry out the supervisor's requests until all tests have run."""
        while True:
            request = self._supervisor.next_request()
            if isinstance(request, Finish):
                bad = {each.nodeid: each.is_bad for each in request.tests}
                session.testsfailed = self._bad_tests = sum(bad.values()) + self._uncollected
                note_outcomes(session.config, session.items, bad)
                _dismiss_plugins(session.config)
                return
            self._start_gang(session, request)

    def _start_gang(self, session: pytest.Session, request: StartRanks) -> None:
        if request.has_many_forks:
            linux.gather_into_huge_pages()
        preload(request.preload)
        # A garbage collection over this process's objects would only copy their memory in a rank: 0.2 s each time.
        gc.freeze()
        if request.launches:
            # Read once here, rather than by each driver whose ranks have all ended.
            installed_skips()
        random_state = random.getstate()

        def be_rank(number: int, connection: int, board: int) -> NoReturn:
            if request.fresh:
                become_fresh(
                    FreshRank(
                        start=ServerStart(supervisor=self._supervisor.pid, config=self._config, folders=self._folders),
                        request=request,
                        rank=number,
                        connection=connection,
                        board=board,
                        digests={test: self._digests[test] for test in request.fresh.values()},
                    )
                )
            random.setstate(random_state)  # Python seeds it anew in every fork
            self._paths.take(session.config, process_of_rank(request.gang, number))
            self._be_rank(session, self._assignment(request, number, connection, board))

        self._supervisor.start_ranks(request.ranks, be_rank)

    def _assignment(self, request: StartRanks, rank: int, connection: int, board: int) -> Assignment:
        return Assignment(
            config=self._config,
            rank=rank,
            request=replace(request, url=None) if self._lack else request,
            hardware_skip=self._lack,
            shared=self._folders.of_gang(request.gang),
            connection=connection,
            board=board,
            supervisor=self._supervisor.pid,
        )

    def _be_rank(self, session: pytest.Session, assignment: Assignment) -> NoReturn:
        if assignment.request.launches:
            run_driver(session, assignment, prints_at_once=self._prints_at_once(session))
        run_rank(session, assignment)

    def _keep_own_share(self, session: pytest.Session) -> None:
        """Drop the tests of other shares; last, because the selection of ``--lf`` and similar is split, too."""
        share = self._config.share
        if share is None or self._has_failed:
            return
        try:
            terms = read_terms(session.items, self._config)
        except MarkerError as error:
            self._fail(error.nodeid, str(error))
            return
        own = take_share(session.items, terms, tuple(self._skipped), share)
        session.items[:] = own.items
        self._skipped = {nodeid: self._skipped[nodeid] for nodeid in own.skipped}
        self._supervisor.write(Shared(split=own.split, elsewhere=own.elsewhere))

    def _keep_what_runs_again(self, session: pytest.Session) -> None:
        """Drop the tests that an earlier attempt has settled."""
        if self._config.only is None:
            return
        wanted = frozenset(self._config.only)
        session.items[:] = [item for item in session.items if xml_id(item.nodeid) in wanted]
        self._skipped = {nodeid: phase for nodeid, phase in self._skipped.items() if xml_id(nodeid) in wanted}


def remedy_for_import(error: BaseException | None, code: Path) -> str:
    """What to do if a module was not found that ``python -m pytest`` finds; empty for any other error."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = getattr(error, "cause", None) or error.__cause__  # pytest's own error about a conftest has `cause`
    if error is None or not error.name or str(code.resolve()) in sys.path:
        return ""
    place = code / error.name.replace(".", "/")
    if not (place.is_dir() or place.with_suffix(".py").is_file()):
        return ""
    return (
        f"{error.name} is below the folder of the matrix file. `python -m pytest` puts the working directory on "
        'sys.path, and allranks, as `pytest` alone, does not: add pythonpath = ["."] to pytest\'s configuration.'
    )


def exit_status(left: BaseException, own: int) -> int:
    """The exit status of a session that a hook ends by an exit, as Python and pytest find it; `own` is pytest's own."""
    code = left.code if isinstance(left, SystemExit) else getattr(left, "returncode", None)
    if isinstance(left, pytest.exit.Exception) and code is None:
        return own
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _is_script(item: pytest.Item) -> bool:
    case = getattr(item, "cls", None)
    return case is not None and issubclass(case, unittest.TestCase) and has_main(item.path)


def _markers(config: pytest.Config) -> list[str]:
    """The names of the markers that are declared so far: at first by the configuration file, then by plugins, too."""
    return [re.split("[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")]


def _below(folder: Path, file: str) -> str:
    """The path of a file, relative to a folder that it is in."""
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _threads(names: Sequence[str]) -> str:
    return f"the thread {names[0]}" if len(names) == 1 else f"the threads {', '.join(names)}"


def _dismiss_plugins(config: pytest.Config) -> None:
    """Unregister installed plugins: no test ran in this process, so they have nothing to summarise.

    Hypothesis, for one, would import all of itself for that: 0.5 s, or 6 s if bytecode cannot be cached.
    """
    for plugin, _ in config.pluginmanager.list_plugin_distinfo():
        if config.pluginmanager.is_registered(plugin):
            config.pluginmanager.unregister(plugin)


def _stop_capture(session: pytest.Session) -> None:
    """End the agent's own capture: each rank creates its own, with a file offset that no other process shares."""
    manager = cast("CaptureManager | None", session.config.pluginmanager.get_plugin("capturemanager"))
    if manager is None:  # with -p no:capture there is none
        return
    manager.resume_global_capture()  # it is off between the steps of a session
    captured = (sys.stdout, sys.stderr)
    manager.stop_global_capturing()
    redirect_handlers(captured, (sys.stdout, sys.stderr))


def run_session(config: AgentConfig, folders: Folders, supervisor: Supervisor) -> SessionEnded | None:
    """Collect the suite and serve the supervisor; returns how the session ended, None if it never got to run."""
    if (why_not := _obstacle(config, folders)) is not None:
        supervisor.write(why_not)
        return None
    plugin = ServerPlugin(config, folders, supervisor)
    # Paths on the command line are relative to the code folder; tests run in the shared folder.
    os.chdir(folders.code)
    try:
        with watch_for_sandcastle_skips():
            code: int = pytest.main(plugin.arguments, plugins=[plugin])
    except BrokenPipeError:
        raise
    except (SystemExit, pytest.exit.Exception) as left:
        if plugin.own_status is None:
            raise
        code = exit_status(left, plugin.own_status)
    except Exception as error:  # noqa: BLE001 - pytest passes on errors of hooks at the end of its session
        message = f"pytest, or a hook of the suite's, broke down: {type(error).__name__}: {error}"
        text = shorten(traceback.format_exc())
        supervisor.write(AgentFailed(message=shorten(message, MESSAGE_LIMIT), text=text, kind=FailureKind.SUITE))
        return None
    if plugin.was_refused:
        return None
    if not plugin.has_collected:
        supervisor.write(_why_not_collected(code, _log(folders), plugin.remedy))
        return None
    if code is pytest.ExitCode.INTERNAL_ERROR:
        message = "pytest, or a hook of the suite's, broke down beside the tests"
        supervisor.write(AgentFailed(message=message, text=shorten(_log(folders)), kind=FailureKind.SUITE))
        return None
    return plugin.ended_with(int(code))


def _obstacle(config: AgentConfig, folders: Folders) -> AgentFailed | CollectionFailed | None:
    """Why pytest is not to start: there is no suite, or another version of our plugin would be loaded."""
    if absent := [path for path in config.paths if not (folders.code / path).exists()]:
        # pytest would collect everything below the code folder.
        return CollectionFailed(text=f"There is no {', '.join(absent)} in the code of this job.")
    with suppress(PackageNotFoundError):
        if (installed := version("allranks")) != allranks.__version__:
            both = f"allranks {installed} is installed in the job's Python, and allranks {allranks.__version__}"
            remedy = "Install the same version in both places, or leave it out of the job's packages."
            return AgentFailed(message=f"{both} runs the job. {remedy}", kind=FailureKind.USAGE)
    return None


def _why_not_collected(code: int, output: str, remedy: str) -> AgentFailed | CollectionFailed:
    """Why pytest has collected nothing: a fault of its arguments, or of the suite."""
    if code == pytest.ExitCode.USAGE_ERROR and (refusal := refusal_in(output)):
        return AgentFailed(message=refusal, text=REFUSED_BY_PYTEST, kind=FailureKind.USAGE)
    return CollectionFailed(text=shorten(output), remedy=remedy)


def _log(folders: Folders) -> str:
    """The output of pytest: only there does it explain a usage error, or an exit during an import."""
    sys.stdout.flush()
    return (folders.results / "agent.log").read_text(encoding="utf-8", errors="replace")[-8000:]
