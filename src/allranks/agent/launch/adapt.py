"""Adapts the multi-process test classes of torch and DeepSpeed, so that allranks starts and judges their ranks."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from allranks.agent.rank.marker_options import TORCHS_TEST_CASES

_ADAPTED = "allranks_launcher"


_Form = tuple[Sequence[str], Callable[[Any], None]]
"""Attributes by which a version of a class is recognized, and the function that adapts that version."""


@dataclass(frozen=True, kw_only=True)
class _BaseClass:
    """One of torch's base classes."""

    name: str
    forms: Sequence[_Form]  # the newest version first
    marks: Sequence[str] = ()  # attributes that determine how the agent runs the tests


def _base_classes() -> tuple[_BaseClass, ...]:
    from allranks.agent.launch import torch_continuous, torch_processes, torch_threads  # noqa: PLC0415 - 50 ms, and most suites do not need it

    keeps = ("allranks_keeps_ranks",)
    continuous_form = (torch_continuous.HOOKS, torch_continuous.adapt_continuous)
    script_form = (torch_continuous.SCRIPT_HOOKS, torch_continuous.adapt_script_ranks)
    return (
        _BaseClass(name="MultiProcessTestCase", forms=[(torch_processes.HOOKS, torch_processes.adapt_processes)]),
        _BaseClass(name="MultiProcContinuousTest", forms=[continuous_form], marks=keeps),
        # The spelling before torch 2.9. Before 2.8, the test script started the ranks.
        _BaseClass(name="MultiProcContinousTest", forms=[continuous_form, script_form], marks=keeps),
        _BaseClass(
            name="MultiThreadedTestCase",
            forms=[(torch_threads.HOOKS, torch_threads.adapt_threads)],
            marks=("allranks_has_thread_ranks",),
        ),
    )


def _adapt(base_class: _BaseClass, base: Any) -> Iterator[str]:  # noqa: ANN401 - torch's class has no types
    adapt = next((adapt for hooks, adapt in base_class.forms if all(hook in vars(base) for hook in hooks)), None)
    # Tests of a class that cannot be adapted start ranks, too, so they need a launching process.
    for mark in (_ADAPTED, *base_class.marks):
        setattr(base, mark, True)
    if adapt is None:
        missing = min(([name for name in hooks if name not in vars(base)] for hooks, _ in base_class.forms), key=len)
        yield (
            f"allranks does not support {base_class.name} of this version of torch, which has no "
            f"{' and no '.join(missing)}. The class starts its ranks itself, no faster than without allranks, and "
            "the report has one result for each test instead of one per rank"
        )
    else:
        adapt(base)


_WITH_INIT_METHOD = "torch.testing._internal.distributed.distributed_test"
"""A module that reads the environment variable INIT_METHOD when it is imported."""


def adapt_torch_cases() -> Iterator[str]:
    """Adapt torch's base classes if the suite has imported them; each class is adapted once.

    Yields:
        A notice for each class that cannot be adapted in this version of torch.
    """
    tests = sys.modules.get(_WITH_INIT_METHOD)
    if getattr(tests, "INIT_METHOD", "") == "env":
        # allranks sets the variable to the name of the method, but torch expects a URL.
        tests.INIT_METHOD = "env://"  # type: ignore[union-attr]
    module = sys.modules.get(TORCHS_TEST_CASES)
    for base_class in _base_classes() if module is not None else ():
        base = getattr(module, base_class.name, None)
        if base is not None and not hasattr(base, _ADAPTED):
            yield from _adapt(base_class, base)


_DEEPSPEED_METHODS = ("_launch_daemonic_procs", "_launch_non_daemonic_procs", "_dist_run", "_dist_destroy")
"""Methods by which DeepSpeed's base class is recognized: projects contain copies of it under various names."""


def adapt_collected(test_class: Any) -> None:  # noqa: ANN401 - a suite's class, or None
    """Adapt a collected class that torch's base classes do not cover, before pytest reads its fixtures."""
    adapt = getattr(test_class, "allranks_adapt_class", None)
    if adapt is not None:
        adapt()
    bases = test_class.__mro__ if getattr(test_class, "is_dist_test", False) else ()
    base: Any = next((base for base in bases if all(name in vars(base) for name in _DEEPSPEED_METHODS)), None)
    if base is not None and not hasattr(base, _ADAPTED):
        from allranks.agent.launch.deepspeed import adapt_deepspeed  # noqa: PLC0415 - as above

        adapt_deepspeed(base)
        # The tests of a class share its class-scoped fixtures, so one launching process runs them all.
        base.allranks_launcher = base.allranks_keeps_ranks = True
