"""Tests whose outcomes differ between two runs, or between two parts of one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class Difference(StrEnum):
    """How a test differs between A and B."""

    FAILS = "fails"
    MISSING = "missing"
    SKIPPED = "skipped"
    FLAKY = "flaky"
    OTHER = "other"
    FIXED = "fixed"
    RUNS = "runs"
    ADDED = "added"

    @property
    def is_worse(self) -> bool:
        """True if B fails, lacks or skips what A did not."""
        return self in {Difference.FAILS, Difference.MISSING, Difference.SKIPPED}


class ComparedOutcome(NamedTuple):
    """An outcome, with a letter as in a history, and the first line of its message."""

    letter: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparedJob:
    """The outcomes of a suite in a cell, by node id."""

    cell: str
    suite: str
    axes: Mapping[str, str] = field(default_factory=dict)  # empty if unknown
    tests: Mapping[str, ComparedOutcome]


@dataclass(frozen=True, kw_only=True)
class DifferentTest:
    """A test that differs."""

    kind: Difference
    cells: tuple[str | None, str | None]  # its cell in A and in B; None where there is none
    suite: str
    nodeid: str
    before: ComparedOutcome
    after: ComparedOutcome

    @property
    def place(self) -> str:
        """Cells and suite, as reports name them."""
        one, other = self.cells
        cells = f"{one} → {other}" if one and other and one != other else other or one
        return f"{cells} / {self.suite}" if cells else self.suite


_WORST: Final = "EFSfP-"
"""Letters of outcomes, the worst first."""

_NONE: Final = ComparedOutcome("-")
_OF_ALL: Final = frozenset({"allranks::manifest", "allranks::report"})  # errors that are of no job


def compare(before: Iterable[ComparedJob], after: Iterable[ComparedJob]) -> Iterator[DifferentTest]:
    """The tests that differ, job by job; jobs are matched by suite, and by the axes that are not compared."""
    sides = list(before), list(after)
    compared = _compared_axes(*sides)
    one, other = (_by_key(jobs, compared, sides) for jobs in sides)
    for key in dict.fromkeys((*one, *other)):
        yield from _compare_jobs(one.get(key), other.get(key))


def _compared_axes(one: Sequence[ComparedJob], other: Sequence[ComparedJob]) -> frozenset[str]:
    """The axes that have one value in each side, and not the same."""
    axes = {axis for job in (*one, *other) for axis in job.axes}
    values = {axis: [{job.axes.get(axis) for job in side} for side in (one, other)] for axis in axes}
    return frozenset(axis for axis, (a, b) in values.items() if len(a) == len(b) == 1 and a != b)


def _by_key(
    jobs: Iterable[ComparedJob], compared: frozenset[str], sides: tuple[list[ComparedJob], list[ComparedJob]]
) -> dict[object, ComparedJob]:
    """The jobs of a side, the shards of a suite put together."""
    by_axes = all(job.axes for side in sides for job in side)
    are_cells = all(len({job.cell for job in side}) == 1 for side in sides)
    found: dict[object, ComparedJob] = {}
    for job in jobs:
        place = () if are_cells else tuple(sorted((a, v) for a, v in job.axes.items() if a not in compared))
        key = (place if by_axes or are_cells else job.cell, job.suite)
        known = found.get(key)
        tests = together([*known.tests.items(), *job.tests.items()]) if known else job.tests
        found[key] = ComparedJob(cell=job.cell, suite=job.suite, axes=job.axes, tests=tests)
    return found


def together(outcomes: Iterable[tuple[str, ComparedOutcome]]) -> dict[str, ComparedOutcome]:
    """Outcomes by node id: of several under one id the worst, whatever their order."""
    found: dict[str, ComparedOutcome] = {}
    for nodeid, outcome in outcomes:
        found[nodeid] = min(outcome, found.get(nodeid, outcome), key=lambda each: _WORST.index(each.letter))
    return found


def _compare_jobs(one: ComparedJob | None, other: ComparedJob | None) -> Iterator[DifferentTest]:
    there, here = one.tests if one else {}, other.tests if other else {}
    job = other or one
    for nodeid in dict.fromkeys((*there, *here)):
        before, after = there.get(nodeid) or _absent(nodeid, one), here.get(nodeid) or _absent(nodeid, other)
        if job and (kind := difference(before.letter, after.letter)):
            cells = (one.cell if one else None, other.cell if other else None)
            yield DifferentTest(kind=kind, cells=cells, suite=job.suite, nodeid=nodeid, before=before, after=after)


def _absent(nodeid: str, job: ComparedJob | None) -> ComparedOutcome:
    """The outcome of what a side lacks: an error that is of no test is over where it is absent."""
    is_error = nodeid.startswith("allranks::") and (job is not None or nodeid in _OF_ALL)
    return ComparedOutcome("P") if is_error else _NONE


def difference(before: str, after: str) -> Difference | None:
    """How two outcomes differ; None if they do not."""
    match before, after:
        case _ if before == after:
            kind = None
        case (("F" | "E"), ("F" | "E")):
            kind = Difference.OTHER
        case _, ("F" | "E"):
            kind = Difference.FAILS
        case _, "-":
            kind = Difference.MISSING
        case "-", _:
            kind = Difference.ADDED
        case _, "S":
            kind = Difference.SKIPPED
        case "S", _:
            kind = Difference.RUNS
        case "P", "f":
            kind = Difference.FLAKY
        case _:
            kind = Difference.FIXED
    return kind
