"""What test cases have in common whose ranks are forks of the process that runs the test."""

import functools
import types
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import ClassVar

from allranks.harness.launchers.launch import LaunchTerms, Surroundings
from allranks.testing.equality import TensorEquality
from allranks.testing.processes.plain import PlainSurroundings


class LauncherTestCase(TensorEquality, unittest.TestCase):
    """A test case whose test methods wait for ranks in the launching process, and run in each rank."""

    allranks_launcher: ClassVar[bool] = True
    """By this an agent knows a test that starts its ranks itself."""

    allranks_surroundings: ClassVar[Surroundings | None] = None
    """Set by an agent in the launching process; None under a plain pytest or unittest."""

    MAIN_PROCESS_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case in the launching process."""

    peer_grace: ClassVar[float] = 3.0
    """Seconds that the peers of a bad rank get to end by themselves; an agent has its own setting."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803 - unittest's
        name = method_name if methodName == "runTest" else methodName
        super().__init__(name)
        self.rank = self.MAIN_PROCESS_RANK
        test = getattr(self, name, None)
        if test is not None:
            setattr(self, name, self.join_or_run(test))

    def join_or_run(self, fn: Callable[[], object]) -> Callable[[], None]:
        """The test method of this object: the launching process waits for the ranks in it, and a rank runs the test."""

        @functools.wraps(fn)
        def wrapper(self: LauncherTestCase) -> None:
            if self.rank == self.MAIN_PROCESS_RANK:
                self._join_processes(fn)
            else:
                fn()

        return types.MethodType(wrapper, self)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Wait for the ranks, and make their outcomes the test's."""
        raise NotImplementedError

    def _surroundings(self) -> Surroundings:
        return self.allranks_surroundings or PlainSurroundings(self.peer_grace)

    def _terms(self) -> LaunchTerms:
        return self._surroundings().launch_terms(self)

    def _run_and_clean_up(self, test_name: str, tell: Callable[[Exception], None]) -> None:
        """Run a test in this rank, and what it has registered to be called after it.

        Args:
            test_name: The name of its method.
            tell: Reports at once that the test has gone wrong by an exception.
        """
        with ExitStack() as stack:
            stack.callback(self._clean_up)
            try:
                getattr(self, test_name)()
            except unittest.SkipTest:
                raise
            except Exception as error:
                # Peers may be waiting, and a clean-up may come to wait for them.
                tell(error)
                raise

    def _clean_up(self) -> None:
        """Call what the test has registered in this rank; unlike with ``doCleanups``, an error is one of the rank."""
        with ExitStack() as stack:
            for function, args, kwargs in self._cleanups:  # type: ignore[attr-defined]
                stack.callback(function, *args, **kwargs)
