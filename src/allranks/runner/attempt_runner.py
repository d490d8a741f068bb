"""Runs attempts at jobs, from their preparation to their record."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal

from allranks.agent import clock
from allranks.engines.agent_output import Damage
from allranks.engines.base import JobEnvironment, JobExit, JobSpec, Placement, RunningJob
from allranks.errors import AllranksError
from allranks.matrix.model import Job, Matrix
from allranks.protocol.records import JOURNAL, SCHEMA, JobStarted, Printed, Record, encode
from allranks.report.journal import JournalWriter
from allranks.report.judged import Share
from allranks.report.rank_document import write_rank_files
from allranks.report.run_files import JobError, JobRecord, as_json
from allranks.runner.earlier_runs import (
    cache_files,
    earlier_coverage,
    initial_cache,
    keep_cache,
    keep_cache_of_shard,
)
from allranks.runner.gpu_leases import GpuPool, Lease
from allranks.runner.host import Host, gpus_here
from allranks.runner.job_facts import JobFacts
from allranks.runner.ledger import MOST_BYTES, ContradictionError, Ledger
from allranks.runner.listener import RunListener
from allranks.runner.request import AttemptOptions, demand_of, job_spec
from allranks.runner.results_folder import RunFolder, as_results_error, write_json
from allranks.runner.retry_policy import WHOLE_JOB, JobSelection, RunPolicy, newest_attempt, select_rerun
from allranks.runner.tasks import Capacity, Task
from allranks.runner.unhealthy_gpus import report_failures, report_successes

Environment = JobEnvironment | AllranksError
"""The Python environment of a job, or the error that occurred when it was made."""

_UNKNOWN_EXIT = JobExit(status=None)
INTERRUPTED = JobError(kind="interrupted", what="The run was interrupted.")


@dataclass(kw_only=True, eq=False)
class JobAttempt:
    """The state of one attempt.

    standby ──────────> running ──────────> closing
            cores free          agent ended

    On standby, its agent imports torch and collects. While it closes, its results are copied and recorded.
    """

    run_id: str
    job: Job
    task: Task
    number: int
    folder: Path
    lease: Lease  # its GPUs, until it is closed
    selection: JobSelection = WHOLE_JOB
    spec: JobSpec | None = None  # the request to the engine; None if it could not be made, for the reason in `error`
    error: JobError | None = None
    adopted: AbstractContextManager[RunningJob] | None = None  # the job, if an earlier orchestrator started it
    running: RunningJob | None = None  # None if the job has not been started, or could not be
    ending: JobExit = _UNKNOWN_EXIT
    facts: JobFacts = field(init=False)
    rejection: JobError | None = None  # the reason why further records are ignored
    cancelled: JobError | None = None  # the reason for its cancellation
    state: Literal["standby", "running", "closing"] = "standby"
    started: float = field(default_factory=time.time)  # when it left standby, in seconds since the epoch
    rerun: JobSelection | None = None  # what a retry would have to run; set when the attempt is closed
    rank_files: Mapping[str, str] = field(default_factory=dict)  # digests of its journal and its rank XML
    thread: threading.Thread = field(init=False)
    _may_run: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Apply the suite's list of ignored notices."""
        self.facts = JobFacts(ignored_notices=self.job.suite.ignored_notices)

    @property
    def held(self) -> Capacity:
        """Its share of the host: cores only while it runs."""
        return self.task.demand if self.state == "running" else self.task.demand._replace(cores=0)

    def release(self) -> None:
        """Let it run."""
        self.state = "running"
        self._may_run.set()

    def free_cores(self) -> None:
        """Give its cores back: its agent has ended."""
        self.state = "closing"

    def cancel(self, why: JobError = INTERRUPTED) -> None:
        """End it now, in any state and from any thread."""
        with self._lock:
            self.cancelled = why
            if self.running is not None:
                self.running.request_stop()
        self._may_run.set()

    def abort(self, why: JobError) -> None:
        """End the job and ignore its further records; earlier ones remain valid."""
        with self._lock:
            self.rejection = why
            if self.running is not None:
                self.running.request_stop()

    def attach(self, running: RunningJob) -> None:
        """Set the job that the engine has started."""
        with self._lock:
            self.running = running
            if self.cancelled:
                running.request_stop()

    def detach(self) -> None:
        """Forget the job before the engine removes it: after that, :meth:`cancel` must not use it."""
        with self._lock:
            self.running = None

    def go(self) -> None:
        """Let the job run its tests, unless it has just been cancelled."""
        with self._lock:
            if self.running is not None and not self.cancelled:
                self.running.go()

    def wait_for_release(self) -> bool:
        """Wait until it may run; False if it is cancelled instead."""
        self._may_run.wait()
        return not self.cancelled

    def record(self, engine: str) -> JobRecord:
        """The contents of job.json."""
        facts, spec, job = self.facts, self.spec, self.job
        if self.running is not None and spec is not None:
            found = facts.error(self.ending, spec.agent.limits.limit("job"))
            # A collection error or an unhealthy GPU may be the reason why the job ended as it did.
            comes_first = found and (found.kind == "collection" or facts.unhealthy_gpus)
            self.error = self.rejection or (found if comes_first else self.error or found)
        return JobRecord(
            id=job.id,
            run_id=self.run_id,
            cell=job.cell.id,
            suite=job.name,
            attempt=self.number,
            continues=self.selection.base,
            engine=engine,
            image=(spec.image or "") if spec else "",
            spec=spec.to_json() if spec else None,
            gpus=self.lease.gpus,
            world_size=job.cell.world_size,
            nodes=job.cell.nodes,
            exit_status=self.ending.status,
            error=self.error,
            started=self.started,
            finished=clock.now(),
            collected=facts.collected,
            full_collection=facts.full_collection,
            deselected=facts.deselected,
            not_run=facts.not_run.tests if facts.not_run else (),
            stop_reason=facts.not_run.reason if facts.not_run else "",
            notes=facts.notes,
            repeated=facts.repeated,
            share=self._share,
            rank_files=self.rank_files,
        )

    @property
    def _share(self) -> Share | None:
        """The number of the shard, and how its agent split the suite; None if the job is not a shard."""
        shard, shared = self.job.shard, self.facts.shared
        if shard is None:
            return None
        split, elsewhere = (shared.split, shared.elsewhere) if shared else ("", 0)
        return Share(suite=self.job.suite.name, **asdict(shard), split=split, elsewhere=elsewhere)


