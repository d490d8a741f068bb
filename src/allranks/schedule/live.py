"""What a person sees while jobs run: one plain line for each thing that happened."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from allranks.records import Printed, RankEnded, Record
from allranks.schedule.job_facts import JobError
from allranks.schedule.progress import State, Tests

_LINES = 12
_SHOWN = 160  # characters of a message: one or two lines of a terminal


@dataclass
class LiveView:
    """Says what happens, as it happens; jobs that run side by side are told apart.

    Args:
        say: Prints one line.
    """

    say: Callable[[str], None]
    _running: set[str] = field(default_factory=set)
    _has_failed: set[str] = field(default_factory=set)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def job_is(self, job_id: str, state: State, gpus: Sequence[int] = ()) -> None:
        """A job waits, for the first time or again, or is being prepared: in lines that is nothing to tell.

        Args:
            job_id: The job.
            state: Where it is.
            gpus: The places of its GPUs among the host's.
        """

    def job_started(self, job_id: str, where: str) -> None:
        """A job has its turn."""
        with self._lock:
            self._running.add(job_id)
            self.say(f"{job_id}: running in {where}")

    def take(self, job_id: str, record: Record) -> None:
        """A job has reported something: the first bad outcome of each is worth a line at once, and what ranks print."""
        with self._lock:
            match record:
                case Printed():
                    whose = f"{job_id}: " if len(self._running) > 1 else ""
                    self.say(f"{whose}[rank {record.rank}] {record.line}")
                case RankEnded() if record.outcome.is_bad and job_id not in self._has_failed:
                    self._has_failed.add(job_id)
                    self.say(f"{job_id}: first failure: {failure_of(record)}")

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """A job is over; what befell the job as a whole is said in full, as far as a person would read."""
        with self._lock:
            self._running.discard(job_id)
            self.say(f"{job_id}: {error.what if error else tests.words or 'no test ran'} ({seconds:.1f} s)")
            for text in (error.why, error.remedy) if error else ():
                for line in _last_lines(text):
                    self.say(f"    {line}")


def failure_of(ended: RankEnded) -> str:
    """What a rank came to, in which test, and why, on one line."""
    who, what = f"rank {ended.rank}", ended.outcome.replace("_", " ")
    message = " ".join(ended.message.split()).removeprefix(f"{who} ").removeprefix(f"{what}: ")
    return f"{who} {what} in {ended.nodeid}: {message[:_SHOWN]}"


def _last_lines(text: str) -> list[str]:
    """The end of a text, which is where Python and pip say what went wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _LINES else ["…", *lines[-_LINES:]]
