"""One attempt at a job: its state, which any thread may change, and what job.json records of it."""

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from allranks.agent import clock
from allranks.engines.base import JobExit, JobSpec, RunningJob
from allranks.matrix.model import Job
from allranks.report.judged import Share
from allranks.report.run_files import JobError, JobRecord
from allranks.runner.gpu_leases import Lease
from allranks.runner.job_facts import JobFacts
from allranks.runner.retry_policy import WHOLE, Again
from allranks.runner.tasks import Capacity, Task

_UNKNOWN_EXIT = JobExit(status=None)
INTERRUPTED = JobError(kind="interrupted", what="The run was interrupted.")


@dataclass(kw_only=True, eq=False)
class JobAttempt:
    """The state of one attempt.

    standby ──────────> running ──────────> closing
            cores free          agent ended

    On standby its agent imports torch and collects; while it closes, its results are copied and recorded.
    """

    run_id: str
    job: Job
    task: Task
    number: int
    folder: Path
    lease: Lease  # its GPUs, until it is closed
    again: Again = WHOLE
    spec: JobSpec | None = None  # the request to the engine; None if it could not be made, for the reason in `error`
    error: JobError | None = None
    adopted: AbstractContextManager[RunningJob] | None = None  # the job, if an earlier orchestrator has started it
    running: RunningJob | None = None  # None if the job has not been started, or could not be
    ending: JobExit = _UNKNOWN_EXIT
    facts: JobFacts = field(default_factory=JobFacts)
    fault: JobError | None = None  # why its further reports are ignored
    cancelled: JobError | None = None  # the reason for its cancellation; None without one
    state: Literal["standby", "running", "closing"] = "standby"
    started: float = field(default_factory=time.time)  # when it left standby, in seconds since the epoch
    left: Again | None = None  # what would have to run again, known when it is closed; None if all is well
    rank_files: Mapping[str, str] = field(default_factory=dict)  # digests of its journal and its rank XML
    thread: threading.Thread = field(init=False)
    _may_run: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def held(self) -> Capacity:
        """Its share of the host: cores only while it runs."""
        return self.task.room if self.state == "running" else self.task.room._replace(cores=0)

    def release(self) -> None:
        """Let it run."""
        self.state = "running"
        self._may_run.set()

    def free_cores(self) -> None:
        """Note that its agent has ended."""
        self.state = "closing"

    def cancel(self, why: JobError = INTERRUPTED) -> None:
        """End it now, in any state and from any thread."""
        with self._lock:
            self.cancelled = why
            if self.running is not None:
                self.running.hang_up()
        self._may_run.set()

    def break_off(self, why: JobError) -> None:
        """End the job, and ignore its further reports; earlier ones stand."""
        with self._lock:
            self.fault = why
            if self.running is not None:
                self.running.hang_up()

    def attach(self, running: RunningJob) -> None:
        """Note that the engine has started the job."""
        with self._lock:
            self.running = running
            if self.cancelled:
                running.hang_up()

    def detach(self) -> None:
        """Note that the engine removes the job: from now on, :meth:`cancel` must not touch it."""
        with self._lock:
            self.running = None

    def go(self) -> None:
        """Let the started job begin, unless it is cancelled at this moment."""
        with self._lock:
            if self.running is not None and not self.cancelled:
                self.running.go()

    def wait_for_release(self) -> bool:
        """Wait until it may run; False if it is cancelled instead."""
        self._may_run.wait()
        return not self.cancelled

    def record(self, engine: str) -> JobRecord:
        """The contents of job.json; if the job ran and has no error yet, its reports may hold one."""
        facts, spec, job = self.facts, self.spec, self.job
        if self.running is not None and spec is not None:
            found = facts.error(self.ending, spec.agent.limits.limit("job"))
            # A collection error stands however the job ended, and so does a sick GPU, which may have ended it.
            comes_first = found and (found.kind == "collection" or facts.sick_gpus)
            self.error = self.fault or (found if comes_first else self.error or found)
        return JobRecord(
            id=job.id,
            run_id=self.run_id,
            cell=job.cell.id,
            suite=job.name,
            attempt=self.number,
            continues=self.again.base,
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
        """For a shard: which one it is, and how its agent split the suite."""
        shard, shared = self.job.shard, self.facts.shared
        if shard is None:
            return None
        split, elsewhere = (shared.split, shared.elsewhere) if shared else ("", 0)
        return Share(suite=self.job.suite.name, **asdict(shard), split=split, elsewhere=elsewhere)
