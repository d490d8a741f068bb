"""How a test's markers have it run: isolation, time limit, process group."""

import inspect
import os
import sys
import unittest
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, get_args

import pytest

from allranks.agent.marks import FOREIGN_ATTRIBUTE
from allranks.agent.program import ItemOptions
from allranks.protocol.choices import Isolation
from allranks.protocol.config import AgentConfig, TimeLimit

TORCHS_TEST_CASES = "torch.testing._internal.common_distributed"
"""The module of torch's test cases."""

_LONGEST = 10**8
"""Seconds of a time limit: three years."""

_TIMEOUT_PLUGIN = ("timeout", "pytest_timeout")
"""The names of pytest-timeout: as an installed plugin, and as one that ``-p`` loads."""

_OF_UNITTEST = ("__call__", "run", "_callTestMethod")
"""Methods that a class overrides if it awaits its tests."""


class MarkerError(Exception):
    """A marker has wrong arguments."""

    def __init__(self, nodeid: str, message: str) -> None:
        super().__init__(message)
        self.nodeid = nodeid


def read_options(items: Sequence[pytest.Item], config: AgentConfig) -> list[ItemOptions]:
    """Read the options of each collected test; a :class:`MarkerError` names one with wrong arguments."""
    return [_terms(item, index, config) for index, item in enumerate(items)]


def is_launcher(item: pytest.Item) -> bool:
    """Whether a test starts its ranks itself: its class sets the attribute ``allranks_launcher``."""
    return bool(getattr(getattr(item, "cls", None), "allranks_launcher", False))


def never_runs(item: pytest.Item) -> bool:
    """Whether a test is a coroutine or a generator that its class calls and drops, so that nothing of it runs."""
    case: Any = getattr(item, "cls", None)
    if case is None or not issubclass(case, unittest.TestCase):
        return False
    test = getattr(case, _method_of(item), None)
    only_calls = all(getattr(case, name) is getattr(unittest.TestCase, name) for name in _OF_UNITTEST)
    return (only_calls or is_launcher(item)) and (
        inspect.iscoroutinefunction(test) or inspect.isgeneratorfunction(test)
    )


def has_thread_ranks(item: pytest.Item) -> bool:
    """Whether the ranks of a launcher test are threads of the process that launches it."""
    return bool(getattr(getattr(item, "cls", None), "allranks_has_thread_ranks", False))


def time_limit(item: pytest.Item, config: AgentConfig) -> TimeLimit:
    """The time limit of a test for its ranks."""
    own, usual = _time_limit(item), config.limits.limit("test")
    if own is not None and config.pdb_rank is None:
        return own
    seconds = torchs_limit(item.name) if is_launcher(item) else 0.0
    return TimeLimit(value=seconds, setting="torch's TIMEOUT_OVERRIDE") if seconds > usual.seconds else usual


def plugin_limit(item: pytest.Item) -> TimeLimit | None:
    """The limit that pytest-timeout enforces for a test; None if that is not known."""
    if not any(map(item.config.pluginmanager.has_plugin, _TIMEOUT_PLUGIN)):
        return None
    marker = item.get_closest_marker("timeout")
    told = {} if marker is None else {**dict(zip(("timeout",), marker.args, strict=False)), **marker.kwargs}
    settings = {
        "@pytest.mark.timeout": told.get("timeout"),
        "--timeout": item.config.getoption("timeout", None),
        "PYTEST_TIMEOUT": os.environ.get("PYTEST_TIMEOUT"),
        "timeout of pytest's configuration": item.config.getini("timeout"),
    }
    setting, value = next(((name, each) for name, each in settings.items() if each not in (None, "")), ("", 0))
    try:
        seconds = float(value)
    except (TypeError, ValueError):  # the plug-in refuses it when the test runs
        return None
    return TimeLimit(value=seconds, setting=setting) if seconds > 0 else None


def _launcher_terms(item: pytest.Item, index: int, config: AgentConfig) -> ItemOptions:
    """Options of a launcher test: a driver of its own, unless it starts no processes or its class keeps them."""
    is_skipped, group = _is_skipped(item), _test_group(item, config)
    place: tuple[str, ...] = (str(index),)
    if getattr(getattr(item, "cls", None), "allranks_keeps_ranks", False):
        place = (item.nodeid.rpartition("::")[0],)
    elif is_skipped:
        # Skipped tests start no ranks and leave nothing behind, so they can share a driver.
        place = ("skips",)
    elif has_thread_ranks(item):
        # A fork for each would take longer than most of them; torch runs them in one process, too.
        place = ("threads", str(item.path))
    return ItemOptions(
        gang=("launcher", *place, group),  # of one group: it is whole assemblies that do not overlap
        has_process_group=False,
        limit=time_limit(item, config),
        launches=True,
        is_skipped=is_skipped,
        test_group=group,
        plugin_limit=plugin_limit(item),
    )


