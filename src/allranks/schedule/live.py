"""What a person sees while jobs run: one plain line for each thing that happened."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from allranks.harness.events import Event
from allranks.harness.outcome import Outcome


@dataclass
class LiveView:
    """Says what happens, as it happens.

    Args:
        say: Prints one line.
    """

    say: Callable[[str], None]
    _has_failed: set[str] = field(default_factory=set)

    def job_started(self, job_id: str, where: str) -> None:
        """A job has its turn."""
        self.say(f"{job_id}: running in {where}")

    def event(self, job_id: str, event: Event) -> None:
        """Something arrived from a job: the first bad outcome of each job is worth a line at once."""
        if event["event"] != "arrived" or job_id in self._has_failed:
            return
        if Outcome(event["outcome"]).is_bad:
            self._has_failed.add(job_id)
            message = " ".join(event["message"].split())[:120]
            self.say(
                f"{job_id}: first failure: rank {event['rank']} {event['outcome']} in {event['nodeid']}: {message}"
            )

    def job_ended(self, job_id: str, events: Sequence[Event], seconds: float, error: str) -> None:
        """A job is over."""
        self.say(f"{job_id}: {error or _summary(events)} in {seconds:.1f} s")


def _summary(events: Sequence[Event]) -> str:
    """Tests by what became of them: the worst of their ranks, in plain words."""
    tests: dict[str, set[Outcome]] = {}
    for event in events:
        if event["event"] == "arrived":
            tests.setdefault(event["nodeid"], set()).add(Outcome(event["outcome"]))
    counts = Counter(_word(outcomes) for outcomes in tests.values())
    return ", ".join(f"{counts[word]} {word}" for word in ("bad", "passed", "skipped") if counts[word]) or "no test ran"


def _word(outcomes: set[Outcome]) -> str:
    if any(outcome.is_bad for outcome in outcomes):
        return "bad"
    return "passed" if Outcome.PASSED in outcomes else "skipped"
