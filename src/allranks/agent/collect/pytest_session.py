"""The fork server's pytest session: it collects the tests, and forks the ranks that run them."""

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
    USAGE_ERROR_SOURCES,
    ProcessPaths,
    cache_arguments,
    check_pytest_args,
    configure_hypothesis,
    disable_reports,
    pass_seed_to_randomly,
    process_of_rank,
    reject_stepwise_with_shards,
    save_outcomes,
    stop_at_first_failure,
    suite_configuration,
    unregister_rerunfailures,
    usage_error_in,
    with_reruns,
)
from allranks.agent.collect.selection import shuffled, take_shard
from allranks.agent.collect.suite_lists import SuiteListError, disable, expect_failures
from allranks.agent.environment_skips import DeviceFileSkipper, SandcastleSkipper, watch_for_sandcastle_skips
from allranks.agent.gpus import cuda_in_this_process, missing_hardware
from allranks.agent.job_plugins import functions
from allranks.agent.launch.adapt import adapt_collected, adapt_torch_cases
from allranks.agent.launch.launcher import run_launcher
from allranks.agent.program import (
    Finish,
    ItemOptions,
    Program,
    ServerStart,
    SessionEnded,
    SkippedModule,
    StartRanks,
    batches,
)
from allranks.agent.rank import debugging
from allranks.agent.rank.coverage import Measurement
from allranks.agent.rank.imports import ThreadWatch, end_pools, preload, redirect_handlers
from allranks.agent.rank.marker_options import MarkerError, read_options
from allranks.agent.rank.rank import Assignment, run_rank
from allranks.agent.rank.rank_setup import seed_generators
from allranks.agent.rank.reports import skip_reason
from allranks.agent.rank.script_folders import FOLDERS, ScriptFolders, exit_report, has_main
from allranks.protocol.config import AgentConfig, Folders, JobShard, seed_of_test
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

_TIMEOUT_MARKER = "timeout"  # of pytest-timeout

_MOST_WARNINGS = 1000


