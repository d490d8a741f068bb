"""The agent's pytest session: pytest parses, configures and collects; gangs do the running."""

import os
import platform
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import pytest
import torch
from _pytest.capture import CaptureManager

from allranks.harness import kernel
from allranks.harness.collection.hardware import missing_hardware
from allranks.harness.collection.hypothesis_tests import settle_hypothesis
from allranks.harness.collection.import_threads import ThreadWatch
from allranks.harness.collection.log_handlers import redirect_handlers
from allranks.harness.collection.markers import MarkerError, Terms, read_terms
from allranks.harness.collection.pytest_cache import cache_arguments, note_outcomes, stop_at_first_failure
from allranks.harness.collection.pytest_options import (
    refuse_options,
    refuse_stepwise_of_a_share,
    suite_configuration,
    take_over_reports,
)
from allranks.harness.collection.shares import take_share
from allranks.harness.collection.shuffling import shuffled
from allranks.harness.conductor import Conductor, Job, Program
from allranks.harness.config import AgentConfig, Folders
from allranks.harness.events import JOURNAL, EventLog, rank_events, read_events
from allranks.harness.gangs.gang import HangupError, JobLimitError
from allranks.harness.hangup import HANGUP_STATUS, watch_no_more
from allranks.harness.lanes.lane import Place
from allranks.harness.lanes.lanes import LaneLostError, LaneTerms
from allranks.harness.nodes.follower import Follower
from allranks.harness.nodes.gate import NodesError
from allranks.harness.nodes.leader import Leader
from allranks.harness.nodes.node import LocalNode, NodeLostError
from allranks.harness.nodes.roll import Roll, read_failures
from allranks.harness.nodes.wire import Wire
from allranks.harness.outcome import Outcome, SkipKind
from allranks.harness.phases import MESSAGE_LIMIT, Phase, shorten, skip_reason
from allranks.harness.rank_xml import xml_id
from allranks.harness.ranks.rank import seed_of_test
from allranks.harness.signals import raising
from allranks.harness.torch_cases.adapt import adapt_torch_cases
from allranks.harness.torch_cases.sandcastle import watch_for_sandcastle_skips


