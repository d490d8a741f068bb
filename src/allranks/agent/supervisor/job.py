"""The supervisor: the process of a job that runs no tested code, and that has gangs run the suite.

It owns the output stream to the host, the job's token, the reading ends of all sockets, and the clocks. It imports only
the standard library. Its fork server imports torch and the suite and forks the ranks, which become children of this
process.
"""

import argparse
import gc
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from allranks.agent import clock, evidence, kernel, linux
from allranks.agent.gangs.forks import (
    REPORT_TIMEOUT,
    SESSION_END_TIMEOUT,
    ForkServer,
    ForkServerError,
    LocalNode,
    RankRegistry,
)
from allranks.agent.gangs.gang import END_GRACE
from allranks.agent.job_end import STOPPED_STATUS, JobEnd, JobLimitError, StopRequestedError
from allranks.agent.job_plugins import JobPluginError, check_plugins
from allranks.agent.nodes.connection import NodeConnection, NodesError, connect_nodes
from allranks.agent.nodes.follower import Follower
from allranks.agent.nodes.leader import Leader
from allranks.agent.nodes.node import CollectionDigest, CollectionFailure, NodeLostError
from allranks.agent.orphans import GANG_VARIABLE, LAUNCH_VARIABLE, NOBODY, end_children
from allranks.agent.program import FinalResult, Finish, Program, SessionEnded, SkippedModule, batches, changed_status
from allranks.agent.record_stream import RecordWriter
from allranks.agent.supervisor.test_loop import LostGpuError, SupervisedJob, TestLoop, WorkerLostError
from allranks.protocol.config import AgentConfig, Folders, Selection
from allranks.protocol.outcomes import Outcome, SkipKind, shorten
from allranks.protocol.records import (
    SCHEMA,
    AgentFailed,
    Begun,
    Collected,
    CollectionFailed,
    FailureKind,
    Finished,
    FullCollection,
    GpuFailed,
    GpusChecked,
    Imported,
    Interrupted,
    JobTimedOut,
    NodeLost,
    NodesAgreed,
    NodesFailed,
    NodesMet,
    Notice,
    NotRun,
    PhaseEnd,
    Printed,
    RankEnded,
    Record,
    Shared,
    SuiteWarning,
    Tagged,
    Went,
)

HIDDEN_VARIABLES = ("SANDCASTLE", "TW_JOB_USER")
"""Variables that make torch count skips as passes; in allranks, the report decides that."""

_FORWARDED = (
    AgentFailed,
    CollectionFailed,
    FullCollection,
    GpuFailed,
    GpusChecked,
    Imported,
    Notice,
    Shared,
    SuiteWarning,
    Tagged,
)
"""The records that a fork server may send, which include no outcomes."""

_OK_STATUSES = frozenset({0, 1, 5})
"""pytest's exit statuses for passed, failed, and no tests: the outcomes of the tests decide."""

_LOG_EXCERPT = 8000
"""Characters from the end of a fork server's log that are shown with its failure."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one job, write its records to standard output, and exit.

    The exit status is 0 if the supervisor did its work, whatever the outcomes; 130 if it was stopped; 1 if it failed.
    """
    # A process inherits the signal mask of the thread that started it, which may block signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    gc.disable()
    options = _parse(arguments)
    config = AgentConfig.read(options.config)
    # The file contains the token that authenticates nodes to each other, which tests must not see.
    with suppress(OSError):
        options.config.unlink()
    stream = RecordWriter(os.dup(1))
    stream.write(Begun(schema=SCHEMA, node=config.node, pid=os.getpid(), python=sys.version.split()[0]))
    if refusal := kernel.check().refusal:
        stream.write(AgentFailed(message=refusal, kind=FailureKind.KERNEL))
        status = 1
    else:
        try:
            check_plugins(config)
            status = _run(config, options, stream)
        except JobPluginError as error:
            stream.write(AgentFailed(message=str(error)))
            status = 1
    stream.write(Finished(status=status))
    stream.close()
    os._exit(status)


