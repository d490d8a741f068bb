"""Adapts torch's launcher test cases: their ranks are started and judged as ours are."""

import sys
import types
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
        marks: Attributes by which an agent knows how to run the tests.
    """

    name: str
    hooks: Sequence[str]
    adapt: Callable[[Any], None]
    marks: Sequence[str]


def _leave_alone(_base: object) -> None:
    """Its ranks are threads: the launching process has them all."""


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
        # Before torch 2.8 it was spelled so.
        _Kind(
            name="MultiProcContinousTest",
            hooks=continuous.HOOKS,
            adapt=continuous.adapt_continuous,
            marks=("allranks_keeps_ranks",),
        ),
        _Kind(name="MultiThreadedTestCase", hooks=(), adapt=_leave_alone, marks=("allranks_has_thread_ranks",)),
    )


def adapt_all(module: types.ModuleType) -> Iterator[str]:
    """Adapt the base classes in torch's module, each once.

    Yields:
        A notice for each class that this version of torch has in a form that is not known here, and that is left alone.
    """
    for kind in _kinds():
        base = getattr(module, kind.name, None)
        if base is not None and not hasattr(base, _ADAPTED):
            yield from _adapt(kind, base)


def _adapt(kind: _Kind, base: Any) -> Iterator[str]:  # noqa: ANN401 - torch's class has no types
    lacking = [name for name in kind.hooks if name not in vars(base)]
    # Left alone, a test still belongs into a launching process: it starts ranks, whoever starts them.
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
"""Where torch has its test cases."""


def adapt_torch_cases() -> Iterator[str]:
    """Adapt torch's base classes, once; to be called when the suite has been imported.

    Nothing of torch is imported for this: a suite that has not imported torch's module has no test of its classes.

    Yields:
        A notice for each class that this version of torch has in a form that is not known here, and that is left alone.
    """
    module = sys.modules.get(MODULE)
    if module is not None:
        yield from adapt_all(module)
