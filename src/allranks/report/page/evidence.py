"""In which cells each test passed and failed: kept small while the run streams by, and judged at its end.

Cells are bits of a number. Of a test that passes, all that stays is a hash of its name and a number that it shares with
the tests that passed in the same cells: 200,000 tests take less than 20 MB.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from allranks.report.blame import Axes, Blame, blame
from allranks.report.judged import JobFacts
from allranks.report.model import TestVerdict, VerdictKind


class CaseKey(NamedTuple):
    """A test, whatever the cell and the shard.

    Attributes:
        suite: The suite's name, without the shard.
    """

    suite: str
    nodeid: str


class Evidence:
    """Takes the verdicts of a run, and says at its end which axis is to blame for what."""

    def __init__(self) -> None:
        self._cells: dict[str, int] = {}
        self._axes: list[Axes] = []
        self._passed: dict[int, int] = {}
        self._failed: dict[CaseKey, int] = {}
        self._groups: dict[int, dict[CaseKey, None]] = {}
        self._in_group: dict[int, int] = {}
        self._alike: dict[int, int] = {}
        self._verdicts: dict[tuple[int, int], Blame | None] = {}

    def cell(self, facts: JobFacts) -> int:
        """The bit of a job's cell."""
        number = self._cells.setdefault(facts.cell, len(self._cells))
        if number == len(self._axes):
            self._axes.append(facts.axes)
        return 1 << number

    def passed(self, key: CaseKey, cell: int) -> None:
        """A test ran in this cell and passed."""
        place = hash(key)
        cells = self._passed.get(place, 0) | cell
        self._passed[place] = self._alike.setdefault(cells, cells)

    def failed(self, key: CaseKey, group: int, cell: int) -> None:
        """A test went wrong in this cell, in the way of this group."""
        self._failed[key] = self._failed.get(key, 0) | cell
        self._groups.setdefault(group, {})[key] = None
        self._in_group[group] = self._in_group.get(group, 0) | cell

    @cached_property
    def _passed_of_failed(self) -> Mapping[CaseKey, int]:
        return {key: self._passed.get(hash(key), 0) for key in self._failed}

    def of_tests(self) -> Iterator[tuple[CaseKey, Blame]]:
        """The tests for which an axis is to blame."""
        for key, failed in self._failed.items():
            if found := self._blame(failed, self._passed_of_failed[key]):
                yield key, found

    def of_group(self, group: int) -> Blame | None:
        """The axis that is to blame for a group of failures.

        A cell fails when one of the group's tests fails there as the group does. It passes when one of them passes
        there and none fails in whatever way.
        """
        keys = self._groups.get(group, ())
        passed = _union(self._passed_of_failed[key] for key in keys)
        failed = _union(self._failed[key] for key in keys)
        return self._blame(self._in_group.get(group, 0), passed & ~failed)

    def _blame(self, failed: int, passed: int) -> Blame | None:
        if (failed, passed) not in self._verdicts:
            self._verdicts[failed, passed] = blame(self._axes_of(failed), self._axes_of(passed))
        return self._verdicts[failed, passed]

    def _axes_of(self, cells: int) -> list[Axes]:
        return [axes for number, axes in enumerate(self._axes) if cells >> number & 1]


def tells(test: TestVerdict) -> bool:
    """Whether a good verdict is evidence: the test ran, and passed without having failed first."""
    verdict = test.verdict
    return verdict.kind is VerdictKind.PASSED and verdict.executed and not test.earlier


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
