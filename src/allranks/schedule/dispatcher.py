"""Starts jobs side by side, as many as fit, with the next one already on standby.

Each job has a thread of its own. The main thread decides what starts, makes images, and alone receives signals.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from allranks.harness.collection.selection import drawn
from allranks.interruption import uninterrupted
from allranks.matrix.model import Job
from allranks.report.run_files import JobError
from allranks.schedule.attempt_runner import AttemptRunner
from allranks.schedule.job_attempt import JobAttempt
from allranks.schedule.packing.backlog import Backlog, ordered
from allranks.schedule.packing.estimate import Capacity, Running, Task
from allranks.schedule.progress import Tests
from allranks.schedule.retry_policy import Again, RetryPolicy

_POLL = 0.25
"""Seconds between two polls of GPUs that another run holds."""

_NAP = 1.0
"""Most seconds of one wait: an interrupt that comes just before the wait is noticed only after it."""


class Dispatcher:
    """Runs jobs, each attempt in a thread of its own, and leaves a record of each in the run's folder."""

    def __init__(self, attempts: AttemptRunner) -> None:
        self._attempts = attempts
        self._host = attempts.host
        self._live = attempts.live
        self._policy = attempts.policy
        self._pool = attempts.pool
        self._retries = RetryPolicy(0, {})
        self._jobs: Sequence[Job] = ()
        self._capacity = self._host.room
        self._backlog = Backlog((), self._capacity)
        self._active: list[JobAttempt] = []
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_announced_wait = False
        self._deadline = math.inf
        self._stopped: JobError | None = None

    def run(self, jobs: Sequence[Job], selections: Mapping[str, Again] | None = None) -> None:
        """Run all jobs: of some, by their ids, only the selected part.

        Raises:
            KeyboardInterrupt: The user interrupted the run; the jobs that were running have their records.
            ResultsError: Results can no longer be written.
        """
        self._jobs = jobs
        self._retries = RetryPolicy(self._policy.retries, selections or {})
        self._backlog = Backlog(self._tasks(), self._host.room)
        if self._policy.seconds is not None:
            self._deadline = time.monotonic() + self._policy.seconds
        try:
            while self._backlog or self._active:
                self._start_what_fits()
                self._handle_next_event()
                self._check_deadline()
        finally:
            self._pool.leave_queue()
            self._end_all()

    def _tasks(self) -> list[Task]:
        """The jobs, the most important first; one that needs more than the whole host gets all of it."""
        expected = [self._attempts.folder.expected(job) for job in self._jobs]
        known = sorted(seconds for seconds in expected if seconds is not None)
        median = known[len(known) // 2] if known else 1.0
        tasks = [
            Task(number, self._attempts.room_of(job), median if seconds is None else seconds)
            for number, (job, seconds) in enumerate(zip(self._jobs, expected, strict=True))
        ]
        if (seed := self._policy.shuffle) is not None:
            tasks.sort(key=lambda task: drawn(seed, self._jobs[task.number].id))
        elif known:
            tasks = ordered(tasks, self._host.room)
        else:
            tasks.sort(key=lambda task: -task.room.gpus)
        return [replace(task, room=task.room.within(self._host.room)) for task in tasks]

    def _start_what_fits(self) -> None:
        """Run jobs while there is room; then put the next one on standby, if cores are all that it lacks."""
        self._release_standby()
        while self._has_slot and (task := self._take()):
            if not self._start(task):
                return
            self._release_standby()
        following = self._backlog.first
        if not self._standby and following and self._active and self._can_stand_by(following):
            self._start(self._backlog.take_first())
        self._release_standby()

    @property
    def _standby(self) -> list[JobAttempt]:
        return [attempt for attempt in self._active if attempt.state == "standby"]

    @property
    def _has_slot(self) -> bool:
        most = min(filter(None, (self._policy.most, self._host.most_jobs)), default=None)
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
            if self._has_slot and self._free.holds(Capacity(cores=attempt.task.room.cores)):
                attempt.release()

    def _take(self) -> Task | None:
        started = [attempt for attempt in self._active if attempt.state != "standby"]
        running = [Running(replace(attempt.task, room=attempt.held), attempt.began) for attempt in started]
        before = next((Capacity(cores=attempt.task.room.cores) for attempt in self._standby), None)
        free = self._free
        free = free._replace(gpus=min(free.gpus, self._pool.count_free()))  # other runs of this host may hold some
        return self._backlog.take(time.monotonic(), free, running, before)

    def _can_stand_by(self, task: Task) -> bool:
        """Whether the task lacks only cores, and has its image: a build may block all events for minutes.

        None does in a queue: it might get nodes and GPUs, and keep them from others while it waits for its turn.
        """
        if self._host.most_jobs is not None:
            return False
        fits = self._free._replace(cores=self._host.cores).holds(task.room)
        return fits and self._attempts.has_image(self._jobs[task.number])

    def _start(self, task: Task) -> bool:
        """Put a job on standby in its own thread; False, with the task put back, if another run took its GPUs first."""
        job = self._jobs[task.number]
        with ExitStack() as undo:
            attempt = self._attempts.prepare(task, job, self._retries.selection(job.id), undo)
            if attempt is None:
                self._backlog.put_back(task)
                return False
            attempt.thread = threading.Thread(target=self._see_through, args=(attempt,), name=job.id)
            # Threads inherit the signal mask: only the main thread takes interrupts.
            with uninterrupted():
                attempt.thread.start()
                undo.pop_all()
                self._active.append(attempt)
        return True

    def _see_through(self, attempt: JobAttempt) -> None:
        """Run an attempt in its own thread, and report its end to the main thread."""
        try:
            self._attempts.run(attempt, partial(self._events.put, attempt.free_cores))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._events.put(partial(self._remove, attempt, error))
        else:
            self._events.put(partial(self._remove, attempt))

    def _handle_next_event(self) -> None:
        """Wait a short while for an event of a thread, and handle it."""
        wanted, seconds = self._backlog.first, _NAP
        fits = wanted and self._has_slot and not self._standby and self._free.holds(wanted.room)
        if wanted and fits and wanted.room.gpus:  # other runs hold them
            self._wait_for_gpus(wanted)
            seconds = _POLL
        else:
            self._pool.leave_queue()
        try:
            handle = self._events.get(timeout=min(seconds, max(0.0, self._deadline - time.monotonic())))
        except queue.Empty:
            return
        handle()

    def _wait_for_gpus(self, task: Task) -> None:
        if not self._has_announced_wait:
            self._has_announced_wait = True
            self._live.say(f"waiting for {task.room.gpus} of {len(self._host.gpus)} GPUs: another run holds them")
        self._pool.wait_in_queue(self._jobs[task.number].id)

    def _check_deadline(self) -> None:
        """End the run if its time is over: if it were ended from outside later, there would be no report."""
        if time.monotonic() >= self._deadline and (self._backlog or self._active):
            over = f"the run's limit of {self._policy.seconds:g} s is over"
            self._stop(f"Not completed: {over}.", f"{over}, and ends it")

    def _remove(self, attempt: JobAttempt, error: BaseException | None = None) -> None:
        """Remove a closed job; raise the error of its thread."""
        attempt.thread.join()
        self._active.remove(attempt)
        sick = self._pool.sick_among(attempt.lease.gpus)
        self._capacity = self._capacity.minus(Capacity(gpus=len(sick)))
        for gpu in sick:
            self._live.say(f"{self._host.name_of(gpu)} is sick: this run gives it to no other job")
        if self._stopped is not None:
            self._attempts.record_unstarted(attempt.task, attempt.job, self._stopped)
        elif attempt.left is not None:
            self._retry(attempt, attempt.left)
        self._give_up_too_large()
        if error is not None:
            raise error

    def _give_up_too_large(self) -> None:
        """Record an error for each job that needs more GPUs than are healthy."""
        well, sick = len(self._pool.healthy), self._pool.sick_among(self._host.gpus)
        for task in self._backlog.clear() if sick else ():
            if task.room.gpus <= well:
                self._backlog.add(task)
                continue
            names = ", ".join(map(self._host.name_of, sick))
            what = f"It needs {task.room.gpus} GPUs, and {well} GPUs of this host are well: {names} is sick."
            why = JobError(kind="infrastructure", what=what, remedy="Repair it, and go on: allranks run --resume.")
            job = self._jobs[task.number]
            self._attempts.record_unstarted(task, job, why)
            self._live.job_ended(job.id, Tests(), 0.0, why)

    def _retry(self, attempt: JobAttempt, left: Again) -> None:
        """Retry the rest of a job if allowed; else the job is not good."""
        job_id, error = attempt.job.id, attempt.error
        retry = self._retries.retry(job_id, left, error.kind if error else "") if attempt.spec else None
        if retry is not None:
            self._backlog.add(attempt.task)
            self._live.job_is(job_id, "waiting")
            self._live.say(f"{job_id}: {retry}")
        elif self._policy.fail_fast:
            what = f"Not completed: --fail-fast ended the run when {job_id} was not good."
            self._stop(what, f"{job_id} is not good, and --fail-fast ends the run")

    def _stop(self, what: str, line: str) -> None:
        """Cancel the running jobs, and record for each waiting one why it did not run."""
        self._deadline = math.inf
        self._stopped = JobError(kind="stopped", what=what, remedy="Resume it: allranks run --resume.")
        self._live.say(line)
        for attempt in self._active:
            attempt.cancel(self._stopped)
        for task in self._backlog.clear():
            self._attempts.record_unstarted(task, self._jobs[task.number], self._stopped)

    def _end_all(self) -> None:
        """Cancel all jobs, and wait until they are closed; the first interrupt may come even now."""
        try:
            with uninterrupted():
                self._cancel_all()
        finally:
            self._cancel_all()

    def _cancel_all(self) -> None:
        for attempt in self._active:
            attempt.cancel()
        for attempt in self._active:
            attempt.thread.join()
        self._active.clear()
