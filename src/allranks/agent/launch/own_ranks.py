"""The ranks that a multi-process test starts, or that its class keeps, and the overall outcome of a test."""

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
from allranks.agent.launch.launch import ExpectsExit, Launch, LaunchContext, LaunchOptions, expect_no_exit
from allranks.agent.launch.launched_rank import LaunchedRank, RankOptions
from allranks.agent.launch.plain import rendezvous_file
from allranks.agent.rank.rank_setup import flush_output, leave
from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import Outcome, overall
from allranks.protocol.skip_codes import is_success

REPEATS_RANKS_ATTRIBUTE = "allranks_repeats_ranks"
"""True on exceptions of the launching process that only repeat what ranks have reported."""

_BELOW_THE_TEST = ("/allranks/testing/process_cases.py", "/allranks/agent/")


class RankFailureError(AssertionError):
    """One or more ranks of a multi-process test failed, or only some of them skipped.

    The message starts with the first failed rank and its traceback, followed by one line for each group of peers with
    the same outcome.

    Attributes:
        raised: The names of the class, and of its base classes, of the exception that the first failed rank raised;
            empty if it raised none.
    """

    allranks_repeats_ranks = True

    def __init__(self, message: str, raised: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.raised = raised


class RankSkip(unittest.SkipTest):
    """All ranks skipped."""

    allranks_repeats_ranks = True


def raise_for(step: Step, *, may_disagree: bool) -> None:
    """Raise the overall outcome of the ranks; returns if all ranks passed.

    Args:
        step: The outcomes of the ranks.
        may_disagree: Whether some ranks may skip while others pass.

    Raises:
        RankFailureError: A rank failed, or only some ranks skipped.
        RankSkip: All ranks skipped.
        pytest.xfail.Exception: All ranks called ``pytest.xfail``.
    """
    __tracebackhide__ = True
    if step.primary_failure is not None:
        raise RankFailureError("\n".join(_describe(step, step.primary_failure)), step.primary_failure.raised)
    if {outcome.outcome for outcome in step.outcomes} == {Outcome.XFAILED}:
        pytest.xfail(step.outcomes[0].message)
    skipped = [outcome for outcome in step.outcomes if outcome.outcome is Outcome.SKIPPED]
    if skipped and len(skipped) == len(step.outcomes):
        raise RankSkip(skipped[0].message)
    if skipped and not may_disagree:
        raise RankFailureError(
            "\n".join(("ranks disagree: some skipped and others did not", *_headlines(step.outcomes)))
        )


def _describe(step: Step, first: StepOutcome) -> Iterator[str]:
    yield _headline(first, f"rank {first.rank}")
    yield from (f"    {line}" for line in _text(first, step).splitlines())
    yield from _headlines(outcome for outcome in step.outcomes if outcome.rank != first.rank)


def _headlines(outcomes: Iterable[StepOutcome]) -> Iterator[str]:
    """One line for each group of ranks with the same outcome."""
    by_rank = sorted(outcomes, key=lambda outcome: outcome.rank)
    groups = by_key(((outcome.outcome, outcome.message, outcome.consequence), outcome) for outcome in by_rank)
    for group in groups.values():
        yield _headline(group[0], format_ranks([outcome.rank for outcome in group]))


def _headline(outcome: StepOutcome, who: str) -> str:
    if outcome.observed and outcome.message.startswith(f"{who} "):
        return outcome.message
    if outcome.outcome is Outcome.ABORTED:
        return f"{who} {'were' if who.startswith('ranks') else 'was'} {outcome.message}"
    message = f": {outcome.message}" if outcome.message else ""
    after = " as a consequence" if outcome.consequence else ""
    return f"{who} {outcome.outcome.replace('_', ' ')}{after}{message}"


def _text(outcome: StepOutcome, step: Step) -> str:
    if outcome.observed:
        return "\n".join(_without_launcher_frames(outcome.text))
    phases = step.phases.get(outcome.rank, ())
    return overall(phases).text if phases else outcome.text


def _without_launcher_frames(stacks: str) -> Iterator[str]:
    """The lines of stacks without the frames below the test, which the launching process had before the fork."""
    is_below = False
    for line in stacks.splitlines():
        is_frame = line.startswith("  File ")
        is_below = is_frame and (is_below or any(part in line for part in _BELOW_THE_TEST))
        if not is_below and not line.startswith("Extension modules:"):
            yield line


@dataclass(frozen=True, kw_only=True)
class ExpectedExits:
    """How ranks may exit during a test."""

    expects_exit: ExpectsExit = expect_no_exit
    rank_0_status: int = 0  # required exit status of rank 0; 0 if it need not exit


def expected_exits(case: unittest.TestCase, test: Callable[[], object]) -> ExpectedExits:
    """How the ranks of a test may exit, from the two attributes of the test case that torch defines for this."""
    if test in getattr(case, "skip_return_code_checks", ()):
        return ExpectedExits(expects_exit=lambda _rank, _status: True)
    special: Mapping[Callable[[], object], int] = getattr(case, "special_return_code_checks", {})
    expected = special.get(test, 0)
    return ExpectedExits(
        expects_exit=lambda _rank, status: expected not in (0, None) and status == expected, rank_0_status=expected
    )


class OwnRanks:
    """Starts the ranks of a test, and waits for them; a cleanup of the test stops them.

    Args:
        case: The test case.
        context: Connects the test to its runner.
        world_size: The number of ranks.
        work: Called in each rank with the options of the test; returns the rank's exit status.
        add_cleanup: Registers a cleanup that runs after tearDown, even if setUp or tearDown fails.
    """

    def __init__(
        self,
        case: Any,  # noqa: ANN401 - DeepSpeed's classes are not unittest cases
        context: LaunchContext,
        world_size: int,
        work: Callable[[LaunchedRank, RankOptions], int],
        add_cleanup: Callable[[Callable[[], object]], object],
    ) -> None:
        resources = ExitStack()
        add_cleanup(resources.close)
        self._options = options = context.launch_options(case)
        self.launch = Launch(
            context, world_size, lambda launched: work(launched, context.rank_options(options.nodeid)), options
        )
        resources.callback(self.launch.close)
        self.launch.release(self._options)

    def join(self, ends: ExpectedExits) -> None:
        """Wait for the ranks, and raise their outcome."""
        __tracebackhide__ = True
        options = self._options
        step = self.launch.wait(ends.expects_exit)
        raise_for(step, may_disagree=options.may_disagree)
        if ends.rank_0_status and ends.rank_0_status != self.launch.ranks.expected_exits.get(0):
            msg = f"rank 0 must exit with status {ends.rank_0_status}, but its test ended without an exit"
            raise AssertionError(msg)


def no_ranks_error(test: str, spawn: str = "_spawn_processes") -> RuntimeError:
    """The error of a test that waits for ranks although its setUp has not called the method `spawn`."""
    msg = (
        f"no rank was started for {test}\n"
        f"Tests of this class run only in ranks, and setUp did not call self.{spawn}().\n"
        f"Call super().setUp() and then self.{spawn}() in setUp."
    )
    return RuntimeError(msg)


def exit_process(exit_: SystemExit) -> None:
    """Exit like ``sys.exit``; the launching process checks the exit status."""
    if not isinstance(exit_.code, int) or is_success(exit_.code):
        # If the test does not expect this exit, the report shows where it happened.
        traceback.print_exception(exit_)
    flush_output()
    leave(exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None))


