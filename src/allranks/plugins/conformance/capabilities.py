"""The capabilities of a backend: which operations work, in which mode, and for which dtype.

The verdict of each tagged test becomes a state. A cell of the table has the worst state of its tests. A test's output
does not matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allranks.protocol.outcomes import Outcome
from allranks.protocol.unsupported import is_lack
from allranks.protocol.xml_text import cut, first_line
from allranks.report.judged import CellSuite
from allranks.report.results import TestVerdict, VerdictRule
from allranks.report.untrusted import parsed

MOST_CELLS: Final = 5_000
"""The size of a backend's table from which only bad cells are added: a suite may tag its tests arbitrarily."""

_MOST_EXAMPLES: Final = 5
_MESSAGE: Final = 300


class Capability(StrEnum):
    """The result of a cell's tests, in ascending order of severity."""

    WORKS = "works"
    UNSUPPORTED = "unsupported"
    WRONG = "wrong"
    HANGS = "hangs"
    CRASHES = "crashes"

    @property
    def is_bad(self) -> bool:
        """True if the backend fails at an operation that it does not report as unsupported."""
        return self not in {Capability.WORKS, Capability.UNSUPPORTED}


_ORDER: Final = tuple(Capability)


class CapabilityKey(NamedTuple):
    """A cell of the table, by the tags of its tests; ``dtype`` is empty if a test does not depend on one."""

    operation: str
    feature: str = ""
    group: str = "default"
    mode: str = "sync"
    dtype: str = ""

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Sorts the table by operation, with the plain form of each first."""
        return (self.operation, self.feature, self.group != "default", self.group, self.mode != "sync", *self[3:])

    @property
    def row(self) -> str:
        """The label of the row: ``all_reduce MAX, async, sub-group``."""
        words = [f"{self.operation} {self.feature}".strip()]
        words += [self.mode] if self.mode != "sync" else []
        words += ["sub-group"] if self.group == "sub" else [self.group] if self.group != "default" else []
        return ", ".join(words)

    @property
    def name(self) -> str:
        """The cell in one line: ``all_reduce MAX, async, int32``."""
        return f"{self.row}, {self.dtype}" if self.dtype else self.row


@dataclass(frozen=True, kw_only=True)
class BadTest:
    """A failed test of a capability."""

    nodeid: str
    cell: str
    message: str


@dataclass(kw_only=True)
class CapabilityCell:
    """The results of a cell's tests."""

    counts: dict[Capability, int] = field(default_factory=dict)  # the number of tests, over all world sizes
    bad: list[BadTest] = field(default_factory=list)

    @property
    def state(self) -> Capability:
        """The worst state of its tests."""
        return max(self.counts, key=_ORDER.index)

    def add(self, state: Capability, test: BadTest) -> None:
        self.counts[state] = self.counts.get(state, 0) + 1
        if state.is_bad and len(self.bad) < _MOST_EXAMPLES:
            self.bad.append(test)


CapabilityTable = dict[CapabilityKey, CapabilityCell]
"""The capabilities of one backend."""


def add_tests(tables: dict[str, CapabilityTable], suite: CellSuite) -> None:
    """Add the tagged tests of a job to the table of its backend."""
    if not suite.tags:
        return
    backend = str(suite.axes.get("backend") or suite.cell.partition("-")[0])
    table = tables.setdefault(backend, {})
    for test in suite.tests:
        tags = suite.tags.get(test.nodeid, {})
        if (key := _key(tags)) is None or (state := state_of(test, tags, backend)) is None:
            continue
        if key in table or len(table) < MOST_CELLS or state.is_bad:
            message = cut(first_line(test.verdict.message), _MESSAGE)
            cell = table.setdefault(key, CapabilityCell())
            cell.add(state, BadTest(nodeid=test.nodeid, cell=suite.cell, message=message))


def _key(tags: Mapping[str, str]) -> CapabilityKey | None:
    if "operation" not in tags:
        return None
    return CapabilityKey(**{name: value for name, value in tags.items() if name in CapabilityKey._fields})


