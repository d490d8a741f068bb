"""Adapts the launcher test cases of torch and DeepSpeed: their ranks are started and judged as ours are."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allranks.agent.rank.marker_options import TORCHS_TEST_CASES

_ADAPTED = "allranks_launcher"


_Form = tuple[Sequence[str], Callable[[Any], None]]


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One of torch's base classes."""

    name: str
    # What it has in some versions of torch, and what replaces some of that; the newest form first.
    forms: Sequence[_Form]
    marks: Sequence[str]  # attributes that tell an agent how to run the tests


def _kinds() -> tuple[_Kind, ...]:
    from allranks.agent.launch import torch_continuous, torch_processes, torch_threads  # noqa: PLC0415 - 50 ms that most suites need not pay

    keeps = ("allranks_keeps_ranks",)
    continuous_form = (torch_continuous.HOOKS, torch_continuous.adapt_continuous)
    script_form = (torch_continuous.SCRIPT_HOOKS, torch_continuous.adapt_script_ranks)
    return (
        _Kind(name="MultiProcessTestCase", forms=[(torch_processes.HOOKS, torch_processes.adapt_processes)], marks=()),
        _Kind(name="MultiProcContinuousTest", forms=[continuous_form], marks=keeps),
        # The spelling before torch 2.9; before 2.8 the ranks were the script's to start.
        _Kind(name="MultiProcContinousTest", forms=[continuous_form, script_form], marks=keeps),
        _Kind(
            name="MultiThreadedTestCase",
            forms=[(torch_threads.HOOKS, torch_threads.adapt_threads)],
            marks=("allranks_has_thread_ranks",),
        ),
    )


def _adapt(kind: _Kind, base: Any) -> Iterator[str]:  # noqa: ANN401 - torch's class has no types
    adapt = next((adapt for hooks, adapt in kind.forms if all(hook in vars(base) for hook in hooks)), None)
    # Even unadapted, a test needs a launching process: it starts ranks.
    for mark in (_ADAPTED, *kind.marks):
        setattr(base, mark, True)
    if adapt is None:
        lacking = min(([name for name in hooks if name not in vars(base)] for hooks, _ in kind.forms), key=len)
        yield (
            f"torch's {kind.name} is not as allranks knows it, and starts its ranks itself, unrecorded and no faster "
            f"than without allranks: it has no {' and no '.join(lacking)} in this version of torch"
        )
    else:
        adapt(base)


_WITH_INIT_METHOD = "torch.testing._internal.distributed.distributed_test"
"""The module that reads the variable INIT_METHOD where it is imported."""


def adapt_torch_cases() -> Iterator[str]:
    """Adapt torch's base classes, once, after the suite has been imported.

    This imports nothing of torch: a suite that has not imported torch's module has no tests of its classes. Yields a
    notice for each class that has an unknown form in this version of torch, and stays as it is.
    """
    tests = sys.modules.get(_WITH_INIT_METHOD)
    if getattr(tests, "INIT_METHOD", "") == "env":
        # A cell's variable has the name of the method, and torch's the beginning of an address.
        tests.INIT_METHOD = "env://"  # type: ignore[union-attr]
    module = sys.modules.get(TORCHS_TEST_CASES)
    for kind in _kinds() if module is not None else ():
        base = getattr(module, kind.name, None)
        if base is not None and not hasattr(base, _ADAPTED):
            yield from _adapt(kind, base)


_OF_DEEPSPEED = ("_launch_daemonic_procs", "_launch_non_daemonic_procs", "_dist_run", "_dist_destroy")
"""Methods by which DeepSpeed's base class is recognized: each code base has a copy, under some name."""


def adapt_collected(test_class: Any) -> None:  # noqa: ANN401 - a suite's class, or None
    """Adapt a class of tests that is known only by itself, before pytest reads its fixtures."""
    adapt = getattr(test_class, "allranks_adapt_class", None)
    if adapt is not None:
        adapt()
    above = test_class.__mro__ if getattr(test_class, "is_dist_test", False) else ()
    base: Any = next((each for each in above if all(name in vars(each) for name in _OF_DEEPSPEED)), None)
    if base is not None and not hasattr(base, _ADAPTED):
        from allranks.agent.launch.deepspeed import adapt_deepspeed  # noqa: PLC0415 - as above

        adapt_deepspeed(base)
        # Its class-scoped fixtures are shared by its tests, so one launching process runs them all.
        base.allranks_launcher = base.allranks_keeps_ranks = True
