"""Test cases whose every test starts ranks of its own."""

import functools
import os
import tempfile
import traceback
import types
import unittest
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch.distributed as dist

from allranks.harness.launch import Excuse, Launch, LaunchTerms, Surroundings, Workplace
from allranks.harness.launched_rank import LaunchedRank
from allranks.harness.printing import flush_output
from allranks.harness.rank_setup import leave
from allranks.testing.equality import TensorEquality
from allranks.testing.processes.plain import PlainSurroundings
from allranks.testing.processes.result import raise_for

DEFAULT_WORLD_SIZE = 4


class RankPipe:
    """What a rank of :class:`MultiProcessTestCase` hands from ``_run`` to ``run_test``, in the place of torch's pipe.

    Args:
        tell: Reports at once that the test has gone wrong by this exception.

    Attributes:
        has_run: The test itself has ended well.
    """

    def __init__(self, tell: Callable[[Exception], None]) -> None:
        self.tell = tell
        self.has_run = False

    def close(self) -> None:
        """Nothing: here for a ``_run`` that was written for torch's class."""


class MultiProcessTestCase(TensorEquality, unittest.TestCase):
    """A test case whose every test starts its own ranks: forks of the launching process.

    The order for one test::

        setUp        in the launching process; it calls self._spawn_processes(), which starts the ranks
            test     in each rank, on a fresh test case with ``rank`` and ``file_name``; no setUp, no tearDown there
        tearDown     in the launching process, when all ranks have ended

    A rank that fails ends the test: its peers get ``peer_grace`` seconds, then they are stopped. The error names the
    rank that went first, with its traceback (:class:`~allranks.testing.processes.result.RankFailureError`). The test is
    skipped when all ranks skip, by an exception or by an exit code of torch's table; when only some do, it is an error.
    """

    # Its ranks have their own world, so an agent need not make one for it.
    pytestmark: ClassVar[Any] = pytest.mark.no_process_group

    allranks_launcher: ClassVar[bool] = True
    """By this an agent knows a test that starts its ranks itself."""

    allranks_surroundings: ClassVar[Surroundings | None] = None
    """Set by an agent in the launching process; None under a plain pytest or unittest."""

    MAIN_PROCESS_RANK: ClassVar[int] = -1
    """The ``rank`` of the test case in the launching process."""

    TEST_ERROR_EXIT_CODE: ClassVar[int] = 10
    """The exit status of a rank whose test raised an exception."""

    peer_grace: ClassVar[float] = 3.0
    """Seconds that the peers of a bad rank get to end by themselves; an agent has its own setting."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803 - unittest's
        name = method_name if methodName == "runTest" else methodName
        super().__init__(name)
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = ""
        self._launch: Launch | None = None
        self._workplace: Workplace | None = None
        test = getattr(self, name, None)
        if test is not None:
            setattr(self, name, self.join_or_run(test))

    @property
    def world_size(self) -> int:
        """How many ranks there are. To be overridden."""
        return DEFAULT_WORLD_SIZE

    @property
    def init_method(self) -> str:
        """What ``init_process_group`` takes as ``init_method``: a file that no other test has."""
        return f"file://{self.file_name}"

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether a rank whose test has passed destroys its process groups before it ends. To be overridden."""
        return True

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def join_or_run(self, fn: Callable[[], object]) -> Callable[[], None]:
        """The test method of this object: the launching process waits for the ranks in it, and a rank runs the test."""

        @functools.wraps(fn)
        def wrapper(self: MultiProcessTestCase) -> None:
            if self.rank == self.MAIN_PROCESS_RANK:
                self._join_processes(fn)
            else:
                fn()

        return types.MethodType(wrapper, self)

    def setUp(self) -> None:
        """Make what every test of the class needs; a subclass calls this first and ``_spawn_processes`` last."""
        super().setUp()
        self.special_return_code_checks: dict[Callable[..., object], int] = {}
        """Tests whose rank 0 must end with an exit status of its own, which other ranks may end with too."""
        self.skip_return_code_checks: list[Callable[..., object]] = []
        """Tests whose ranks may end in any way but an exception of the test."""
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = _new_file()
        self.addCleanup(_remove, self.file_name)

    def _current_test_name(self) -> str:
        return self._testMethodName

    def _spawn_processes(self) -> None:
        """Start the ranks. To be called in ``setUp``, after what they need is there."""
        surroundings = self._surroundings()
        resources = ExitStack()
        # After tearDown, however that ends, and also after a set-up that failed.
        self.addCleanup(resources.close)
        self.addCleanup(self._end_ranks)
        self._workplace = resources.enter_context(surroundings.workplace(type(self)))
        self._launch = Launch(self._workplace, int(self.world_size), self._be_rank)

    def _surroundings(self) -> Surroundings:
        return self.allranks_surroundings or PlainSurroundings(self.peer_grace)

    def _terms(self) -> LaunchTerms:
        return self._surroundings().launch_terms(self)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Wait for the ranks, and make their outcomes the test's."""
        if self._launch is None or self._workplace is None:
            msg = (
                f"no rank was started for {self.id()}\n"
                "A test of this class runs in ranks alone, and setUp did not call self._spawn_processes().\n"
                "Call super().setUp() and then self._spawn_processes() in setUp."
            )
            raise RuntimeError(msg)
        terms = self._terms()
        step = self._launch.wait(terms, self._excuse(fn))
        raise_for(step, results=self._workplace.results, nodeid=terms.nodeid, may_disagree=terms.may_disagree)
        expected = self.special_return_code_checks.get(fn, 0)
        if expected and expected != self._launch.excused_status(0):
            self.fail(f"rank 0 was to end with exit status {expected}, and its test ended without that")

    def _excuse(self, fn: Callable[[], object]) -> Excuse:
        if fn in self.skip_return_code_checks:
            return lambda _rank, _status: True
        expected = self.special_return_code_checks.get(fn, 0)
        return lambda _rank, status: expected not in (0, None) and status == expected

    def _end_ranks(self) -> None:
        """Stop ranks that still live, as after a set-up that failed."""
        if self._launch is not None:
            self._launch.abandon(self._terms(), "aborted by the launching process, which did not wait for its ranks")
            self._launch.close()

    def _be_rank(self, launched: LaunchedRank) -> int:
        """What a fork does: run the test on an object of its own, and say what became of it."""
        terms = self._surroundings().rank_terms(self)
        outcome = launched.run(terms, lambda: self._run_in_rank(launched))
        return self.TEST_ERROR_EXIT_CODE if outcome.is_bad else 0

    def _run_in_rank(self, launched: LaunchedRank) -> None:
        pipe = RankPipe(launched.tell)
        try:
            self._run(launched.number, self._current_test_name(), self.file_name, pipe)
        except SystemExit as exit_:
            # A `_run` that was written for torch's class may end this way after the test.
            if pipe.has_run and not exit_.code:
                return
            _exit_as_asked(exit_)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: RankPipe, **_kwargs: object) -> None:
        """What a rank does. To be overridden by a class that needs something before or after ``run_test``."""
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run one test in this rank, then its clean-ups, and destroy the process group that it has left.

        Raises:
            Exception: What the test raises.
        """
        with ExitStack() as stack:
            stack.callback(self._clean_up)
            try:
                getattr(self, test_name)()
            except unittest.SkipTest:
                raise
            except Exception as error:
                # Peers may be waiting, and a clean-up may come to wait for them.
                parent_pipe.tell(error)
                raise
        parent_pipe.has_run = True
        if self.destroy_pg_upon_exit and dist.is_initialized():
            dist.destroy_process_group()

    def _clean_up(self) -> None:
        """Call what the test has registered in this rank; unlike with ``doCleanups``, an error is one of the rank."""
        with ExitStack() as stack:
            for function, args, kwargs in self._cleanups:  # type: ignore[attr-defined]
                stack.callback(function, *args, **kwargs)


def _exit_as_asked(exit_: SystemExit) -> None:
    """End the process as ``sys.exit`` would: the exit status is what the launching process looks at."""
    if not isinstance(exit_.code, int | None) or exit_.code in (0, None):
        # Who reads the report wants to know where a rank left that should not have.
        traceback.print_exception(exit_)
    flush_output()
    leave(exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None))


def _new_file() -> str:
    descriptor, name = tempfile.mkstemp(prefix="allranks-")
    os.close(descriptor)
    return name


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        Path(path).unlink()
