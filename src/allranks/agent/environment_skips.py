"""Skips caused by the environment: our own exception, and skips by torch's sandcastle decorators.

torch's ``skip_but_pass_in_sandcastle`` decorators (sandcastle is Meta's CI) mean that the environment lacks something,
but outside of Meta they skip like ``unittest.skip``. To distinguish these skips from an author's own, the decorators
are wrapped as soon as torch's module is imported, before a suite can use them. The wrapped decorators give the reason
as a subclass of ``str``, which passes through unittest and pytest unchanged.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
import types
import unittest
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from allranks.protocol import skip_codes
from allranks.protocol.outcomes import SkipKind
from allranks.protocol.skip_codes import SkipCode


class EnvironmentSkip(pytest.skip.Exception):  # type: ignore[misc,name-defined]
    """A skip caused by the environment, not by the author of the test.

    Args:
        code: torch's exit code for the cause.
        detail: What is missing, in words; empty if the code is enough.
        gpus: The number of GPUs (or other accelerators) that the test needs, if the code does not imply it.
    """

    # Python then prints it as "Skipped: REASON"; pytest strips that prefix where it shows the reason.
    __module__ = "builtins"
    __qualname__ = "Skipped"

    def __init__(self, code: SkipCode, detail: str = "", gpus: int | None = None) -> None:
        self.code = code
        self.gpus_needed = gpus or skip_codes.gpus_needed(code)
        super().__init__(_reason(code, detail, gpus), _use_item_location=True)

    @property
    def kind(self) -> SkipKind:
        """Whether hardware is missing, or something else."""
        return skip_codes.kind(self.code)


def _reason(code: SkipCode, detail: str, gpus: int | None) -> str:
    reason = skip_codes.reason(code, gpus)
    if not detail:
        return reason
    # torch's text for the generic code has no information.
    return detail if code is SkipCode.GENERIC else f"{reason}: {detail}"


MODULE = "torch.testing._internal.common_utils"
"""torch's module with the sandcastle decorators."""

_DECORATORS = ("skip_but_pass_in_sandcastle", "skip_but_pass_in_sandcastle_if")


class SandcastleReason(str):
    """Why one of torch's sandcastle decorators skipped."""

    __slots__ = ()


@contextmanager
def watch_for_sandcastle_skips() -> Iterator[None]:
    """Mark the skips of sandcastle decorators in suites that are imported within this block."""
    module = sys.modules.get(MODULE)
    if module is not None:
        _mark_reasons(module)
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    """Marks reasons once torch's module is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _marking_after(spec.loader.exec_module)  # type: ignore[assignment,method-assign]
        return spec


def _marking_after(execute: Callable[[types.ModuleType], None]) -> Callable[[types.ModuleType], None]:
    @functools.wraps(execute)
    def exec_module(module: types.ModuleType) -> None:
        execute(module)
        _mark_reasons(module)

    return exec_module


def _mark_reasons(module: types.ModuleType) -> None:
    for name in _DECORATORS:
        decorator = getattr(module, name, None)
        if decorator is not None and not hasattr(decorator, "allranks_marks_reasons"):
            setattr(module, name, _marking(decorator))


def _marking(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a decorator whose last argument, or the one named ``reason``, is the reason."""

    @functools.wraps(decorator)
    def marking(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - torch's decorators have no types
        if "reason" in kwargs:
            return decorator(*args, **{**kwargs, "reason": SandcastleReason(kwargs["reason"])})
        return decorator(*args[:-1], SandcastleReason(args[-1]), **kwargs)

    marking.allranks_marks_reasons = True  # type: ignore[attr-defined]
    return marking


class SandcastleSkipper:
    """A plugin that skips tests outside of a ``TestCase``, where pytest ignores the marks of sandcastle decorators."""

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Skip a test function or a method of a plain class with such a mark."""
        if not isinstance(item, pytest.Function) or (item.cls and issubclass(item.cls, unittest.TestCase)):
            return
        for marked in (item.obj, item.cls):
            if isinstance(reason := getattr(marked, "__unittest_skip_why__", None), SandcastleReason):
                item.add_marker(pytest.mark.skip(reason=reason))


_FOR_DEVICES = "instantiate_device_type_tests"


class DeviceFileSkipper:
    """A plugin that skips files from which torch generated no test, because they are for devices that this host lacks.

    torch's ``instantiate_device_type_tests`` replaces a class by one for each available type of device.
    """

    def __init__(self, skipped: dict[str, str]) -> None:
        self._skipped = skipped

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Remember a file that has torch's function, until one of its tests is collected."""
        report = yield
        if report.passed and isinstance(collector, pytest.Module) and hasattr(collector.obj, _FOR_DEVICES):
            text = f"its tests are for devices that this host lacks ({_FOR_DEVICES} generated no test)"
            self._skipped[collector.nodeid] = text
        return report

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Forget a file as soon as one of its tests is collected."""
        for parent in item.listchain():
            self._skipped.pop(parent.nodeid, None)