@dataclass(eq=False)
class AttemptRunner:
    """Runs the attempts of a run."""

    matrix: Matrix
    host: Host
    folder: RunFolder
    live: RunListener
    pytest_args: tuple[str, ...]
    policy: RunPolicy = field(default_factory=RunPolicy)
    pool: GpuPool = field(init=False)
    _caches: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Create a pool of the host's GPUs."""
        self.pool = GpuPool(self.host.gpus, self.folder.run_id)

    def demand_of(self, job: Job) -> Capacity:
        """What a job needs of the host: no GPUs if the host has too few, since all tests will be skipped."""
        gpus = gpus_here(job.cell, self.host.engine.nodes)
        return demand_of(self.matrix, job, gpus=gpus if gpus <= len(self.host.gpus) else 0)

    def environment(self, task: Task, job: Job) -> Environment:
        """The job's Python environment, which may take minutes to make, or the reason why the job cannot run."""
        self.live.set_state(job.id, "preparing")
        try:
            if task.demand.gpus:
                self.host.engine.check_leases()
            return self.host.environment_of(job)
        except AllranksError as error:
            return error

    def prepare(
        self, task: Task, job: Job, selection: JobSelection, environment: Environment, undo: ExitStack
    ) -> JobAttempt | None:
        """Lease the GPUs of a job, and create an attempt; None if another run took the GPUs first.

        If the job cannot start for another reason, that is the attempt's `error`. `undo` ends the lease and removes the
        attempt's folder.
        """
        lease = self.pool.lease(task.demand.gpus, job.id)
        if lease is None:
            return None
        undo.enter_context(lease)
        self.live.set_state(job.id, "preparing", self.host.inventory.indexes(lease.gpus))
        if not isinstance(environment, AllranksError) and (adopted := self._adopt(task, job, environment)) is not None:
            return adopted
        attempt = self._new(task, job, lease, selection)
        undo.callback(_remove_if_empty, attempt.folder)
        try:
            if isinstance(environment, AllranksError):
                raise environment
            if lease.gpus:
                # If their last owner was killed, its container may still use them.
                self.host.evict(lease.gpus)
            attempt.spec = self._spec(attempt, environment)
        except AllranksError as error:
            attempt.error = JobError.from_exception(error)
        return attempt

    def _adopt(self, task: Task, job: Job, environment: JobEnvironment) -> JobAttempt | None:
        """The attempt that a killed orchestrator of this run has started, if the engine still has its job."""
        unended = self.folder.unended_attempt(job) if self.host.engine.has_queue else None
        if unended is None:
            return None
        number, path = unended
        attempt = JobAttempt(run_id=self.folder.run_id, job=job, task=task, number=number, folder=path, lease=Lease())
        attempt.spec = self._spec(attempt, environment)
        attempt.adopted = self.host.engine.adopt(attempt.spec)
        return None if attempt.adopted is None else attempt

    def record_unstarted(self, task: Task, job: Job, why: JobError) -> None:
        """Record why a job did not run, unless it has results of an earlier attempt."""
        if newest_attempt(self.folder.path, job) is None:
            attempt = self._new(task, job, Lease(), WHOLE_JOB)
            attempt.error = why
            self._write_record(attempt)

    def _new(self, task: Task, job: Job, lease: Lease, selection: JobSelection) -> JobAttempt:
        number, path = self.folder.new_attempt(job)
        return JobAttempt(
            run_id=self.folder.run_id,
            job=job,
            task=task,
            number=number,
            folder=path,
            lease=lease,
            selection=selection,
        )

    def _spec(self, attempt: JobAttempt, environment: JobEnvironment) -> JobSpec:
        job, gpus, base = attempt.job, attempt.lease.gpus, attempt.selection.base
        cache = initial_cache(self.folder, job, attempt.number)
        coverage = earlier_coverage(attempt.folder.with_name(f"attempt-{base}")) if base else ()
        request = AttemptOptions(
            run_id=attempt.run_id,
            number=attempt.number,
            seed=self.folder.seed,
            gpus=gpus,
            passthrough=self.host.inventory.of(gpus),
            pytest_args=self.pytest_args,
            carried=(*cache_files(cache, self.folder.path.parent), *coverage),
            test_durations=self.folder.seconds_of(job),
            only=attempt.selection.tests,
            shuffle=self.policy.shuffle,
            pdb=self.policy.pdb,
            selection_file=self.policy.selection_file,
            plugins=self.policy.plugins,
            gpus_to_check={gpu: self.host.inventory.name_of(gpu) for gpu in self.pool.unchecked(gpus, environment)},
        )
        return job_spec(self.matrix, job, environment, request)

    def run(self, attempt: JobAttempt, agent_has_ended: Callable[[], None]) -> None:
        """Start a job, let it run when it is released, wait for its end, record it, and end its lease.

        `agent_has_ended` is called as soon as the job needs no more cores, before its results are collected.
        """
        with self.on_standby(attempt):
            if not attempt.wait_for_release():
                return
            self.finish(attempt, agent_has_ended)
        self.live.job_ended(attempt.job.id, attempt.facts.tests, clock.now() - attempt.started, attempt.error)

    @contextmanager
    def on_standby(self, attempt: JobAttempt) -> Iterator[None]:
        """Start a job's agent, which imports torch; end the job and its lease after the context."""
        with ExitStack() as stack:
            stack.enter_context(attempt.lease)
            stack.callback(_remove_if_empty, attempt.folder)
            if attempt.spec is not None:
                self._start(attempt, attempt.spec, stack)
            yield

    def finish(self, attempt: JobAttempt, agent_has_ended: Callable[[], None]) -> None:
        """Run a job that is on standby, and record it."""
        if attempt.running is not None and attempt.spec is not None:
            self.live.job_started(attempt.spec, attempt.facts.tests)
            attempt.started = clock.now()
            attempt.go()
            self._wait(attempt, attempt.running)
            self._report_gpus(attempt, attempt.spec)
        agent_has_ended()
        self._collect_results(attempt)

    def _start(self, attempt: JobAttempt, spec: JobSpec, stack: ExitStack) -> None:
        try:
            started = attempt.adopted or self.host.engine.start(spec, attempt.lease.descriptors)
            attempt.attach(stack.enter_context(started))
            stack.callback(attempt.detach)
        except AllranksError as error:
            attempt.error = JobError.from_exception(error)

    def _wait(self, attempt: JobAttempt, running: RunningJob) -> None:
        ledger = Ledger(attempt.job.cell.world_size, attempt.job.cell.nodes)
        try:
            writer = JournalWriter if attempt.adopted is None else AdoptedJournal
            with closing(writer(attempt.folder / JOURNAL)) as journal:
                if journal.size == 0:
                    _write(attempt, journal, _first_record(attempt))
                attempt.ending = running.wait(partial(self._take, attempt, ledger, journal))
                attempt.started = attempt.ending.began or attempt.started
                if isinstance(journal, AdoptedJournal) and attempt.rejection is None and journal.has_missing_records:
                    attempt.rejection = _contradiction(_MISSING_RECORDS)
        except AllranksError as error:
            attempt.error = JobError.from_exception(error)
        if attempt.rejection is None:
            try:
                ledger.close()
            except ContradictionError as error:
                attempt.rejection = _contradiction(f"The agent of a node {error}")
        if attempt.cancelled and not attempt.facts.is_done:
            attempt.error = attempt.cancelled

    def _take(
        self,
        attempt: JobAttempt,
        ledger: Ledger,
        journal: JournalWriter,
        node: int,
        report: Record | Damage | Placement,
    ) -> None:
        """Check, store and show a record of a node's agent; ignore it if an earlier one was rejected."""
        if isinstance(report, Placement):
            self.live.placement_changed(attempt.job.id, report)
            return
        if attempt.rejection is not None:
            return
        try:
            is_new = ledger.take(node, report)
        except ContradictionError as error:
            attempt.abort(_contradiction(f"The agent of node {node} {error}"))
            return
        if isinstance(report, Damage) or not is_new:
            return
        if not isinstance(report, Printed):
            _write(attempt, journal, report)
            attempt.facts.take(report)
        self.live.take(attempt.job.id, report)

    def _report_gpus(self, attempt: JobAttempt, spec: JobSpec) -> None:
        """Report the health of the GPUs before the lease ends: no other job may lease an unhealthy GPU."""
        python = JobEnvironment(image=spec.image, python=spec.python, python_path=spec.python_path)
        self.pool.report_checked(attempt.facts.healthy_gpus, python)
        if attempt.facts.has_lost_a_gpu:
            self.pool.forget_checks(attempt.lease.gpus)
        unhealthy = {gpu: why for gpu, why in attempt.facts.unhealthy_gpus.items() if gpu in attempt.lease.gpus}
        self.pool.report_unhealthy(unhealthy)
        report_successes(attempt.facts.healthy_gpus)
        report_failures(attempt.run_id, unhealthy)

    def _collect_results(self, attempt: JobAttempt) -> None:
        """Copy the job's files, and record its result."""
        if attempt.running is not None:
            try:
                attempt.running.collect(attempt.folder)
            except AllranksError as error:
                attempt.error = attempt.error or JobError.from_exception(error)
        with as_results_error(attempt.folder):
            if (journal := attempt.folder / JOURNAL).exists():
                attempt.rank_files = write_rank_files(attempt.folder, journal)
            with self._caches:
                self._keep_cache(attempt)
            self._write_record(attempt)
            if self.policy.retries > 0 or self.policy.fail_fast:
                newest = newest_attempt(self.folder.path, attempt.job)
                attempt.rerun = select_rerun(newest, self.policy.verdict_policy, "failed")

    def _keep_cache(self, attempt: JobAttempt) -> None:
        job, cache = attempt.job, self.folder.cache_of(attempt.job)
        if job.shard:
            initial = self.folder.cache_for(job, attempt.number)
            keep_cache_of_shard(attempt.folder, cache, initial, frozenset(attempt.facts.collected or ()))
        else:
            keep_cache(attempt.folder, cache)

    def _write_record(self, attempt: JobAttempt) -> None:
        with as_results_error(attempt.folder):
            write_json(attempt.folder / "job.json", as_json(attempt.record(self.host.engine.name)))