def state_of(test: TestVerdict, tags: Mapping[str, str], backend: str) -> Capability | None:
    """The state that a test shows; None if it did not run, or was skipped for a reason other than missing support.

    An unexpected error is a wrong result. It is also wrong if one rank reports *unsupported* and another has a result
    or waits for one, unless the test is tagged ``ranks="some"``: then ranks that do not take part may pass.
    """
    verdict = test.verdict
    if verdict.is_bad:
        return _bad_state(test, tags, backend)
    if verdict.rule is VerdictRule.SKIPPED:
        return Capability.UNSUPPORTED if is_lack(backend, verdict.message) else None
    return Capability.WORKS if verdict.executed else None


def _bad_state(test: TestVerdict, tags: Mapping[str, str], backend: str) -> Capability:
    outcomes = {rank.outcome for rank in test.ranks if not rank.consequence}
    if test.verdict.reason == Outcome.CRASHED or Outcome.MISSING in outcomes:
        return Capability.CRASHES
    if test.verdict.reason == Outcome.TIMED_OUT or Outcome.TIMED_OUT in outcomes:
        return Capability.HANGS
    if test.verdict.rule is VerdictRule.RANKS_DISAGREE and tags.get("ranks") == "some":
        skips = [rank for rank in test.ranks if rank.outcome is Outcome.SKIPPED]
        others = {rank.outcome for rank in test.ranks if rank.outcome is not Outcome.SKIPPED and not rank.consequence}
        if others <= {Outcome.PASSED, Outcome.ABORTED} and all(is_lack(backend, rank.message) for rank in skips):
            return Capability.UNSUPPORTED
    return Capability.WRONG


def is_bad(tables: Mapping[str, CapabilityTable]) -> bool:
    """Whether any cell of a table is bad."""
    return any(cell.state.is_bad for table in tables.values() for cell in table.values())


def bad_cells(table: CapabilityTable) -> Iterator[tuple[CapabilityKey, CapabilityCell]]:
    """The bad cells, the worst first."""
    bad = [(key, cell) for key, cell in table.items() if cell.state.is_bad]
    yield from sorted(bad, key=lambda item: (-_ORDER.index(item[1].state), item[0].sort_key))


SCHEMA: Final = 1


def as_document(run_id: str, tables: Mapping[str, CapabilityTable]) -> dict[str, Any]:
    """The tables as ``conformance.json`` has them."""
    return {
        "generator": "allranks",
        "schema": SCHEMA,
        "run_id": run_id,
        "backends": {
            backend: [
                {
                    **key._asdict(),
                    "state": cell.state.value,
                    "tests": {state.value: count for state, count in cell.counts.items()},
                    "bad": [vars(test) for test in cell.bad],
                }
                for key, cell in sorted(table.items(), key=lambda item: item[0].sort_key)
            ]
            for backend, table in sorted(tables.items())
        },
    }


def from_document(document: object) -> dict[str, CapabilityTable]:
    """The tables in a parsed ``conformance.json``.

    Raises:
        ValueError: It is not a document of this version.
    """
    match document:
        case {"generator": "allranks", "schema": 1, "backends": dict(backends)}:
            return {backend: dict(map(_parse_cell, rows)) for backend, rows in backends.items()}
    msg = "it is not a conformance.json of this version"
    raise ValueError(msg)


def _parse_cell(row: object) -> tuple[CapabilityKey, CapabilityCell]:
    match row:
        case {"tests": dict(tests), "bad": list(bad), **tags} if tests and "operation" in tags:
            key = CapabilityKey(**{name: str(tags[name]) for name in CapabilityKey._fields if name in tags})
            counts = {Capability(state): int(count) for state, count in tests.items()}
            return key, CapabilityCell(counts=counts, bad=[parsed(BadTest, test) for test in bad])
    msg = "a cell lacks operation, tests or bad"
    raise ValueError(msg)


@dataclass(frozen=True, kw_only=True)
class ChangedCell:
    """A cell of a backend's table that differs from an earlier run; its state is None in a run without this cell."""

    backend: str
    key: CapabilityKey
    before: Capability | None
    now: Capability | None


def changes(before: Mapping[str, CapabilityTable], now: Mapping[str, CapabilityTable]) -> Sequence[ChangedCell]:
    """The differences from an earlier run, for the backends that are in both."""
    changed = []
    for backend in sorted(before.keys() & now.keys()):
        for key in sorted(before[backend].keys() | now[backend].keys(), key=lambda key: key.sort_key):
            old, new = (cells[key].state if key in cells else None for cells in (before[backend], now[backend]))
            if old is not new:
                changed.append(ChangedCell(backend=backend, key=key, before=old, now=new))
    return changed
