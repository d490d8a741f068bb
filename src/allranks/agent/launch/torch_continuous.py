"""Adapts torch's ``MultiProcContinuousTest``: its ranks become forks that run one test after another in lockstep.

torch's class starts the ranks in ``_spawn_processes``, sends them tests through queues, and waits for them in the test
methods, which ``_worker_run_main_wait`` wraps. Here the ranks start with the first test, and run the same methods as
torch's ranks: ``_init_pg``, and then ``_run_test_given_id`` for each test.

Before torch 2.8, the ``__main__`` block of the test file starts the ranks. Each rank is a process that runs the whole
class: ``run_rank`` sets the rank on the class, and ``setUpClass`` creates the process group. Here, the ranks start with
the first test, and ``setUpClass``, ``setUp`` and their counterparts run only in the ranks.
"""

import functools
import types
import unittest
from collections.abc import Callable
from typing import Any, Final

import torch

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.launch.launched_rank import LaunchedRank, destroy_group
from allranks.agent.launch.own_ranks import (
    RANKS_ATTRIBUTE,
    KeptRanks,
    RankCallbacks,
    end_ranks_of,
    run_in_kept_ranks,
    running_ranks_of,
)
from allranks.agent.launch.torch_processes import check_world, launch_context_of, warn_of_cuda
from allranks.protocol.skip_codes import multi_gpu

HOOKS = ("_spawn_processes", "_worker_run_main_wait", "_run_test_given_id", "_init_pg", "_worker_loop")
"""Methods that torch's class must have."""


class _Ending:
    """Replaces the processes of a class, for which ``tearDownClass`` of torch's class waits."""

    def __init__(self, cls: type[unittest.TestCase]) -> None:
        self._class = cls

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002 - the ranks have their own limit
        """Make the ranks exit."""
        end_ranks_of(self._class)


def adapt_continuous(base: Any) -> None:  # noqa: ANN401 - torch's class has no types
    """Make torch's class, and all classes derived from it, run their tests in ranks that allranks starts."""
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
        # torch's setUp puts each test into the queues of all ranks. Here, a command starts the test in the ranks.
        cls.processes, cls.task_queues, cls.completion_queues = [], [], []
        cls.rdvz_file = ""

    @functools.wraps(wait)
    def run_or_wait(self: Any, fn: Callable[[], object]) -> Callable[[], None]:  # noqa: ANN401 - as above
        torch_wrapper = wait(self, fn)

        @functools.wraps(fn)
        def wrapper(self: Any) -> None:  # noqa: ANN401 - as above
            __tracebackhide__ = True
            if self.rank == self.MAIN_PROCESS_RANK and getattr(type(self), "allranks_forks", False):
                _wait(self)
            else:
                torch_wrapper()

        return types.MethodType(wrapper, self)

    base._spawn_processes = classmethod(spawn_processes)  # noqa: SLF001
    base._worker_run_main_wait = run_or_wait  # noqa: SLF001


def _runs_torchs_loop(cls: Any, loop: object) -> bool:  # noqa: ANN401 - as above
    """Whether no derived class overrides torch's worker loop."""
    return next(vars(base)["_worker_loop"] for base in cls.__mro__ if "_worker_loop" in vars(base)) is loop


def _ranks_of(case: unittest.TestCase, callbacks: RankCallbacks) -> KeptRanks:
    """The running ranks of the class; starts new ones before the first test and after a failed test."""
    cls: Any = type(case)
    ranks = running_ranks_of(cls)
    if ranks is None:
        ranks = KeptRanks(case, launch_context_of(case), int(cls.world_size), callbacks)
        setattr(cls, RANKS_ATTRIBUTE, ranks)
    return ranks


