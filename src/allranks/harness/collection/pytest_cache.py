"""pytest's cache of a job: what ``--lf``, ``--ff``, ``--nf`` and ``--sw`` go by from one run to the next.

A job starts with the cache that the last job of the same cell and suite left, in its results folder, and leaves its own
there. Ranks never write it: a rank knows its own outcomes alone. The agent does, once, from the outcomes
of all ranks, and it does so by telling pytest's own cache plugins, whose files differ from version to version.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from allranks.harness.config import PYTEST_CACHE
from allranks.harness.events import Event
from allranks.harness.outcome import Outcome, disagree, may_disagree

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


def note_outcomes(
    config: pytest.Config, items: Iterable[pytest.Item], journal: Iterable[Event], mixed_skip: Sequence[str]
) -> None:
    """Tell pytest's cache plugins what became of the tests; they write it down when the session finishes.

    Args:
        config: The agent's.
        items: The collected tests.
        journal: Events of the agent: a test is failed when any rank's outcome is bad, and when ranks disagree.
        mixed_skip: Node ids (``fnmatch`` patterns) whose ranks may disagree.
    """
    outcomes = _outcomes(journal)
    readers = [config.pluginmanager.get_plugin(name) for name in _READERS]
    for item in items:
        for reader in filter(None, readers):
            for report in _reports(item, outcomes.get(item.nodeid, ()), mixed_skip):
                reader.pytest_runtest_logreport(report)


def _outcomes(journal: Iterable[Event]) -> dict[str, list[Outcome]]:
    outcomes: dict[str, list[Outcome]] = {}
    for event in journal:
        if event["event"] == "arrived":
            outcomes.setdefault(event["nodeid"], []).append(Outcome(event["outcome"]))
    return outcomes


def _reports(item: pytest.Item, outcomes: Sequence[Outcome], mixed_skip: Iterable[str]) -> Iterator[pytest.TestReport]:
    """One report for a test that has run, as pytest would have made it for the worst of its ranks."""
    if outcomes:
        is_torn = disagree(outcomes) and not may_disagree(item.nodeid, mixed_skip)
        is_bad = is_torn or any(each.is_bad for each in outcomes)
        outcome = "failed" if is_bad else "passed"
        yield pytest.TestReport(item.nodeid, item.location, {}, outcome, None, "call")  # type: ignore[arg-type]
