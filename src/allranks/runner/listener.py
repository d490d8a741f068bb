"""Receives the events of a run, prints them, and tracks the progress of every job."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from allranks.colors import Paint, without_color
from allranks.engines.base import JobSpec, Placement
from allranks.errors import counted
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import Printed, RankEnded, Record, Repeated, TestSlow
from allranks.protocol.xml_text import clipped, readable
from allranks.report.run_files import JobError
from allranks.runner.progress import JobProgress, State, Tests, format_counts, format_locations, format_rate, summary

Detail = Literal["quiet", "usual", "verbose"]
"""How much a run prints. ``quiet`` (``-q``) prints only problems; ``verbose`` (``-v``) adds each job's settings, and
the tracebacks, stacks and output of failed ranks."""

_REASON_LINES: Final = 12
_EVIDENCE_LINES: Final = 100
_MESSAGE: Final = 160
"""Characters of a message: one or two lines of a terminal."""

_RATE_SECONDS: Final = 10.0
"""Seconds from the start of a job to the first message with the failure rate of its repeated tests."""

_PROGRESS_SECONDS: Final = 60.0
"""Seconds between two summaries of the run in a log."""

_NOT_FAILED: Final = frozenset({"interrupted", "stopped"})
"""Error kinds of jobs that were stopped and have not failed."""


@dataclass(eq=False)  # a pytest plug-in derives from it, and older versions of pytest keep plug-ins in a set
class RunListener:
    """Receives the events of jobs; its methods may be called from any thread."""

    say: Callable[[str], None]
    detail: Detail = "usual"
    paint: Paint = without_color
    first_failure: str = ""
    began: float = field(default_factory=time.monotonic)
    lock: threading.RLock = field(default_factory=threading.RLock)  # held while the progress of jobs is used
    _summaries: int = 0  # the number of periods of _PROGRESS_SECONDS until the last printed summary
    _jobs: dict[str, JobProgress] = field(default_factory=dict)
    _running: dict[str, JobProgress] = field(default_factory=dict)
    _have_failed: set[str] = field(default_factory=set)

    def expect(self, job_ids: Iterable[str]) -> None:
        """Add these jobs, in the order of the plan."""
        self._jobs = {job_id: JobProgress(job_id=job_id) for job_id in job_ids}

    def _job(self, job_id: str) -> JobProgress:
        return self._jobs.setdefault(job_id, JobProgress(job_id=job_id))

    @property
    def jobs(self) -> Sequence[JobProgress]:
        """All jobs, in the order of the plan."""
        return list(self._jobs.values())

    @property
    def seconds(self) -> float:
        """How long the run has taken so far."""
        return time.monotonic() - self.began

    def set_state(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """Begin to track an attempt at a job, with its state and the indexes of its GPUs."""
        with self.lock:
            self._jobs[job_id] = JobProgress(job_id=job_id, state=state, gpus=tuple(gpus))

    def job_started(self, spec: JobSpec, tests: Tests) -> None:
        """Handle the start of a job; the caller keeps the counts in `tests` up to date."""
        with self.lock:
            self._set_running(spec, tests)
            if self.detail == "verbose":
                self._say_all(request_lines(spec))
            if self.detail != "quiet":
                self.say(f"{spec.job_id}: running {_location(spec)}")

    def _set_running(self, spec: JobSpec, tests: Tests) -> None:
        job = self._job(spec.job_id)
        job.state, job.began, job.tests = "running", time.monotonic(), tests
        self._running[spec.job_id] = job

    def placement_changed(self, job_id: str, placement: Placement) -> None:
        """Handle a change of a job's status in the engine's queue, and restart its clock."""
        with self.lock:
            job = self._job(job_id)
            job.queue_status, job.began = "" if placement.is_placed else placement.text, time.monotonic()
            if self.detail != "quiet":
                self.say(f"{job_id}: {placement.text}")

    def take(self, job_id: str, record: Record) -> None:
        """Print the output of ranks, slow tests, and each job's first primary failure, or all if the run is verbose."""
        with self.lock:
            match record:
                case Printed():
                    self._show_output(job_id, record)
                case Repeated():
                    self._job(job_id).rate = format_rate(record)
                case TestSlow() if self.detail != "quiet":
                    self.say(self.paint(f"{job_id}: {describe_slow(record)}", "yellow"))
                case RankEnded() if record.outcome.is_bad:
                    self._show_failure(job_id, record)

    def _show_output(self, job_id: str, printed: Printed) -> None:
        prefix = f"{job_id}: " if len(self._running) > 1 else ""
        self.say(f"{prefix}[rank {printed.rank}] {last_version(printed.line)}")

    def _show_failure(self, job_id: str, ended: RankEnded) -> None:
        failure = failure_of(ended)
        is_primary = ended.outcome is not Outcome.ABORTED and not ended.consequence
        if is_primary and job_id not in self._have_failed:
            self._have_failed.add(job_id)
            self.first_failure = self.first_failure or f"{job_id}: {failure}"
            self.say(self.paint(f"{job_id}: first failure: {failure}", "red"))
        elif self.detail == "verbose":
            self.say(self.paint(f"{job_id}: {failure}", "red"))
        else:
            return
        self._show_evidence(ended)

    def _show_evidence(self, ended: RankEnded) -> None:
        if self.detail == "verbose":
            self._say_all(evidence_lines(ended))

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """Print the job's counts or its error, with the last lines of the error's details."""
        with self.lock:
            self._running.pop(job_id, None)
            job = self._job(job_id)
            job.state, job.tests, job.took, job.gpus = "done", tests, seconds, ()
            job.error = error.what if error else ""
            tests.forget_names()
            is_failure = error is not None and error.kind not in _NOT_FAILED
            if is_failure:
                self.first_failure = self.first_failure or f"{job_id}: {job.error}"
            if self.detail == "quiet" and not job.has_failed:
                return
            message = f"{job_id}: {job.error or format_counts(tests.counts) or 'no test ran'} ({seconds:.1f} s)"
            self.say(self.paint(message, "red") if is_failure or tests.counts["failed"] else message)
            for text in (error.why, error.remedy) if error else ():
                self._say_all(f"    {line}" for line in _last_lines(text))

    def report_progress(self) -> None:
        """Print a summary of the run, and the failure rates of repeated tests, each at intervals."""
        if self.detail == "quiet":
            return
        with self.lock:
            if (periods := int(self.seconds / _PROGRESS_SECONDS)) > self._summaries:
                self._summaries = periods
                self.say("; ".join(filter(None, (summary(self.jobs, self.seconds), self._longest()))))
            for job in self._running.values():
                if job.rate and (elapsed := job.seconds or 0.0) - job.rate_printed >= max(_RATE_SECONDS, elapsed / 5):
                    job.rate_printed = elapsed
                    self.say(f"{job.job_id}: {job.rate}")

    def _longest(self) -> str:
        """A message about the test that has been running for longest; empty if none is running."""
        tests = ((job.job_id, job.longest) for job in self._running.values())
        running = max(((test.seconds, job_id, test.nodeid) for job_id, test in tests if test), default=None)
        return f"{running[1]}: {running[2]} has been running for {running[0]:.0f} s" if running else ""

    def _say_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.say(line)