class AdoptedJournal(JournalWriter):
    """Continues the journal of an adopted job, whose first orchestrator was killed.

    The engine sends all records again, and only those that the journal lacks are appended: records of several nodes may
    come in another order. An incomplete last line is removed, since its record is sent again, too. The first record is
    the orchestrator's own.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._known: Counter[bytes] = Counter()
        with suppress(FileNotFoundError), path.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    os.ftruncate(file.fileno(), self.size)
                    break
                if self.size:
                    self._known[_digest(line)] += 1
                self.size += len(line)

    def write(self, record: Record) -> None:
        """Append a record, unless the journal has it."""
        digest = _digest(encode(record) + b"\n")
        if self._known[digest] > 0:
            self._known[digest] -= 1
        else:
            super().write(record)

    @property
    def has_missing_records(self) -> bool:
        """Whether some records of the journal were not sent again."""
        return self._known.total() > 0


def _digest(line: bytes) -> bytes:
    return sha256(line).digest()


_MISSING_RECORDS = (
    "The files on its nodes no longer have results that an earlier allranks run had read: they were changed or deleted."
)


def _first_record(attempt: JobAttempt) -> JobStarted:
    job = attempt.job
    return JobStarted(
        at=clock.now(),
        schema=SCHEMA,
        run_id=attempt.run_id,
        cell=job.cell.id,
        suite=job.name,
        attempt=attempt.number,
        world_size=job.cell.world_size,
    )


def _write(attempt: JobAttempt, journal: JournalWriter, record: Record) -> None:
    """Append a record to the job's journal; if that fails, end the job, since later results would be lost."""
    try:
        journal.write(record)
    except OSError as error:
        what = f"The journal of the job could not be written: {error.strerror}."
        remedy = "Free space on the disk of the results folder, then resume the run: allranks run --resume."
        attempt.abort(JobError(kind="infrastructure", what=what, why="The job was stopped.", remedy=remedy))
    if journal.size > MOST_BYTES:
        what = f"The job was stopped: its journal reached {journal.size} bytes, and the limit is {MOST_BYTES}."
        remedy = "See which tests fill journal.jsonl in the job's results folder. Tests that print a lot often do."
        attempt.abort(JobError(kind="agent", what=what, why="Its earlier results count.", remedy=remedy))


def _contradiction(why: str) -> JobError:
    what = "The job reported something impossible and was stopped; its earlier results count."
    remedy = "See agent.log in the job's results folder: something in the job may write to its agent's output."
    return JobError(kind="agent", what=what, why=why, remedy=remedy)


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of an attempt without results: its job counts as not started."""
    with suppress(OSError):
        folder.rmdir()
