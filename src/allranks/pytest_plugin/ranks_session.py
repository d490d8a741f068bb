"""The session of ``pytest --ranks N``: pytest selects and reports the tests, and a job runs them on N ranks."""

import importlib
import os
import secrets
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from allranks.agent.rank.rank_setup import seed_generators
from allranks.engines.base import JobEnvironment
from allranks.engines.gpus import take_inventory
from allranks.engines.process import ProcessEngine
from allranks.errors import MEANING, AllranksError, ExitCode, counted
from allranks.matrix.model import Cell, Image, Job, Limits, Matrix, Suite
from allranks.ownership import own_run
from allranks.protocol.config import COVERAGE, Selection, seed_of_test
from allranks.protocol.outcomes import Outcome, named
from allranks.protocol.parameter_values import REMEDY, changes, digests
from allranks.protocol.records import NotRun
from allranks.pytest_plugin.kept_results import new_folder, remove, remove_older
from allranks.pytest_plugin.verdict_reports import VerdictReporter
from allranks.report.folder import read_attempts_at
from allranks.report.judge.attempts import final_verdicts
from allranks.report.judge.judging import read_ranks
from allranks.report.results import TestVerdict
from allranks.report.run_files import JobError, Manifest
from allranks.runner.attempt_runner import AttemptRunner, JobAttempt
from allranks.runner.earlier_runs import verdict_policy_of
from allranks.runner.host import Host, require_kernel
from allranks.runner.request import Pdb
from allranks.runner.results_folder import new_run_id, open_run
from allranks.runner.retry_policy import WHOLE_JOB, RunPolicy
from allranks.runner.tasks import Task

_NO_LIMIT: Final = 1e6
"""Seconds (eleven days); the largest value must be within the range of the kernel's timers."""

_SETTINGS: Final = {
    "test": "--ranks-timeout",
    "process_group": "half of --ranks-timeout",
    **dict.fromkeys(("job", "peer_grace"), "a fixed limit of --ranks"),
}
"""The setting behind each time limit."""

_REASONS: Final = 4
"""The number of skip reasons that are shown if no test was executed."""

_REPORTING_OPTIONS: Final = frozenset(
    {
        *("--ranks", "--ranks-backend", "--ranks-timeout", "--pdb-rank"),
        *("--junit-xml", "--junitxml", "--report-log", "--html", "--pastebin"),
        *("--rootdir", "-c", "--config-file", "-n", "--numprocesses", "--dist"),
        *("--cov-report", "--cov-fail-under", "--color"),
    }
)
"""Options that concern only the reporting session; all of them take a value."""

_EDITOR_PLUGINS: Final = ("vscode_pytest", "teamcity.pytest_plugin")
"""Plugins that report to an editor. The job does not load them, because every rank would report."""


@dataclass(frozen=True)
class _StandbyJob:
    """A job that waits for the selected tests."""

    runner: AttemptRunner
    attempt: JobAttempt
    selection: Path  # the file that they are written to