def describe_slow(slow: TestSlow) -> str:
    """How long a slow test has been running, and where its ranks are."""
    return f"slow: {slow.nodeid} has been running for {slow.seconds:.0f} s: {format_locations(slow)}"


def request_lines(spec: JobSpec) -> Iterator[str]:
    """A summary of the request to an engine, for ``-v``."""
    agent, resources = spec.agent, spec.resources
    yield f"{spec.job_id}: attempt {spec.attempt} of run {spec.run_id}, seed {agent.seed}"
    yield f"    {'image' if spec.image else 'python'}: {spec.image or spec.python}"
    yield f"    pytest: {' '.join((*agent.paths, *agent.pytest_args))}"
    nodes = counted(agent.nodes, "node")
    yield f"    ranks: {agent.world_size} on {nodes}, backend {agent.backend}, init method {agent.init_method}"
    if spec.gpus:
        yield f"    GPUs: {', '.join(spec.gpus)} ({spec.passthrough.driver})"
    if spec.environment:
        yield f"    environment: {' '.join(f'{name}={value}' for name, value in sorted(spec.environment.items()))}"
    limits = agent.limits
    yield f"    limits: {limits.test:g} s per test, {limits.job:g} s per job, {limits.process_group:g} s per collective"
    memory, shm = resources.memory_bytes >> 20, resources.shm_bytes >> 20
    yield f"    resources: {counted(resources.cpus, 'CPU')}, {memory} MiB, {shm} MiB in /dev/shm"


def evidence_lines(ended: RankEnded) -> Iterator[str]:
    """The traceback or stacks of a failed rank, and its captured output; the last lines of each."""
    for title, text in (("", ended.text), ("stdout", ended.stdout), ("stderr", ended.stderr)):
        lines = readable(text).splitlines()
        if lines and title:
            yield f"    [rank {ended.rank}] captured {title}:"
        if len(lines) > _EVIDENCE_LINES:
            yield f"    [rank {ended.rank}] … {counted(len(lines) - _EVIDENCE_LINES, 'line')} above"
        yield from (f"    [rank {ended.rank}] {line}" for line in lines[-_EVIDENCE_LINES:])


def _location(spec: JobSpec) -> str:
    where = f"in {spec.image}" if spec.image else f"as processes of {spec.python}"
    return where if spec.agent.nodes == 1 else f"on {spec.agent.nodes} nodes, {where}"


def last_version(line: str) -> str:
    """The final text of a line that carriage returns overwrite, such as a progress bar."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def failure_of(ended: RankEnded) -> str:
    """The outcome of a rank, its test and the message, on one line."""
    rank, outcome = f"rank {ended.rank}", ended.outcome.replace("_", " ")
    message = " ".join(ended.message.split()).removeprefix(f"{rank} ")
    return f"{rank} {outcome} in {ended.nodeid}: {clipped(message, _MESSAGE)}"


def _last_lines(text: str) -> list[str]:
    """The end of a text, where Python and pip print the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _REASON_LINES else ["…", *lines[-_REASON_LINES:]]
