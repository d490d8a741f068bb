"""DeepSpeed's ``DistributedTest`` and ``DistributedFixture``: their workers become forks, and all of them are judged.

DeepSpeed's base class starts its workers and waits for them in one of two methods: for a pool, or for processes that
may have children. Both are replaced on the class itself. All else stays DeepSpeed's: the count of devices, one world
size after another, ``_dist_run`` in the ranks, and what classes override of that.
"""

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from allranks.agent.launch.launch import LaunchTerms
from allranks.agent.launch.launched_rank import LaunchedRank, RankTerms, forget_rank
from allranks.agent.launch.own_ranks import ExpectedEnds, OwnRanks
from allranks.agent.launch.plain import PlainSurroundings
from allranks.agent.launch.torch_processes import warn_of_cuda
from allranks.agent.rendezvous import hold_port
from allranks.protocol.config import TimeLimit


def adapt_deepspeed(base: Any) -> None:  # noqa: ANN401 - a suite's own class
    """Have the tests and fixtures of a copy of DeepSpeed's class start their workers as ours do."""
    base._launch_daemonic_procs = _by_forks(base._launch_daemonic_procs)  # noqa: SLF001
    base._launch_non_daemonic_procs = _by_forks(base._launch_non_daemonic_procs)  # noqa: SLF001


class _UnderPytest(PlainSurroundings):
    """Without an agent: such a test is no unittest that knows its name."""

    def launch_terms(self, case: Any) -> LaunchTerms:  # noqa: ANN401 - as above
        nodeid = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        return LaunchTerms(nodeid=nodeid, limit=TimeLimit(value=float(case.exec_timeout), setting="exec_timeout"))


def _by_forks(launch: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(launch)
    def launch_forks(self: Any, num_procs: int, *arguments: object) -> None:  # noqa: ANN401 - as above
        __tracebackhide__ = True
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            warn_of_cuda(type(self).__qualname__, "DeepSpeed's class")
            launch(self, num_procs, *arguments)
            return
        with hold_port() as held:
            port = held.getsockname()[1]
        work = functools.partial(_be_rank, self, (num_procs, port, *arguments))
        surroundings = getattr(self, "allranks_surroundings", None) or _UnderPytest()
        with ExitStack() as resources:
            OwnRanks(self, surroundings, num_procs, work, resources.callback).join(ExpectedEnds())

    return launch_forks


def _be_rank(case: Any, arguments: tuple[object, ...], launched: LaunchedRank, terms: RankTerms) -> int:  # noqa: ANN401
    """Run in a fork: do what a worker does for the test or fixture."""
    # A worker has these variables only if the class asks for them.
    forget_rank()
    os.environ.pop("WORLD_SIZE")
    when = "setup" if getattr(case, "is_dist_fixture", False) else "call"
    outcome = launched.run(terms, lambda: _work(case, launched.number, arguments), when)
    # A pool's worker lives on: a peer may still be connecting to this rank when its test has skipped.
    for _ in launched.commands():
        pass
    return int(outcome.is_bad)


def _work(case: Any, rank: int, arguments: tuple[object, ...]) -> None:  # noqa: ANN401 - as above
    # It is then returned why the test skips, rather than put into a queue.
    case.non_daemonic_procs = False
    reason = case._dist_run(rank, *arguments)  # noqa: SLF001
    if reason:
        pytest.skip(reason)
    case._dist_destroy()  # noqa: SLF001
