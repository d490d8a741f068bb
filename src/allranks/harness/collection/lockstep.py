"""Plugins that repeat a test do so in lockstep on all ranks: rerunfailures, Hypothesis.

The plugin itself would run a test again on the one rank where it failed, while its peers wait. It is asked how often,
and then forgotten.

What each setting would do otherwise: a database replays on one rank what failed there before; shrinking and explaining
run a failed test again and again on the rank where it failed, while its peers wait in a collective; a deadline, and the
health check of slow data, fail the one rank that was slow.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from allranks.harness.collection.marker_options import MarkerError
from allranks.harness.program import TestOptions

if TYPE_CHECKING:
    from hypothesis import settings as Settings  # noqa: N812 - it is a class


_MODULE: Final = "pytest_rerunfailures"
_ALONE_OPTIONS: Final = {
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
    for option, flag in _ALONE_OPTIONS.items():
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


def with_reruns(item: pytest.Item, terms: TestOptions) -> TestOptions:
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


_ALONE_PHASES = frozenset({"reuse", "shrink", "explain"})


def settle_hypothesis(items: Iterable[pytest.Item], seed: Callable[[str], int]) -> None:
    """Give every Hypothesis test settings for lockstep, and a seed; forks made after this inherit them.

    Args:
        items: The collected tests.
        seed: The seed of a test, by its node id without parameters.
    """
    if "hypothesis" not in sys.modules:
        return
    for item in items:
        test = getattr(item, "obj", None)
        function = getattr(test, "__func__", test)
        if getattr(function, "is_hypothesis_test", False):
            _settle(item, function, seed(item.nodeid.partition("[")[0]))


def _settle(item: pytest.Item, function: Any, seed: int) -> None:  # noqa: ANN401 - Hypothesis adds what is read here
    machine = getattr(function, "_hypothesis_state_machine_class", None)
    if machine is None:
        function._hypothesis_internal_use_settings = in_lockstep(function._hypothesis_internal_use_settings)  # noqa: SLF001 - as `settings` does
    else:
        case: Any = getattr(item, "cls", None)
        case.settings = in_lockstep(case.settings)
    seeded = function if machine is None else machine
    if getattr(seeded, "_hypothesis_internal_use_seed", None) is None and not _has_seed(item.config):
        seeded._hypothesis_internal_use_seed = seed  # noqa: SLF001 - as `hypothesis.seed` does


def _has_seed(config: pytest.Config) -> bool:
    """Whether the user gave one for all tests."""
    return config.getoption("--hypothesis-seed", None) is not None


def in_lockstep(settings: "Settings") -> "Settings":
    """These settings, without what a rank would do alone."""
    from hypothesis import HealthCheck  # noqa: PLC0415 - where the suite uses it, it is loaded

    return type(settings)(
        settings,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[phase for phase in settings.phases if phase.name not in _ALONE_PHASES],
        suppress_health_check=[*settings.suppress_health_check, HealthCheck.too_slow],
    )
