"""Finds the axis that a failure depends on: the predicate that holds exactly where a test fails.

A predicate is checked against every known cell, so a single counterexample rules it out. It must also be unlikely to
fit by chance. If the failures were spread over the cells at random, each choice of ``n`` failing cells out of ``N``
would be equally likely. A matrix has a few predicates for each axis that select ``n`` cells; their number, divided by
the number of choices, is the probability that *some* predicate fits failures that are unrelated to any axis. If it is
above :data:`MOST_CHANCE`, no axis is reported. One in ten suffices for the most common case: nine cells (three world
sizes by three init methods), of which the three of one world size fail, so six predicates out of 84 choices. Four cells
are never enough, nor is a single failing or passing cell, which may differ because of its machine or the time of day.

A set of cells is stored as the bits of a number. Of a passing test, only the hash of its name and its set of cells are
stored. Tests that passed in the same cells share one number, so 200,000 tests take less than 20 MB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import comb
from operator import or_
from typing import Final, NamedTuple

from allranks.matrix.axes import AXES
from allranks.protocol.xml_text import readable
from allranks.report.failure_groups import GroupKey
from allranks.report.judged import CellSuite
from allranks.report.results import TestVerdict, VerdictKind, VerdictRule

Axes = Mapping[str, str | int]
"""A cell's value on each axis."""

FEWEST: Final = 2
"""The fewest cells that must fail, and the fewest that must pass."""

MOST_CHANCE: Final = 0.1
"""The largest chance of an accidental fit at which a predicate is still named."""


@dataclass(frozen=True, kw_only=True)
class Blame:
    """A predicate with its evidence."""

    axis: str
    predicate: str  # as written after ``when`` in a matrix file: ``world_size >= 4``
    fails: int  # the number of cells in which it holds, and the test fails
    passes: int  # the number of cells in which it does not hold, and the test passes
    also: tuple[str, ...] = ()  # predicates on other axes that hold in the same cells


def blame(failing: Iterable[Axes], passing: Iterable[Axes]) -> Blame | None:
    """The simplest predicate on one axis that holds in each failing cell and in no passing one; None for weak evidence.

    Cells in which the test was skipped are not evidence. For numbers, a bound (``>=``, or ``<=`` if it includes more
    than one value) is tried before a single value; for words, one value before *all but one value*.
    """
    failed, passed = list(failing), list(passing)
    if len(failed) < FEWEST or len(passed) < FEWEST:
        return None
    cells, failed_indices = failed + passed, frozenset(range(len(failed)))
    common = set(cells[0]).intersection(*cells[1:])
    axes = [axis for axis in AXES if axis in common] + sorted(common.difference(AXES))
    candidates = [(axis, text, holds_in) for axis in axes for text, holds_in in predicates(axis, cells)]
    choices = {holds_in for _, _, holds_in in candidates if len(holds_in) == len(failed)}
    fitting = [(axis, text) for axis, text, holds_in in candidates if holds_in == failed_indices]
    if not fitting or len(choices) > MOST_CHANCE * comb(len(cells), len(failed)):
        return None
    axis, predicate = fitting[0]
    also = {other: text for other, text in fitting if other != axis}
    return Blame(axis=axis, predicate=predicate, fails=len(failed), passes=len(passed), also=tuple(also.values()))


def predicates(axis: str, cells: Sequence[Axes]) -> Iterator[tuple[str, frozenset[int]]]:
    """The predicates that separate some values of an axis, simplest first, each with the cells in which it holds."""
    values = {cell[axis] for cell in cells}
    numbers = sorted(value for value in values if isinstance(value, int))
    ordered = _on_numbers(numbers) if len(numbers) == len(values) else _on_words(sorted(values, key=str))
    for text, chosen in ordered:
        yield f"{axis} {text}", frozenset(index for index, cell in enumerate(cells) if cell[axis] in chosen)


