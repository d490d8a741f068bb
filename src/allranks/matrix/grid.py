"""Sets of points of a grid, each set one integer with a bit for every point.

A rule over a million points costs a handful of operations on integers of a million bits, instead of a
million evaluations: each comparison names one or two axes, is tested once per value or pair of values,
and the answer is repeated along the other axes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, product
from math import prod

from allranks.matrix.axes import AxisValue
from allranks.matrix.when import Axis, Comparison, Condition, evaluate

PointSet = int
"""Bit ``i`` is set when point ``i`` of the grid belongs to the set; the last axis runs fastest."""

Point = tuple[AxisValue, ...]
"""The values of one point, in axis order."""


@dataclass(frozen=True)
class Grid:
    """All combinations of the values on some axes.

    Attributes:
        axes: The values on each axis, in axis order, none twice.
    """

    axes: Mapping[str, tuple[AxisValue, ...]]
    _known: dict[Comparison, PointSet] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def size(self) -> int:
        """The number of points."""
        return prod(len(values) for values in self.axes.values())

    @cached_property
    def full(self) -> PointSet:
        """Every point."""
        return (1 << self.size) - 1

    def where(self, condition: Condition | None) -> PointSet:
        """The points at which a condition holds; all of them for None."""
        if condition is None:
            return self.full
        return evaluate(condition.tree, self._comparison, self.full)

    def restricted(self, allowed: Mapping[str, tuple[AxisValue, ...]]) -> PointSet:
        """The points whose value is allowed on every axis that ``allowed`` names."""
        points = self.full
        for axis, values in allowed.items():
            points &= self._comparison(Comparison(axis, "in", values))
        return points

    def index(self, values: Mapping[str, AxisValue]) -> int | None:
        """The number of the point with these values; None when it is not on the grid."""
        number = 0
        for axis, on_axis in self.axes.items():
            if values[axis] not in on_axis:
                return None
            number = number * len(on_axis) + on_axis.index(values[axis])
        return number

    def points(self, chosen: PointSet) -> Iterator[Point]:
        """The points of a set, in order."""
        return compress(product(*self.axes.values()), _flags(chosen))

    def numbers(self, chosen: PointSet) -> Iterator[int]:
        """The numbers of a set's points, in order."""
        return compress(range(chosen.bit_length()), _flags(chosen))

    def point(self, number: int) -> Point:
        """The point with this number."""
        values: list[AxisValue] = []
        for on_axis in reversed(list(self.axes.values())):
            number, position = divmod(number, len(on_axis))
            values.append(on_axis[position])
        return tuple(reversed(values))

    def _comparison(self, comparison: Comparison) -> PointSet:
        if comparison not in self._known:
            self._known[comparison] = self._tested(comparison)
        return self._known[comparison]

    def _tested(self, comparison: Comparison) -> PointSet:
        """Tests a comparison on the axes that it names, and spreads the answers over the grid."""
        axis, right = comparison.axis, comparison.right
        if not isinstance(right, Axis):
            return self._spread(self._answers(axis, (comparison.test(value, right) for value in self.axes[axis])), axis)
        others, between = (
            self.axes[right.name],
            self._below[axis] // (self._below[right.name] * len(self.axes[right.name])),
        )
        rows = (
            self._answers(right.name, [comparison.test(value, other) for other in others]) * between
            for value in self.axes[axis]
        )
        return self._spread("".join(rows), axis)

    def _answers(self, axis: str, answers: Iterable[bool]) -> str:
        """A digit for each value on an axis, each repeated along all axes that run faster."""
        no, yes = "0" * self._below[axis], "1" * self._below[axis]
        return "".join([yes if answer else no for answer in answers])

    def _spread(self, digits: str, axis: str) -> PointSet:
        """Digits over ``axis`` and all faster ones, repeated along the slower ones; the first is of the first point."""
        repeats = self.size // (len(self.axes[axis]) * self._below[axis])
        return int((digits * repeats)[::-1], 2)

    @cached_property
    def _below(self) -> Mapping[str, int]:
        """For each axis, how many points there are on the faster ones."""
        names = list(self.axes)
        return {name: prod(len(self.axes[faster]) for faster in names[place + 1 :]) for place, name in enumerate(names)}


def _flags(chosen: PointSet) -> bytes:
    """One byte for each bit, 0 or 1, lowest first."""
    digits = f"{chosen:b}"[::-1].encode()
    return digits.translate(bytes(byte & 1 for byte in range(256)))