class RanksSession:
    """Runs the selected tests of a pytest session on ranks."""

    _reporter: VerdictReporter

    def __init__(self, config: pytest.Config, terminal: str) -> None:
        option = config.option
        self._config = config
        self._ranks: int = option.ranks
        self._cell = Cell(
            backend=option.ranks_backend,
            world_size=option.ranks,
            gpu_count=option.ranks if option.ranks_backend == "nccl" else 0,
            init_method="env",
        )
        self._pdb = Pdb(rank=option.pdb_rank, terminal=terminal) if option.pdb_rank is not None else None
        self._undo = ExitStack()  # ends the job
        self._job: _StandbyJob | None = None
        self._error: JobError | None = None
        self._not_run: NotRun | None = None
        self._kept: Path | None = None
        self._has_run = False
        self._ran_nothing = False
        self._notices: tuple[str, ...] = ()
        self._interrupted: tuple[str, ...] = ()  # where the ranks were at an interrupt
        self._seed = secrets.randbits(31)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Start the job, and import torch, so that its random generator can be seeded before test files use it.

        The job imports torch at the same time, and then waits for the selected tests.
        """
        self._reporter = VerdictReporter(session, self._cell.world_size)
        if not self._config.option.collectonly:
            try:
                self._job = self._start()
            except AllranksError as error:
                self._error = JobError.from_exception(error)
        with suppress(ImportError):  # the job reports this error
            importlib.import_module("torch")

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> None:
        """Seed the random generators like the job, so that random parameters are the same."""
        if isinstance(collector, pytest.Module):
            seed_generators(seed_of_test(self._seed, collector.nodeid))

    def pytest_report_header(self) -> str:
        """Show the number of ranks and the backend."""
        return f"ranks: {self._ranks} over {self._cell.backend}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests in one job, and report each test when it ends."""
        option = session.config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None  # pytest itself lists the tests, or ends the session
        if session.items:
            self._run(session)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if self._not_run is not None:  # not because of a failure (see above), so the user has quit the debugger
            msg = f"stopped by {self._not_run.reason}"
            raise session.Interrupted(msg)
        return True

    def _run(self, session: pytest.Session) -> None:
        reporter = self._reporter
        session.config.pluginmanager.register(reporter, "allranks-verdicts")
        if self._job is not None:
            try:
                with self._undo:
                    self._run_job(session, self._job)
            except AllranksError as error:
                self._error = JobError.from_exception(error)
            except KeyboardInterrupt:  # the job has ended
                self._interrupted, self._has_run = tuple(_aborted(self._verdicts(self._job))), True
                raise
        reporter.report_missing(self._error, frozenset(self._not_run.tests if self._not_run else ()))
        if self._error is not None and not reporter.has_failed:
            session.testsfailed += 1
        if self._error is None and not reporter.has_failed:
            self._remove_results()
        else:
            remove_older()
        self._ran_nothing = not (reporter.has_executed or reporter.has_failed or self._error)
        self._has_run = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End a job that has not run; if no test was executed, end the session like one without tests."""
        self._undo.close()
        if not self._has_run:
            self._remove_results()
        if self._ran_nothing and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def _remove_results(self) -> None:
        if self._kept is not None:
            remove(self._kept)
            self._kept = None

    def _start(self) -> _StandbyJob:
        """Start the job, which imports torch and then waits for the selected tests."""
        require_kernel()
        results = self._kept = new_folder()
        matrix, suite = self._matrix(), Suite(name="pytest", paths=(Path(),))
        job = Job(cell=self._cell, suite=suite, image=Image(name="here"), environment={})
        inventory, engine = take_inventory(), ProcessEngine()
        cores, memory = engine.capacity()
        host = Host(
            engine=engine,
            cores=cores,
            memory=memory,
            environment_of=lambda _: JobEnvironment(python=sys.executable, python_path=self._import_folders()),
            inventory=inventory,
        )
        run_id, selection = new_run_id(), results / "selection.json"
        with ExitStack() as undo:
            undo.enter_context(own_run(run_id))
            folder = open_run(results, run_id, [job], Manifest(run_id=run_id), self._seed)
            policy = RunPolicy(verdict_policy=verdict_policy_of(matrix), pdb=self._pdb, selection_file=str(selection))
            runner = AttemptRunner(matrix, host, folder, self._reporter, (), policy)
            task = Task(0, runner.demand_of(job), 0.0)
            attempt = runner.prepare(task, job, WHOLE_JOB, runner.environment(task, job), undo)
            if attempt is None:
                msg = f"The test session needs {counted(self._ranks, 'free GPU')}, but other runs are using the GPUs."
                raise AllranksError(
                    msg, remedy="Wait until they are free: `allranks doctor --gpus` shows who uses them."
                )
            undo.enter_context(runner.on_standby(attempt))
            self._undo = undo.pop_all()
        return _StandbyJob(runner, attempt, selection)

    def _run_job(self, session: pytest.Session, job: _StandbyJob) -> None:
        runner, attempt, reporter = job.runner, job.attempt, self._reporter
        tests = tuple(item.nodeid for item in session.items)
        Selection(pytest_args=self._arguments(session), only=tests).write(job.selection)
        attempt.release()
        with _canceled_at_interrupt(attempt):
            runner.finish(attempt, lambda: None)
        self._error = attempt.error or _compare_collections(session.items, attempt.facts.full_collection)
        self._notices = attempt.facts.notices
        self._not_run = attempt.facts.not_run
        reporter.report_final(self._verdicts(job))
        self._add_coverage(attempt.folder / COVERAGE / "data")

    def _verdicts(self, job: _StandbyJob) -> Iterator[TestVerdict]:
        runner, own = job.runner, job.attempt.job
        for newest in read_attempts_at(runner.folder.path, own.cell.id, own.name)[-1:]:
            yield from final_verdicts(newest, read_ranks(newest.files), runner.policy.verdict_policy)

    def _matrix(self) -> Matrix:
        if self._pdb:  # peer_grace is not changed: it is paused while the debugger waits for a command
            limits = Limits(process_group=_NO_LIMIT, test=_NO_LIMIT, job=_NO_LIMIT)
        elif _is_debugged():
            limits = Limits(process_group=_NO_LIMIT, test=_NO_LIMIT, job=_NO_LIMIT, peer_grace=_NO_LIMIT)
        else:
            seconds = self._config.option.ranks_timeout
            limits = Limits(process_group=seconds / 2, test=seconds, job=_NO_LIMIT, settings=_SETTINGS)
        return Matrix(path=self._config.rootpath / "matrix.toml", axes={}, limits=limits)

    def _import_folders(self) -> tuple[Path, ...]:
        """The working directory, if it is on ``sys.path`` (``python -m pytest``)."""
        folder = self._config.invocation_params.dir
        return (folder,) if {"", str(folder)} & set(sys.path) else ()

    def _arguments(self, session: pytest.Session) -> tuple[str, ...]:
        """The arguments for the job: those of this session, and the modules of the selected tests."""
        config = session.config
        modules = dict.fromkeys(str(item.path) for item in session.items)
        configuration = ("-c", str(config.inipath)) if config.inipath else ()
        quiet = ("--cov-report=", "--cov-fail-under=0") if config.pluginmanager.has_plugin("_cov") else ()
        own = _without_reporting(config.invocation_params.args, config.option.file_or_dir)
        # The others omit the line of a failure, which --tb=line prints.
        style = ("--tb=short",) if config.option.tbstyle in {"line", "no"} else ()
        return (*configuration, *own, *_path_options(config), *quiet, *style, *modules)

    def _add_coverage(self, data: Path) -> None:
        """Copy the ranks' coverage data next to this process's, so that pytest-cov combines both."""
        plugin: Any = self._config.pluginmanager.get_plugin("_cov")
        controller = getattr(plugin, "cov_controller", None)
        if controller is not None and data.exists():
            own = Path(controller.cov.config.data_file).absolute()
            shutil.copy(data, own.with_name(f"{own.name}.allranks-{os.getpid()}"))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401 - pytest does not export its type
        """Show an error of the whole job, its notices, and the folder with the ranks' files."""
        if self._error is not None:
            terminalreporter.section("ranks", red=True)
            terminalreporter.line("\n".join(filter(None, (self._error.what, self._error.why, self._error.remedy))))
        for line in self._interrupted:
            terminalreporter.line(line, red=True)
        for notice in self._notices:
            terminalreporter.line(f"notice: {notice}.")
        if self._kept is not None:
            terminalreporter.line(f"logs and stacks of the ranks: {self._kept / 'latest'}")
        if self._ran_nothing:
            terminalreporter.section(MEANING[ExitCode.NOTHING_RAN], yellow=True)
            for reason, count in Counter(map(_reason, terminalreporter.getreports("skipped"))).most_common(_REASONS):
                terminalreporter.line(f"{counted(count, 'test')} skipped: {reason}")