class ServerPlugin:
    """A pytest plugin that collects once, and then forks ranks at the supervisor's request."""

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
        self._threaded: list[str] = []  # node ids of the collectors that started threads
        self._hardware_skip: tuple[SkipCode, str, int | None] | None = None
        self._measurement = Measurement(config, folders)
        self._script_folders = ScriptFolders()
        self._paths = ProcessPaths(config)
        self._failed_tests = 0
        self._digests: dict[str, str] = {}
        self._warnings: dict[SuiteWarning, None] = {}
        self._declared_markers: Sequence[str] = ()
        self.remedy = ""  # advice about the last failed import
        self.has_collected = False
        self.was_rejected = False
        self.own_status: int | None = None  # pytest's own exit status, once its session ends

    @property
    def arguments(self) -> list[str]:
        """The command line of pytest; paths or node ids in the user's arguments replace the suite's paths."""
        return [
            f"--rootdir={self._folders.code}",
            # If the command line has no paths, pytest uses testpaths, which are glob patterns.
            *("-o", f"testpaths={shlex.join(map(glob.escape, self._config.paths))}"),
            *("-p", "allranks.testing.fixtures"),
            *suite_configuration(self._folders.code, self._config.paths),
            *cache_arguments(self._folders.results, self._config.pytest_args),
            *self._config.pytest_args,
        ]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        """Give this process its own paths before pytest opens any; the first one is that of ``--debug``."""
        config = yield
        self._separate_paths(config)
        return config

    def _separate_paths(self, config: pytest.Config) -> None:
        self._paths.replace(config, AGENT)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, None, None]:
        """Set the path of the coverage data before pytest-cov starts measuring in this hook."""
        self._measurement.begin(early_config)
        try:
            return (yield)
        except Exception as error:
            self.remedy = remedy_for_import(error, self._folders.code)
            raise

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Reject unsupported options before any plugin acts on them, and adapt others."""
        try:
            check_pytest_args(config)
            self._measurement.redirect(config)
            if self._config.share:
                reject_stepwise_with_shards(config)
        except pytest.UsageError as error:
            self.was_rejected = True
            self._supervisor.write(AgentFailed(message=str(error), kind=FailureKind.USAGE))
            raise
        self._declared_markers = _markers(config)
        pass_seed_to_randomly(config, self._config.seed)
        for configure in functions(self._config, "configure"):
            configure(config)
        config.pluginmanager.register(DeviceFileSkipper(self._skipped))
        config.pluginmanager.register(SandcastleSkipper())
        config.stash[FOLDERS] = self._script_folders
        for text in disable_reports(config):
            self._supervisor.write(Notice(text=text, kind="pytest"))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str) -> None:
        """Collect the warnings of plugins, conftest files and modules."""
        # Ranks are forks with this plugin. They report the warnings of tests themselves.
        if when == "runtest" or self.has_collected or len(self._warnings) == _MOST_WARNINGS:
            return
        warning = SuiteWarning(
            file=_relative(warning_message.filename, self._folders.code.resolve()),
            line=warning_message.lineno,
            category=warning_message.category.__name__,
            text=shorten(" ".join(str(warning_message.message).split()), MESSAGE_LIMIT),
        )
        self._warnings[warning] = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> Generator[None, None, None]:
        """Report the threads that plugins and the first conftest files started, before any module is imported."""
        stop_at_first_failure(session.config)
        threads = self._threads.take()
        self._report_threads("", "A plugin or a conftest file", (*threads.python, *threads.native))
        yield
        self._check_fork_safety("", _BY_HOOK)
        if self._threaded:
            # Each rank creates its own pool, and this one might occupy a fixed port.
            end_pools()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffle the tests if requested, configure Hypothesis, and mark expected failures and disabled tests."""
        if self._config.shuffle is not None:
            items[:] = shuffled(items, self._config.shuffle)
            self._supervisor.write(Notice(text=f"Tests were shuffled (--shuffle {self._config.shuffle})."))
        configure_hypothesis(items, lambda nodeid: seed_of_test(self._config.seed, nodeid))
        try:
            expect_failures(items, self._config, self._folders.code)
            disable(items, [self._folders.code / path for path in self._config.paths], os.environ)
        except SuiteListError as error:
            self._fail("", str(error))

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore the files that the suite excludes."""
        return True if collection_path in self._ignored else None

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Adapt torch's multi-process test classes before pytest creates an instance of one."""
        for text in adapt_torch_cases():
            self._supervisor.write(Notice(nodeid=collector.nodeid, text=text))
        adapt_collected(getattr(collector, "obj", None) if isinstance(collector, pytest.Class) else None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Import each file as ``python FILE`` would: with its folder on ``sys.path``, and allowed to exit.

        Random parameters of a file depend only on the run's seed, not on the files that were collected earlier, because
        other processes collect other files. In a suite whose tests launch ranks, a seed set by one file also applies to
        the files after it, as under plain pytest.
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
        """Count the deselected tests."""
        self._deselected += len(items)

    def pytest_exception_interact(self, call: pytest.CallInfo[object]) -> None:
        """Determine why a module could not be imported; pytest calls this right before it reports the module."""
        if not self.has_collected and call.excinfo is not None:
            self.remedy = remedy_for_import(call.excinfo.value, self._folders.code)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Report a module whose import fails, initializes CUDA or starts threads; store the reason of a skipped one."""
        if report.failed:
            self._uncollected += 1
            self._report_failure(report.nodeid, report.longreprtext, self.remedy)
            return
        if report.skipped:
            self._skipped[report.nodeid] = shorten(skip_reason(report), MESSAGE_LIMIT)
        self._check_fork_safety(report.nodeid, "Importing this file")

    def _check_fork_safety(self, nodeid: str, cause: str) -> None:
        """Check that it is safe to fork this process; if not, report the cause."""
        if not self._has_failed and (initializes := cuda_in_this_process()):
            text = f"{cause} {initializes}. Ranks are forks of this process, so they could not use CUDA."
            self._fail(nodeid, text, "Move the call that initializes CUDA into a fixture or a test.")
        threads = self._threads.take()
        if threads.python:
            self._threaded.append(nodeid)
            text = (
                f"{cause} starts {_named_threads(threads.python)}, which forks of this process do not have. Therefore, "
                f"the ranks of {'these' if nodeid else 'all'} tests run in new processes that import their files again."
                " Starting threads in a fixture is faster."
            )
            self._supervisor.write(Notice(nodeid=nodeid, text=text, kind="threads"))
        self._report_threads(nodeid, cause, threads.native)

    def _report_threads(self, nodeid: str, cause: str, names: Sequence[str]) -> None:
        if names:
            text = (
                f"{cause} starts {_named_threads(names)}, which ranks, as forks of this process, do not have. If a "
                "test needs such a thread, start it in a fixture."
            )
            self._supervisor.write(Notice(nodeid=nodeid, text=text, kind="threads"))

    def _report_ignored_timeouts(self, session: pytest.Session) -> None:
        """Warn about ``timeout`` markers without effect: no plugin or conftest file has registered the marker."""
        limited = [item.nodeid for item in session.items if item.get_closest_marker(_TIMEOUT_MARKER) is not None]
        if limited and _markers(session.config).count(_TIMEOUT_MARKER) <= self._declared_markers.count(_TIMEOUT_MARKER):
            which = "this test" if len(limited) == 1 else f"this test and {len(limited) - 1} more"
            text = (
                f"The marker {_TIMEOUT_MARKER} of {which} has no effect, because pytest-timeout is not installed in "
                "this job's Python. Install it, use the marker time_limit, or set limits.test in the matrix file."
            )
            self._supervisor.write(Notice(nodeid=limited[0], text=text, kind="pytest"))

    def _fail(self, nodeid: str, text: str, remedy: str = "") -> None:
        """Report an error that prevents all tests from running."""
        self._has_failed = True
        self._report_failure(nodeid, text, remedy)

    def _report_failure(self, nodeid: str, text: str, remedy: str = "") -> None:
        self._supervisor.write(CollectionFailed(nodeid=nodeid, text=shorten(text), remedy=remedy))

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Report the error directly: pytest writes it only to the log, which may be the file that cannot be written."""
        text = str(excinfo.getrepr(style="short"))
        self._supervisor.write(_internal_error(f"{excinfo.typename}: {excinfo.value}", text))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Report the collected tests, and fork ranks until all of them have run."""
        self.has_collected = True
        self._script_folders.find_conflicts()
        # Checked only now, because plugins and conftest files may change which devices are visible.
        self._hardware_skip = missing_hardware(self._config)
        self._check_fork_safety("", _BY_HOOK)
        self._digests = digests(session.items)
        self._report_collection()
        self._select(session)
        if not session.config.getoption("disable_warnings", default=False):
            for warning in self._warnings:
                self._supervisor.write(warning)
        self._report_ignored_timeouts(session)
        options = self._item_options(session)
        for record in tagged(session.items):
            self._supervisor.write(record)
        unregister_rerunfailures(session.config)
        debugging.install(self._config)
        is_collected_only = bool(session.config.option.collectonly)
        self._supervisor.write(
            Program(
                tests=tuple(item.nodeid for item in session.items),
                options=tuple(options),
                skipped=tuple(SkippedModule(nodeid=nodeid, reason=reason) for nodeid, reason in self._skipped.items()),
                deselected=self._deselected,
                maxfail=session.config.getvalue("maxfail") or 0,
                is_collected_only=is_collected_only,
                prints_live=self._prints_live(session),
                missing_hardware=self._hardware_skip[1] if self._hardware_skip else "",
                ignores_collection_errors=not self._has_failed,
                measures_coverage=self._measurement.is_requested,
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
        """Report coverage that is too low, and store pytest's exit status before other hooks change it."""
        self.own_status = int(exitstatus)
        if too_low := self._measurement.finish(session, self._failed_tests):
            self._supervisor.write(AgentFailed(message=too_low, kind=FailureKind.GATE))
        yield

    def ended_with(self, status: int) -> SessionEnded:
        """The record of a session that ended with ``status``, which a hook may have set."""
        return SessionEnded(status=status, own=status if self.own_status is None else self.own_status)

    def _report_collection(self) -> None:
        for part in batches(list(self._digests)):
            self._supervisor.write(FullCollection(tests=part, digests=tuple(self._digests[test] for test in part)))

    def _prints_live(self, session: pytest.Session) -> bool:
        return bool(session.config.getoption("capture", "no") == "no")

    def _item_options(self, session: pytest.Session) -> list[ItemOptions]:
        if self._has_failed:
            return []
        try:
            all_options = zip(session.items, read_options(session.items, self._config), strict=True)
            return [
                replace(self._with_new_process(with_reruns(item, options), item.nodeid), is_script=_is_script(item))
                for item, options in all_options
            ]
        except MarkerError as error:
            self._fail(error.nodeid, str(error))
            return []

    def _with_new_process(self, options: ItemOptions, nodeid: str) -> ItemOptions:
        """The options, with new processes as ranks if importing the test starts threads."""
        if any(
            collector in ("", ".", nodeid) or nodeid.startswith((f"{collector}/", f"{collector}::"))
            for collector in self._threaded
        ):
            return replace(options, is_fresh=True, gang=(*options.gang, "fresh"))
        return options

    def _serve(self, session: pytest.Session) -> None:
        """Serve the supervisor's requests until all tests have run."""
        while True:
            request = self._supervisor.next_request()
            if isinstance(request, Finish):
                failed = {test.nodeid: test.is_bad for test in request.tests}
                session.testsfailed = self._failed_tests = sum(failed.values()) + self._uncollected
                save_outcomes(session.config, session.items, failed)
                _unregister_installed_plugins(session.config)
                return
            self._start_gang(session, request)

    def _start_gang(self, session: pytest.Session, request: StartRanks) -> None:
        if request.has_many_forks:
            linux.gather_into_huge_pages()
        preload(request.preload)
        # In a rank, a garbage collection over this process's objects would copy their memory: 0.2 s each time.
        gc.freeze()
        if request.launches:
            # Read once here instead of once in each launching process.
            installed_skips()
        random_state = random.getstate()

        def rank_main(number: int, connection: int, call_log: int) -> NoReturn:
            if request.fresh:
                become_fresh(
                    FreshRank(
                        start=ServerStart(supervisor=self._supervisor.pid, config=self._config, folders=self._folders),
                        request=request,
                        rank=number,
                        connection=connection,
                        call_log=call_log,
                        digests={test: self._digests[test] for test in request.fresh.values()},
                    )
                )
            random.setstate(random_state)  # Python reseeds it in every fork
            self._paths.switch_to(session.config, process_of_rank(request.gang, number))
            self._run_rank(session, self._assignment(request, number, connection, call_log))

        self._supervisor.start_ranks(request.ranks, rank_main)

    def _assignment(self, request: StartRanks, rank: int, connection: int, call_log: int) -> Assignment:
        return Assignment(
            config=self._config,
            rank=rank,
            request=replace(request, url=None) if self._hardware_skip else request,
            hardware_skip=self._hardware_skip,
            shared=self._folders.of_gang(request.gang),
            connection=connection,
            call_log=call_log,
            supervisor=self._supervisor.pid,
        )

    def _run_rank(self, session: pytest.Session, assignment: Assignment) -> NoReturn:
        if assignment.request.launches:
            run_launcher(session, assignment, prints_live=self._prints_live(session))
        run_rank(session, assignment)

    def _select(self, session: pytest.Session) -> None:
        """Keep the tests of this job's shard, and of these, in a rerun or with a selection, only the requested ones.

        The suite is split after collection, so that the selection of ``--lf`` and similar options is split, too.
        """
        if self._config.share is not None and not self._has_failed:
            self._select_shard(session, self._config.share)
        if self._config.only is not None:
            selected = {nodeid: position for position, nodeid in enumerate(self._config.only)}
            session.items[:] = [item for item in session.items if xml_id(item.nodeid) in selected]
            if self._config.selection_file:  # the pytest session that selected them has ordered them, too
                session.items.sort(key=lambda item: selected[xml_id(item.nodeid)])
            self._skipped = {nodeid: reason for nodeid, reason in self._skipped.items() if xml_id(nodeid) in selected}

    def _select_shard(self, session: pytest.Session, shard: JobShard) -> None:
        try:
            options = read_options(session.items, self._config)
        except MarkerError as error:
            self._fail(error.nodeid, str(error))
            return
        own = take_shard(session.items, options, tuple(self._skipped), shard)
        session.items[:] = own.items
        self._skipped = {nodeid: self._skipped[nodeid] for nodeid in own.skipped}
        self._supervisor.write(Shared(split=own.split, elsewhere=own.in_other_shards))


def remedy_for_import(error: BaseException | None, code: Path) -> str:
    """Advice about a missing module that ``python -m pytest`` would find; empty for any other error."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = getattr(error, "cause", None) or error.__cause__  # pytest's own error about a conftest has `cause`
    if error is None or not error.name or str(code.resolve()) in sys.path:
        return ""
    path = code / error.name.replace(".", "/")
    if not (path.is_dir() or path.with_suffix(".py").is_file()):
        return ""
    return (
        f"{error.name} is in the folder of the matrix file. `python -m pytest` adds the working directory to sys.path, "
        'but `pytest` and allranks do not. Add pythonpath = ["."] to pytest\'s configuration.'
    )


def exit_status(exit_: BaseException, own: int) -> int:
    """The exit status of a session in which a hook raised ``exit_``, by the rules of Python and pytest.

    It is `own`, pytest's own status, for ``pytest.exit`` without a return code.
    """
    code = exit_.code if isinstance(exit_, SystemExit) else getattr(exit_, "returncode", None)
    if isinstance(exit_, pytest.exit.Exception) and code is None:
        return own
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _is_script(item: pytest.Item) -> bool:
    case = getattr(item, "cls", None)
    return case is not None and issubclass(case, unittest.TestCase) and has_main(item.path)


def _markers(config: pytest.Config) -> list[str]:
    """The names of the markers that the configuration file, and the plugins so far, have registered."""
    return [re.split("[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")]


def _relative(file: str, folder: Path) -> str:
    """The path of a file, relative to ``folder`` if the file is in it."""
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _named_threads(names: Sequence[str]) -> str:
    return f"the thread {names[0]}" if len(names) == 1 else f"the threads {', '.join(names)}"


def _unregister_installed_plugins(config: pytest.Config) -> None:
    """Unregister installed plugins: no test ran in this process, so they have nothing to summarize.

    Hypothesis, for example, would import all of its modules: 0.5 s, or 6 s if bytecode cannot be cached.
    """
    for plugin, _ in config.pluginmanager.list_plugin_distinfo():
        if config.pluginmanager.is_registered(plugin):
            config.pluginmanager.unregister(plugin)


def _stop_capture(session: pytest.Session) -> None:
    """End this process's capture: each rank starts its own, with a file offset that it shares with no other process."""
    manager = cast("CaptureManager | None", session.config.pluginmanager.get_plugin("capturemanager"))
    if manager is None:  # with -p no:capture
        return
    manager.resume_global_capture()  # pytest suspends it between the steps of a session
    captured = (sys.stdout, sys.stderr)
    manager.stop_global_capturing()
    redirect_handlers(captured, (sys.stdout, sys.stderr))


def run_session(config: AgentConfig, folders: Folders, supervisor: Supervisor) -> SessionEnded | None:
    """Collect the suite and serve the supervisor; returns how the session ended, None if it could not start."""
    if (obstacle := _obstacle(config, folders)) is not None:
        supervisor.write(obstacle)
        return None
    plugin = ServerPlugin(config, folders, supervisor)
    # Paths on the command line are relative to the code folder; tests run in the shared folder.
    os.chdir(folders.code)
    try:
        with watch_for_sandcastle_skips():
            code: int = pytest.main(plugin.arguments, plugins=[plugin])
    except BrokenPipeError:
        raise
    except (SystemExit, pytest.exit.Exception) as exit_:
        if plugin.own_status is None:
            raise
        code = exit_status(exit_, plugin.own_status)
    except Exception as error:  # noqa: BLE001 - pytest does not catch errors of hooks at the end of its session
        supervisor.write(_internal_error(f"{type(error).__name__}: {error}", traceback.format_exc()))
        return None
    if plugin.was_rejected:
        return None
    if not plugin.has_collected:
        supervisor.write(_collection_error(code, _log(folders), plugin.remedy))
        return None
    if code is pytest.ExitCode.INTERNAL_ERROR:
        supervisor.write(_internal_error("outside of all tests", _log(folders)))
        return None
    return plugin.ended_with(int(code))


def _internal_error(what: str, text: str) -> AgentFailed:
    message = shorten(f"internal error in pytest or in one of the suite's hooks: {what}", MESSAGE_LIMIT)
    return AgentFailed(message=message, text=shorten(text), kind=FailureKind.SUITE)


def _obstacle(config: AgentConfig, folders: Folders) -> AgentFailed | CollectionFailed | None:
    """The error that prevents pytest from starting: the suite is missing, or the job has another allranks."""
    if missing := [path for path in config.paths if not (folders.code / path).exists()]:
        # pytest would collect everything in the code folder.
        return CollectionFailed(text=f"The code of this job lacks {', '.join(missing)}.")
    with suppress(PackageNotFoundError):
        if (installed := version("allranks")) != allranks.__version__:
            message = (
                f"allranks {allranks.__version__} runs the job, but allranks {installed} is installed in the job's "
                "Python. Install the same version in both environments, or remove it from the job's packages."
            )
            return AgentFailed(message=message, kind=FailureKind.USAGE)
    return None


def _collection_error(code: int, output: str, remedy: str) -> AgentFailed | CollectionFailed:
    """The error of a session that collected nothing: wrong arguments, or a fault of the suite."""
    if code == pytest.ExitCode.USAGE_ERROR and (usage_error := usage_error_in(output)):
        return AgentFailed(message=usage_error, text=USAGE_ERROR_SOURCES, kind=FailureKind.USAGE)
    return CollectionFailed(text=shorten(output), remedy=remedy)


def _log(folders: Folders) -> str:
    """The end of pytest's output, the only place where it explains usage errors and exits during imports."""
    sys.stdout.flush()
    return (folders.results / "agent.log").read_text(encoding="utf-8", errors="replace")[-8000:]
