"""What a driver's test comes to, as the agent writes it down: the ranks' outcomes, and the launching process's own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from allranks.harness.arrival import Arrival, Step
from allranks.harness.driver import DRIVER, driver_events
from allranks.harness.events import Event, EventLog, read_events
from allranks.harness.gang import Gang
from allranks.harness.outcome import Outcome
from allranks.harness.output import Output

_WHO = "the launching process"
_PHASE_FIELDS = ("when", "outcome", "duration", "message", "text", "skip_kind", "skip_code")


@dataclass(kw_only=True)
class _Said:
    """What the driver has written down of one test since it was last asked.

    Attributes:
        world_size: The ranks that it has given the test to; None for none.
        arrived: What arrived from them.
        own: Phases, and errors that pytest hides, that are the launching process's own.
    """

    world_size: int | None = None
    arrived: list[Event] = field(default_factory=list)
    own: list[Event] = field(default_factory=list)

    @property
    def trouble(self) -> Event | None:
        """The first thing that went wrong in the launching process itself."""
        return next((event for event in self.own if Outcome(event["outcome"]).is_bad), None)

    @property
    def notable(self) -> Event | None:
        """The first phase of the launching process that did not simply pass."""
        return self.trouble or next((event for event in self.own if event["outcome"] != Outcome.PASSED), None)

    @property
    def has_bad_rank(self) -> bool:
        """Whether a rank has gone wrong."""
        return any(Outcome(event["outcome"]).is_bad for event in self.arrived)


class DriverAccount:
    """Keeps the books of one driver's tests.

    Where the test has started ranks, their outcomes stand, and trouble of the launching process itself is rank 0's.
    Where it has started none, what the launching process came to is the outcome of each rank of the cell.

    Args:
        results: The job's results folder.
        journal: The agent's journal.
        world_size: The cell's.
    """

    def __init__(self, results: Path, journal: EventLog, world_size: int) -> None:
        self._results = results
        self._journal = journal
        self._world_size = world_size
        self._seen = len(read_events(driver_events(results)))
        self._released: dict[str, int] = {}

    def settle(self, gang: Gang, nodeid: str, step: Step) -> bool:
        """Write down one step of the driver under a test; returns whether the test has gone wrong.

        Args:
            gang: The driver.
            nodeid: The test.
            step: What arrived from the driver.
        """
        outputs = gang.put_output_away(nodeid, [DRIVER])
        said = self._read(nodeid)
        for event in said.arrived:
            self._journal.write(**event)
        lost = next((arrival for arrival in step.arrivals if arrival.observed), None)
        trouble = said.trouble or (None if lost is None else _as_phase(lost))
        size = self._released.get(nodeid)
        if size is not None:
            if trouble is not None:
                self._add_trouble(nodeid, _named(trouble, outputs), _Scene(said=said, lost=lost, world_size=size))
        elif step.arrivals:
            trouble = trouble or said.notable or _NO_RANKS
            self._give_all(nodeid, _named(trouble, outputs))
        return said.has_bad_rank or (trouble is not None and Outcome(trouble["outcome"]).is_bad)

    def _read(self, nodeid: str) -> _Said:
        events = read_events(driver_events(self._results))[self._seen :]
        self._seen += len(events)
        said = _Said()
        repeated: set[str] = set()
        for event in events:
            if event.get("nodeid") == nodeid:
                _take(event, said, repeated)
        if said.world_size is not None:
            self._released[nodeid] = said.world_size
        return said

    def _add_trouble(self, nodeid: str, trouble: Event, scene: "_Scene") -> None:
        """Make it rank 0's; where the launching process is gone, so are the ranks that had not ended the test."""
        self._write(0, "phase", nodeid, **trouble)
        self._arrive(nodeid, 0, trouble, consequence=scene.said.has_bad_rank)
        if scene.lost is None:
            return
        ended = {event["rank"] for event in scene.said.arrived}
        for rank in set(range(1, scene.world_size)) - ended:
            message = f"aborted by {_WHO}, which did not end the test"
            aborted = {"outcome": Outcome.ABORTED, "message": message, "text": message, "caused_by": 0}
            self._write(rank, "rank_ended", nodeid, **aborted)
            self._arrive(nodeid, rank, aborted, consequence=True)

    def _give_all(self, nodeid: str, outcome: Event) -> None:
        for rank in range(self._world_size):
            self._write(rank, "test_started", nodeid, world_size=self._world_size)
            self._write(rank, "phase", nodeid, **outcome)
            self._write(rank, "test_finished", nodeid, outcome=outcome["outcome"])
            self._arrive(nodeid, rank, outcome, consequence=rank > 0 and Outcome(outcome["outcome"]).is_bad)

    def _write(self, rank: int, event: str, nodeid: str, **fields: object) -> None:
        log = EventLog(self._results / f"events-{rank}.jsonl")
        log.write(event, nodeid=nodeid, rank=rank, **fields)
        log.close()

    def _arrive(self, nodeid: str, rank: int, outcome: Mapping[str, object], *, consequence: bool) -> None:
        self._journal.write(
            "arrived",
            nodeid=nodeid,
            rank=rank,
            outcome=outcome["outcome"],
            message=outcome.get("message", ""),
            consequence=consequence,
            caused_by=outcome.get("caused_by"),
        )


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """Where trouble of the launching process has come up."""

    said: _Said
    lost: Arrival | None
    world_size: int


_NO_RANKS: Event = {
    "when": "call",
    "outcome": Outcome.ERRORED,
    "duration": 0.0,
    "message": "no rank was started: setUp did not call self._spawn_processes()",
}


def _take(event: Event, said: _Said, repeated: set[str]) -> None:
    match event["event"]:
        case "ranks_released":
            said.world_size = event["world_size"]
        case "arrived":
            said.arrived.append(event)
        case "repeats_ranks":
            repeated.add(event["when"])
        case "hidden_error":
            said.own.append(event)
        case "phase" if event["when"] not in repeated:
            said.own.append(event)


def _as_phase(lost: Arrival) -> Event:
    """How the launching process ended, where it could not say anything any more."""
    return {
        "when": "call",
        "outcome": lost.outcome,
        "duration": 0.0,
        "message": lost.message.removeprefix(f"rank {lost.rank} "),
        "text": lost.text,
    }


def _named(event: Event, outputs: Mapping[int, Output]) -> Event:
    """The fields of a phase that says whose trouble it was, with what the launching process had printed."""
    fields = {name: event[name] for name in _PHASE_FIELDS if name in event}
    message = str(event.get("message", ""))
    if Outcome(event["outcome"]).is_bad:
        fields["message"] = f"{_WHO}: {message}"
        fields |= outputs.get(DRIVER, Output()).fields()
    return fields
