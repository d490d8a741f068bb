"""Runs as many jobs at a time as fit on the host, longest first, and puts the next one on standby.

A job that does not fit, or whose environment is not ready, waits while later ones start. No job waits forever, since
their number is finite. Each job has its own thread, and one more thread makes environments. The main thread decides
which job starts, and is the only thread that receives signals.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from allranks.agent.collect.selection import random_key
from allranks.errors import counted
from allranks.interruption import block_signals
from allranks.matrix.model import Job
from allranks.report.run_files import JobError
from allranks.runner.attempt_runner import AttemptRunner, Environment, JobAttempt
from allranks.runner.environment_maker import EnvironmentMaker
from allranks.runner.progress import Tests
from allranks.runner.retry_policy import JobSelection, RetryPolicy
from allranks.runner.tasks import Capacity, Task, expected, longest_first

_POLL = 0.25
"""Seconds between two polls of GPUs that another run holds."""

_LONGEST_WAIT = 1.0
"""Seconds for one wait: an interrupt that arrives just before a wait is only noticed at its end."""

_UNSTARTED = JobError(kind="interrupted", what="The run was interrupted before the job started.")


class Dispatcher:
    """Runs jobs, each attempt in its own thread, and records each in the run's folder."""

    def __init__(self, attempts: AttemptRunner) -> None:
        self._attempts = attempts
        self._host = attempts.host
        self._live = attempts.live
        self._policy = attempts.policy
        self._pool = attempts.pool
        self._retries = RetryPolicy(0, {})
        self._jobs: Sequence[Job] = ()
        self._capacity = self._host.capacity
        self._waiting: list[Task] = []
        self._active: list[JobAttempt] = []
        self._environments: dict[int, Environment] = {}
        self._maker = EnvironmentMaker()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_announced_wait = False
        self._deadline = math.inf
        self._stopped: JobError | None = None

    def run(self, jobs: Sequence[Job], selections: Mapping[str, JobSelection] | None = None) -> None:
        """Run all jobs. `selections` has the parts of jobs that do not run as a whole, by job id.

        Raises:
            KeyboardInterrupt: The user interrupted the run; each job without results has a record that says so.
        """
        self._jobs = jobs
        self._retries = RetryPolicy(self._policy.retries, selections or {})
        self._waiting = self._tasks()
        if self._policy.seconds is not None:
            self._deadline = time.monotonic() + self._policy.seconds
        try:
            self._maker.start([partial(self._make_environment, task) for task in self._waiting], self._fail)
            while self._waiting or self._active:
                self._start_what_fits()
                self._handle_next_event()
                self._check_deadline()
        except KeyboardInterrupt:
            unstarted = [*self._waiting, *(attempt.task for attempt in self._active)]
            self._end_all()
            for task in unstarted:
                self._attempts.record_unstarted(task, self._jobs[task.number], _UNSTARTED)
            raise
        finally:
            self._pool.leave_queue()
            self._end_all()

    def _tasks(self) -> list[Task]:
        """The jobs in the order in which to start them.

        If a job demands more of a resource than the host has, it gets all that the host has.
        """
        seconds = expected(self._attempts.folder.durations, self._jobs)
        tasks = [
            Task(number, self._attempts.demand_of(job).within(self._host.capacity), seconds[number].seconds)
            for number, job in enumerate(self._jobs)
        ]
        if (seed := self._policy.shuffle) is not None:
            return sorted(tasks, key=lambda task: random_key(seed, self._jobs[task.number].id))
        return longest_first(tasks)

    def _make_environment(self, task: Task) -> None:
        """Make a job's environment in the thread for environments, and pass it to the main thread."""
        environment = self._attempts.environment(task, self._jobs[task.number])
        self._events.put(partial(self._take_environment, task, environment))

    def _take_environment(self, task: Task, environment: Environment) -> None:
        self._environments[task.number] = environment
        if task in self._waiting:
            self._live.set_state(self._jobs[task.number].id, "waiting")

    def _fail(self, error: BaseException) -> None:
        """Raise an error of another thread in the main thread."""

        def fail() -> None:
            raise error

        self._events.put(fail)

    @property
    def _ready(self) -> Iterator[Task]:
        """The waiting jobs whose environments are ready."""
        return (task for task in self._waiting if task.number in self._environments)

    def _start_what_fits(self) -> None:
        """Start jobs while they fit; then put the next one on standby if only cores are missing."""
        self._release_standby()
        while self._has_slot and (task := self._next_task()):
            if not self._start(task):
                return
            self._release_standby()
        following = next(self._ready, None)
        if following and self._active and not self._standby and self._can_stand_by(following):
            self._start(following)
        self._release_standby()

    @property
    def _standby(self) -> list[JobAttempt]:
        return [attempt for attempt in self._active if attempt.state == "standby"]

    @property
    def _has_slot(self) -> bool:
        most = min(filter(None, (self._policy.most, self._host.engine.most_jobs)), default=None)
        return most is None or len(self._active) - len(self._standby) < most

    @property
    def _free(self) -> Capacity:
        """The capacity that no job of this run holds."""
        free = self._capacity
        for attempt in self._active:
            free = free.minus(attempt.held)
        return free

    def _release_standby(self) -> None:
        for attempt in self._standby if self._stopped is None else ():
            if self._has_slot and self._free.holds(Capacity(cores=attempt.task.demand.cores)):
                attempt.release()

    def _next_task(self) -> Task | None:
        """The first ready task that fits.

        After a task that would fit, but whose GPUs other runs hold, only tasks without GPUs are considered.
        """
        free = self._free
        for task in self._ready:
            if free.holds(task.demand):
                if not task.demand.gpus or task.demand.gpus <= self._pool.count_free():
                    return task
                free = free._replace(gpus=0)
        return None

    def _can_stand_by(self, task: Task) -> bool:
        """Whether only cores are missing for the task.

        Engines with a queue have no standby: a job that waits for its turn could hold nodes and GPUs that others need.
        """
        if self._host.engine.has_queue:
            return False
        return self._free._replace(cores=self._host.cores).holds(task.demand)

    def _start(self, task: Task) -> bool:
        """Put a job on standby in its own thread; return False if it has to wait, since another run took its GPUs."""
        job = self._jobs[task.number]
        with ExitStack() as undo:
            environment = self._environments[task.number]
            attempt = self._attempts.prepare(task, job, self._retries.selection(job.id), environment, undo)
            if attempt is None:
                return False
            self._waiting.remove(task)
            attempt.thread = threading.Thread(target=self._run_attempt, args=(attempt,), name=job.id)
            # Threads inherit the signal mask: only the main thread receives interrupts.
            with block_signals():
                attempt.thread.start()
                undo.pop_all()
                self._active.append(attempt)
        return True

    def _run_attempt(self, attempt: JobAttempt) -> None:
        """Run an attempt in its own thread, and report its end to the main thread."""
        try:
            self._attempts.run(attempt, partial(self._events.put, attempt.free_cores))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._events.put(partial(self._remove, attempt, error))
        else:
            self._events.put(partial(self._remove, attempt))

    def _handle_next_event(self) -> None:
        """Wait a short time for an event of another thread, and handle all pending events."""
        seconds = _LONGEST_WAIT
        if task := self._task_without_gpus():
            self._wait_for_gpus(task)
            seconds = _POLL
        else:
            self._pool.leave_queue()
        try:
            handle = self._events.get(timeout=min(seconds, max(0.0, self._deadline - time.monotonic())))
        except queue.Empty:
            return
        handle()
        while not self._events.empty():
            self._events.get()()

    def _task_without_gpus(self) -> Task | None:
        """The first ready task that would fit if other runs released their GPUs."""
        free = self._free
        with_gpus = (task for task in self._waiting if task.demand.gpus and task.number in self._environments)
        return next((task for task in with_gpus if free.holds(task.demand)), None) if self._has_slot else None

    def _wait_for_gpus(self, task: Task) -> None:
        if not self._has_announced_wait:
            self._has_announced_wait = True
            self._live.say(f"waiting for another run to free {counted(task.demand.gpus, 'GPU')}")
        self._pool.wait_in_queue(self._jobs[task.number].id)

    def _check_deadline(self) -> None:
        """Stop the run at its time limit, before the CI service kills it without a report."""
        if time.monotonic() >= self._deadline and (self._waiting or self._active):
            reached = f"the run reached its limit of {self._policy.seconds:g} s"
            self._stop(f"Not completed: {reached}.", f"{reached}: stopping")

    def _remove(self, attempt: JobAttempt, error: BaseException | None = None) -> None:
        """Remove a closed job; raise the error of its thread, if any."""
        attempt.thread.join()
        self._active.remove(attempt)
        unhealthy = self._pool.unhealthy_among(attempt.lease.gpus)
        self._capacity = self._capacity.minus(Capacity(gpus=len(unhealthy)))
        for gpu in unhealthy:
            self._live.say(f"{self._host.inventory.name_of(gpu)} is unhealthy: no other job of this run will use it")
        if self._stopped is not None:
            self._attempts.record_unstarted(attempt.task, attempt.job, self._stopped)
        elif attempt.rerun is not None:
            self._retry(attempt, attempt.rerun)
        self._fail_too_large_jobs()
        if error is not None:
            raise error

    def _fail_too_large_jobs(self) -> None:
        """Record an error for each job that needs more GPUs than are healthy."""
        healthy, unhealthy = len(self._pool.healthy), self._pool.unhealthy_among(self._host.gpus)
        too_large = [task for task in self._waiting if task.demand.gpus > healthy] if unhealthy else []
        for task in too_large:
            self._waiting.remove(task)
            names = ", ".join(map(self._host.inventory.name_of, unhealthy))
            needed = counted(task.demand.gpus, "GPU")
            what = f"It needs {needed}, but only {healthy} on this host can be used. Unhealthy: {names}."
            remedy = "Repair the GPU, then resume the run: allranks run --resume."
            why = JobError(kind="infrastructure", what=what, remedy=remedy)
            job = self._jobs[task.number]
            self._attempts.record_unstarted(task, job, why)
            self._live.job_ended(job.id, Tests(), 0.0, why)

    def _retry(self, attempt: JobAttempt, selection: JobSelection) -> None:
        """Retry a failed job if it has retries left."""
        job_id, error = attempt.job.id, attempt.error
        retry = self._retries.retry(job_id, selection, error.kind if error else "") if attempt.spec else None
        if retry is not None:
            self._waiting.append(attempt.task)
            self._live.set_state(job_id, "waiting")
            self._live.say(f"{job_id}: {retry}")
        elif self._policy.fail_fast:
            self._stop(f"Not completed: {job_id} failed, and -x was given.", f"{job_id} failed: stopping (-x)")

    def _stop(self, what: str, message: str) -> None:
        """Cancel the running jobs, and record for each waiting job why it did not run."""
        self._deadline = math.inf
        self._stopped = JobError(kind="stopped", what=what, remedy="Resume it: allranks run --resume.")
        self._live.say(message)
        self._maker.cancel()
        for attempt in self._active:
            attempt.cancel(self._stopped)
        for task in self._waiting:
            self._attempts.record_unstarted(task, self._jobs[task.number], self._stopped)
        self._waiting.clear()

    def _end_all(self) -> None:
        """Cancel all jobs and builds, and wait until they are closed; an interrupt may arrive even now."""
        try:
            with block_signals():
                self._cancel_all()
        finally:
            self._cancel_all()

    def _cancel_all(self) -> None:
        self._maker.cancel()
        for attempt in self._active:
            attempt.cancel()
        for attempt in self._active:
            attempt.thread.join()
        self._active.clear()
        self._maker.join()
