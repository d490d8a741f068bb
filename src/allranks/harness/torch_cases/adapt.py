"""Adapts torch's launcher test cases: their ranks are started and judged as ours are."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_ADAPTED = "allranks_launcher"


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One of torch's base classes.

    Attributes:
        hooks: What it must have to be adapted.
        adapt: Replaces some of them.
        marks: Attributes that tell an agent how to run the tests.
    """

    name: str
    hooks: Sequence[str]
    adapt: Callable[[Any], None]
    marks: Sequence[str]


def _leave_alone(_base: object) -> None:
    """Do nothing: the ranks are threads of the launching process."""


def _kinds() -> tuple[_Kind, ...]:
    from allranks.harness.torch_cases import continuous, processes  # noqa: PLC0415 - 50 ms that most suites need not pay

    return (
        _Kind(name="MultiProcessTestCase", hooks=processes.HOOKS, adapt=processes.adapt_processes, marks=()),
        _Kind(
            name="MultiProcContinuousTest",
            hooks=continuous.HOOKS,
            adapt=continuous.adapt_continuous,
            marks=("allranks_keeps_ranks",),
        ),
        # The spelling before torch 2.8.
        _Kind(
            name="MultiProcContinousTest",
            hooks=continuous.HOOKS,
            adapt=continuous.adapt_continuous,
            marks=("allranks_keeps_ranks",),
        ),
        _Kind(name="MultiThreadedTestCase", hooks=(), adapt=_leave_alone, marks=("allranks_has_thread_ranks",)),
    )


def _adapt(kind: _Kind, base: Any) -> Iterator[str]:  # noqa: ANN401 - torch's class has no types
    lacking = [name for name in kind.hooks if name not in vars(base)]
    # Even unadapted, a test needs a launching process: it starts ranks.
    for mark in (_ADAPTED, *kind.marks):
        setattr(base, mark, True)
    if lacking:
        yield (
            f"torch's {kind.name} is not as allranks knows it, and starts its ranks itself, unrecorded and no faster "
            f"than without allranks: it has no {' and no '.join(lacking)} in this version of torch"
        )
    else:
        kind.adapt(base)


MODULE = "torch.testing._internal.common_distributed"
"""The module of torch's test cases."""


def adapt_torch_cases() -> Iterator[str]:
    """Adapt torch's base classes, once, after the suite has been imported.

    This imports nothing of torch: a suite that has not imported torch's module has no tests of its classes.

    Yields:
        A notice for each class that has an unknown form in this version of torch, and stays as it is.
    """
    module = sys.modules.get(MODULE)
    for kind in _kinds() if module is not None else ():
        base = getattr(module, kind.name, None)
        if base is not None and not hasattr(base, _ADAPTED):
            yield from _adapt(kind, base)
