"""torch's continuous test class: its ranks become forks, one test after the other in lockstep.

``MultiProcContinuousTest`` starts the ranks in ``_spawn_processes``, sends them tests through queues, and waits for
them in the test methods that ``_worker_run_main_wait`` wraps. Here the ranks start with the first test that runs in
them, and run what torch's ranks run: ``_init_pg``, then ``_run_test_given_id`` for each test.

Before torch 2.8, the file's ``__main__`` starts the ranks. There each rank is a process that runs the whole class:
``run_rank`` sets the rank on the class, and ``setUpClass`` makes the process group. Here, too, the ranks start with the
first test. ``setUpClass``, ``setUp`` and their like run in the ranks alone.
"""

import functools
import types
import unittest
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import distributed as dist

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.launch.launched_rank import LaunchedRank
from allranks.agent.launch.own_ranks import RANKS_ATTRIBUTE, KeptRanks, RankLife, end_ranks_of, kept_by, run_in
from allranks.agent.launch.torch_processes import check_world, surroundings_of, warn_of_cuda
from allranks.protocol.skip_codes import multi_gpu

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


def _ranks_of(case: unittest.TestCase, life: RankLife) -> KeptRanks:
    """The ranks of the class, started first if there are none, as after a bad test."""
    cls: Any = type(case)
    ranks = kept_by(cls)
    if ranks is None:
        ranks = KeptRanks(case, surroundings_of(case), int(cls.world_size), life)
        setattr(cls, RANKS_ATTRIBUTE, ranks)
    return ranks


def _wait(case: Any) -> None:  # noqa: ANN401 - as above
    """Have the ranks of the class run a test."""
    __tracebackhide__ = True
    cls = type(case)
    life = RankLife(join=functools.partial(_join, cls), run=_run_in_rank, leave=_leave)
    ranks = _ranks_of(case, life)
    cls.rdvz_file, cls.processes = ranks.file, [_Ending(cls)]
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


SCRIPT_HOOKS = ("setUpClass", "tearDownClass", "run_rank", "backend_str")
"""Methods that torch's class must have."""

_NO_RANK: Final = -1
_OWN: Final = "allranks_class_set_up"


def adapt_script_ranks(base: Any) -> None:  # noqa: ANN401 - torch's class has no types
    """Have the tests of torch's class, and of every class that derives from it, run in ranks that are forks."""
    create = base.__init__

    @functools.wraps(create)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as above
        create(self, *args, **kwargs)
        if type(self).rank == _NO_RANK:
            # In the launching process the test is to have its ranks run it, and nothing else.
            self.setUp = self.tearDown = _nothing
            name = self._testMethodName
            test = getattr(self, name, None)
            if test is not None:
                setattr(self, name, functools.wraps(test)(functools.partial(_wait_for_script, self)))

    base.__init__ = init
    base.allranks_adapt_class = classmethod(_adapt_class)


def _nothing() -> None:
    """Do nothing: this is the ranks' to do."""


def _adapt_class(cls: Any) -> None:  # noqa: ANN401 - as above
    """Have set-up and tear-down of a collected class run in its ranks; called before pytest reads them."""
    if _OWN in vars(cls):
        return
    set_up, tear_down = cls.setUpClass, cls.tearDownClass
    setattr(cls, _OWN, True)

    def in_rank_or_launcher(this: Any) -> None:  # noqa: ANN401 - as above
        if this.rank != _NO_RANK:
            set_up.__func__(this)
        else:
            _check_devices(this)

    def end(this: Any) -> None:  # noqa: ANN401 - as above
        if this.rank != _NO_RANK:
            tear_down.__func__(this)
        else:
            end_ranks_of(this)

    cls.setUpClass, cls.tearDownClass = classmethod(in_rank_or_launcher), classmethod(end)


def _check_devices(cls: Any) -> None:  # noqa: ANN401 - as above
    """Skip a class whose ranks need a GPU each; its script would end at once, and run no test."""
    size = int(cls.world_size)
    check_world(size)
    try:
        backend = str(cls.backend_str())
    except NotImplementedError:
        return
    if "nccl" in backend and torch.cuda.device_count() < size:
        raise EnvironmentSkip(multi_gpu(size), f"its {size} ranks are on {backend}", size)


def _wait_for_script(case: unittest.TestCase) -> None:
    """Have the ranks of the class run a test."""
    __tracebackhide__ = True
    cls: Any = type(case)
    life = RankLife(join=functools.partial(_join_by_set_up, cls), run=_run_all_of_it, leave=cls.tearDownClass)
    run_in(_ranks_of(case, life), case)


def _join_by_set_up(cls: Any, launched: LaunchedRank, file: str) -> None:  # noqa: ANN401 - as above
    cls.rank, cls.world_size, cls.rdvz_file = launched.number, launched.world_size, file
    cls.setUpClass()


def _run_all_of_it(case: Any, _launched: LaunchedRank) -> None:  # noqa: ANN401 - as above
    # With setUp, tearDown and clean-ups, and without a result that would keep the exception.
    case.debug()
