"""Test cases whose ranks are threads of one process."""

import copy
import functools
import types
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, ParamSpec, TypeVar

import pytest

from allranks.harness.launchers.plain import default_timeout
from allranks.testing.markers import plain_mark
from allranks.testing.tensors import TensorEquality
from allranks.testing.threads.report import raise_for
from allranks.testing.threads.thread_ranks import JoinLimits, run_ranks

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_WORLD_SIZE = 4


class MultiThreadedTestCase(TensorEquality, unittest.TestCase):
    """A test case whose test methods run once in each of several threads, which are the ranks.

    Every rank has a default process group of the backend ``threaded``, and a shallow copy of the test case with its
    own ``rank``; so what :meth:`setUp` puts on ``self`` is there in each rank. The order for one test::

        setUp                                   in the main thread, where rank is MAIN_THREAD_RANK
            perThreadSetUp, test, perThreadTearDown, clean-ups of that rank       in each rank
        tearDown                                in the main thread

    A rank that fails, in a hook too, ends the test: its peers are woken if they wait in a collective. The error, a
    :class:`~allranks.testing.RankThreadError`, names the rank that went first and says what became of each peer.
    The test is skipped when all ranks skip; when only some do, ranks disagree, and that is an error.

    All threads share the random number generators of the process, its environment and its working directory. The group
    has the collectives that torch's threaded group has: no ``send`` and ``recv``.
    """

    # Its ranks have their own world, so an agent need not make one for it.
    pytestmark: ClassVar[pytest.MarkDecorator] = plain_mark("no_process_group")

    MAIN_THREAD_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case outside of all ranks."""

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803 - the name of unittest
        super().__init__(methodName)
        self.rank = self.MAIN_THREAD_RANK
        self._cleanups_of_rank: ExitStack | None = None
        test = getattr(self, methodName, None)
        if test is not None:
            setattr(self, methodName, self._in_all_ranks(methodName, test))

    @property
    def world_size(self) -> int:
        """How many ranks there are. To be overridden."""
        return DEFAULT_WORLD_SIZE

    @property
    def thread_timeout(self) -> float:
        """Seconds for one test, hooks included. To be overridden; :func:`default_timeout` unless it is."""
        return default_timeout()

    def perThreadSetUp(self) -> None:  # noqa: N802 - torch's name
        """Run in each rank before the test, with the process group there."""

    def perThreadTearDown(self) -> None:  # noqa: N802 - torch's name
        """Run in each rank after the test, however it ended, if :meth:`perThreadSetUp` did not fail."""

    def addCleanup(  # noqa: N802 - unittest's name
        self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call ``function`` at the end; for a rank, in its thread when it is done, as a part of its test."""
        if self._cleanups_of_rank is None:
            super().addCleanup(function, *args, **kwargs)
        else:
            self._cleanups_of_rank.callback(function, *args, **kwargs)

    def assertEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Compare on one rank only, as for what depends on the random numbers that all ranks share."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def assertNotEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Compare on one rank only."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def _spawn_threads(self) -> None:
        """Nothing: threads start with the test. Here so that suites written for torch's class run as they are."""

    def _in_all_ranks(self, name: str, test: Callable[[], object]) -> Callable[[], None]:
        @functools.wraps(test)
        def in_all_ranks(self: MultiThreadedTestCase) -> None:
            endings = run_ranks(
                self.world_size, lambda rank: self._be_rank(rank, name), JoinLimits(total=self.thread_timeout)
            )
            raise_for(endings)

        # A method, as the one in whose place it stands: unittest takes a function for a factory of tests.
        return types.MethodType(in_all_ranks, self)

    def _be_rank(self, rank: int, name: str) -> None:
        case = copy.copy(self)
        # The method itself, not the wrapper around it, which is an attribute of the instance.
        vars(case).pop(name, None)
        with ExitStack() as cleanups:
            # Without an outcome a subtest that fails ends its rank: several threads cannot write to one result.
            vars(case).update(rank=rank, _cleanups_of_rank=cleanups, _outcome=None)
            case.perThreadSetUp()
            try:
                getattr(case, name)()
            finally:
                case.perThreadTearDown()


def spawn_threads_and_init_comms(
    *, world_size: int = DEFAULT_WORLD_SIZE, timeout: float | None = None
) -> Callable[[Callable[P, object]], Callable[P, None]]:
    """Run a test function or method in several threads, each with a rank of one threaded process group.

    The arguments are the same objects in all ranks; ``torch.distributed.get_rank()`` tells them apart.

    Args:
        world_size: How many ranks.
        timeout: Seconds for the test; :func:`default_timeout` when None.

    Returns:
        A decorator. The decorated test raises as a test of :class:`MultiThreadedTestCase` does.
    """

    def decorate(test: Callable[P, object]) -> Callable[P, None]:
        @functools.wraps(test)
        def in_all_ranks(*args: P.args, **kwargs: P.kwargs) -> None:
            patience = JoinLimits(total=default_timeout() if timeout is None else timeout)
            raise_for(run_ranks(world_size, lambda _rank: _discard(test(*args, **kwargs)), patience))

        return in_all_ranks

    return decorate


def _discard(_returned: object) -> None:
    """For bodies that return something."""
