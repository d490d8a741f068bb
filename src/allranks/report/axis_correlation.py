"""Which axis a failure depends on: the predicate that holds exactly where a test fails.

These functions are pure. A predicate is checked against every known cell, so that one counter-example rules it out. It
must also be unlikely to fit by chance, which is computed and not guessed:

If the failures were spread over the cells at random, each choice of ``n`` failing cells out of ``N`` would be equally
likely. A matrix has some predicates (a handful for each axis) that select ``n`` cells; their number, divided by the
number of choices, is the chance that *some* predicate fits failures that are unrelated to any axis. Above
:data:`MOST_CHANCE` no axis is named. One in ten is enough for the most common case, nine cells (three world sizes by
three init methods) of which the three of one world size fail: six predicates out of 84 choices. Four cells are never
enough, nor is one failing or one passing cell, whatever the count: a single cell may differ because of its machine,
or of the time of day.

Cells are bits of a number. A passing test is stored only as a hash of its name and a number that it shares with the
tests that passed in the same cells: 200,000 tests take less than 20 MB.
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
    fails: int  # the number of cells in which it holds; the test fails in each of them
    passes: int  # the number of cells in which it does not hold; the test passes in each of them
    # Predicates on other axes that hold in the same cells: these results cannot distinguish them.
    also: tuple[str, ...] = ()


def blame(failing: Iterable[Axes], passing: Iterable[Axes]) -> Blame | None:
    """The simplest predicate on one axis that holds in each failing cell and in no passing one; None for weak evidence.

    Cells in which the test was skipped are not evidence, and the order of the cells makes no difference. On numbers a
    bound (``>=``, or ``<=`` where more than one value lies below) is tried before a value between two bounds; on words
    a value before *all but one value*.
    """
    failed, passed = list(failing), list(passing)
    if len(failed) < FEWEST or len(passed) < FEWEST:
        return None
    cells, wanted = failed + passed, frozenset(range(len(failed)))
    common = set(cells[0]).intersection(*cells[1:])
    axes = [axis for axis in AXES if axis in common] + sorted(common.difference(AXES))
    candidates = [(axis, text, holds_in) for axis in axes for text, holds_in in predicates(axis, cells)]
    choices = {holds_in for _, _, holds_in in candidates if len(holds_in) == len(failed)}
    fitting = [(axis, text) for axis, text, holds_in in candidates if holds_in == wanted]
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
        yield f"{axis} {text}", frozenset(place for place, cell in enumerate(cells) if cell[axis] in chosen)


def _on_numbers(values: Sequence[int]) -> Iterator[tuple[str, frozenset[str | int]]]:
    for place in range(1, len(values)):
        yield f">= {values[place]}", frozenset(values[place:])
    yield f"== {values[0]}", frozenset(values[:1])
    for place in range(1, len(values) - 1):
        yield f"<= {values[place]}", frozenset(values[: place + 1])
        yield f"== {values[place]}", frozenset([values[place]])


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
    """Collects the verdicts of a run, and finds at its end which axis each failure depends on."""

    def __init__(self) -> None:
        self._cells: dict[str, tuple[int, Axes]] = {}
        self._passed: dict[int, int] = {}
        self._failed: dict[CaseKey, int] = {}
        self._groups: dict[GroupKey, dict[CaseKey, int]] = {}
        self._alike: dict[int, int] = {}
        self._verdicts: dict[tuple[int, int], Blame | None] = {}

    def add(self, suite: CellSuite) -> None:
        """Add the verdicts of a job. Its own trouble is not evidence: it has no matching pass in other cells."""
        cell, _ = self._cells.setdefault(suite.cell, (1 << len(self._cells), suite.axes))
        for test in filter(tells, suite.tests):
            self._pass(case_key(suite, test), cell)
        for group, tests in suite.groups.items():
            for test in tests:
                if test.verdict.rule is not VerdictRule.JOB:
                    self._fail(case_key(suite, test), group, cell)

    def _pass(self, key: CaseKey, cell: int) -> None:
        place = hash(key)
        cells = self._passed.get(place, 0) | cell
        self._passed[place] = self._alike.setdefault(cells, cells)

    def _fail(self, key: CaseKey, group: GroupKey, cell: int) -> None:
        self._failed[key] = self._failed.get(key, 0) | cell
        in_group = self._groups.setdefault(group, {})
        in_group[key] = in_group.get(key, 0) | cell

    def of_tests(self) -> Iterator[tuple[CaseKey, Blame]]:
        """The tests whose failures depend on an axis, each with the predicate."""
        for key, failed in self._failed.items():
            if found := self._blame(failed, self._passed.get(hash(key), 0)):
                yield key, found

    def of_groups(self) -> dict[GroupKey, Blame]:
        """The groups of failures that depend on an axis, each with the predicate.

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


def tells(test: TestVerdict) -> bool:
    """True if a good verdict is evidence: the test ran, and passed without having failed first."""
    verdict = test.verdict
    return verdict.kind is VerdictKind.PASSED and verdict.executed and not test.earlier
