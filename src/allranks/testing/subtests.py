"""One body over every combination of some settings, in ranks that are paid for once."""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch.distributed as dist


class TakesSubtests(Protocol):
    """Anything that can run subtests: every ``unittest.TestCase``."""

    def subTest(self, **params: Any) -> AbstractContextManager[Any]:  # noqa: N802, ANN401 - the name and type of unittest
        """Run the body of the ``with`` as a subtest."""


class SubtestsFixture(Protocol):
    """pytest's fixture ``subtests``."""

    def test(self, **kwargs: Any) -> AbstractContextManager[Any]:  # noqa: ANN401 - the type of pytest
        """Run the body of the ``with`` as a subtest."""


def run_subtests(
    case: TakesSubtests | SubtestsFixture,
    configurations: Mapping[str, Sequence[Any]],
    body: Callable[..., object],
    /,
    *args: object,
    **kwargs: object,
) -> None:
    """Run ``body`` once for each combination of settings, each time as a subtest.

    All ranks must make the same call. If there is a default process group, the ranks wait for each other after each
    subtest, so collectives of different subtests never mix. The caches of ``torch.compile`` are cleared before and
    after each subtest.

    Args:
        case: The test case, or pytest's fixture ``subtests``.
        configurations: Keyword arguments of ``body``, each with its values; the last varies fastest.
        body: The test itself.
        args: Further positional arguments of ``body``.
        kwargs: Further keyword arguments of ``body``, the same each time.

    Raises:
        ValueError: A setting has no values, so nothing would run; or it is also in ``kwargs``.
        TypeError: ``case`` cannot run subtests.
    """
    subtest = _maker_of(case)
    for number, settings in enumerate(combinations(configurations, kwargs), start=1):
        with subtest(**settings):
            _run_one(number, settings, functools.partial(body, *args, **kwargs))
        if dist.is_initialized():
            dist.barrier()


def combinations(configurations: Mapping[str, Sequence[Any]], fixed: Mapping[str, object]) -> list[dict[str, Any]]:
    """Every combination of the settings, the last varying fastest."""
    for name, values in configurations.items():
        if len(values) == 0:
            msg = f"the setting {name!r} has no values, so no subtest would run: give it at least one"
            raise ValueError(msg)
        if name in fixed:
            msg = f"the setting {name!r} is also given as a fixed argument: give it once"
            raise ValueError(msg)
    return [dict(zip(configurations, values, strict=True)) for values in itertools.product(*configurations.values())]


def _maker_of(case: object) -> Callable[..., AbstractContextManager[Any]]:
    for name in ("subTest", "test"):
        maker = getattr(case, name, None)
        if callable(maker):
            found: Callable[..., AbstractContextManager[Any]] = maker
            return found
    msg = f"{case!r} runs no subtests: pass a unittest.TestCase, or pytest's fixture `subtests`"
    raise TypeError(msg)


def _run_one(number: int, settings: Mapping[str, object], body: Callable[..., object]) -> None:
    _forget_compiled()
    try:
        body(**settings)
    except BaseException as error:
        error.add_note(f"subtest {number}: {', '.join(_described(settings)) or 'no settings'}")
        raise
    finally:
        _forget_compiled()


def _described(settings: Mapping[str, object]) -> Iterator[str]:
    return (f"{name}={value!r}" for name, value in settings.items())


def _forget_compiled() -> None:
    # Not an import, which takes a second: a module that is not loaded has compiled nothing.
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