def _wait(case: Any) -> None:  # noqa: ANN401 - as above
    """Run a test in the ranks of its class."""
    __tracebackhide__ = True
    cls = type(case)
    callbacks = RankCallbacks(join=functools.partial(_join, cls), run=_run_in_rank, leave=destroy_group)
    ranks = _ranks_of(case, callbacks)
    cls.rdvz_file, cls.processes = ranks.file, [_Ending(cls)]
    run_in_kept_ranks(ranks, case)


def _join(cls: Any, launched: LaunchedRank, file: str) -> None:  # noqa: ANN401 - as above
    cls.rank, cls.world_size, cls.rdvz_file = launched.number, launched.world_size, file
    cls._init_pg(launched.number, launched.world_size, file)


def _run_in_rank(case: Any, _launched: LaunchedRank) -> None:  # noqa: ANN401 - as above
    # torch creates its own test case for the test.
    type(case)._run_test_given_id(case.id())  # noqa: SLF001


SCRIPT_HOOKS = ("setUpClass", "tearDownClass", "run_rank", "backend_str")
"""Methods that torch's class must have in a version in which the test script starts the ranks."""

_NO_RANK: Final = -1
_ADAPTED: Final = "allranks_adapted_class"


def adapt_script_ranks(base: Any) -> None:  # noqa: ANN401 - torch's class has no types
    """Make torch's class, and all classes derived from it, run their tests in ranks that are forks."""
    create = base.__init__

    @functools.wraps(create)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as above
        create(self, *args, **kwargs)
        if type(self).rank == _NO_RANK:
            # In the launching process, a test method only runs the test in the ranks.
            self.setUp = self.tearDown = lambda: None
            name = self._testMethodName
            test = getattr(self, name, None)
            if test is not None:
                setattr(self, name, functools.wraps(test)(functools.partial(_wait_for_script, self)))

    base.__init__ = init
    base.allranks_adapt_class = classmethod(_adapt_class)


def _adapt_class(cls: Any) -> None:  # noqa: ANN401 - as above
    """Run ``setUpClass`` and ``tearDownClass`` of a collected class in its ranks; called before pytest reads them."""
    if _ADAPTED in vars(cls):
        return
    set_up, tear_down = cls.setUpClass, cls.tearDownClass
    setattr(cls, _ADAPTED, True)

    def set_up_class(cls: Any) -> None:  # noqa: ANN401 - as above
        if cls.rank != _NO_RANK:
            set_up.__func__(cls)
        else:
            _check_devices(cls)

    def tear_down_class(cls: Any) -> None:  # noqa: ANN401 - as above
        if cls.rank != _NO_RANK:
            tear_down.__func__(cls)
        else:
            end_ranks_of(cls)

    cls.setUpClass, cls.tearDownClass = classmethod(set_up_class), classmethod(tear_down_class)


def _check_devices(cls: Any) -> None:  # noqa: ANN401 - as above
    """Skip the class if its ranks need one GPU each and there are too few; the script would run no test then."""
    size = int(cls.world_size)
    check_world(size)
    try:
        backend = str(cls.backend_str())
    except NotImplementedError:
        return
    if "nccl" in backend and torch.cuda.device_count() < size:
        raise EnvironmentSkip(multi_gpu(size), f"each of its ranks uses a GPU ({backend})", size)


def _wait_for_script(case: unittest.TestCase) -> None:
    """Run a test in the ranks of its class."""
    __tracebackhide__ = True
    cls: Any = type(case)
    callbacks = RankCallbacks(join=functools.partial(_set_up_class, cls), run=_run_case, leave=cls.tearDownClass)
    run_in_kept_ranks(_ranks_of(case, callbacks), case)


def _set_up_class(cls: Any, launched: LaunchedRank, file: str) -> None:  # noqa: ANN401 - as above
    cls.rank, cls.world_size, cls.rdvz_file = launched.number, launched.world_size, file
    cls.setUpClass()


def _run_case(case: Any, _launched: LaunchedRank) -> None:  # noqa: ANN401 - as above
    # debug() runs setUp, tearDown and cleanups, and raises exceptions instead of storing them in a result.
    case.debug()