def run_session(config: AgentConfig, folders: Folders, journal: EventLog, stdin: int, wires: Mapping[int, Wire]) -> int:
    """Collect the suite and run it; the agent's exit status.

    Args:
        config: The job.
        folders: Its folders.
        journal: Where the agent's events go.
        stdin: Descriptor that says *go*, and by its end that the job is over.
        wires: Connections to the agents of other nodes: see :func:`allranks.harness.nodes.gate.meet`.
    """
    kernel.adopt_orphans()
    if not (folders.code / config.path).exists():
        # pytest would take everything below the code for the suite.
        journal.write("collection_failed", nodeid="", text=f"There is no {config.path} in the code of this job.")
        return 0
    peers = Follower(wires[0], config.limits.silence, journal) if config.node else Leader(config, wires)
    plugin = AgentPlugin(config, folders, journal, stdin, peers)
    # Paths on the command line are relative to the code; tests themselves work in the shared folder.
    os.chdir(folders.code)
    with watch_for_sandcastle_skips():
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

    def __init__(
        self, config: AgentConfig, folders: Folders, journal: EventLog, stdin: int, peers: Leader | Follower
    ) -> None:
        self._config = config
        self._folders = folders
        self._journal = journal
        self._stdin = stdin
        self._peers = peers
        self._deselected = 0
        self._skipped: dict[str, Phase] = {}
        self._has_failed = False
        self._threads = ThreadWatch()
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
            *suite_configuration(self._folders.code, self._config.path),
            *cache_arguments(self._folders.results, self._config.pytest_args),
            *self._config.pytest_args,
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Refuse what cannot be had, before any plugin acts on it."""
        refuse_options(config)
        if self._config.share:
            refuse_stepwise_of_a_share(config)
        for text in take_over_reports(config):
            self._journal.write("notice", nodeid="", text=text)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Note the threads of plugins and of the conftest files that pytest reads first; nobody else can be blamed."""
        stop_at_first_failure(session.config)
        news = self._threads.news()
        self._note_threads("", "A plugin or a conftest file", (*news.python, *news.native))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests in another order, if that is asked for, and have Hypothesis do the same on all ranks."""
        if self._config.shuffle is not None:
            items[:] = shuffled(items, self._config.shuffle)
            text = f"The order of the tests is that of --shuffle {self._config.shuffle}."
            self._journal.write("notice", nodeid="", text=text)
        settle_hypothesis(items, lambda nodeid: seed_of_test(self._config.seed, nodeid))

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """Have torch's launcher tests start their ranks as ours do, before pytest makes an object of one."""
        for text in adapt_torch_cases():
            self._journal.write("notice", nodeid=collector.nodeid, text=text)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what ``-k``, ``-m`` and plugins take away."""
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write down what cannot be collected, which module initialises CUDA, and which are skipped as a whole."""
        if report.failed:
            self._fail(report.nodeid, report.longreprtext)
            return
        if report.skipped:
            self._skipped[report.nodeid] = _collect_skip(report)
        self._look_at_process(report.nodeid, "Importing it")

    def _look_at_process(self, nodeid: str, who: str) -> None:
        """See that forks of this process will be clean, and say who is to blame where they will not."""
        if torch.cuda.is_initialized() and not self._has_failed:  # type: ignore[no-untyped-call]
            self._fail(nodeid, f"{who} initialises CUDA, and no fork of this process could use CUDA then")
        news = self._threads.news()
        if news.python:
            self._fail(
                nodeid,
                f"{who} starts {_threads(news.python)}, and ranks, which are forks of this process, have no "
                "such thread, but every lock that it holds\nStart it in a fixture.",
            )
        self._note_threads(nodeid, who, news.native)

    def _note_threads(self, nodeid: str, who: str, names: Sequence[str]) -> None:
        if names:
            text = f"{who} starts {_threads(names)}, which ranks, forks of this process, do not have."
            self._journal.write("notice", nodeid=nodeid, text=text)

    def _fail(self, nodeid: str, text: str) -> None:
        self._has_failed = True
        self._journal.write("collection_failed", nodeid=nodeid, text=text)

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Say at once what broke: the log that pytest explains it in may be what cannot be written."""
        message = f"the agent broke down: {excinfo.typename}: {excinfo.value}"
        self._journal.write("agent_failed", message=message, text=str(excinfo.getrepr(style="short")))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the collected tests in gangs."""
        self.has_collected = True
        self._look_at_process("", "A hook of a plugin or a conftest file")
        self._keep_own_share(session)
        self._keep_what_runs_again(session)
        nodeids = [*self._skipped, *(item.nodeid for item in session.items)]
        self._journal.write("collected", tests=nodeids, deselected=self._deselected)
        self._record_skipped()
        if session.config.option.collectonly:
            self._journal.write("not_run", tests=nodeids, reason="--collect-only")
        self._report(nodeids)
        if self._has_failed or not session.items or session.config.option.collectonly:
            return True
        _stop_capture(session)
        os.chdir(self._folders.shared)
        if isinstance(self._peers, Follower):
            self._follow(session, self._peers)
            return True
        self._conduct(session, self._peers)
        journal = read_events(self._folders.results / JOURNAL)
        note_outcomes(session.config, session.items, journal, self._config.mixed_skip)
        _dismiss_plugins(session.config)
        return True

    def _keep_own_share(self, session: pytest.Session) -> None:
        """Leave the tests of other shares out, last of all: what ``--lf`` and its kin choose is shared, too."""
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
        self._journal.write("shared", split=own.split, elsewhere=own.elsewhere)

    def _keep_what_runs_again(self, session: pytest.Session) -> None:
        """Leave out what an earlier attempt has settled."""
        if self._config.only is None:
            return
        wanted = frozenset(self._config.only)
        session.items[:] = [item for item in session.items if xml_id(item.nodeid) in wanted]
        self._skipped = {nodeid: phase for nodeid, phase in self._skipped.items() if xml_id(nodeid) in wanted}

    def _record_skipped(self) -> None:
        """Give a module that skipped itself, with tests that nobody knows, an outcome on every rank."""
        for rank in self._config.local_ranks:
            log = EventLog(rank_events(self._folders.results, rank))
            for nodeid, phase in self._skipped.items():
                log.write("phase", nodeid=nodeid, rank=rank, **phase.fields())
                log.write("test_finished", nodeid=nodeid, outcome=phase.outcome)
            log.close()

    def _report(self, nodeids: Sequence[str]) -> None:
        """Have all agents of the job know what each has collected, and go on only where it is the same."""
        if self._config.nodes == 1:
            return
        lack = missing_hardware(self._config)
        roll = Roll(
            tests=tuple(nodeids),
            failures=read_failures(read_events(self._folders.results / JOURNAL)),
            torch=torch.__version__,
            python=platform.python_version(),
            lacks=lack[1] if lack else "",
        )
        if isinstance(self._peers, Follower):
            self._peers.report(roll)
        elif not self._has_failed:
            self._compare(roll, self._peers)

    def _compare(self, roll: Roll, leader: Leader) -> None:
        try:
            failures = leader.compare(roll)
        except NodesError as error:
            self._journal.write("nodes_failed", message=str(error))
            self._has_failed = True
            self.status = 1
            return
        for failure in failures:
            self._fail(failure.nodeid, failure.text)
        if not failures:
            self._journal.write("nodes_agreed")

    def _follow(self, session: pytest.Session, follower: Follower) -> None:
        watch_no_more(self._stdin)
        try:
            with _orderly_end():
                job = Job(config=self._config, folders=self._folders, journal=self._journal, stdin=self._stdin)
                follower.serve(_local_node(session, job), self._stdin)
        except HangupError:
            self._journal.write("interrupted")
            self.status = HANGUP_STATUS

    def _conduct(self, session: pytest.Session, leader: Leader) -> None:
        try:
            terms = read_terms(session.items, self._config)
        except MarkerError as error:
            self._fail(error.nodeid, str(error))
            return
        try:
            with _orderly_end():
                self._wait_for_go()
                with _job_limit(self._config.limits.job):
                    self._conductor(session, terms, leader).run_all()
                    leader.dismiss()
        except NodeLostError as error:
            self._journal.write("node_lost", node=error.node, message=str(error))
            self.status = 1
        except LaneLostError as error:
            self._journal.write("agent_failed", message=str(error))
            self.status = 1
        except HangupError:
            self._journal.write("interrupted")
            self.status = HANGUP_STATUS
        except JobLimitError:
            self._journal.write("job_timed_out", limit=self._config.limits.job)

    def _conductor(self, session: pytest.Session, terms: Sequence[Terms], leader: Leader) -> Conductor:
        program = Program(items=session.items, terms=terms, maxfail=session.config.getvalue("maxfail") or 0)
        job = Job(
            config=self._config,
            folders=self._folders,
            journal=self._journal,
            stdin=self._stdin,
            lanes=self._lane_terms(session, program),
        )
        return Conductor(program, [_local_node(session, job), *leader.nodes(self._folders.results)], job)

    def _lane_terms(self, session: pytest.Session, program: Program) -> LaneTerms | None:
        """How launcher tests overlap; on several nodes they do not."""
        if self._config.overlap == 1 or self._config.nodes > 1:
            return None

        def make_worker(place: Place) -> Conductor:
            folders = replace(self._folders, results=place.results)
            job = Job(config=self._config, folders=folders, journal=place.journal, stdin=place.commands)
            return Conductor(program, [_local_node(session, job)], job)

        return LaneTerms(
            count=self._config.overlap,
            make_worker=make_worker,
            journal=self._journal,
            results=self._folders.results,
            stdin=self._stdin,
        )

    def _wait_for_go(self) -> None:
        watch_no_more(self._stdin)
        if not os.read(self._stdin, 4096):
            raise HangupError
        self._journal.write("go")


