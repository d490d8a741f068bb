"""Subtests for every combination of some settings, in ranks that are started only once."""

import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch.distributed as dist


class TakesSubtests(Protocol):
    """An object that runs subtests like ``unittest.TestCase``."""

    def subTest(self, **params: Any) -> AbstractContextManager[Any]:  # noqa: N802, ANN401 - unittest's name and type
        """Run the ``with`` block as a subtest."""


class SubtestsFixture(Protocol):
    """An object that runs subtests like pytest's fixture ``subtests``."""

    def test(self, **kwargs: Any) -> AbstractContextManager[Any]:  # noqa: ANN401 - pytest's type
        """Run the ``with`` block as a subtest."""


def run_subtests(
    case: TakesSubtests | SubtestsFixture,
    configurations: Mapping[str, Sequence[Any]],
    body: Callable[..., object],
    /,
    *args: object,
    **kwargs: object,
) -> None:
    """Run ``body`` once for each combination of settings, each time as a subtest.

    All ranks must make the same call. If there is a default process group, a barrier after each subtest keeps the
    collectives of different subtests apart. The caches of ``torch.compile`` are cleared before and after each subtest.

    Args:
        case: The test case, or pytest's fixture ``subtests``.
        configurations: The values of each keyword argument of ``body``; the last argument varies fastest.
        body: The test function.
        args: Positional arguments that are passed to ``body`` each time.
        kwargs: Additional keyword arguments that are passed to ``body`` each time.

    Raises:
        ValueError: A setting has no values, so nothing would run, or it is also in ``kwargs``.
        TypeError: ``case`` cannot run subtests.
    """
    subtest = _subtest_factory(case)
    for number, settings in enumerate(combinations(configurations, kwargs), start=1):
        with subtest(**settings):
            _run_one(number, settings, functools.partial(body, *args, **kwargs))
        if dist.is_initialized():
            dist.barrier()


def combinations(configurations: Mapping[str, Sequence[Any]], fixed: Mapping[str, object]) -> list[dict[str, Any]]:
    """Every combination of the settings; the last setting varies fastest."""
    for name, values in configurations.items():
        if len(values) == 0:
            msg = f"the setting {name!r} has no values, so no subtest would run: give it at least one"
            raise ValueError(msg)
        if name in fixed:
            msg = f"{name!r} is both a setting and a keyword argument: remove one of them"
            raise ValueError(msg)
    return [dict(zip(configurations, values, strict=True)) for values in itertools.product(*configurations.values())]


def _subtest_factory(case: object) -> Callable[..., AbstractContextManager[Any]]:
    for name in ("subTest", "test"):
        method = getattr(case, name, None)
        if callable(method):
            factory: Callable[..., AbstractContextManager[Any]] = method
            return factory
    msg = f"{case!r} cannot run subtests: pass a unittest.TestCase, or pytest's fixture `subtests`"
    raise TypeError(msg)


def _run_one(number: int, settings: Mapping[str, object], body: Callable[..., object]) -> None:
    _reset_dynamo()
    try:
        body(**settings)
    except BaseException as error:
        arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        error.add_note(f"subtest {number}: {arguments or 'no settings'}")
        raise
    finally:
        _reset_dynamo()


def _reset_dynamo() -> None:
    # Do not import it, which takes a second: if it is not loaded, nothing has been compiled.
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
