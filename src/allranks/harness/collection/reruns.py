"""pytest-rerunfailures in lockstep: what it asks for, all ranks do together, led by the supervisor.

The plugin itself would run a test again on the one rank where it failed, while its peers wait. It is asked how often,
and then forgotten.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from allranks.harness.collection.markers import MarkerError
from allranks.harness.program import Terms

_MODULE: Final = "pytest_rerunfailures"
_ALONE: Final = {
    "only_rerun": "--only-rerun",
    "rerun_except": "--rerun-except",
    "rerun_exclude_path": "--rerun-exclude-path",
    "reruns_delay_backoff_factor": "--reruns-delay-backoff-factor",
    "max_suite_reruns": "--max-suite-reruns",
    "fail_on_flaky": "--fail-on-flaky",
}
"""Options, also of pytest's configuration file, by their names."""

_OF_MARKER: Final = frozenset({"reruns", "reruns_delay", "condition"})


def refused_reruns(config: pytest.Config) -> Iterator[str]:
    """Why what the plugin is asked for cannot be had, a sentence for each option."""
    for option, flag in _ALONE.items():
        if _MODULE in sys.modules and (getattr(config.option, option, None) or _in_file(config, option)):
            yield (
                f"{flag} cannot be used: all ranks run a test again together, whatever each of them raised. "
                "Take --reruns alone, @pytest.mark.flaky(reruns=2) for some tests, or `allranks run --retries`."
            )


def _in_file(config: pytest.Config, name: str) -> bool:
    try:
        return bool(config.getini(name))
    except (KeyError, ValueError):  # no such option has a name there
        return False


def with_reruns(item: pytest.Item, terms: Terms) -> Terms:
    """The terms of a test, with how often it may be run again.

    Raises:
        MarkerError: Its marker asks for what cannot be had.
    """
    plugin: Any = sys.modules.get(_MODULE)
    if plugin is None or not item.config.pluginmanager.is_registered(plugin):
        return terms
    marker = item.get_closest_marker("flaky")
    condition = marker.kwargs.get("condition", True) if marker else True
    if marker and (marker.kwargs.keys() - _OF_MARKER or len(marker.args) > 2 or not isinstance(condition, bool)):
        msg = (
            "@pytest.mark.flaky takes reruns, reruns_delay, and a condition that is True or False: all ranks run the "
            "test again together, whatever each of them raised"
        )
        raise MarkerError(item.nodeid, msg)
    try:
        count, delay = plugin.get_reruns_count(item) or 0, plugin.get_reruns_delay(item)
    except TypeError:  # it counts with what it is given
        count = delay = None
    if not isinstance(count, int) or not isinstance(delay, int | float) or not math.isfinite(delay):
        said = f"{marker.args} {marker.kwargs}" if marker else "the options"
        msg = f"@pytest.mark.flaky: reruns and seconds between them make no sense: {said}"
        raise MarkerError(item.nodeid, msg)
    return replace(terms, reruns=count if condition else 0, delay=float(delay))


def forget_plugin(config: pytest.Config) -> None:
    """Have no rank run a test again alone."""
    plugin = sys.modules.get(_MODULE)
    if plugin is not None and config.pluginmanager.is_registered(plugin):
        config.pluginmanager.unregister(plugin)
