"""Writes down what a step of a test came to on each rank."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from allranks.harness.events import Journal
from allranks.harness.gangs.arrival import Arrival, Step
from allranks.harness.gangs.gang import Gang
from allranks.harness.gangs.output import Output
from allranks.harness.outcome import Outcome, SkipKind
from allranks.testing.skips.skipcodes import sandcastle_reason


def record_step(gang: Gang, journal: Journal, nodeid: str, step: Step) -> Mapping[int, Output]:
    """Write down one step: what ranks could not write themselves into their files, and what arrived into the journal.

    Args:
        gang: The ranks.
        journal: What gets an ``arrived`` event for each rank.
        nodeid: The test that the step was a part of.
        step: What arrived.

    Returns:
        What each rank has printed since the last call.
    """
    noisy = [arrival.rank for arrival in step.arrivals if arrival.outcome is not Outcome.PASSED]
    outputs = gang.put_output_away(nodeid, noisy)
    for arrival in _told_by_output(step.arrivals, outputs):
        if arrival.observed:
            gang.record(nodeid, arrival)
        journal.write(
            "arrived",
            at=arrival.at,
            nodeid=nodeid,
            rank=arrival.rank,
            outcome=arrival.outcome,
            message=arrival.message,
            consequence=arrival.consequence,
            caused_by=arrival.caused_by,
        )
    return outputs


def failed_start(start: Step, first: Arrival) -> Step:
    """A start that failed, as the outcome of the test that was to come: who had joined is aborted by who did not."""
    return Step(arrivals=[_aborted_at_start(arrival, first) for arrival in start.arrivals])


def _aborted_at_start(arrival: Arrival, first: Arrival) -> Arrival:
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


def _told_by_output(arrivals: Sequence[Arrival], outputs: Mapping[int, Output]) -> list[Arrival]:
    """The arrivals, with those of ranks that passed and have said on their standard error that they skipped."""
    return [_skipped_in_words(arrival, outputs.get(arrival.rank, Output()).stderr) for arrival in arrivals]


def _skipped_in_words(arrival: Arrival, stderr: str) -> Arrival:
    reason = sandcastle_reason(stderr) if stderr and arrival.outcome is Outcome.PASSED else None
    if reason is None:
        return arrival
    return replace(
        arrival, outcome=Outcome.SKIPPED, message=reason, text=reason, skip_kind=SkipKind.ENVIRONMENT, observed=True
    )
