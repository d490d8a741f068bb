"""What a run prints: a line for each event."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from allranks.engines.base import JobSpec, Placement
from allranks.protocol.records import Printed, RankEnded, Record, Repeated
from allranks.protocol.xml_text import clipped
from allranks.report.run_files import JobError
from allranks.runner.progress import Pace, State, Tests, rate_so_far
from allranks.runner.run_detail import Detail, evidence_lines, request_lines

_LINES = 12
_SHOWN = 160  # characters of a message: one or two lines of a terminal


@dataclass(eq=False)  # a plug-in of pytest derives from it, and older versions of pytest keep plug-ins in a set
class LiveView:
    """Prints events as they happen, with the job's id on each line of output where jobs run side by side."""

    say: Callable[[str], None]
    detail: Detail = "usual"
    _running: set[str] = field(default_factory=set)
    _has_failed: set[str] = field(default_factory=set)
    _paces: dict[str, Pace] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def job_is(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """A job waits, for the first time or again, or is being prepared; plain lines do not show that.

        Args:
            job_id: The job.
            state: Its new state.
            gpus: The indexes of its GPUs among the host's.
        """

    def job_requested(self, spec: JobSpec) -> None:
        """A job is about to begin, as this request asks."""
        if self.detail == "verbose":
            with self._lock:
                for line in request_lines(spec):
                    self.say(line)

    def job_started(self, job_id: str, where: str) -> None:
        """A job begins to run."""
        with self._lock:
            self._running.add(job_id)
            if self.detail != "quiet":
                self.say(f"{job_id}: running in {where}")

    def job_is_at(self, job_id: str, place: Placement) -> None:
        """An engine that queues its jobs reports the place of one."""
        with self._lock:
            if self.detail != "quiet":
                self.say(f"{job_id}: {place.text}")

    def take(self, job_id: str, record: Record) -> None:
        """Print the output of ranks, and the first bad outcome of each job."""
        with self._lock:
            match record:
                case Printed():
                    whose = f"{job_id}: " if len(self._running) > 1 else ""
                    self.say(f"{whose}[rank {record.rank}] {last_version(record.line)}")
                case Repeated():
                    self._show_rate(job_id, record)
                case RankEnded() if record.outcome.is_bad and job_id not in self._has_failed:
                    self._has_failed.add(job_id)
                    self.say(f"{job_id}: first failure: {failure_of(record)}")
                    self._show_evidence(record)
                case RankEnded() if record.outcome.is_bad and self.detail == "verbose":
                    self.say(f"{job_id}: {failure_of(record)}")
                    self._show_evidence(record)

    def _show_rate(self, job_id: str, record: Repeated) -> None:
        """Print now and then how the repetitions of a job's tests fare."""
        if self.detail != "quiet" and self._paces.setdefault(job_id, Pace()).is_due():
            self.say(f"{job_id}: {rate_so_far(record)}")

    def _show_evidence(self, record: RankEnded) -> None:
        if self.detail == "verbose":
            for line in evidence_lines(record):
                self.say(line)

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """A job has ended: print its counts or its error, with the last lines of the details."""
        with self._lock:
            self._running.discard(job_id)
            if self.detail == "quiet" and not error and not tests.counts["bad"]:
                return
            self.say(f"{job_id}: {error.what if error else tests.words or 'no test ran'} ({seconds:.1f} s)")
            for text in (error.why, error.remedy) if error else ():
                for line in _last_lines(text):
                    self.say(f"    {line}")


def last_version(line: str) -> str:
    """A line that carriage returns overwrite, as a terminal shows it in the end: a progress bar."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def failure_of(ended: RankEnded) -> str:
    """The outcome of a rank, its test and the message, on one line."""
    who, what = f"rank {ended.rank}", ended.outcome.replace("_", " ")
    message = " ".join(ended.message.split()).removeprefix(f"{who} ")
    return f"{who} {what} in {ended.nodeid}: {clipped(message, _SHOWN)}"


def _last_lines(text: str) -> list[str]:
    """The end of a text, where Python and pip report the error."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _LINES else ["…", *lines[-_LINES:]]
