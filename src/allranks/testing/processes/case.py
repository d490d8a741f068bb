"""Test cases whose every test starts ranks of its own."""

from collections.abc import Callable
from typing import ClassVar

import torch.distributed as dist

from allranks.harness.launchers.launched_rank import LaunchedRank
from allranks.testing.processes.launcher import LauncherTestCase
from allranks.testing.processes.meeting_file import meeting_file
from allranks.testing.processes.own_ranks import OwnRanks, exit_as_asked, expected_ends, no_ranks_error

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


class MultiProcessTestCase(LauncherTestCase):
    """A test case whose every test starts its own ranks: forks of the launching process.

    The order for one test::

        setUp        in the launching process; it calls self._spawn_processes(), which starts the ranks
            test     in each rank, on a fresh test case with ``rank`` and ``file_name``; no setUp, no tearDown there
        tearDown     in the launching process, when all ranks have ended

    A rank that fails ends the test: its peers get ``peer_grace`` seconds, then they are stopped. The error names the
    rank that went first, with its traceback (:class:`~allranks.testing.processes.result.RankFailureError`). The test is
    skipped when all ranks skip, by an exception or by an exit code of torch's table; when only some do, it is an error.
    """

    TEST_ERROR_EXIT_CODE: ClassVar[int] = 10
    """The exit status of a rank whose test raised an exception."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:  # noqa: N803 - unittest's
        super().__init__(method_name, methodName)
        self.file_name = ""
        self._ranks: OwnRanks | None = None

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

    def setUp(self) -> None:
        """Make what every test of the class needs; a subclass calls this first and ``_spawn_processes`` last."""
        super().setUp()
        self.special_return_code_checks: dict[Callable[..., object], int] = {}
        """Tests whose rank 0 must end with an exit status of its own, which other ranks may end with too."""
        self.skip_return_code_checks: list[Callable[..., object]] = []
        """Tests whose ranks may end in any way but an exception of the test."""
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = self.enterContext(meeting_file())

    def _current_test_name(self) -> str:
        return self._testMethodName

    def _spawn_processes(self) -> None:
        """Start the ranks. To be called in ``setUp``, after what they need is there."""
        self._ranks = OwnRanks(self, self._surroundings(), int(self.world_size), self._be_rank)

    def _join_processes(self, fn: Callable[[], object]) -> None:
        """Wait for the ranks, and make their outcomes the test's."""
        if self._ranks is None:
            raise no_ranks_error(self)
        self._ranks.join(expected_ends(self, fn))

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
            exit_as_asked(exit_)

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
        self._run_and_clean_up(test_name, parent_pipe.tell)
        parent_pipe.has_run = True
        if self.destroy_pg_upon_exit and dist.is_initialized():
            dist.destroy_process_group()
