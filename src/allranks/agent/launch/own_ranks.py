"""The ranks that a launcher test starts, or that a class of them keeps, and the result that they add up to."""

import traceback
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from allranks.agent.channel import End
from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.diagnose.unmatched_calls import format_ranks
from allranks.agent.launch.launch import Excuse, Launch, LaunchContext, LaunchTerms, excuse_nothing
from allranks.agent.launch.launched_rank import LaunchedRank, RankTerms
from allranks.agent.launch.plain import meeting_file
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
    if step.primary_failure is not None:
        raise RankFailureError("\n".join(_account(step, step.primary_failure)), step.primary_failure.raised)
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
    yield from (_headline(group[0], format_ranks([each.rank for each in group])) for group in alike.values())


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
    """Starts the ranks of a test, and waits for them; clean-ups of the test end them.

    Args:
        work: What each rank does, with the terms of the test; returns its exit status.
        add_cleanup: Registers a clean-up; it must run after tearDown, however that ends, and also after a failed setUp.
    """

    def __init__(
        self,
        case: Any,  # noqa: ANN401 - DeepSpeed's is no unittest
        surroundings: LaunchContext,
        world_size: int,
        work: Callable[[LaunchedRank, RankTerms], int],
        add_cleanup: Callable[[Callable[[], object]], object],
    ) -> None:
        resources = ExitStack()
        add_cleanup(resources.close)
        self._terms = terms = surroundings.launch_terms(case)
        workplace = resources.enter_context(surroundings.workplace())
        self.launch = Launch(
            workplace, world_size, lambda launched: work(launched, surroundings.rank_terms(terms.nodeid)), terms
        )
        resources.callback(self.launch.close)
        self.launch.release(self._terms)

    def join(self, ends: ExpectedEnds) -> None:
        """Wait for the ranks, and raise their outcome."""
        __tracebackhide__ = True
        terms = self._terms
        step = self.launch.wait(ends.excuse)
        raise_for(step, may_disagree=terms.may_disagree)
        if ends.of_rank_0 and ends.of_rank_0 != self.launch.excused_status(0):
            msg = f"rank 0 was to end with exit status {ends.of_rank_0}, and its test ended without that"
            raise AssertionError(msg)


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


RANKS_ATTRIBUTE = "allranks_ranks"
"""The class attribute that holds the live ranks."""


@dataclass(frozen=True, kw_only=True)
class RankLife:
    """What each rank does."""

    # Creates the process group; its second argument is the file at which the ranks meet.
    join: Callable[[LaunchedRank, str], None]
    run: Callable[[Any, LaunchedRank], None]  # runs one test, on a fresh test case
    leave: Callable[[], None]  # destroys the process group


class KeptRanks:
    """The live ranks of a class, in its launching process."""

    def __init__(self, case: unittest.TestCase, surroundings: LaunchContext, world_size: int, life: RankLife) -> None:
        self._surroundings = surroundings
        self._life = life
        # Both sides identify a test by its index in this list.
        self._names: Sequence[str] = tuple(sorted(dir(type(case))))
        with ExitStack() as resources:
            self.file = resources.enter_context(meeting_file())
            self._workplace = resources.enter_context(surroundings.workplace())
            terms = surroundings.launch_terms(case)
            self._launch = Launch(self._workplace, world_size, lambda launched: self._live(case, launched), terms)
            resources.callback(self._launch.close)
            self._raise_for(self._launch.start(), terms)
            self._resources = resources.pop_all()

    def run(self, case: unittest.TestCase) -> bool:
        """Have the ranks run a test, and raise their outcome; returns whether they may run another: all calls match."""
        __tracebackhide__ = True
        terms = self._surroundings.launch_terms(case)
        step = self._launch.run(terms, self._names.index(_name(case)))
        self._raise_for(step, terms)
        return step.is_clean and step.mismatch is None

    def end(self) -> None:
        """Have the ranks tear down and leave, and raise any error of that."""
        with self._resources:
            self._raise_for(self._launch.end(), self._launch.last)

    def close(self) -> None:
        """Stop all live ranks."""
        self._resources.close()

    def _raise_for(self, step: Step, terms: LaunchTerms) -> None:
        __tracebackhide__ = True
        raise_for(step, may_disagree=terms.may_disagree)

    def _live(self, first: unittest.TestCase, launched: LaunchedRank) -> int:
        """Run in a fork: create the process group, run tests on command, and leave; returns the exit status."""
        if not launched.start(lambda: self._life.join(launched, self.file)):
            return 1
        for command in launched.commands():
            if isinstance(command, End):
                launched.end(self._life.leave)
                return 0
            case = type(first)(self._names[command.index])
            launched.run(self._surroundings.rank_terms(command.nodeid), partial(self._life.run, case, launched))
        return 1


def kept_by(cls: type[unittest.TestCase]) -> KeptRanks | None:
    """The live ranks of a class; it shares none with its base classes."""
    ranks: KeptRanks | None = vars(cls).get(RANKS_ATTRIBUTE)
    return ranks


def take_from(cls: type[unittest.TestCase]) -> KeptRanks | None:
    """Remove the live ranks from a class, and return them."""
    ranks = kept_by(cls)
    if ranks is not None:
        delattr(cls, RANKS_ATTRIBUTE)
    return ranks


def run_in(ranks: KeptRanks, case: unittest.TestCase) -> None:
    """Run a test in the ranks of its class, and end them if it fails, or leaves calls that do not match."""
    __tracebackhide__ = True
    may_go_on = False
    try:
        may_go_on = ranks.run(case)
    except unittest.SkipTest:
        may_go_on = True
        raise
    finally:
        if not may_go_on:
            # The state that ranks share, above all the process group, is no longer reliable.
            take_from(type(case))
            ranks.close()


def end_ranks_of(cls: type[unittest.TestCase]) -> None:
    """Have the ranks of a class leave, if it has any, and raise any error of that."""
    ranks = take_from(cls)
    if ranks is not None:
        ranks.end()


def _name(case: unittest.TestCase) -> str:
    return case._testMethodName  # noqa: SLF001 - unittest gives the name nowhere else
