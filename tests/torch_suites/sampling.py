"""A sample of one of torch's lists that does not know how long a test takes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from outcomes import Outcome
from suite_files import LISTS, Selection
from torch_record import Record

SAMPLES: Final = Path(__file__).with_name("samples.json")


def fixed_sample(name: str) -> Selection:
    """The sample of a list that is measured unless somebody asks for another: 60 tests, by name, the same for ever."""
    samples = json.loads(SAMPLES.read_text(encoding="utf-8"))
    return {suite: tuple(tests) for suite, tests in samples[name].items()}


class Listed(NamedTuple):
    """A test of a list, and what torch's runner makes of it."""

    suite: str
    test: str
    outcome: Outcome


def listed(record: Record, name: str) -> list[Listed]:
    """The tests of a list that are on record, in the order that a sample is taken from.

    What torch's runner executes comes before what it skips, skips are in the order of their reasons, and all else is in
    the order of names.
    """
    tests = [Listed(suite, *item) for suite in LISTS[name] for item in record.suites.get(suite, {}).items()]
    return sorted(tests, key=_place)


def _place(each: Listed) -> tuple[bool, str, str, str]:
    reason = each.outcome.reason if each.outcome.kind == "skipped" else ""
    return each.outcome.kind == "skipped", reason, each.test, each.suite


def sample(tests: Sequence[Listed], size: int) -> list[Listed]:
    """Every n-th test, from the middle of the first n on; all tests where there are fewer than `size`."""
    taken = min(size, len(tests))
    return [tests[(2 * place + 1) * len(tests) // (2 * taken)] for place in range(taken)]


def selection_of(tests: Sequence[Listed]) -> Selection:
    """The names of tests, by suite."""
    names: dict[str, tuple[str, ...]] = {}
    for test in tests:
        names[test.suite] = (*names.get(test.suite, ()), test.test)
    return names