def _run(config: AgentConfig, options: argparse.Namespace, stream: RecordWriter) -> int:
    if options.contained:
        linux.hide_from_others()
    end = JobEnd.of_this_process(config.limits.limit("job"))
    folders = Folders(code=options.code.resolve(), results=options.results.resolve(), shared=options.shared.resolve())
    job = SupervisedJob(config=config, folders=folders, journal=stream, end=end)
    return Supervisor(job, is_contained=options.contained).run()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m allranks.agent")
    for name in ("config", "code", "results", "shared"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument(
        "--contained", action="store_true", help="protect this process: the container runs only this job"
    )
    return parser.parse_args(arguments)


def cell_environment(config: AgentConfig, present: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that describe the cell to suites, and defaults that make forks safe."""
    defaults = {
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else its import starts a pool, and a thread (torch 2.6)
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # torch's stores (2.13) look up the name of each peer, even of 127.0.0.1; without DNS, each would take 5 s.
        "RES_OPTIONS": "timeout:1 attempts:2",
        # All processes of a run must iterate over a set of strings in the same order: parameters may come from one.
        "PYTHONHASHSEED": str(config.seed & 0xFFFFFFFF),
        # A child process of a rank then writes its stacks to standard error if a signal kills it.
        "PYTHONFAULTHANDLER": "1",
    }
    return {
        **{name: value for name, value in defaults.items() if name not in present},
        clock.VARIABLE: repr(clock.ORIGIN),
        GANG_VARIABLE: NOBODY,
        LAUNCH_VARIABLE: NOBODY,
        "BACKEND": config.backend,
        # A launching process is not a rank, but libraries treat a process with WORLD_SIZE as one.
        "ALLRANKS_WORLD_SIZE" if config.launches_ranks else "WORLD_SIZE": str(config.world_size),
        "INIT_METHOD": config.init_method,
        "ALLRANKS_GPU_COUNT": str(config.gpu_count),
        "GROUP_RANK": str(config.node),
    }


class Supervisor:
    """Supervises one job, from its start to its end.

    If it `is_contained`, the job has its own container, and shares its processor time with nothing else.
    """

    _server: ForkServer

    def __init__(self, job: SupervisedJob, *, is_contained: bool) -> None:
        self._job = job
        self._config = job.config
        self._folders = job.folders
        self._stream = job.journal
        self._end = job.end
        self._is_contained = is_contained
        self._failures: list[CollectionFailure] = []
        self._tolerated: list[CollectionFailure] = []  # the job runs in spite of these
        self._has_job_error = False
        self._digests: dict[str, str] = {}

    def run(self) -> int:
        """Run the job; return the exit status."""
        linux.adopt_orphans()
        try:
            self._server = self._start_server()
            try:
                return self._run_job()
            finally:
                self._server.kill()
                end_children()
        except Exception as error:  # noqa: BLE001 - any failure of the supervisor is the job's result
            self._fail(f"the supervisor failed: {type(error).__name__}: {error}", traceback.format_exc())
        return 1

    def _start_server(self) -> ForkServer:
        log = os.open(self._folders.results / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target in (1, 2):
            os.dup2(log, target)
        present = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
        environment = {**present, **cell_environment(self._config, present)}
        server = ForkServer(self._config, self._folders, environment, log)
        if self._is_contained:  # else a thousand forks would leave this process a thousandth of the processor
            os.setpriority(os.PRIO_PROCESS, server.pid, 19)
        return server

    def _fail(self, message: str, text: str = "", kind: FailureKind = FailureKind.BROKEN) -> None:
        self._write(AgentFailed(message=message, text=shorten(text), kind=kind))

    def _fail_suite(self, message: str) -> None:
        """Report a failure of the process that runs the suite, with the end of its log."""
        log = evidence.read(self._folders.results / "agent.log")
        self._fail(message, log[-_LOG_EXCERPT:], FailureKind.SUITE)

    def _write(self, record: Record) -> None:
        """Write a record, and keep failures, which other nodes must learn of."""
        self._stream.write(record)
        if isinstance(record, FullCollection):
            self._digests.update(zip(record.tests, record.digests, strict=True))
        elif isinstance(record, CollectionFailed):
            self._failures.append(CollectionFailure(nodeid=record.nodeid, text=record.text))
        elif isinstance(record, GpuFailed):
            self._has_job_error = True
            self._failures.append(CollectionFailure(nodeid="", text=f"{record.name} is unhealthy: {record.message}"))
        elif isinstance(record, AgentFailed):
            self._has_job_error = True
            text = "\n".join(filter(None, (record.message, record.text)))
            self._failures.append(CollectionFailure(nodeid="", text=text))

    def _run_job(self) -> int:
        try:
            connections = connect_nodes(self._config)
        except NodesError as error:
            self._stream.write(NodesFailed(message=str(error)))
            return 1
        if self._config.nodes > 1:
            self._stream.write(NodesMet(nodes=tuple(sorted(connections))))
        follower = Follower(connections[0], self._config.limits.silence) if self._config.node else None
        try:
            status = self._collect_and_run(connections, follower)
        except StopRequestedError:
            self._stream.write(Interrupted())
            status = STOPPED_STATUS
        if follower is not None and self._failures:
            follower.report(CollectionDigest(failures=tuple(self._failures)))
        return status

    def _collect_and_run(self, connections: Mapping[int, NodeConnection], follower: Follower | None) -> int:
        try:
            program = self._collect()
        except ForkServerError as error:
            self._fail_suite(f"The process that imports the suite {error}.")
            return 1
        except JobLimitError:
            frame = self._server.current_frame()
            where = f"; its process was in {frame}" if frame else ""
            text = f"The job's time was up before the suite was collected{where}."
            self._write(CollectionFailed(text=text))
            self._stream.write(JobTimedOut(limit=self._config.limits.job))
            return 0
        if program is None:
            return 1 if self._has_job_error else 0
        leader = Leader(self._config, connections)
        has_agreed = self._compare_nodes(program, follower, leader)
        if not has_agreed or self._failures or not program.tests or program.is_collected_only:
            return 0 if has_agreed else 1
        return self._serve_or_lead(program, follower, leader)

    def _raise_if_stopped(self) -> None:
        """If SIGTERM has ended the fork server, wait a moment for the job's end: a scheduler signals all processes."""
        if self._server.close() == -signal.SIGTERM and linux.is_readable(self._end.fileno(), END_GRACE):
            raise StopRequestedError

    def _collect(self) -> Program | None:
        """Wait for the fork server's collection; None if it failed."""
        for reply in self._server.replies(self._end):
            if isinstance(reply, _FORWARDED):
                self._write(reply)
                if isinstance(reply, Imported) and self._config.selection_file:
                    self._end.wait_for_start()
                    self._server.select(Selection.read(Path(self._config.selection_file)))
            elif isinstance(reply, Program):
                if reply.ignores_collection_errors:
                    self._tolerated, self._failures = self._failures, []
                self._report_collection(reply)
                return reply
        if not self._failures:
            self._raise_if_stopped()
            self._fail_suite(f"The process that imports the suite {self._server.describe_exit()}.")
        return None

    def _report_collection(self, program: Program) -> None:
        """Report the collected tests, and the outcomes that are already known."""
        tests = [*(module.nodeid for module in program.skipped), *program.tests]
        parts = list(batches(tests)) or [()]
        for part in parts:
            self._stream.write(Collected(tests=part, deselected=program.deselected, is_last=part is parts[-1]))
        if program.is_collected_only:
            for part in filter(None, parts):
                self._stream.write(NotRun(tests=part, reason="--collect-only"))
            return
        if self._config.node == 0:
            for module in program.skipped:
                for rank in range(self._config.ranks):
                    self._stream.write(_skipped(module, rank, self._config.ranks))

    def _compare_nodes(self, program: Program, follower: Follower | None, leader: Leader) -> bool:
        """Compare the collections of all nodes; return False if they differ or one is missing."""
        if self._config.nodes == 1:
            return True
        tests = (*(module.nodeid for module in program.skipped), *program.tests)
        digest = CollectionDigest(
            tests=tests,
            digests=tuple(self._digests.get(test, "") for test in tests),
            failures=(*self._failures, *self._tolerated),
            torch=self._server.torch,
            python=program.python,
            missing_hardware=program.missing_hardware,
        )
        if follower is not None:
            follower.report(digest)
            return True
        if self._failures:
            return True
        try:
            failures, notices = leader.compare(digest)
        except NodesError as error:
            self._stream.write(NodesFailed(message=str(error)))
            return False
        for failure in failures:
            self._write(CollectionFailed(nodeid=failure.nodeid, text=shorten(failure.text)))
        for text in notices:
            self._stream.write(Notice(text=text))
        if not failures:
            self._stream.write(NodesAgreed())
        return True

    def _serve_or_lead(self, program: Program, follower: Follower | None, leader: Leader) -> int:
        try:
            self._end.disarm_immediate_exit()
            if follower is not None:
                follower.serve(self._node(program), self._end)
                return 0
            self._end.wait_for_start()
            self._end.start_limit()
            self._stream.write(Went())
            try:
                loop = self._run_tests(program, leader)
            except ForkServerError:
                self._raise_if_stopped()
                raise
            return self._end_session(loop, REPORT_TIMEOUT if program.measures_coverage else SESSION_END_TIMEOUT)
        except NodeLostError as error:
            self._stream.write(NodeLost(node=error.node, message=str(error)))
        except ForkServerError as error:
            self._fail_suite(f"The process that has imported the suite {error}.")
        except LostGpuError as error:
            self._fail(str(error), kind=FailureKind.GPU)
        except WorkerLostError as error:
            self._fail("the supervisor failed", str(error))
        except JobLimitError:
            self._stream.write(JobTimedOut(limit=self._config.limits.job))
            return 0
        return 1

    def _run_tests(self, program: Program, leader: Leader) -> TestLoop:
        loop = TestLoop(program, (self._node(program), *leader.nodes()), self._job)
        loop.run_all()
        leader.dismiss()
        return loop

    def _node(self, program: Program) -> LocalNode:
        def echo(rank: int, line: str) -> None:
            self._stream.write(Printed(rank=rank, line=line))

        return LocalNode(
            server=self._server,
            config=self._config,
            folders=self._folders,
            registry=RankRegistry(self._server.pid),
            end=self._end,
            echo=echo if program.prints_live else None,
            uses_flight_recorder=self._config.backend == "nccl" and not program.missing_hardware,
        )

    def _end_session(self, loop: TestLoop, timeout: float) -> int:
        """Have pytest end its session in the fork server; its hooks may still report problems."""
        tests = tuple(FinalResult(nodeid=nodeid, is_bad=has_failed) for nodeid, has_failed in loop.results.items())
        records, ended = self._server.finish(Finish(tests=tests), self._end, timeout)
        for record in records:
            if isinstance(record, _FORWARDED):
                self._write(record)
        if any(isinstance(record, AgentFailed) for record in records):
            return 1
        has_failed = bool(self._tolerated) or any(loop.results.values())
        if ended is None:
            status = self._server.close()
            if status is None or status < 0:
                raise ForkServerError(self._server.describe_exit())
            # A hook has exited before pytest could return its status.
            ended = SessionEnded(status=status, own=int(has_failed))
        if problem := _session_problem(ended, has_failed=has_failed):
            self._fail_suite(problem)
            return 1
        if loop.session_problem is not None:
            self._write(loop.session_problem)
            return 1
        return 0


def _session_problem(ended: SessionEnded, *, has_failed: bool) -> str:
    """Return a sentence on a problem that only pytest's own exit status shows; empty if there is none."""
    if ended.status not in (0, ended.own):
        return changed_status(ended.own, ended.status)
    if ended.status not in _OK_STATUSES or (ended.status == 1 and not has_failed):
        return f"pytest ended its session with exit status {ended.status}, although no test failed: see agent.log."
    return ""


def _skipped(module: SkippedModule, rank: int, world_size: int) -> RankEnded:
    return RankEnded(
        nodeid=module.nodeid,
        rank=rank,
        outcome=Outcome.SKIPPED,
        world_size=world_size,
        arrived=0.0,
        phases=(PhaseEnd(when="collect", outcome=Outcome.SKIPPED),),
        phase="collect",
        message=module.reason,
        text=shorten(module.reason),
        skip_kind=SkipKind.PLAIN,
    )
