"""The ranks that one test has started for itself, as its launching process has them."""

import traceback
import unittest
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from allranks.harness.launchers.launch import Excuse, Launch, Surroundings, excuse_nothing
from allranks.harness.launchers.launched_rank import LaunchedRank
from allranks.harness.ranks.printing import flush_output
from allranks.harness.ranks.rank_setup import leave
from allranks.testing.processes.result import raise_for


@dataclass(frozen=True, kw_only=True)
class Ends:
    """How ranks may end that do not run their test to its end.

    Attributes:
        excuse: Whether the end of a rank is one of them.
        of_rank_0: The exit status that rank 0 must end with; 0 for none.
    """

    excuse: Excuse = excuse_nothing
    of_rank_0: int = 0


def expected_ends(case: unittest.TestCase, test: Callable[[], object]) -> Ends:
    """What a test case says, by torch's two attributes for it, of how the ranks of a test may end."""
    if test in getattr(case, "skip_return_code_checks", ()):
        return Ends(excuse=lambda _rank, _status: True)
    special: Mapping[Callable[[], object], int] = getattr(case, "special_return_code_checks", {})
    expected = special.get(test, 0)
    return Ends(excuse=lambda _rank, status: expected not in (0, None) and status == expected, of_rank_0=expected)


class OwnRanks:
    """Starts the ranks of a test, and waits for them.

    Args:
        case: The test; its clean-ups end the ranks.
        surroundings: What the ranks depend on a runner for.
        world_size: How many ranks there are.
        work: What each does; see :class:`allranks.harness.launchers.launch.Launch`.
    """

    def __init__(
        self,
        case: unittest.TestCase,
        surroundings: Surroundings,
        world_size: int,
        work: Callable[[LaunchedRank], int],
    ) -> None:
        self._case = case
        resources = ExitStack()
        # After tearDown, however that ends, and also after a set-up that failed.
        case.addCleanup(resources.close)
        self._terms = surroundings.launch_terms(case)
        self._workplace = resources.enter_context(surroundings.workplace(type(case)))
        self.launch = Launch(self._workplace, world_size, work, self._terms)
        resources.callback(self.launch.close)
        self.launch.release(self._terms)

    def join(self, ends: Ends) -> None:
        """Wait for the ranks, and raise what they came to.

        Raises:
            RankFailureError: A rank went wrong, or only some ranks skipped.
            RankSkip: All ranks skipped.
        """
        __tracebackhide__ = True
        terms = self._terms
        step = self.launch.wait(ends.excuse)
        raise_for(step, may_disagree=terms.may_disagree)
        if ends.of_rank_0 and ends.of_rank_0 != self.launch.excused_status(0):
            self._case.fail(f"rank 0 was to end with exit status {ends.of_rank_0}, and its test ended without that")


def no_ranks_error(case: unittest.TestCase) -> RuntimeError:
    """For a test that waits for ranks and has started none."""
    msg = (
        f"no rank was started for {case.id()}\n"
        "A test of this class runs in ranks alone, and setUp did not call self._spawn_processes().\n"
        "Call super().setUp() and then self._spawn_processes() in setUp."
    )
    return RuntimeError(msg)


def exit_as_asked(exit_: SystemExit) -> None:
    """End the process as ``sys.exit`` would: the exit status is what the launching process looks at."""
    if not isinstance(exit_.code, int | None) or exit_.code in (0, None):
        # Who reads the report wants to know where a rank left that should not have.
        traceback.print_exception(exit_)
    flush_output()
    leave(exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None))