def _local_node(session: pytest.Session, job: Job) -> LocalNode:
    """Where ranks are started for a job, or for some of its tests."""

    def echo(rank: int, line: str) -> None:
        job.journal.say("output", rank=rank, line=line)

    is_streamed = session.config.getoption("capture", "no") == "no"
    return LocalNode(session, job.config, job.folders, job.config.local_ranks, echo if is_streamed else None)


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


def _threads(names: Sequence[str]) -> str:
    return f"the thread {names[0]}" if len(names) == 1 else f"the threads {', '.join(names)}"


def _dismiss_plugins(config: pytest.Config) -> None:
    """Forget the plugins that are installed: no test ran in this process, so they have nothing to sum up.

    Hypothesis, for one, would import all of itself for that: 0.5 s, and 6 s where bytecode cannot be kept.
    """
    for plugin, _ in config.pluginmanager.list_plugin_distinfo():
        if config.pluginmanager.is_registered(plugin):
            config.pluginmanager.unregister(plugin)


def _stop_capture(session: pytest.Session) -> None:
    """End the agent's own capture: each rank makes its own, with a file offset that it shares with nobody."""
    manager = cast("CaptureManager | None", session.config.pluginmanager.get_plugin("capturemanager"))
    if manager is None:  # with -p no:capture there is none
        return
    manager.resume_global_capture()  # it is off between the steps of a session
    captured = (sys.stdout, sys.stderr)
    manager.stop_global_capturing()
    redirect_handlers(captured, (sys.stdout, sys.stderr))


@contextmanager
def _job_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`JobLimitError` when the time of the job is up; forks do not inherit the timer."""
    error = JobLimitError(f"the job's time limit of {seconds:g} s was reached")
    signal.signal(signal.SIGALRM, raising(lambda: error))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Turn SIGTERM into :class:`HangupError`, so that ranks are stopped and results written."""
    signal.signal(signal.SIGTERM, raising(HangupError))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
