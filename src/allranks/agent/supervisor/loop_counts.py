"""Counts shared by the test loops of a job."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from allranks.protocol.records import AgentFailed, Notice

NAMES = 20
"""Most names that one notice lists."""


@dataclass(kw_only=True)
class LoopCounts:
    """These counts need no lock, for each step is atomic in Python."""

    gangs: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # numbers of gangs
    settled: dict[str, bool] = field(default_factory=dict)  # for each test that has run, whether it went wrong
    # The tests that changed some state, by the name of that state, and by what came of it, in words.
    changed: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict)
    has_quit: bool = False  # whether the user has quit the debugger: no further test begins
    # What went wrong when ranks ended pytest sessions of their own.
    session_problems: list[AgentFailed] = field(default_factory=list)
    running: dict[int, str] = field(default_factory=dict)  # the test of each worker

    @property
    def bad_tests(self) -> int:
        """How many tests went wrong."""
        return sum(self.settled.copy().values())

    def changes(self) -> Iterator[Notice]:
        """State that tests changed, once for each name: every test of a suite may change the same."""
        by_tests: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for (name, remedy), nodeids in self.changed.items():
            by_tests.setdefault((remedy, tuple(nodeids)), []).append(name)
        for (remedy, (first, *others)), names in by_tests.items():
            too = f", and so did {len(others)} other tests" if others else ""
            listed = ", ".join(names[:NAMES])
            yield Notice(nodeid=first, text=f"it changed {listed}{too}; {remedy}")
