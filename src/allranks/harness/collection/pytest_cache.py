"""pytest's cache of a job: what ``--lf``, ``--ff``, ``--nf`` and ``--sw`` go by from one run to the next.

A job starts with the cache that the last job of the same cell and suite left, in its results folder, and leaves its own
there. Ranks never write it: a rank knows its own outcomes alone. The fork server does, once, from the outcomes
of all ranks, and it does so by telling pytest's own cache plugins, whose files differ from version to version.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from allranks.harness.config import PYTEST_CACHE

_SWITCHED_OFF = ("no:cacheprovider", "-pno:cacheprovider")
_READERS = ("lfplugin", "stepwiseplugin")


def cache_arguments(results: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """What tells pytest where its cache is: nothing when `arguments` do without, since it would then be unknown."""
    if any(argument in _SWITCHED_OFF for argument in arguments):
        return ()
    return ("-o", f"cache_dir={results / PYTEST_CACHE}")


def stop_at_first_failure(config: pytest.Config) -> None:
    """Have ``--stepwise`` stop the job as ``-x`` does: pytest's own stop works in the process that runs the tests."""
    if config.pluginmanager.has_plugin("stepwiseplugin") and not config.option.maxfail:
        config.option.maxfail = 2 if config.getoption("stepwise_skip", False) else 1


def note_outcomes(config: pytest.Config, items: Iterable[pytest.Item], outcomes: Mapping[str, bool]) -> None:
    """Tell pytest's cache plugins what became of the tests; they write it down when the session finishes.

    Args:
        config: The fork server's.
        items: The collected tests.
        outcomes: For each test that has run, by its node id, whether it went wrong on any rank, or ranks disagree.
    """
    readers = [config.pluginmanager.get_plugin(name) for name in _READERS]
    for item in items:
        if item.nodeid not in outcomes:
            continue
        outcome = "failed" if outcomes[item.nodeid] else "passed"
        # One report, as pytest would have made it for the worst of the ranks.
        report = pytest.TestReport(item.nodeid, item.location, {}, outcome, None, "call")  # type: ignore[arg-type]
        for reader in filter(None, readers):
            reader.pytest_runtest_logreport(report)
