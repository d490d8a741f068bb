"""Ranks that live as long as a class of tests, and run one test of it after the other in lockstep."""

import unittest
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from allranks.agent.channel import End
from allranks.agent.diagnose.step_outcome import Step
from allranks.agent.launch.launch import Launch, LaunchContext, LaunchTerms
from allranks.agent.launch.launched_rank import LaunchedRank
from allranks.agent.launch.own_ranks import raise_for
from allranks.agent.launch.plain import meeting_file

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
            self._workplace = resources.enter_context(surroundings.workplace(type(case)))
            terms = surroundings.launch_terms(case)
            self._launch = Launch(self._workplace, world_size, lambda launched: self._live(case, launched), terms)
            resources.callback(self._launch.close)
            self._raise_for(self._launch.start(), terms)
            self._resources = resources.pop_all()

    def run(self, case: unittest.TestCase) -> bool:
        """Have the ranks run a test, and raise their outcome; see :meth:`OwnRanks.join`.

        Returns:
            Whether they may run another test: no call of theirs raised, and all match.
        """
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
            launched.run(self._surroundings.rank_terms(case), partial(self._life.run, case, launched))
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
