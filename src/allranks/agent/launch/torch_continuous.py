"""torch's ``MultiProcContinuousTest``: its ranks become forks, one test after the other in lockstep.

torch's class starts the ranks in ``_spawn_processes``, sends them tests through queues, and waits for them in the test
methods that ``_worker_run_main_wait`` wraps. Here the ranks start with the first test that runs in them, and run what
torch's ranks run: ``_init_pg``, then ``_run_test_given_id`` for each test.
"""

import functools
import types
import unittest
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from allranks.agent.launch.launched_rank import LaunchedRank
from allranks.agent.launch.own_ranks import RANKS_ATTRIBUTE, KeptRanks, RankLife, end_ranks_of, kept_by, run_in
from allranks.agent.launch.torch_processes import check_world, surroundings_of, warn_of_cuda

HOOKS = ("_spawn_processes", "_worker_run_main_wait", "_run_test_given_id", "_init_pg", "_worker_loop")
"""Methods that torch's class must have."""


class _Ending:
    """Stands in for the ranks of a class: the one process that ``tearDownClass`` of torch's class waits for."""

    def __init__(self, cls: type[unittest.TestCase]) -> None:
        self._class = cls

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002 - the ranks have a limit of their own
        """Have the ranks leave."""
        end_ranks_of(self._class)


def adapt_continuous(base: Any) -> None:  # noqa: ANN401 - torch's class has no types
    """Have the tests of torch's class, and of every class that derives from it, share ranks as ours do."""
    spawn, wait = vars(base)["_spawn_processes"].__func__, base._worker_run_main_wait  # noqa: SLF001
    loop = vars(base)["_worker_loop"]

    @functools.wraps(spawn)
    def spawn_processes(cls: Any, world_size: int) -> None:  # noqa: ANN401 - as above
        check_world(int(world_size))
        has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cls.allranks_forks = _runs_torchs_loop(cls, loop) and not has_cuda
        if has_cuda:
            warn_of_cuda(cls.__qualname__)
        if not cls.allranks_forks:
            spawn(cls, world_size)
            return
        # torch's setUp puts each test into the queues of all ranks; here ranks get the test when it runs.
        cls.processes, cls.task_queues, cls.completion_queues = [], [], []
        cls.rdvz_file = ""

    @functools.wraps(wait)
    def run_or_wait(self: Any, fn: Callable[[], object]) -> Callable[[], None]:  # noqa: ANN401 - as above
        theirs = wait(self, fn)

        @functools.wraps(fn)
        def wrapper(self: Any) -> None:  # noqa: ANN401 - as above
            __tracebackhide__ = True
            if self.rank == self.MAIN_PROCESS_RANK and getattr(type(self), "allranks_forks", False):
                _wait(self)
            else:
                theirs()

        return types.MethodType(wrapper, self)

    base._spawn_processes = classmethod(spawn_processes)  # noqa: SLF001
    base._worker_run_main_wait = run_or_wait  # noqa: SLF001


def _runs_torchs_loop(cls: Any, loop: object) -> bool:  # noqa: ANN401 - as above
    """Whether the class has torch's own worker loop, rather than one that overrides it."""
    return next(vars(each)["_worker_loop"] for each in cls.__mro__ if "_worker_loop" in vars(each)) is loop


def _wait(case: Any) -> None:  # noqa: ANN401 - as above
    """Have the ranks of the class run a test; start them first if there are none, as after a bad test."""
    __tracebackhide__ = True
    cls = type(case)
    ranks = kept_by(cls)
    if ranks is None:
        life = RankLife(join=functools.partial(_join, cls), run=_run_in_rank, leave=_leave)
        ranks = KeptRanks(case, surroundings_of(case), int(cls.world_size), life)
        cls.rdvz_file, cls.processes = ranks.file, [_Ending(cls)]
        setattr(cls, RANKS_ATTRIBUTE, ranks)
    run_in(ranks, case)


def _join(cls: Any, launched: LaunchedRank, file: str) -> None:  # noqa: ANN401 - as above
    cls.rank, cls.world_size, cls.rdvz_file = launched.number, launched.world_size, file
    cls._init_pg(launched.number, launched.world_size, file)


def _run_in_rank(case: Any, _launched: LaunchedRank) -> None:  # noqa: ANN401 - as above
    # torch creates its own test case for the test.
    type(case)._run_test_given_id(case.id())  # noqa: SLF001


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
