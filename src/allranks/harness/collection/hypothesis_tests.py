"""Hypothesis in lockstep: all ranks must try the same examples, and none may try one more than its peers.

What each setting would do otherwise: a database replays on one rank what failed there before; shrinking and explaining
run a failed test again and again on the rank where it failed, while its peers wait in a collective; a deadline, and the
health check of slow data, fail the one rank that was slow.
"""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hypothesis import settings as Settings  # noqa: N812 - it is a class

_ALONE = frozenset({"reuse", "shrink", "explain"})


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
        phases=[phase for phase in settings.phases if phase.name not in _ALONE],
        suppress_health_check=[*settings.suppress_health_check, HealthCheck.too_slow],
    )