RANKS_ATTRIBUTE = "allranks_ranks"
"""The class attribute that holds the running ranks."""


@dataclass(frozen=True, kw_only=True)
class RankCallbacks:
    """The functions that each rank of a class calls."""

    join: Callable[[LaunchedRank, str], None]  # creates the process group; the second argument is the rendezvous file
    run: Callable[[Any, LaunchedRank], None]  # runs one test on a new test case
    leave: Callable[[], None]  # destroys the process group


class KeptRanks:
    """The ranks that run one test of a class after another, as the launching process sees them."""

    def __init__(
        self, case: unittest.TestCase, context: LaunchContext, world_size: int, callbacks: RankCallbacks
    ) -> None:
        self._context = context
        self._callbacks = callbacks
        # The launching process and the ranks identify a test by its index in this list.
        self._names: Sequence[str] = tuple(sorted(dir(type(case))))
        with ExitStack() as resources:
            self.file = resources.enter_context(rendezvous_file())
            options = context.launch_options(case)
            self._launch = Launch(context, world_size, lambda launched: self._run_rank(case, launched), options)
            resources.callback(self._launch.close)
            self._raise_for(self._launch.start(), options)
            self._resources = resources.pop_all()

    def run(self, case: unittest.TestCase) -> bool:
        """Run a test in the ranks, and raise their outcome; returns whether they may run another test."""
        __tracebackhide__ = True
        options = self._context.launch_options(case)
        step = self._launch.run(options, self._names.index(case._testMethodName))  # noqa: SLF001 - unittest has no public name for it
        self._raise_for(step, options)
        return step.is_clean and step.mismatch is None

    def end(self) -> None:
        """Make the ranks tear down and exit, and raise the error if they fail to."""
        with self._resources:
            self._raise_for(self._launch.end(), self._launch.last)

    def close(self) -> None:
        """Stop the running ranks."""
        self._resources.close()

    def _raise_for(self, step: Step, options: LaunchOptions) -> None:
        __tracebackhide__ = True
        raise_for(step, may_disagree=options.may_disagree)

    def _run_rank(self, first: unittest.TestCase, launched: LaunchedRank) -> int:
        """Run in a fork: create the process group, run tests on command, and exit; returns the exit status."""
        if not launched.start(lambda: self._callbacks.join(launched, self.file)):
            return 1
        for command in launched.commands():
            if isinstance(command, End):
                launched.end(self._callbacks.leave)
                return 0
            case = type(first)(self._names[command.index])
            launched.run(self._context.rank_options(command.nodeid), partial(self._callbacks.run, case, launched))
        return 1


def running_ranks_of(cls: type[unittest.TestCase]) -> KeptRanks | None:
    """The running ranks of a class; ranks are not shared with base classes."""
    ranks: KeptRanks | None = vars(cls).get(RANKS_ATTRIBUTE)
    return ranks


def run_in_kept_ranks(ranks: KeptRanks, case: unittest.TestCase) -> None:
    """Run a test in the ranks of its class, and stop the ranks if it fails or leaves unmatched calls."""
    __tracebackhide__ = True
    is_reusable = False
    try:
        is_reusable = ranks.run(case)
    except unittest.SkipTest:
        is_reusable = True
        raise
    finally:
        if not is_reusable:
            # State that the ranks share, such as the process group, may be broken.
            delattr(type(case), RANKS_ATTRIBUTE)
            ranks.close()


def end_ranks_of(cls: type[unittest.TestCase]) -> None:
    """Make the ranks of a class, if any, tear down and exit, and raise the error if they fail to."""
    ranks = running_ranks_of(cls)
    if ranks is not None:
        delattr(cls, RANKS_ATTRIBUTE)
        ranks.end()
