"""The course of a test that went wrong: evidence for readers, which decides nothing."""

from collections.abc import Mapping, Sequence

from allranks.agent.call_log import MESSAGES, LastCall
from allranks.agent.diagnose.step_outcome import Step
from allranks.agent.output import Output
from allranks.protocol.outcomes import Outcome, shorten
from allranks.protocol.records import EnteredCollective, FailureCourse

MOST_COLLECTIVES = 16
"""Of one test; the last ones count."""

MOST_RANKS = 1_024
"""Ranks whose collectives are kept."""

MOST_CALLS = 10**12
"""A greater number of a collective is none that a rank has counted, and no record may have any integer."""

_NAME = 60
"""Characters of a group or a kind, which a rank may have overwritten with anything."""


def entered(calls: Mapping[int, Sequence[LastCall]], began: int, ended: int) -> tuple[EnteredCollective, ...]:
    """The last collectives that began between two times.

    Args:
        calls: Those on the board of each rank.
        began: Nanoseconds, on the clock of the calls.
        ended: On the same clock.
    """
    found: dict[tuple[str, int, str], dict[int, float]] = {}
    for rank in sorted(calls)[:MOST_RANKS]:
        for call in calls[rank]:
            if call.kind not in MESSAGES and began <= call.at <= ended and 0 <= call.number <= MOST_CALLS:
                key = (call.group[:_NAME], call.number, call.kind[:_NAME])
                found.setdefault(key, {})[rank] = round((call.at - began) / 1e9, 6)
    last = sorted(found.items(), key=lambda each: max(each[1].values()))[-MOST_COLLECTIVES:]
    return tuple(
        EnteredCollective(group=group, number=number, kind=kind, ranks=tuple(seconds), seconds=tuple(seconds.values()))
        for (group, number, kind), seconds in last
    )


def course_of(step: Step, nodeid: str, outputs: Mapping[int, Output]) -> FailureCourse | None:
    """The record of a test that went wrong; None if it did not, or if nothing is known."""
    if not (step.nodeid and step.has_gone_wrong):
        return None
    bad = {each.rank for each in step.outcomes if each.outcome is not Outcome.PASSED}
    passed = next((rank for rank, each in sorted(outputs.items()) if rank not in bad and each != Output()), None)
    if passed is None and not step.collectives:
        return None
    printed = Output() if passed is None else outputs[passed]
    return FailureCourse(
        nodeid=nodeid,
        collectives=step.collectives,
        passed=passed,
        stdout=shorten(printed.stdout),
        stderr=shorten(printed.stderr),
    )
