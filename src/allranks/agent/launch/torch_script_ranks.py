"""The continuous test class of torch 2.6, whose ranks the file's ``__main__`` starts.

There each rank is a process that runs the whole class: ``run_rank`` sets the rank on the class, and ``setUpClass``
makes the process group. Here the ranks start with the first test and run one test after the other in lockstep, as
those of later versions do. ``setUpClass``, ``setUp`` and their like run in the ranks alone.
"""

import functools
import unittest
from typing import Any, Final

import torch

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.launch.launched_rank import LaunchedRank
from allranks.agent.launch.own_ranks import RANKS_ATTRIBUTE, KeptRanks, RankLife, end_ranks_of, kept_by, run_in
from allranks.agent.launch.torch_processes import check_world, surroundings_of
from allranks.protocol.skip_codes import multi_gpu

HOOKS = ("setUpClass", "tearDownClass", "run_rank", "backend_str")
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
                setattr(self, name, functools.wraps(test)(functools.partial(_wait, self)))

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


def _wait(case: unittest.TestCase) -> None:
    """Have the ranks of the class run a test; start them first if there are none, as after a bad test."""
    __tracebackhide__ = True
    cls: Any = type(case)
    ranks = kept_by(cls)
    if ranks is None:
        life = RankLife(join=functools.partial(_join, cls), run=_run_in_rank, leave=cls.tearDownClass)
        ranks = KeptRanks(case, surroundings_of(case), int(cls.world_size), life)
        setattr(cls, RANKS_ATTRIBUTE, ranks)
    run_in(ranks, case)


def _join(cls: Any, launched: LaunchedRank, file: str) -> None:  # noqa: ANN401 - as above
    cls.rank, cls.world_size, cls.rdvz_file = launched.number, launched.world_size, file
    cls.setUpClass()


def _run_in_rank(case: Any, _launched: LaunchedRank) -> None:  # noqa: ANN401 - as above
    # With setUp, tearDown and clean-ups, and without a result that would keep the exception.
    case.debug()
