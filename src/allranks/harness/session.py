"""The agent's pytest session: pytest parses, configures and collects; gangs do the running."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pytest
import torch
from _pytest.capture import CaptureManager

from allranks.harness import kernel
from allranks.harness.conductor import Conductor, JobLimitError
from allranks.harness.config import AgentConfig, Folders
from allranks.harness.events import EventLog
from allranks.harness.gang import HangupError
from allranks.harness.hangup import HANGUP_STATUS, watch_no_more
from allranks.harness.outcome import Outcome, SkipKind
from allranks.harness.phases import MESSAGE_LIMIT, Phase, shorten, skip_reason


def run_session(config: AgentConfig, folders: Folders, journal: EventLog, stdin: int) -> int:
    """Collect the suite and run it; the agent's exit status.

    Args:
        config: The job.
        folders: Its folders.
        journal: Where the agent's events go.
        stdin: Descriptor that says *go*, and by its end that the job is over.
    """
    kernel.adopt_orphans()
    if not (folders.code / config.path).exists():
        # pytest would take everything below the code for the suite.
        journal.write("collection_failed", nodeid="", text=f"There is no {config.path} in the code of this job.")
        return 0
    plugin = AgentPlugin(config, folders, journal, stdin)
    # Paths on the command line are relative to the code; tests themselves work in the shared folder.
    os.chdir(folders.code)
    code = pytest.main(plugin.arguments, plugins=[plugin])
    if not plugin.has_collected:
        journal.write("collection_failed", nodeid="", text=_agent_log(folders))
    elif code is pytest.ExitCode.INTERNAL_ERROR:
        journal.write("agent_failed", message="pytest broke down in the agent", text=_agent_log(folders))
        return 1
    return plugin.status


def _agent_log(folders: Folders) -> str:
    """What pytest printed: the only place where it explains a usage error, or an exit in the middle of an import."""
    sys.stdout.flush()
    return (folders.results / "agent.log").read_text(encoding="utf-8", errors="replace")[-8000:]


class AgentPlugin:
    """Collects once, then hands the tests to a :class:`Conductor`."""

    def __init__(self, config: AgentConfig, folders: Folders, journal: EventLog, stdin: int) -> None:
        self._config = config
        self._folders = folders
        self._journal = journal
        self._stdin = stdin
        self._deselected = 0
        self._skipped: dict[str, Phase] = {}
        self._has_failed = False
        self.has_collected = False
        self.status = 0

    @property
    def arguments(self) -> list[str]:
        """The command line of pytest; paths and node ids of the user's own take the place of the suite's path."""
        return [
            f"--rootdir={self._folders.code}",
            # pytest takes these where it is given no paths and works in its root.
            *("-o", f"testpaths={shlex.quote(self._config.path)}"),
            *("-p", "allranks.testing.fixtures"),
            *("-o", f"cache_dir={self._folders.shared}/pytest-cache"),
            *self._config.pytest_args,
        ]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what ``-k``, ``-m`` and plugins take away."""
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write down what cannot be collected, which module initialises CUDA, and which are skipped as a whole."""
        if report.failed:
            self._fail(report.nodeid, report.longreprtext)
        elif report.skipped:
            self._skipped[report.nodeid] = _collect_skip(report)
        elif torch.cuda.is_initialized() and not self._has_failed:  # type: ignore[no-untyped-call]
            self._fail(report.nodeid, "importing it initialises CUDA, and no fork of this process could use CUDA then")

    def _fail(self, nodeid: str, text: str) -> None:
        self._has_failed = True
        self._journal.write("collection_failed", nodeid=nodeid, text=text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the collected tests in gangs."""
        self.has_collected = True
        nodeids = [*self._skipped, *(item.nodeid for item in session.items)]
        self._journal.write("collected", tests=nodeids, deselected=self._deselected)
        self._record_skipped()
        if session.config.option.collectonly:
            self._journal.write("not_run", tests=nodeids, reason="--collect-only")
        if self._has_failed or not session.items or session.config.option.collectonly:
            return True
        _stop_capture(session)
        os.chdir(self._folders.shared)
        self._conduct(session)
        return True

    def _record_skipped(self) -> None:
        """Give a module that skipped itself, with tests that nobody knows, an outcome on every rank."""
        for rank in range(self._config.world_size):
            log = EventLog(self._folders.results / f"events-{rank}.jsonl")
            for nodeid, phase in self._skipped.items():
                log.write("phase", nodeid=nodeid, rank=rank, **phase.fields())
                log.write("test_finished", nodeid=nodeid, outcome=phase.outcome)
            log.close()

    def _conduct(self, session: pytest.Session) -> None:
        try:
            with _orderly_end():
                self._wait_for_go()
                with _job_limit(self._config.limits.job):
                    Conductor(session, self._config, self._folders, self._journal, self._stdin).run_all()
        except HangupError:
            self._journal.write("interrupted")
            self.status = HANGUP_STATUS
        except JobLimitError:
            self._journal.write("job_timed_out", limit=self._config.limits.job)

    def _wait_for_go(self) -> None:
        watch_no_more(self._stdin)
        if not os.read(self._stdin, 4096):
            raise HangupError
        self._journal.write("go")


def _collect_skip(report: pytest.CollectReport) -> Phase:
    reason = shorten(skip_reason(report), MESSAGE_LIMIT)
    return Phase(
        when="collect",
        outcome=Outcome.SKIPPED,
        duration=0.0,
        message=reason,
        text=reason,
        skip_kind=SkipKind.PLAIN,
    )


def _stop_capture(session: pytest.Session) -> None:
    """End the agent's own capture: each rank makes its own, with a file offset that it shares with nobody."""
    manager = cast("CaptureManager", session.config.pluginmanager.get_plugin("capturemanager"))
    manager.stop_global_capturing()


@contextmanager
def _job_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`JobLimitError` when the time of the job is up; forks do not inherit the timer."""

    def raise_limit(_number: int, _frame: object) -> None:
        msg = f"the job's time limit of {seconds:g} s was reached"
        raise JobLimitError(msg)

    signal.signal(signal.SIGALRM, raise_limit)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Turn SIGTERM into :class:`HangupError`, so that ranks are stopped and results written."""

    def raise_hangup(_number: int, _frame: object) -> None:
        raise HangupError

    signal.signal(signal.SIGTERM, raise_hangup)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
