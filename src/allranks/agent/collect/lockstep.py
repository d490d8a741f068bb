"""Plugins that repeat a test do so in lockstep on all ranks: rerunfailures, Hypothesis.

pytest-rerunfailures would rerun a test only on the rank where it failed, while its peers wait. So allranks reads the
number of reruns from it, and then unregisters it.

Hypothesis settings would break lockstep, too. The database replays earlier failures of one rank. Shrinking and
explaining rerun a failed test on the rank where it failed, while its peers wait in a collective. A deadline, and the
health check for slow data, fail the one slow rank.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from allranks.agent.program import ItemOptions
from allranks.agent.rank.marker_options import MarkerError

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
"""Unsupported options, by their names in ``config.option`` and in pytest's configuration file."""

_OF_MARKER: Final = frozenset({"reruns", "reruns_delay", "condition"})


def refused_reruns(config: pytest.Config) -> Iterator[str]:
    """Explain which options of the plugin are unsupported, one sentence for each."""
    for option, flag in _ALONE_OPTIONS.items():
        if _MODULE in sys.modules and (getattr(config.option, option, None) or _in_file(config, option)):
            yield (
                f"{flag} cannot be used: all ranks run a test again together, whatever each of them raised. "
                "Take --reruns alone, @pytest.mark.flaky(reruns=2) for some tests, or `allranks run --reruns`."
            )


def _in_file(config: pytest.Config, name: str) -> bool:
    try:
        return bool(config.getini(name))
    except (KeyError, ValueError):  # the configuration file has no such option
        return False


def with_reruns(item: pytest.Item, terms: ItemOptions) -> ItemOptions:
    """The options of a test, with the number of its reruns added.

    Raises:
        MarkerError: Its marker has unsupported or wrong arguments.
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
    except TypeError:  # the plugin calculates with the marker's arguments unchecked
        count = delay = None
    if not isinstance(count, int) or not isinstance(delay, int | float) or not math.isfinite(delay):
        source = f"{marker.args} {marker.kwargs}" if marker else "the options"
        msg = f"@pytest.mark.flaky: reruns and seconds between them make no sense: {source}"
        raise MarkerError(item.nodeid, msg)
    return replace(terms, reruns=count if condition else 0, delay=float(delay))


def forget_plugin(config: pytest.Config) -> None:
    """Unregister the plugin, so that no rank reruns a test alone."""
    plugin = sys.modules.get(_MODULE)
    if plugin is not None and config.pluginmanager.is_registered(plugin):
        config.pluginmanager.unregister(plugin)


_ALONE_PHASES = frozenset({"reuse", "shrink", "explain"})


def settle_hypothesis(items: Iterable[pytest.Item], seed: Callable[[str], int]) -> None:
    """Give each Hypothesis test lockstep settings and the seed of its node id without parameters, for later forks."""
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
    if (
        getattr(seeded, "_hypothesis_internal_use_seed", None) is None
        and item.config.getoption("--hypothesis-seed", None) is None
    ):
        seeded._hypothesis_internal_use_seed = seed  # noqa: SLF001 - as `hypothesis.seed` does


def in_lockstep(settings: "Settings") -> "Settings":
    """Copy settings, without anything that one rank would do alone."""
    from hypothesis import HealthCheck  # noqa: PLC0415 - loaded already, if the suite uses it

    return type(settings)(
        settings,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[phase for phase in settings.phases if phase.name not in _ALONE_PHASES],
        suppress_health_check=[*settings.suppress_health_check, HealthCheck.too_slow],
    )
