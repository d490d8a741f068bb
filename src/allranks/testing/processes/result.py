"""What the ranks of a launcher test came to, as the result of the test in the launching process."""

import unittest
from collections.abc import Iterator, Sequence

import pytest

from allranks.harness.gangs.arrival import Arrival, Step
from allranks.harness.outcome import Outcome
from allranks.harness.phases import overall

OF_RANKS_ATTRIBUTE = "allranks_of_ranks"
"""An exception with a true attribute of this name says in the launching process what ranks have said already."""


_BELOW_THE_TEST = ("/allranks/testing/processes/", "/allranks/harness/")


class RankFailureError(AssertionError):
    """One or more ranks of a launcher test went wrong, or ranks disagree on a skip.

    The message begins with the rank that went first, and has its traceback; its peers follow, each in a line.
    """

    allranks_of_ranks = True


class RankSkip(unittest.SkipTest):
    """All ranks skipped."""

    allranks_of_ranks = True


def raise_for(step: Step, *, may_disagree: bool) -> None:
    """Raise what a step of the ranks means for the test; nothing where all ranks passed.

    Args:
        step: What arrived from the ranks.
        may_disagree: Some ranks may skip while others pass.

    Raises:
        RankFailureError: A rank went wrong, or only some ranks skipped.
        RankSkip: All ranks skipped.
        pytest.xfail.Exception: All ranks called ``pytest.xfail``.
    """
    __tracebackhide__ = True
    if step.leader is not None:
        raise RankFailureError("\n".join(_account(step, step.leader)))
    outcomes = {arrival.outcome for arrival in step.arrivals}
    if outcomes == {Outcome.XFAILED}:
        pytest.xfail(step.arrivals[0].message)
    skipped = [arrival for arrival in step.arrivals if arrival.outcome is Outcome.SKIPPED]
    if skipped and len(skipped) == len(step.arrivals):
        raise RankSkip(skipped[0].message)
    if skipped and not may_disagree:
        raise RankFailureError(_disagreement(step.arrivals))


def _account(step: Step, leader: Arrival) -> Iterator[str]:
    yield _headline(leader)
    yield from (f"    {line}" for line in _text(leader, step).splitlines())
    for arrival in sorted(step.arrivals, key=lambda each: each.rank):
        if arrival is not leader and arrival.rank != leader.rank:
            yield _headline(arrival)


def _headline(arrival: Arrival) -> str:
    name = f"rank {arrival.rank}"
    if arrival.observed and arrival.message.startswith(f"{name} "):
        return arrival.message
    if arrival.outcome is Outcome.ABORTED:
        return f"{name} was {arrival.message}"
    said = f": {arrival.message}" if arrival.message else ""
    after = " in consequence" if arrival.consequence else ""
    return f"{name} {arrival.outcome.replace('_', ' ')}{after}{said}"


def _text(arrival: Arrival, step: Step) -> str:
    """A rank's traceback, or its stacks."""
    if arrival.observed:
        return "\n".join(_above_the_fork(arrival.text))
    phases = step.phases.get(arrival.rank, ())
    return overall(phases).text if phases else arrival.text


def _above_the_fork(stacks: str) -> Iterator[str]:
    """The lines of some stacks without the frames below the test, which are the launching process's up to the fork."""
    is_below = False
    for line in stacks.splitlines():
        is_frame = line.startswith("  File ")
        is_below = is_frame and (is_below or any(part in line for part in _BELOW_THE_TEST))
        if not is_below and not line.startswith("Extension modules:"):
            yield line


def _disagreement(arrivals: Sequence[Arrival]) -> str:
    lines = [_headline(arrival) for arrival in sorted(arrivals, key=lambda each: each.rank)]
    return "\n".join(("ranks disagree: some skipped and others did not", *lines))
