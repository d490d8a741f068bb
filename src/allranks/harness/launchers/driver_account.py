"""What a driver's test comes to, as the agent writes it down: the ranks' outcomes, and the launching process's own."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from allranks.harness.config import AgentConfig
from allranks.harness.events import Event, Journal, parse_lines, rank_events, write_event
from allranks.harness.gangs.arrival import Arrival, Step
from allranks.harness.gangs.gang import Gang
from allranks.harness.gangs.output import Output
from allranks.harness.launchers.driver import DRIVER, driver_events
from allranks.harness.outcome import Outcome, disagree, may_disagree

_WHO = "the launching process"
_MAY_BE_EXPECTED = frozenset({Outcome.PASSED, Outcome.FAILED, Outcome.ABORTED, Outcome.XFAILED})
_UNEXPECTED = {Outcome.PASSED: Outcome.XPASSED}
_PHASE_FIELDS = ("when", "outcome", "duration", "message", "text", "skip_kind", "skip_code")


@dataclass(kw_only=True)
class _Said:
    """What the driver has written down of one test since it was last asked.

    Attributes:
        world_size: The ranks that it has given the test to; None for none.
        arrived: What arrived from them.
        own: Phases, and errors that pytest hides, that are the launching process's own.
        shares_outcome: The ranks are threads of the launching process, which has one outcome for all.
        is_expected: The launching process takes the failure of its ranks for what the test is marked to come to.
    """

    world_size: int | None = None
    arrived: list[Event] = field(default_factory=list)
    own: list[Event] = field(default_factory=list)
    shares_outcome: bool = False
    is_expected: bool = False

    @property
    def trouble(self) -> Event | None:
        """The first thing that went wrong in the launching process itself."""
        return next((event for event in self.own if Outcome(event["outcome"]).is_bad), None)

    @property
    def notable(self) -> Event | None:
        """The first phase of the launching process that did not simply pass."""
        return self.trouble or next((event for event in self.own if event["outcome"] != Outcome.PASSED), None)

    @property
    def without_ranks(self) -> Event:
        """What a test came to that has no outcome of a rank: one that started none may be the launching process's."""
        calls = (event for event in self.own if event["when"] == "call" and self.world_size is None)
        return self.notable or next(calls, _NO_RANKS)

    @property
    def has_bad_rank(self) -> bool:
        """Whether a rank has gone wrong by itself."""
        return any(Outcome(event["outcome"]).is_bad and not event["consequence"] for event in self.arrived)

    @property
    def disagrees(self) -> bool:
        """Whether some ranks skipped and others did not."""
        return disagree({Outcome(event["outcome"]) for event in self.arrived})


class _Tail:
    """What is added to a file of events, which all drivers of a job share."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = path.stat().st_size if path.exists() else 0

    def read(self) -> list[Event]:
        """The events that were added since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._end)
            data = file.read()
        self._end += len(data)
        return list(parse_lines(data.splitlines()))


