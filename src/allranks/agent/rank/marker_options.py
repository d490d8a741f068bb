"""Reads the options of tests from their markers, such as isolation, time limit and process group."""

import inspect
import os
import sys
import unittest
from collections.abc import Sequence
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
"""The longest time limit: three years in seconds."""

_TIMEOUT_PLUGIN = ("timeout", "pytest_timeout")
"""The names of pytest-timeout: as an installed plugin, and if loaded by ``-p``."""

_RUNNERS_OF_UNITTEST = ("__call__", "run", "_callTestMethod")
"""A class that awaits its tests overrides at least one of these methods."""


class MarkerError(Exception):
    """A marker has invalid arguments."""

    def __init__(self, nodeid: str, message: str) -> None:
        super().__init__(message)
        self.nodeid = nodeid


def read_options(items: Sequence[pytest.Item], config: AgentConfig) -> list[ItemOptions]:
    """Read the options of all collected tests.

    Raises:
        MarkerError: A marker of a test has invalid arguments.
    """
    return [_options(item, index, config) for index, item in enumerate(items)]


def is_launcher(item: pytest.Item) -> bool:
    """Whether a test starts its own ranks: its class sets the attribute ``allranks_launcher``."""
    return bool(getattr(getattr(item, "cls", None), "allranks_launcher", False))


def never_runs(item: pytest.Item) -> bool:
    """Whether a test is a coroutine or a generator that its class only calls, so that its code never runs."""
    case: Any = getattr(item, "cls", None)
    if case is None or not issubclass(case, unittest.TestCase):
        return False
    test = getattr(case, _method_of(item), None)
    only_calls = all(getattr(case, name) is getattr(unittest.TestCase, name) for name in _RUNNERS_OF_UNITTEST)
    return (only_calls or is_launcher(item)) and (
        inspect.iscoroutinefunction(test) or inspect.isgeneratorfunction(test)
    )


def has_thread_ranks(item: pytest.Item) -> bool:
    """Whether the ranks of a multi-process test are threads of the process that launches it."""
    return bool(getattr(getattr(item, "cls", None), "allranks_has_thread_ranks", False))


def time_limit(item: pytest.Item, config: AgentConfig) -> TimeLimit:
    """The time limit for the ranks of a test."""
    own, default = _time_limit(item), config.limits.limit("test")
    if own is not None and config.pdb_rank is None:
        return own
    seconds = torch_time_limit(item.name) if is_launcher(item) else 0.0
    return TimeLimit(value=seconds, setting="torch's TIMEOUT_OVERRIDE") if seconds > default.seconds else default


def plugin_limit(item: pytest.Item) -> TimeLimit | None:
    """The limit that pytest-timeout enforces for a test; None for no limit, or if it is unknown."""
    if not any(map(item.config.pluginmanager.has_plugin, _TIMEOUT_PLUGIN)):
        return None
    marker = item.get_closest_marker("timeout")
    arguments = {} if marker is None else {**dict(zip(("timeout",), marker.args, strict=False)), **marker.kwargs}
    settings = {
        "@pytest.mark.timeout": arguments.get("timeout"),
        "--timeout": item.config.getoption("timeout", None),
        "PYTEST_TIMEOUT": os.environ.get("PYTEST_TIMEOUT"),
        "timeout in pytest's configuration": item.config.getini("timeout"),
    }
    setting, value = next(((name, value) for name, value in settings.items() if value not in (None, "")), ("", 0))
    try:
        seconds = float(value)
    except (TypeError, ValueError):  # the plug-in reports it when the test runs
        return None
    return TimeLimit(value=seconds, setting=setting) if seconds > 0 else None


def _launcher_options(item: pytest.Item, index: int, config: AgentConfig) -> ItemOptions:
    """The options of a multi-process test: it shares a launcher if it starts no process, or its class keeps ranks."""
    is_skipped, group = _is_skipped(item), _test_group(item, config)
    key: tuple[str, ...] = (str(index),)
    if getattr(getattr(item, "cls", None), "allranks_keeps_ranks", False):
        key = (item.nodeid.rpartition("::")[0],)
    elif is_skipped:
        # Skipped tests start no ranks and leave nothing behind, so they can share a launcher.
        key = ("skips",)
    elif has_thread_ranks(item):
        # A fork per test would take longer than most of these tests. torch runs them in one process as well.
        key = ("threads", str(item.path))
    return ItemOptions(
        gang=("launcher", *key, group),  # with the group, because the tests of a gang run as a unit
        has_process_group=False,
        limit=time_limit(item, config),
        launches=True,
        is_skipped=is_skipped,
        test_group=group,
        plugin_limit=plugin_limit(item),
    )


