"""The supervisor: the process of a job that runs no code of tests, and leads gangs through the suite.

It holds the stream to the host, the job's token, the reading ends of all sockets, and the clocks. It imports only the
standard library. Its fork server imports torch and the suite and creates the ranks, which become children of this
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
    Family,
    ForkServer,
    ForkServerError,
    LocalNode,
)
from allranks.agent.gangs.gang import END_GRACE
from allranks.agent.job_end import STOPPED_STATUS, JobEnd, JobLimitError, LostGpuError, StopRequestedError
from allranks.agent.job_plugins import JobPluginError, check_plugins
from allranks.agent.nodes.connection import NodeConnection, NodesError, meet
from allranks.agent.nodes.follower import Follower
from allranks.agent.nodes.leader import Leader
from allranks.agent.nodes.node import CollectionDigest, CollectionFailure, NodeLostError
from allranks.agent.orphans import GANG_VARIABLE, LAUNCH_VARIABLE, NOBODY, end_children
from allranks.agent.program import FinalResult, Finish, Program, SessionEnded, batches, changed_status
from allranks.agent.record_stream import RecordWriter
from allranks.agent.supervisor.test_loop import SupervisedJob, TestLoop, WorkerLostError
from allranks.protocol.config import AgentConfig, Folders
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

SANDCASTLE = ("SANDCASTLE", "TW_JOB_USER")
"""Variables hidden from ranks: the merge of results decides whether a skip counts as a pass."""

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
"""The records that a fork server may send: outcomes are not among them."""

_OK_STATUSES = frozenset({0, 1, 5})
"""pytest's statuses for passed, failed, and none collected; tests are judged by their own outcomes."""
_LOG_END = 8000


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one job; its outcomes leave by the stream, never in the exit status.

    The exit status is 0 if the supervisor did its work, 130 if it was told to stop, 1 if it could not do its work.
    """
    # A process inherits the signal mask of the thread that started it, which may block signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    gc.disable()
    options = _parse(arguments)
    config = AgentConfig.read(options.config)
    # It holds the token by which nodes recognise each other, and no test needs it.
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
            status = _supervise(config, options, stream)
        except JobPluginError as error:
            stream.write(AgentFailed(message=str(error)))
            status = 1
    stream.write(Finished(status=status))
    stream.close()
    os._exit(status)


def _supervise(config: AgentConfig, options: argparse.Namespace, stream: RecordWriter) -> int:
    if options.contained:
        linux.hide_from_others()
    end = JobEnd.of_this_process(config.limits.limit("job"))
    folders = Folders(code=options.code.resolve(), results=options.results.resolve(), shared=options.shared.resolve())
    return Supervision(config, folders, stream, end, is_contained=options.contained).run()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m allranks.agent")
    for name in ("config", "code", "results", "shared"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--contained", action="store_true", help="a container is this job's alone: guard this process")
    return parser.parse_args(arguments)


def cell_environment(config: AgentConfig, present: Mapping[str, str]) -> dict[str, str]:
    """Variables that describe the cell to suites, and those that keep forks clean unless the user has set them."""
    defaults = {
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else its import starts a pool, and a thread (torch 2.6)
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # torch's stores (2.13) ask for the name of each peer, even of 127.0.0.1: a lost answer of DNS would cost 5 s.
        "RES_OPTIONS": "timeout:1 attempts:2",
        # All processes of a run iterate over a set of texts in the same order: parameters may come from one.
        "PYTHONHASHSEED": str(config.seed & 0xFFFFFFFF),
        # A child of a rank that dies of a signal then leaves its stacks on its standard error.
        "PYTHONFAULTHANDLER": "1",
    }
    return {
        **{name: value for name, value in defaults.items() if name not in present},
        clock.VARIABLE: repr(clock.ORIGIN),
        GANG_VARIABLE: NOBODY,
        LAUNCH_VARIABLE: NOBODY,
        "BACKEND": config.backend,
        # A launching process is no rank: libraries take one that has WORLD_SIZE for a rank.
        "ALLRANKS_WORLD_SIZE" if config.launches_ranks else "WORLD_SIZE": str(config.world_size),
        "INIT_METHOD": config.init_method,
        "ALLRANKS_GPU_COUNT": str(config.gpu_count),
        "GROUP_RANK": str(config.node),
    }


class Supervision:
    """One job, from its start to its end.

    If it is contained, the processor time that it gets is shared with its own ranks alone.
    """

    def __init__(
        self, config: AgentConfig, folders: Folders, stream: RecordWriter, end: JobEnd, *, is_contained: bool
    ) -> None:
        self._config = config
        self._folders = folders
        self._stream = stream
        self._end = end
        self._is_contained = is_contained
        self._failures: list[CollectionFailure] = []
        self._uncollected: list[CollectionFailure] = []
        self._has_broken = False
        self._digests: dict[str, str] = {}

    def run(self) -> int:
        """Run the job; return the exit status."""
        linux.adopt_orphans()
        try:
            server = self._start_server()
            try:
                return self._run(server)
            finally:
                server.kill()
                end_children()
        except OSError as error:
            self._fail(f"the supervisor cannot work: {error}", traceback.format_exc())
        except Exception:  # noqa: BLE001 - any failure of the supervisor is the job's result
            self._fail("the supervisor broke down", traceback.format_exc())
        return 1

    def _start_server(self) -> ForkServer:
        log = os.open(self._folders.results / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for target in (1, 2):
            os.dup2(log, target)
        present = {name: value for name, value in os.environ.items() if name not in SANDCASTLE}
        server = ForkServer(
            self._config,
            self._folders,
            {**present, **cell_environment(self._config, present)},
            log,
        )
        if self._is_contained:  # a thousand forks would leave this process a thousandth of the processor otherwise
            os.setpriority(os.PRIO_PROCESS, server.pid, 19)
        return server

    def _fail(self, message: str, text: str = "", kind: FailureKind = FailureKind.BROKEN) -> None:
        self._write(AgentFailed(message=message, text=shorten(text), kind=kind))

    def _write(self, record: Record) -> None:
        """Report a record, and keep failures that other nodes must learn of."""
        self._stream.write(record)
        if isinstance(record, FullCollection):
            self._digests.update(zip(record.tests, record.digests, strict=True))
        elif isinstance(record, CollectionFailed):
            self._failures.append(CollectionFailure(nodeid=record.nodeid, text=record.text))
        elif isinstance(record, GpuFailed):
            self._has_broken = True
            self._failures.append(CollectionFailure(nodeid="", text=f"{record.name} is sick: {record.message}"))
        elif isinstance(record, AgentFailed):
            self._has_broken = True
            text = "\n".join(filter(None, (record.message, record.text)))
            self._failures.append(CollectionFailure(nodeid="", text=text))

    def _run(self, server: ForkServer) -> int:
        try:
            connections = meet(self._config)
        except NodesError as error:
            self._stream.write(NodesFailed(message=str(error)))
            return 1
        if self._config.nodes > 1:
            self._stream.write(NodesMet(nodes=tuple(sorted(connections))))
        follower = Follower(connections[0], self._config.limits.silence) if self._config.node else None
        status = self._collect_and_run(server, connections, follower)
        if follower is not None and self._failures:
            follower.report(CollectionDigest(failures=tuple(self._failures)))
        return status

    def _collect_and_run(
        self, server: ForkServer, connections: Mapping[int, NodeConnection], follower: Follower | None
    ) -> int:
        try:
            program = self._collect(server)
        except ForkServerError as error:
            self._fail(f"The process that imports the suite {error}.", self._log(), FailureKind.SUITE)
            return 1
        except JobLimitError:
            where = server.whereabouts()
            text = f"The suite was not collected when the job's time was up{f'; that was in {where}' if where else ''}."
            self._write(CollectionFailed(text=text))
            self._stream.write(JobTimedOut(limit=self._config.limits.job))
            return 0
        except StopRequestedError:
            self._stream.write(Interrupted())
            return STOPPED_STATUS
        if program is None:
            return 1 if self._has_broken else 0
        leader = Leader(self._config, connections)
        has_agreed = self._agree(server, program, follower, leader)
        if not has_agreed or self._failures or not program.tests or program.is_collected_only:
            return 0 if has_agreed else 1
        return self._supervise(server, program, follower, leader)

    def _check_for_the_end(self, server: ForkServer) -> None:
        """If SIGTERM has ended the fork server, wait a moment for the end of the job, as a scheduler signals all."""
        if server.close() == -signal.SIGTERM and linux.is_readable(self._end.fileno(), END_GRACE):
            raise StopRequestedError

    def _collect(self, server: ForkServer) -> Program | None:
        """Wait for the fork server's collection; None if it failed."""
        for reply in server.replies(self._end):
            if isinstance(reply, _FORWARDED):
                self._write(reply)
            elif isinstance(reply, Program):
                if reply.ignores_collection_errors:
                    self._uncollected, self._failures = self._failures, []
                self._report(reply)
                return reply
        if not self._failures:
            self._check_for_the_end(server)
            self._fail(f"The process that imports the suite {server.ended()}.", self._log(), FailureKind.SUITE)
        return None

    def _report(self, program: Program) -> None:
        """Report the collected tests, and the outcomes that are already settled."""
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
                    self._stream.write(_skipped(module.nodeid, module.reason, rank, self._config.ranks))

    def _agree(self, server: ForkServer, program: Program, follower: Follower | None, leader: Leader) -> bool:
        """Compare the collections of all nodes; False if they differ or one is missing."""
        if self._config.nodes == 1:
            return True
        tests = (*(module.nodeid for module in program.skipped), *program.tests)
        digest = CollectionDigest(
            tests=tests,
            digests=tuple(self._digests.get(test, "") for test in tests),
            failures=(*self._failures, *self._uncollected),
            torch=server.torch,
            python=program.python,
            lacks=program.missing_hardware,
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

    def _supervise(self, server: ForkServer, program: Program, follower: Follower | None, leader: Leader) -> int:
        try:
            self._end.disarm_immediate_exit()
            if follower is not None:
                follower.serve(self._node(server, program), self._end)
                return 0
            self._end.wait_for_start()
            self._end.restart()
            self._stream.write(Went())
            try:
                loop = self._run_tests(server, program, leader)
            except ForkServerError:
                self._check_for_the_end(server)
                raise
            return self._end_session(server, loop, REPORT_TIMEOUT if program.measures_coverage else SESSION_END_TIMEOUT)
        except NodeLostError as error:
            self._stream.write(NodeLost(node=error.node, message=str(error)))
        except ForkServerError as error:
            self._fail(f"The process that has imported the suite {error}.", self._log(), FailureKind.SUITE)
        except LostGpuError as error:
            self._fail(str(error), kind=FailureKind.GPU)
        except WorkerLostError as error:
            self._fail("the supervisor broke down", str(error))
        except StopRequestedError:
            self._stream.write(Interrupted())
            return STOPPED_STATUS
        except JobLimitError:
            self._stream.write(JobTimedOut(limit=self._config.limits.job))
            return 0
        return 1

    def _run_tests(self, server: ForkServer, program: Program, leader: Leader) -> TestLoop:
        job = SupervisedJob(config=self._config, folders=self._folders, journal=self._stream, end=self._end)
        local = self._node(server, program)
        loop = TestLoop(program, [local, *leader.nodes()], job)
        loop.run_all(local.of_lane if self._config.overlap > 1 and self._config.nodes == 1 else None)
        leader.dismiss()
        return loop

    def _node(self, server: ForkServer, program: Program) -> LocalNode:
        def echo(rank: int, line: str) -> None:
            self._stream.write(Printed(rank=rank, line=line))

        return LocalNode(
            server,
            self._config,
            self._folders,
            family=Family(server.pid),
            end=self._end,
            echo=echo if program.prints_live else None,
            records_flights=self._config.backend == "nccl" and not program.missing_hardware,
        )

    def _end_session(self, server: ForkServer, loop: TestLoop, timeout: float) -> int:
        """Have pytest end its session in the fork server; its hooks may still report problems."""
        settled = tuple(FinalResult(nodeid=nodeid, is_bad=is_bad) for nodeid, is_bad in loop.settled.items())
        records, ended = server.finish(Finish(tests=settled), self._end, timeout)
        for record in records:
            if isinstance(record, _FORWARDED):
                self._write(record)
        if any(isinstance(record, AgentFailed) for record in records):
            return 1
        is_bad = bool(self._uncollected) or any(loop.settled.values())
        if ended is None:
            status = server.close()
            if status is None or status < 0:
                raise ForkServerError(server.ended())
            # A hook has left before pytest could return its status.
            ended = SessionEnded(status=status, own=int(is_bad))
        if problem := _session_problem(ended, is_bad=is_bad):
            self._fail(problem, self._log(), FailureKind.SUITE)
            return 1
        if loop.session_problem is not None:
            self._write(loop.session_problem)
            return 1
        return 0

    def _log(self) -> str:
        return evidence.read(self._folders.results / "agent.log")[-_LOG_END:]


def _session_problem(ended: SessionEnded, *, is_bad: bool) -> str:
    """A problem that only pytest's own exit status shows, in a sentence; empty for none."""
    if ended.status not in (0, ended.own):
        return changed_status(ended.own, ended.status)
    if ended.status not in _OK_STATUSES or (ended.status == 1 and not is_bad):
        return f"pytest ended its session with exit status {ended.status}, though no test says why: see agent.log."
    return ""


def _skipped(nodeid: str, reason: str, rank: int, world_size: int) -> RankEnded:
    return RankEnded(
        nodeid=nodeid,
        rank=rank,
        outcome=Outcome.SKIPPED,
        world_size=world_size,
        arrived=0.0,
        phases=(PhaseEnd(when="collect", outcome=Outcome.SKIPPED),),
        phase="collect",
        message=reason,
        text=reason,
        skip_kind=SkipKind.PLAIN,
    )
