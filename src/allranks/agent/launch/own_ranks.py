"""The ranks that one launcher test starts, and the result that they add up to."""

import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.diagnose.unmatched_calls import words_for_ranks
from allranks.agent.launch.launch import Excuse, Launch, LaunchContext, excuse_nothing
from allranks.agent.launch.launched_rank import LaunchedRank
from allranks.agent.rank.rank_setup import flush_output, leave
from allranks.protocol.outcomes import Outcome, overall
from allranks.protocol.skip_codes import is_success

OF_RANKS_ATTRIBUTE = "allranks_of_ranks"
"""An exception with a true attribute of this name repeats in the launching process what ranks have reported."""


_BELOW_THE_TEST = ("/allranks/testing/process_cases.py", "/allranks/agent/")


class RankFailureError(AssertionError):
    """One or more ranks of a launcher test were bad, or ranks disagree on a skip.

    The message begins with the first bad rank and its traceback; then it has one line for all peers that ended alike.

    Args:
        message: That.
        raised: The names of the class of what that rank raised, and of its bases; none if it ended otherwise.
    """

    allranks_of_ranks = True

    def __init__(self, message: str, raised: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.raised = raised


class RankSkip(unittest.SkipTest):
    """All ranks skipped."""

    allranks_of_ranks = True


def raise_for(step: Step, *, may_disagree: bool) -> None:
    """Raise the outcome of a step of the ranks; returns if all ranks passed.

    Args:
        step: What arrived from the ranks.
        may_disagree: Some ranks may skip while others pass.

    Raises:
        RankFailureError: A rank was bad, or only some ranks skipped.
        RankSkip: All ranks skipped.
        pytest.xfail.Exception: All ranks called ``pytest.xfail``.
    """
    __tracebackhide__ = True
    if step.leader is not None:
        raise RankFailureError("\n".join(_account(step, step.leader)), step.leader.raised)
    outcomes = {each.outcome for each in step.outcomes}
    if outcomes == {Outcome.XFAILED}:
        pytest.xfail(step.outcomes[0].message)
    skipped = [each for each in step.outcomes if each.outcome is Outcome.SKIPPED]
    if skipped and len(skipped) == len(step.outcomes):
        raise RankSkip(skipped[0].message)
    if skipped and not may_disagree:
        raise RankFailureError(_disagreement(step.outcomes))


def _account(step: Step, leader: StepOutcome) -> Iterator[str]:
    yield _headline(leader, f"rank {leader.rank}")
    yield from (f"    {line}" for line in _text(leader, step).splitlines())
    yield from _headlines(each for each in step.outcomes if each.rank != leader.rank)


def _headlines(outcomes: Iterable[StepOutcome]) -> Iterator[str]:
    """One line for all ranks that ended alike."""
    alike: dict[tuple[str, str, bool], list[StepOutcome]] = {}
    for each in sorted(outcomes, key=lambda each: each.rank):
        alike.setdefault((each.outcome, each.message, each.consequence), []).append(each)
    yield from (_headline(group[0], words_for_ranks([each.rank for each in group])) for group in alike.values())


def _headline(outcome: StepOutcome, who: str) -> str:
    if outcome.observed and outcome.message.startswith(f"{who} "):
        return outcome.message
    if outcome.outcome is Outcome.ABORTED:
        return f"{who} {'were' if who.startswith('ranks') else 'was'} {outcome.message}"
    message = f": {outcome.message}" if outcome.message else ""
    after = " in consequence" if outcome.consequence else ""
    return f"{who} {outcome.outcome.replace('_', ' ')}{after}{message}"


def _text(outcome: StepOutcome, step: Step) -> str:
    if outcome.observed:
        return "\n".join(_above_the_fork(outcome.text))
    phases = step.phases.get(outcome.rank, ())
    return overall(phases).text if phases else outcome.text


def _above_the_fork(stacks: str) -> Iterator[str]:
    """The lines of stacks without the frames below the test, which belong to the launching process before the fork."""
    is_below = False
    for line in stacks.splitlines():
        is_frame = line.startswith("  File ")
        is_below = is_frame and (is_below or any(part in line for part in _BELOW_THE_TEST))
        if not is_below and not line.startswith("Extension modules:"):
            yield line


def _disagreement(outcomes: Sequence[StepOutcome]) -> str:
    return "\n".join(("ranks disagree: some skipped and others did not", *_headlines(outcomes)))


@dataclass(frozen=True, kw_only=True)
class ExpectedEnds:
    """How ranks may exit in mid-test."""

    excuse: Excuse = excuse_nothing  # decides whether the exit of a rank is expected
    of_rank_0: int = 0  # the exit status that rank 0 must end with; 0 for none


def expected_ends(case: unittest.TestCase, test: Callable[[], object]) -> ExpectedEnds:
    """How the ranks of a test may exit, by torch's two attributes for it on the test case."""
    if test in getattr(case, "skip_return_code_checks", ()):
        return ExpectedEnds(excuse=lambda _rank, _status: True)
    special: Mapping[Callable[[], object], int] = getattr(case, "special_return_code_checks", {})
    expected = special.get(test, 0)
    return ExpectedEnds(
        excuse=lambda _rank, status: expected not in (0, None) and status == expected, of_rank_0=expected
    )


class OwnRanks:
    """Starts the ranks of a test, and waits for them; clean-ups of the test end them."""

    def __init__(
        self,
        case: unittest.TestCase,
        surroundings: LaunchContext,
        world_size: int,
        work: Callable[[LaunchedRank], int],
    ) -> None:
        self._case = case
        resources = ExitStack()
        # A clean-up runs after tearDown, however that ends, and also after a failed setUp.
        case.addCleanup(resources.close)
        self._terms = surroundings.launch_terms(case)
        self._workplace = resources.enter_context(surroundings.workplace(type(case)))
        self.launch = Launch(self._workplace, world_size, work, self._terms)
        resources.callback(self.launch.close)
        self.launch.release(self._terms)

    def join(self, ends: ExpectedEnds) -> None:
        """Wait for the ranks, and raise their outcome.

        Raises:
            RankFailureError: A rank was bad, or only some ranks skipped.
            RankSkip: All ranks skipped.
        """
        __tracebackhide__ = True
        terms = self._terms
        step = self.launch.wait(ends.excuse)
        raise_for(step, may_disagree=terms.may_disagree)
        if ends.of_rank_0 and ends.of_rank_0 != self.launch.excused_status(0):
            self._case.fail(f"rank 0 was to end with exit status {ends.of_rank_0}, and its test ended without that")


def no_ranks_error(test: str, spawn: str = "_spawn_processes") -> RuntimeError:
    """The error of a test that waits for ranks but has started none, by the method `spawn`."""
    msg = (
        f"no rank was started for {test}\n"
        f"A test of this class runs in ranks alone, and setUp did not call self.{spawn}().\n"
        f"Call super().setUp() and then self.{spawn}() in setUp."
    )
    return RuntimeError(msg)


def exit_as_asked(exit_: SystemExit) -> None:
    """End the process as ``sys.exit`` would: the launching process checks the exit status."""
    if not isinstance(exit_.code, int) or is_success(exit_.code):
        # The report then shows where a rank left that should not have.
        traceback.print_exception(exit_)
    flush_output()
    leave(exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None))
