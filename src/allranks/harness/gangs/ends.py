"""The outcome of a test on each rank, as records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from allranks.harness.gangs.output import Output
from allranks.harness.gangs.step_outcome import Step, StepOutcome
from allranks.outcomes import Outcome, Phase, SkipKind, overall, shorten
from allranks.records import Passed, PhaseEnd, RankEnded, Record
from allranks.skip_codes import sandcastle_reason


class Journal(Protocol):
    """Takes records to report."""

    def write(self, record: Record) -> None:
        """Report a record, stamped with the time of day."""


@dataclass(frozen=True, kw_only=True)
class StepRecords:
    """The records of a step.

    Attributes:
        passed: For the ranks that simply passed; None if there are none.
        others: For each other rank, in the order of arrival.
    """

    passed: Passed | None
    others: tuple[RankEnded, ...]

    @property
    def records(self) -> list[Passed | RankEnded]:
        """All records; failures come last, so that the reader of the first one has everything before it."""
        return [*([] if self.passed is None else [self.passed]), *self.others]

    @property
    def outcomes(self) -> set[Outcome]:
        """The outcomes of all ranks."""
        return {each.outcome for each in self.others} | ({Outcome.PASSED} if self.passed else set())


def ends_of(step: Step, nodeid: str, world_size: int, outputs: Mapping[int, Output]) -> StepRecords:
    """Turn a step into records.

    Args:
        step: The step, with its arrivals.
        nodeid: The test that it was a part of.
        world_size: The number of ranks of the test.
        outputs: The output of each rank.
    """
    told = [_skipped_in_words(arrival, outputs.get(arrival.rank, Output()).stderr) for arrival in step.arrivals]
    final = {arrival.rank: arrival for arrival in told}
    passed = [arrival for arrival in final.values() if arrival.outcome is Outcome.PASSED]
    others = [
        _ended(arrival, step.phases.get(arrival.rank, ()), nodeid, world_size, outputs.get(arrival.rank, Output()))
        for arrival in final.values()
        if arrival.outcome is not Outcome.PASSED
    ]
    return StepRecords(passed=_passed(passed, step, nodeid, world_size), others=tuple(others))


def _passed(arrivals: Sequence[StepOutcome], step: Step, nodeid: str, world_size: int) -> Passed | None:
    if not arrivals:
        return None
    return Passed(
        nodeid=nodeid,
        ranks=tuple(arrival.rank for arrival in arrivals),
        arrived=tuple(round(arrival.at, 6) for arrival in arrivals),
        seconds=tuple(round(_seconds(step.phases.get(arrival.rank, ())), 6) for arrival in arrivals),
        world_size=world_size,
    )


def _seconds(phases: Iterable[Phase]) -> float:
    return sum(phase.duration for phase in phases)


def _ended(arrival: StepOutcome, phases: Sequence[Phase], nodeid: str, world_size: int, output: Output) -> RankEnded:
    """One rank's record: its phases decide, unless the supervisor observed the outcome and no phase was bad."""
    deciding = overall(phases) if phases else None
    if deciding is None or (arrival.observed and not deciding.outcome.is_bad) or arrival.outcome != deciding.outcome:
        deciding = Phase(
            when="",
            outcome=arrival.outcome,
            duration=0.0,
            message=arrival.message,
            text=arrival.text,
            skip_kind=arrival.skip_kind,
            skip_code=arrival.skip_code,
        )
    return RankEnded(
        nodeid=nodeid,
        rank=arrival.rank,
        outcome=deciding.outcome,
        world_size=world_size,
        arrived=round(arrival.at, 6),
        phases=tuple(
            PhaseEnd(when=phase.when, outcome=phase.outcome, seconds=round(phase.duration, 6)) for phase in phases
        ),
        phase=deciding.when,
        message=arrival.addition + deciding.message,
        text=shorten(deciding.text),
        stdout=_told(output.stdout, phases, "stdout"),
        stderr=_told(output.stderr, phases, "stderr"),
        caused_by=arrival.caused_by,
        consequence=arrival.consequence,
        is_lost=arrival.is_lost,
        skip_kind=deciding.skip_kind,
        skip_code=deciding.skip_code,
    )


def _told(printed: str, phases: Sequence[Phase], name: str) -> str:
    """What a rank printed; a phase has text of its own only if a plugin put it there."""
    sources = (printed, *(getattr(phase, name) for phase in reversed(phases)))
    return shorten(next(filter(None, sources), ""))


def failed_start(start: Step, first: StepOutcome) -> Step:
    """A failed start as the next test's outcome: ranks that had joined are aborted by the one that did not."""
    return replace(start, arrivals=[_aborted_at_start(arrival, first) for arrival in start.arrivals])


def _aborted_at_start(arrival: StepOutcome, first: StepOutcome) -> StepOutcome:
    if arrival.outcome is not Outcome.PASSED:
        return arrival
    why = "skipped" if first.outcome is Outcome.SKIPPED else "did not join the process group"
    return replace(
        arrival,
        outcome=Outcome.ABORTED,
        message=f"aborted by rank {first.rank}, which {why}",
        observed=True,
        consequence=True,
        caused_by=first.rank,
    )


def _skipped_in_words(arrival: StepOutcome, stderr: str) -> StepOutcome:
    """The arrival; a skip if the rank passed but printed torch's sandcastle skip on standard error."""
    reason = sandcastle_reason(stderr) if stderr and arrival.outcome is Outcome.PASSED else None
    if reason is None:
        return arrival
    return replace(
        arrival, outcome=Outcome.SKIPPED, message=reason, text=reason, skip_kind=SkipKind.ENVIRONMENT, observed=True
    )