def _on_numbers(values: Sequence[int]) -> Iterator[tuple[str, frozenset[str | int]]]:
    for index in range(1, len(values)):
        yield f">= {values[index]}", frozenset(values[index:])
    yield f"== {values[0]}", frozenset(values[:1])
    for index in range(1, len(values) - 1):
        yield f"<= {values[index]}", frozenset(values[: index + 1])
        yield f"== {values[index]}", frozenset([values[index]])


def _on_words(values: Sequence[str | int]) -> Iterator[tuple[str, frozenset[str | int]]]:
    yield from ((f"== {value!r}", frozenset([value])) for value in values)
    if len(values) > 2:
        yield from ((f"!= {value!r}", frozenset(values) - {value}) for value in values)


class CaseKey(NamedTuple):
    """A test, regardless of cell and shard."""

    suite: str  # the suite's name, without the shard
    nodeid: str


def case_key(suite: CellSuite, test: TestVerdict) -> CaseKey:
    """The key of a test of a job."""
    return CaseKey(readable(suite.whole_suite), readable(test.nodeid))


class Evidence:
    """Collects the verdicts of a run, and then finds the axis that each failure depends on."""

    def __init__(self) -> None:
        self._cells: dict[str, tuple[int, Axes]] = {}
        self._passed: dict[int, int] = {}
        self._failed: dict[CaseKey, int] = {}
        self._groups: dict[GroupKey, dict[CaseKey, int]] = {}
        self._shared: dict[int, int] = {}
        self._verdicts: dict[tuple[int, int], Blame | None] = {}

    def add(self, suite: CellSuite) -> None:
        """Add the verdicts of a job. Errors of the job itself are no evidence: other cells have no matching pass."""
        cell, _ = self._cells.setdefault(suite.cell, (1 << len(self._cells), suite.axes))
        for test in filter(is_evidence, suite.tests):
            self._pass(case_key(suite, test), cell)
        for group, tests in suite.groups.items():
            for test in tests:
                if test.verdict.rule is not VerdictRule.JOB:
                    self._fail(case_key(suite, test), group, cell)

    def _pass(self, key: CaseKey, cell: int) -> None:
        cells = self._passed.get(hash(key), 0) | cell
        self._passed[hash(key)] = self._shared.setdefault(cells, cells)

    def _fail(self, key: CaseKey, group: GroupKey, cell: int) -> None:
        self._failed[key] = self._failed.get(key, 0) | cell
        in_group = self._groups.setdefault(group, {})
        in_group[key] = in_group.get(key, 0) | cell

    def of_tests(self) -> Iterator[tuple[CaseKey, Blame]]:
        """The tests whose failures depend on an axis, with the predicate."""
        for key, failed in self._failed.items():
            if found := self._blame(failed, self._passed.get(hash(key), 0)):
                yield key, found

    def of_groups(self) -> dict[GroupKey, Blame]:
        """The groups of failures that depend on an axis, with the predicate.

        A cell fails if one of the group's tests fails there with the group's failure. It passes if one of them passes
        there and none fails in any way.
        """
        found = ((group, self._of_group(in_group)) for group, in_group in self._groups.items())
        return {group: blame for group, blame in found if blame}

    def _of_group(self, in_group: Mapping[CaseKey, int]) -> Blame | None:
        passed = reduce(or_, (self._passed.get(hash(key), 0) for key in in_group), 0)
        failed = reduce(or_, (self._failed[key] for key in in_group), 0)
        return self._blame(reduce(or_, in_group.values(), 0), passed & ~failed)

    def _blame(self, failed: int, passed: int) -> Blame | None:
        if (failed, passed) not in self._verdicts:
            self._verdicts[failed, passed] = blame(self._axes_of(failed), self._axes_of(passed))
        return self._verdicts[failed, passed]

    def _axes_of(self, cells: int) -> list[Axes]:
        return [axes for bit, axes in self._cells.values() if cells & bit]


def is_evidence(test: TestVerdict) -> bool:
    """True if the test ran, and passed at the first attempt."""
    verdict = test.verdict
    return verdict.kind is VerdictKind.PASSED and verdict.executed and not test.earlier
