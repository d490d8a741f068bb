"""Hears the events of a run, prints a line for each, and knows how far every job is."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from allranks.colors import Color
from allranks.engines.base import JobSpec, Placement
from allranks.protocol.records import Printed, RankEnded, Record, Repeated
from allranks.protocol.xml_text import clipped, readable
from allranks.report.run_files import JobError
from allranks.runner.progress import JobProgress, State, Tests, rate_so_far, summary, words

Detail = Literal["quiet", "usual", "verbose"]
"""How much a run prints: ``-q`` leaves out all but problems, ``-v`` adds requests and evidence."""

Paint = Callable[[str, Color], str]
"""Puts a text into a color, where colors are shown."""

_REASON_LINES: Final = 12
_EVIDENCE_LINES: Final = 100
_MESSAGE: Final = 160
"""Characters of a message: one or two lines of a terminal."""

_RATE_SECONDS: Final = 10.0
"""Seconds to the first line about the repetitions of a job."""

_PROGRESS_SECONDS: Final = 60.0
"""Seconds between two lines of a log about the whole run."""

_NO_FAULT: Final = frozenset({"interrupted", "stopped"})
"""Kinds of errors of jobs that were ended: no failures."""


def without_color(text: str, _color: Color) -> str:
    """The text as it is."""
    return text


@dataclass(eq=False)  # a plug-in of pytest derives from it, and older versions of pytest keep plug-ins in a set
class RunListener:
    """Hears the events of jobs, on any thread; a job is known from its first event, or from `expect` on."""

    say: Callable[[str], None]
    detail: Detail = "usual"
    paint: Paint = without_color
    first_failure: str = ""
    began: float = field(default_factory=time.monotonic)
    lock: threading.RLock = field(default_factory=threading.RLock)  # held while the progress of jobs is read
    _periods_told: int = 0  # a log has had a line about the whole run for each
    _jobs: dict[str, JobProgress] = field(default_factory=dict)
    _running: dict[str, JobProgress] = field(default_factory=dict)
    _have_failed: set[str] = field(default_factory=set)

    def expect(self, job_ids: Iterable[str]) -> None:
        """Know of these jobs, in the order of the plan."""
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

    def job_is(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """A job waits, or is prepared, on GPUs with these indexes: for the first time, or for another attempt."""
        with self.lock:
            self._jobs[job_id] = JobProgress(job_id=job_id, state=state, gpus=tuple(gpus))

    def job_started(self, spec: JobSpec, tests: Tests) -> None:
        """A job begins to run, as this request asks; its tests are counted here."""
        with self.lock:
            job, limits = self._job(spec.job_id), spec.agent.limits
            job.state, job.began, job.tests = "running", time.monotonic(), tests
            job.slow_after = min(limits.process_group, limits.test) / 2
            self._running[spec.job_id] = job
            if self.detail == "verbose":
                self._say_all(request_lines(spec))
            if self.detail != "quiet":
                self.say(f"{spec.job_id}: running in {_place(spec)}")

    def job_is_at(self, job_id: str, place: Placement) -> None:
        """An engine that queues its jobs reports the place of one; its time begins anew when it leaves the queue."""
        with self.lock:
            job = self._job(job_id)
            job.place, job.began = "" if place.is_placed else place.text, time.monotonic()
            if self.detail != "quiet":
                self.say(f"{job_id}: {place.text}")

    def take(self, job_id: str, record: Record) -> None:
        """Print the output of ranks, and the first bad outcome of each job, or each if the run is verbose."""
        with self.lock:
            match record:
                case Printed():
                    self._show_output(job_id, record)
                case Repeated():
                    self._job(job_id).rate = rate_so_far(record)
                case RankEnded() if record.outcome.is_bad:
                    self._show_failure(job_id, record)

    def _show_output(self, job_id: str, printed: Printed) -> None:
        whose = f"{job_id}: " if len(self._running) > 1 else ""
        self.say(f"{whose}[rank {printed.rank}] {last_version(printed.line)}")

    def _show_failure(self, job_id: str, ended: RankEnded) -> None:
        what = failure_of(ended)
        self.first_failure = self.first_failure or f"{job_id}: {what}"
        if job_id not in self._have_failed:
            self._have_failed.add(job_id)
            self.say(self.paint(f"{job_id}: first failure: {what}", "red"))
        elif self.detail == "verbose":
            self.say(self.paint(f"{job_id}: {what}", "red"))
        else:
            return
        self._show_evidence(ended)

    def _show_evidence(self, ended: RankEnded) -> None:
        if self.detail == "verbose":
            self._say_all(evidence_lines(ended))

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """A job has ended: print its counts or its error, with the last lines of the details."""
        with self.lock:
            self._running.pop(job_id, None)
            job = self._job(job_id)
            job.state, job.tests, job.took, job.gpus = "done", tests, seconds, ()
            job.trouble = error.what if error else ""
            tests.forget_names()
            is_fault = error is not None and error.kind not in _NO_FAULT
            if is_fault:
                self.first_failure = self.first_failure or f"{job_id}: {job.trouble}"
            if self.detail == "quiet" and not job.is_bad:
                return
            line = f"{job_id}: {job.trouble or words(tests.counts) or 'no test ran'} ({seconds:.1f} s)"
            self.say(self.paint(line, "red") if is_fault or tests.counts["bad"] else line)
            for text in (error.why, error.remedy) if error else ():
                self._say_all(f"    {line}" for line in _last_lines(text))

    def report_progress(self) -> None:
        """Print what a log needs now and then: how far all is, each test that has become slow, how repetitions fare.

        A test is slow after half of its time limit; its next line comes whenever its time has doubled.
        """
        if self.detail == "quiet":
            return
        with self.lock:
            if (periods := int(self.seconds / _PROGRESS_SECONDS)) > self._periods_told:
                self._periods_told = periods
                self.say("; ".join(filter(None, (summary(self.jobs, self.seconds), self._longest()))))
            for job in self._running.values():
                for test in tuple(job.tests.running.values()):
                    if test.seconds >= job.slow_after * 2**test.slow_lines:
                        test.slow_lines += 1
                        line = f"{job.job_id}: slow: {test.nodeid} has been running for {test.seconds:.0f} s"
                        self.say(self.paint(line, "yellow"))
                if job.rate and (elapsed := job.seconds or 0.0) - job.rate_told >= max(_RATE_SECONDS, elapsed / 5):
                    job.rate_told = elapsed
                    self.say(f"{job.job_id}: {job.rate}")

    def _longest(self) -> str:
        """The test that has been running for longest; empty if none runs."""
        tests = ((job.job_id, job.longest) for job in self._running.values())
        running = max(((test.seconds, job_id, test.nodeid) for job_id, test in tests if test), default=None)
        return f"{running[1]}: {running[2]} has been running for {running[0]:.0f} s" if running else ""

    def _say_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.say(line)


def request_lines(spec: JobSpec) -> Iterator[str]:
    """What an engine is asked for, with the path of the tests as pytest gets it: part of ``plan --requests``."""
    agent, room = spec.agent, spec.resources
    yield f"{spec.job_id}: attempt {spec.attempt} of run {spec.run_id}, seed {agent.seed}"
    yield f"    {'image' if spec.image else 'python'}: {spec.image or spec.python}"
    yield f"    pytest: {' '.join((*agent.paths, *agent.pytest_args))}"
    yield f"    ranks: {agent.world_size} on {agent.nodes} node(s), {agent.backend} by {agent.init_method}"
    if spec.gpus:
        yield f"    GPUs: {', '.join(spec.gpus)} ({spec.passthrough.driver})"
    if spec.environment:
        yield f"    environment: {' '.join(f'{name}={value}' for name, value in sorted(spec.environment.items()))}"
    limits = agent.limits
    yield f"    limits: {limits.test:g} s a test, {limits.job:g} s the job, {limits.process_group:g} s a process group"
    yield f"    room: {room.cpus} CPUs, {room.memory_bytes >> 20} MiB, {room.shm_bytes >> 20} MiB in /dev/shm"


def evidence_lines(ended: RankEnded) -> Iterator[str]:
    """What a bad rank left: its traceback or stacks, and what it printed; the ends of long texts."""
    for title, text in (("", ended.text), ("stdout", ended.stdout), ("stderr", ended.stderr)):
        lines = readable(text).splitlines()
        if lines and title:
            yield f"    [rank {ended.rank}] captured {title}:"
        if len(lines) > _EVIDENCE_LINES:
            yield f"    [rank {ended.rank}] … {len(lines) - _EVIDENCE_LINES} lines above"
        yield from (f"    [rank {ended.rank}] {line}" for line in lines[-_EVIDENCE_LINES:])


def _place(spec: JobSpec) -> str:
    where = spec.image or f"processes of {spec.python}"
    return where if spec.agent.nodes == 1 else f"{spec.agent.nodes} nodes of {where}"


def last_version(line: str) -> str:
    """A line that carriage returns overwrite, as a terminal shows it in the end: a progress bar."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def failure_of(ended: RankEnded) -> str:
    """The outcome of a rank, its test and the message, on one line."""
    who, what = f"rank {ended.rank}", ended.outcome.replace("_", " ")
    message = " ".join(ended.message.split()).removeprefix(f"{who} ")
    return f"{who} {what} in {ended.nodeid}: {clipped(message, _MESSAGE)}"


def _last_lines(text: str) -> list[str]:
    """The end of a text, where Python and pip report the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _REASON_LINES else ["…", *lines[-_REASON_LINES:]]