def _method_of(item: pytest.Item) -> str:
    """A test's name without its parameters."""
    return getattr(item, "originalname", None) or item.name


def _is_skipped(item: pytest.Item) -> bool:
    """Whether a test is declared as skipped: unittest's decorator on it or its class, or a ``skip`` marker."""
    test_class = getattr(item, "cls", None)
    test = getattr(test_class, _method_of(item), None)
    by_decorator = any(getattr(place, "__unittest_skip__", False) for place in (test_class, test))
    return by_decorator or item.get_closest_marker("skip") is not None


def _terms(item: pytest.Item, index: int, config: AgentConfig) -> ItemOptions:
    if is_launcher(item):
        return _launcher_terms(item, index, config)
    has_process_group = _has_process_group(item, config)
    isolation = _isolation(item) or config.isolation
    place = {"test": (str(index),), "file": (str(item.path),)}.get(isolation, ())
    return ItemOptions(
        gang=(isolation, *place, str(has_process_group)),
        has_process_group=has_process_group,
        limit=time_limit(item, config),
        plugin_limit=plugin_limit(item),
    )


def _has_process_group(item: pytest.Item, config: AgentConfig) -> bool:
    if config.launches_ranks or item.get_closest_marker("no_process_group") is not None:
        return False
    is_for_ranks = not getattr(item, FOREIGN_ATTRIBUTE, False)
    return is_for_ranks if config.process_group is None else config.process_group


def _test_group(item: pytest.Item, config: AgentConfig) -> str:
    """The group of tests that must not overlap this one, by its marker or the suite's list; empty for none."""
    marker = item.get_closest_marker("test_group")
    if marker is None:
        named = ((name, each) for name, patterns in config.test_groups.items() for each in patterns)
        return next((name for name, each in named if is_named(item.nodeid, each)), "")
    if len(marker.args) == 1 and not marker.kwargs and isinstance(marker.args[0], str) and marker.args[0]:
        return marker.args[0]
    msg = f"test_group{marker.args} makes no sense: it takes the name of one group"
    raise MarkerError(item.nodeid, msg)


def is_named(nodeid: str, pattern: str) -> bool:
    """Whether a pattern names a test, its class, its file or a folder of it, by the end of the path."""
    file, _, test = nodeid.partition("::")
    wanted, _, wanted_test = pattern.partition("::")
    is_of_file = any(fnmatchcase(each, wanted) or fnmatchcase(each, f"*/{wanted}") for each in (file, *_above(file)))
    is_of_test = any(fnmatchcase(each, wanted_test) for each in (test, test.partition("::")[0]))
    return is_of_file and (is_of_test or not wanted_test)


def _above(file: str) -> Iterator[str]:
    return (str(each) for each in PurePosixPath(file).parents)


def _isolation(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("isolation")
    if marker is None:
        return None
    if len(marker.args) == 1 and not marker.kwargs and marker.args[0] in get_args(Isolation):
        return str(marker.args[0])
    msg = f"isolation{marker.args} makes no sense: it takes one of {', '.join(map(repr, get_args(Isolation)))}"
    raise MarkerError(item.nodeid, msg)


def _time_limit(item: pytest.Item) -> TimeLimit | None:
    marker = item.get_closest_marker("time_limit")
    try:
        return None if marker is None else limit_of(marker)
    except ValueError as error:
        raise MarkerError(item.nodeid, str(error)) from None


def limit_of(marker: pytest.Mark) -> TimeLimit:
    """The limit of a ``time_limit``."""
    if len(marker.args) == 1 and not marker.kwargs and _is_number(marker.args[0]) and 0 < marker.args[0] <= _LONGEST:
        return TimeLimit(value=float(marker.args[0]), setting="@pytest.mark.time_limit")
    msg = f"time_limit{marker.args} makes no sense: it takes one number of seconds, more than 0 and up to {_LONGEST:,}"
    raise ValueError(msg)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def torchs_limit(test: str) -> float:
    """The seconds that torch grants the test with this name, if that is more than its default; else 0."""
    longer = getattr(sys.modules.get(TORCHS_TEST_CASES), "TIMEOUT_OVERRIDE", {})
    return float(longer.get(test, 0.0))
