"""Test cases whose ranks are threads of one process."""

import copy
import functools
import types
import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, ParamSpec, TypeVar

import pytest

from allranks.agent.launch.plain import default_limit, default_timeout
from allranks.protocol.config import TimeLimit
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
    own ``rank``, so each rank has the attributes that :meth:`setUp` sets on ``self``. The order for one test::

        setUp                                   in the main thread, where rank is MAIN_THREAD_RANK
            perThreadSetUp, test, perThreadTearDown, clean-ups of that rank       in each rank
        tearDown                                in the main thread

    A rank that fails, even in a hook, ends the test: its peers are woken if they wait in a collective. The error, a
    :class:`~allranks.testing.RankThreadError`, names the first bad rank and the outcome of each peer. The test is
    skipped if all ranks skip; if only some do, the ranks disagree, and that is an error.

    All threads share the random number generators of the process, its environment and its working directory. The group
    supports the collectives of torch's threaded group, but not ``send`` and ``recv``.
    """

    # Its ranks have their own world, so an agent need not create one.
    pytestmark: ClassVar[pytest.MarkDecorator] = plain_mark("no_process_group")

    MAIN_THREAD_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case in the main thread."""

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803 - the name of unittest
        super().__init__(methodName)
        self.rank = self.MAIN_THREAD_RANK
        self._cleanups_of_rank: ExitStack | None = None
        test = getattr(self, methodName, None)
        if test is not None:
            setattr(self, methodName, self._in_all_ranks(methodName, test))

    @property
    def world_size(self) -> int:
        """The number of ranks. Override it to change that."""
        return DEFAULT_WORLD_SIZE

    @property
    def thread_timeout(self) -> float:
        """Time limit of a test in seconds, hooks included. Override it to change :func:`default_timeout`."""
        return default_timeout()

    def perThreadSetUp(self) -> None:  # noqa: N802 - torch's name
        """Run in each rank before the test, with its process group."""

    def perThreadTearDown(self) -> None:  # noqa: N802 - torch's name
        """Run in each rank after the test, however it ended, if :meth:`perThreadSetUp` did not fail."""

    def addCleanup(  # noqa: N802 - unittest's name
        self, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Call ``function`` at the end; in a rank, in its thread after its test, as a part of the test."""
        if self._cleanups_of_rank is None:
            super().addCleanup(function, *args, **kwargs)
        else:
            self._cleanups_of_rank.callback(function, *args, **kwargs)

    def assertEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Compare on one rank only, for instance values that depend on the shared random numbers."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def assertNotEqualOnRank(  # noqa: N802 - torch's name
        self, x: object, y: object, msg: str | None = None, *, rank: int = 0
    ) -> None:
        """Compare on one rank only."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)  # noqa: PT009 - for users of unittest

    def _spawn_threads(self) -> None:
        """Do nothing: threads start with the test. Suites written for torch's class call this."""

    def _in_all_ranks(self, name: str, test: Callable[[], object]) -> Callable[[], None]:
        @functools.wraps(test)
        def in_all_ranks(self: MultiThreadedTestCase) -> None:
            is_own = type(self).thread_timeout is not MultiThreadedTestCase.thread_timeout
            limit = TimeLimit(value=self.thread_timeout, setting="thread_timeout") if is_own else default_limit()
            raise_for(run_ranks(self.world_size, lambda rank: self._be_rank(rank, name), JoinLimits(total=limit)))

        # A bound method, like the one that it replaces: unittest treats a function as a test factory.
        return types.MethodType(in_all_ranks, self)

    def _be_rank(self, rank: int, name: str) -> None:
        case = copy.copy(self)
        # Remove the wrapper, an attribute of the instance, so that the method itself is called.
        vars(case).pop(name, None)
        with ExitStack() as cleanups:
            # Without an _outcome, a failed subtest ends its rank: several threads cannot write to one result.
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

    The arguments are the same objects in all ranks; ``torch.distributed.get_rank()`` distinguishes the ranks.

    Args:
        world_size: The number of ranks.
        timeout: Time limit of the test in seconds; None for :func:`default_timeout`.

    Returns:
        A decorator. The decorated test raises the errors of a :class:`MultiThreadedTestCase`.
    """

    def decorate(test: Callable[P, object]) -> Callable[P, None]:
        @functools.wraps(test)
        def in_all_ranks(*args: P.args, **kwargs: P.kwargs) -> None:
            own = None if timeout is None else TimeLimit(value=timeout, setting="timeout of the decorator")
            patience = JoinLimits(total=own or default_limit())
            raise_for(run_ranks(world_size, lambda _rank: _discard(test(*args, **kwargs)), patience))

        return in_all_ranks

    return decorate


def _discard(_returned: object) -> None:
    """Drop the return value of a test."""