class DriverAccount:
    """Keeps the books of one driver's tests.

    Where ranks have ended the test, their outcomes stand, and trouble of the launching process itself is rank 0's.
    Ranks that have not, because the launching process did not come that far, get what it came to; where none was
    started, those of the cell.

    Args:
        results: The job's results folder.
        journal: The agent's journal.
        config: The job.
    """

    def __init__(self, results: Path, journal: Journal, config: AgentConfig) -> None:
        self._results = results
        self._journal = journal
        self._world_size = config.world_size
        self._mixed_skip = config.mixed_skip
        self._tail = _Tail(driver_events(results))
        self._open: dict[str, set[int]] = {}

    def settle(self, gang: Gang, nodeid: str, step: Step) -> bool:
        """Write down one step of the driver under a test; returns whether the test has gone wrong.

        Args:
            gang: The driver.
            nodeid: The test.
            step: What arrived from the driver; nothing where it only tore down, and that went well.
        """
        outputs = gang.put_output_away(nodeid, [DRIVER])
        said = self._read(nodeid)
        if said.is_expected and all(event["outcome"] in _MAY_BE_EXPECTED for event in said.arrived):
            said.arrived = [self._as_expected(event) for event in said.arrived]
        for event in said.arrived:
            self._journal.write(**event)
        lost = next((arrival for arrival in step.arrivals if arrival.observed), None)
        trouble = said.trouble or (None if lost is None else _as_phase(lost))
        open_ranks = self._close(nodeid, said)
        if trouble is not None and not said.shares_outcome:
            self._add_trouble(nodeid, _named(trouble, outputs), said)
            self._abort(nodeid, open_ranks - {0})
        elif step.arrivals and open_ranks:
            trouble = trouble or said.without_ranks
            self._give(nodeid, open_ranks, _named(trouble, outputs))
        is_bad = said.has_bad_rank or (trouble is not None and Outcome(trouble["outcome"]).is_bad)
        return is_bad or (said.disagrees and not may_disagree(nodeid, self._mixed_skip))

    def _read(self, nodeid: str) -> _Said:
        said = _Said()
        repeated: set[str] = set()
        for event in self._tail.read():
            if event.get("nodeid") == nodeid:
                _take(event, said, repeated)
        return said

    def _as_expected(self, event: Event) -> Event:
        """A failure that the test is marked to come to, and what that did to the peers of the rank that failed."""
        if event["outcome"] == Outcome.ABORTED:
            # The last such event counts.
            fields = {"outcome": Outcome.XFAILED, "message": event["message"], "text": event["message"]}
            self._write(event["rank"], "rank_ended", event["nodeid"], **fields)
        outcome = Outcome.XFAILED if Outcome(event["outcome"]).is_bad else _UNEXPECTED.get(event["outcome"])
        return event if outcome is None else {**event, "outcome": outcome, "consequence": False}

    def _close(self, nodeid: str, said: _Said) -> set[int]:
        """Take the ranks that have ended a test off those that have not; returns those, and forgets them."""
        ranks = self._open.pop(nodeid, set(range(said.world_size or self._world_size)))
        self._open[nodeid] = set()
        return ranks - {event["rank"] for event in said.arrived}

    def _add_trouble(self, nodeid: str, trouble: Event, said: _Said) -> None:
        """Make it rank 0's, beside what rank 0 may have come to itself."""
        self._write(0, "test_started", nodeid, world_size=said.world_size or self._world_size)
        self._write(0, "phase", nodeid, **trouble)
        self._write(0, "test_finished", nodeid, outcome=trouble["outcome"])
        self._arrive(nodeid, 0, trouble, consequence=said.has_bad_rank)

    def _abort(self, nodeid: str, ranks: AbstractSet[int]) -> None:
        message = f"aborted by {_WHO}, which did not end the test"
        aborted = {"outcome": Outcome.ABORTED, "message": message, "text": message, "caused_by": 0}
        for rank in sorted(ranks):
            self._write(rank, "rank_ended", nodeid, **aborted)
            self._arrive(nodeid, rank, aborted, consequence=True)

    def _give(self, nodeid: str, ranks: AbstractSet[int], outcome: Event) -> None:
        for rank in sorted(ranks):
            self._write(rank, "phase", nodeid, **outcome)
            self._write(rank, "test_finished", nodeid, outcome=outcome["outcome"])
            self._arrive(nodeid, rank, outcome, consequence=False)

    def _write(self, rank: int, event: str, nodeid: str, **fields: object) -> None:
        write_event(rank_events(self._results, rank), event, nodeid=nodeid, rank=rank, **fields)

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


_NO_RANKS: Event = {
    "when": "call",
    "outcome": Outcome.ERRORED,
    "duration": 0.0,
    "message": f"{_WHO} did not wait for the ranks of this test: call setUp of the base class and _spawn_processes",
}


def _take(event: Event, said: _Said, repeated: set[str]) -> None:
    match event["event"]:
        case "ranks_released":
            said.world_size = event["world_size"]
        case "arrived":
            said.arrived.append(event)
        case "repeats_ranks":
            repeated.add(event["when"])
        case "shares_outcome":
            said.shares_outcome = True
        case "hidden_error":
            said.own.append(event)
        case "phase":
            said.is_expected |= event["outcome"] == Outcome.XFAILED
            if event["when"] not in repeated:
                said.own.append(event)


def _as_phase(lost: Arrival) -> Event:
    """How the launching process ended, where it could not say anything any more."""
    return {
        "when": "call",
        "outcome": lost.outcome,
        "duration": 0.0,
        "message": f"{_WHO} {lost.message.removeprefix(f'rank {lost.rank} ')}",
        "text": lost.text,
    }


def _named(event: Event, outputs: Mapping[int, Output]) -> Event:
    """The fields of a phase that says whose trouble it was, with what the launching process had printed."""
    fields = {name: event[name] for name in _PHASE_FIELDS if name in event}
    message = str(event.get("message", ""))
    if Outcome(event["outcome"]).is_bad:
        fields["message"] = message if message.startswith(_WHO) else f"{_WHO}: {message}"
        fields |= outputs.get(DRIVER, Output()).fields()
    return fields
