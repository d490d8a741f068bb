"""Adapts DeepSpeed's ``DistributedTest`` and ``DistributedFixture``: every worker becomes a fork whose outcome counts.

DeepSpeed's base class starts its workers and waits for them in one of two methods: one uses a pool, the other starts
processes that may have children. Both are replaced on the class itself. Everything else remains DeepSpeed's: counting
devices, running one world size after another, ``_dist_run`` in the ranks, and overrides of these in derived classes.
"""

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from allranks.agent.launch.launch import LaunchOptions
from allranks.agent.launch.launched_rank import LaunchedRank, RankOptions, forget_rank
from allranks.agent.launch.own_ranks import ExpectedExits, OwnRanks
from allranks.agent.launch.plain import PlainLaunchContext
from allranks.agent.launch.torch_processes import warn_of_cuda
from allranks.agent.rendezvous import hold_port
from allranks.protocol.config import TimeLimit


def adapt_deepspeed(base: Any) -> None:  # noqa: ANN401 - a suite's own class
    """Make the tests and fixtures of a copy of DeepSpeed's class start their workers through allranks."""
    base._launch_daemonic_procs = _by_forks(base._launch_daemonic_procs)  # noqa: SLF001
    base._launch_non_daemonic_procs = _by_forks(base._launch_non_daemonic_procs)  # noqa: SLF001


class _UnderPytest(PlainLaunchContext):
    """The context without an agent: these tests are not unittest cases, so pytest provides their names."""

    def launch_options(self, case: Any) -> LaunchOptions:  # noqa: ANN401 - as above
        nodeid = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        return LaunchOptions(nodeid=nodeid, limit=TimeLimit(value=float(case.exec_timeout), setting="exec_timeout"))


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
        work = functools.partial(_run_rank, self, (num_procs, port, *arguments))
        context = getattr(self, "allranks_launch_context", None) or _UnderPytest()
        with ExitStack() as resources:
            OwnRanks(self, context, num_procs, work, resources.callback).join(ExpectedExits())

    return launch_forks


def _run_rank(case: Any, arguments: tuple[object, ...], launched: LaunchedRank, options: RankOptions) -> int:  # noqa: ANN401
    """Run in a fork: do what a worker does for the test or fixture."""
    # A worker has torchrun's variables only if the class sets them.
    forget_rank()
    os.environ.pop("WORLD_SIZE")
    when = "setup" if getattr(case, "is_dist_fixture", False) else "call"
    outcome = launched.run(options, lambda: _work(case, launched.number, arguments), when)
    # Keep running, like the worker of a pool: a peer may still be connecting to this rank if the rank has skipped.
    for _ in launched.commands():
        pass
    return int(outcome.is_bad)


def _work(case: Any, rank: int, arguments: tuple[object, ...]) -> None:  # noqa: ANN401 - as above
    # With this setting, _dist_run returns the skip reason instead of putting it into a queue.
    case.non_daemonic_procs = False
    reason = case._dist_run(rank, *arguments)  # noqa: SLF001
    if reason:
        pytest.skip(reason)
    case._dist_destroy()  # noqa: SLF001