def _method_of(item: pytest.Item) -> str:
    """The name of a test without its parameters."""
    return getattr(item, "originalname", None) or item.name


def _is_skipped(item: pytest.Item) -> bool:
    """Whether a test has a ``skip`` marker, or it or its class has unittest's decorator."""
    test_class = getattr(item, "cls", None)
    test = getattr(test_class, _method_of(item), None)
    by_decorator = any(getattr(decorated, "__unittest_skip__", False) for decorated in (test_class, test))
    return by_decorator or item.get_closest_marker("skip") is not None


def _options(item: pytest.Item, index: int, config: AgentConfig) -> ItemOptions:
    if is_launcher(item):
        return _launcher_options(item, index, config)
    has_process_group = _has_process_group(item, config)
    isolation = _isolation(item) or config.isolation
    key = {"test": (str(index),), "file": (str(item.path),)}.get(isolation, ())
    return ItemOptions(
        gang=(isolation, *key, str(has_process_group)),
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
    """The group of tests that must not overlap this one, from its marker or the suite's table; empty for none."""
    marker = item.get_closest_marker("test_group")
    if marker is None:
        groups = config.test_groups.items()
        return next((name for name, patterns in groups if any(matches(item.nodeid, one) for one in patterns)), "")
    if len(marker.args) == 1 and not marker.kwargs and isinstance(marker.args[0], str) and marker.args[0]:
        return marker.args[0]
    msg = f"{_as_written(marker)} is invalid: it takes the name of one group"
    raise MarkerError(item.nodeid, msg)


def matches(nodeid: str, pattern: str) -> bool:
    """Whether a pattern matches a test, its class, its file or a folder above; it may omit leading folders."""
    file, _, test = nodeid.partition("::")
    file_pattern, _, test_pattern = pattern.partition("::")
    paths = (file, *map(str, PurePosixPath(file).parents))
    matches_file = any(fnmatchcase(path, file_pattern) or fnmatchcase(path, f"*/{file_pattern}") for path in paths)
    matches_test = any(fnmatchcase(name, test_pattern) for name in (test, test.partition("::")[0]))
    return matches_file and (matches_test or not test_pattern)


def _isolation(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("isolation")
    if marker is None:
        return None
    if len(marker.args) == 1 and not marker.kwargs and marker.args[0] in get_args(Isolation):
        return str(marker.args[0])
    msg = f"{_as_written(marker)} is invalid: it takes one of {', '.join(map(repr, get_args(Isolation)))}"
    raise MarkerError(item.nodeid, msg)


def _time_limit(item: pytest.Item) -> TimeLimit | None:
    marker = item.get_closest_marker("time_limit")
    try:
        return None if marker is None else limit_of(marker)
    except ValueError as error:
        raise MarkerError(item.nodeid, str(error)) from None


def limit_of(marker: pytest.Mark) -> TimeLimit:
    """The limit of a ``time_limit`` marker."""
    if len(marker.args) == 1 and not marker.kwargs and _is_number(marker.args[0]) and 0 < marker.args[0] <= _LONGEST:
        return TimeLimit(value=float(marker.args[0]), setting="@pytest.mark.time_limit")
    msg = f"{_as_written(marker)} is invalid: it takes one number of seconds, more than 0 and up to {_LONGEST:,}"
    raise ValueError(msg)


def _as_written(marker: pytest.Mark) -> str:
    arguments = (*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items()))
    return f"{marker.name}({', '.join(arguments)})"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def torch_time_limit(test: str) -> float:
    """The time limit in seconds that torch sets for the test with this name; 0 for torch's default."""
    longer = getattr(sys.modules.get(TORCHS_TEST_CASES), "TIMEOUT_OVERRIDE", {})
    return float(longer.get(test, 0.0))