@contextmanager
def _canceled_at_interrupt(attempt: JobAttempt) -> Iterator[None]:
    """At Ctrl-C, end the job, take its last records, with the places of its ranks, and raise a KeyboardInterrupt.

    A second Ctrl-C raises it immediately.
    """
    if threading.current_thread() is not threading.main_thread():  # only that may handle signals
        yield
        return
    interrupts = list[int]()

    def cancel(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.signal(signal.SIGINT, before)
        threading.Thread(target=attempt.cancel).start()  # it takes a lock that this thread may hold

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt


def _aborted(tests: Iterable[TestVerdict]) -> Iterator[str]:
    """The tests that an interrupt ended, and where their ranks were."""
    for test in tests:
        if any(rank.outcome is Outcome.ABORTED for rank in test.ranks):
            yield f"{test.nodeid}: {test.verdict.message}"


def _compare_collections(items: Sequence[pytest.Item], rank_digests: Mapping[str, str]) -> JobError | None:
    """The error if tests with the same ids have different parameter values in this process and in the ranks."""
    different = changes(digests(items), rank_digests).other_values
    if not different:
        return None
    return JobError(
        kind="collection",
        what=f"The parameter values of the ranks differ from those of pytest under the same ids: {named(different)}.",
        why="In each process, Python iterates over a set of strings in a different order, unless PYTHONHASHSEED is a "
        "number.",
        remedy=f"Set it before pytest starts: PYTHONHASHSEED=0 pytest --ranks …\nOr: {REMEDY}",
    )


def _reason(skipped: pytest.TestReport | pytest.CollectReport) -> str:
    _, _, text = skipped.longrepr if isinstance(skipped.longrepr, tuple) else ("", 0, str(skipped.longrepr))
    return text.removeprefix("Skipped: ")


def _is_debugged() -> bool:
    """Whether debugpy debugs this process and its children, so a breakpoint may stop any rank for any time."""
    pydevd = sys.modules.get("pydevd")
    return pydevd is not None and pydevd.get_global_debugger() is not None


def _path_options(config: pytest.Config) -> Iterator[str]:
    """Options with paths that pytest writes to; made absolute, because the job has a different working directory."""
    paths = {name: getattr(config.option, name, None) for name in ("basetemp", "log_file", "debug")}
    if config.pluginmanager.has_plugin("logging"):
        paths["log_file"] = paths["log_file"] or config.getini("log_file")
    for name, path in paths.items():
        if path:
            yield f"--{name.replace('_', '-')}={config.invocation_params.dir / path}"


def _without_reporting(arguments: Sequence[str], paths: Sequence[str]) -> Iterator[str]:
    """The arguments without paths of tests and without options that concern only the reporting session."""
    remaining_paths, remaining = list(paths), iter(arguments)
    for argument in remaining:
        if argument == "--":  # only paths follow
            continue
        flag, equals, _ = argument.partition("=")
        if flag in _REPORTING_OPTIONS:
            if not equals:
                next(remaining, None)
        elif argument == "-p":
            if (plugin := next(remaining, "")) not in _EDITOR_PLUGINS:
                yield from ("-p", plugin)
        elif argument in remaining_paths:
            remaining_paths.remove(argument)
        else:
            yield argument
