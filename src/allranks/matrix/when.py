"""The language of ``when``: comparisons of axes, combined with ``and``, ``or`` and ``not``.

The text is parsed with Python's grammar but never executed, and unknown syntax is rejected. A condition is evaluated
for all points of a matrix at once: a set of points is an integer with one bit per point.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import compress, pairwise, product
from math import prod
from typing import Any, NoReturn, cast

from packaging.version import Version

from allranks.errors import did_you_mean, shown
from allranks.matrix.axes import AXES, AxisValue, comparable, is_version, type_of_axis, written_type

LONGEST_CONDITION = 10_000
DEEPEST_NESTING = 50
"""The limit of nesting, which keeps recursion below Python's limit."""

Points = int
"""A set of points; the highest bit is the first combination of the axes."""


class ConditionError(ValueError):
    """An invalid condition.

    Args:
        what: The problem, as the end of a sentence that begins with the key.
        remedy: What to write instead.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}. {remedy}")


@dataclass(frozen=True)
class Comparison:
    """A comparison of an axis with a literal or with another axis."""

    axis: str
    symbol: str
    literal: Any = None  # a comparable value, or a tuple of them
    other: str = ""

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether it holds at a point, given by its comparable value on each axis."""
        return _OPERATORS[self.symbol](values[self.axis], values[self.other] if self.other else self.literal)


@dataclass(frozen=True)
class Point:
    """A single combination of values, as a space of one point."""

    values: Mapping[str, Any]  # comparable, by axis
    everywhere: Points = 1

    def where(self, comparison: Comparison) -> Points:
        """1 if a comparison holds, else 0."""
        return int(comparison.holds(self.values))


class Space:
    """Every combination of the values of some axes, in the order of :func:`itertools.product`."""

    def __init__(self, axes: Mapping[str, tuple[AxisValue, ...]]) -> None:
        self._written = axes
        self._values = {axis: [comparable(axis, value) for value in values] for axis, values in axes.items()}
        self._size = step = prod(map(len, axes.values()))
        self._steps: dict[str, int] = {}  # the distance between points with consecutive values on the axis
        for axis, values in axes.items():
            self._steps[axis] = step = step // len(values)
        self._cache: dict[Comparison, Points] = {}  # rules often share comparisons
        self.everywhere: Points = (1 << self._size) - 1

    def where(self, comparison: Comparison) -> Points:
        """The points at which a comparison holds."""
        if comparison not in self._cache:
            axes = [axis for axis in self._values if axis in (comparison.axis, comparison.other)]
            row = self._row(comparison, axes)
            self._cache[comparison] = _repeated(int(row, 2), len(row), self._size // len(row))
        return self._cache[comparison]

    def _row(self, comparison: Comparison, axes: list[str]) -> str:
        """One binary digit per point, up to the length after which the digits repeat."""
        holds = _OPERATORS[comparison.symbol]
        first, last, step = self._values[axes[0]], self._values[axes[-1]], self._steps[axes[-1]]
        if not comparison.other:
            return "".join("01"[holds(value, comparison.literal)] * step for value in last)
        is_in_order = axes[0] == comparison.axis
        rows = (
            "".join("01"[holds(one, two) if is_in_order else holds(two, one)] * step for two in last) for one in first
        )
        return "".join(row * (self._steps[axes[0]] // len(row)) for row in rows)

    def values_at(self, points: Points) -> Iterator[tuple[AxisValue, ...]]:
        """The values of the points in a set, in order."""
        digits = f"{points:0{self._size}b}".encode().translate(bytes.maketrans(b"01", b"\0\1"))
        return compress(product(*self._written.values()), digits)


def _repeated(points: Points, width: int, times: int) -> Points:
    """Concatenate copies of a set, by doubling, which is much faster than parsing digits."""
    result, count = 0, 0
    for digit in f"{times:b}":
        result, count = result << width * count | result, 2 * count
        if digit == "1":
            result, count = result << width | points, count + 1
    return result


Evaluation = Callable[[Space | Point], Points]
"""Finds the points of a space at which a condition holds."""


@dataclass(frozen=True)
class Condition:
    """A parsed ``when``."""

    source: str
    names: tuple[str, ...] = field(compare=False)  # the axes in it, in axis order
    literals: tuple[tuple[str, AxisValue], ...] = field(
        repr=False, compare=False
    )  # with axes; none from <, <=, > or >=
    points: Evaluation = field(repr=False, compare=False)

    def holds(self, values: Mapping[str, AxisValue]) -> bool:
        """Whether the condition holds at a point, given by its value on each axis."""
        return bool(self.points(Point({axis: comparable(axis, value) for axis, value in values.items()})))


def parse_condition(text: str) -> Condition:
    """Parse a condition."""
    tree = _syntax(text)
    literals: list[tuple[str, AxisValue]] = []
    try:
        points = _compiled(tree, literals, DEEPEST_NESTING)
    except RecursionError:  # in ast.unparse of a deep expression
        _reject(f"is nested more than {DEEPEST_NESTING} levels deep", "Split it into several rules.")
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return Condition(text, tuple(axis for axis in AXES if axis in named), tuple(literals), points)


_LANGUAGE = "A condition compares axes: backend == 'nccl' and world_size in [2, 4]."

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, literals: value in literals,
    "not in": lambda value, literals: value not in literals,
}
_SYMBOLS: Mapping[type[ast.cmpop], str] = dict(
    zip((ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn), _OPERATORS, strict=True)
)
_MIRRORED: Mapping[str, str] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MEMBERSHIP = ("in", "not in")


def _reject(what: str, remedy: str = _LANGUAGE) -> NoReturn:
    raise ConditionError(what, remedy)


def _syntax(text: str) -> ast.expr:
    if len(text) > LONGEST_CONDITION:
        what = f"is longer than {LONGEST_CONDITION} characters"
        _reject(what, "Split it into several rules.")
    try:
        with warnings.catch_warnings():  # about escapes like '\d'
            warnings.simplefilter("ignore")
            return ast.parse(" ".join(text.splitlines()).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        _reject(f"cannot be read: {why}")


def _compiled(node: ast.expr, literals: list[tuple[str, AxisValue]], depth_left: int) -> Evaluation:
    """Compile a node; append its literals to the list."""
    if depth_left == 0:
        _reject(f"is nested more than {DEEPEST_NESTING} levels deep", "Split it into several rules.")
    match node:
        case ast.BoolOp(op=op, values=values):
            parts = [_compiled(value, literals, depth_left - 1) for value in values]
            return _joined(operator.and_ if isinstance(op, ast.And) else operator.or_, parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            points = _compiled(operand, literals, depth_left - 1)
            return lambda space: space.everywhere & ~points(space)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            terms = pairwise(map(_term, (left, *comparators)))
            links = [_comparison(*pair, op, literals) for pair, op in zip(terms, ops, strict=True)]
            return _joined(operator.and_, [partial(_where, link) for link in links])
        case ast.Name() | ast.Constant() if isinstance(term := _term(node), Axis):
            what = f"has the axis {term.name} without a comparison"
            _reject(what, f"Write {term.name} == {term.example}.")
    _reject(f"has {shown(ast.unparse(node))}, which is not a comparison of an axis")


def _where(comparison: Comparison, space: Space | Point) -> Points:
    return space.where(comparison)


def _joined(join: Callable[[Points, Points], Points], parts: list[Evaluation]) -> Evaluation:
    return parts[0] if len(parts) == 1 else lambda space: reduce(join, (points(space) for points in parts))


@dataclass(frozen=True)
class Axis:
    """An axis as a term of a comparison."""

    name: str

    @property
    def kind(self) -> str:
        """The kind of its values, in messages."""
        return {str: "a name", int: "a whole number", Version: "a version"}[type_of_axis[self.name]]

    @property
    def example(self) -> str:
        """A literal for an example."""
        return {"backend": "'nccl'", "init_method": "'env'", "torch": "'2.14.1'"}.get(self.name, "2")

    def check(self, literal: object) -> AxisValue:
        """Check that the axis can be compared with a literal."""
        if isinstance(literal, Axis):
            _reject(f"has the axis {literal.name} inside a list", "A list may only contain literals.")
        if isinstance(literal, tuple):
            _reject("compares with a list", "Write world_size in [2, 4].")
        if not isinstance(literal, str | int) or type(literal) is not written_type(self.name):
            is_quoted_number = self.kind == "a whole number" and str(literal).isdecimal() and len(str(literal)) < 10
            right = literal if is_quoted_number else self.example
            _reject(f"compares {self.name}, {self.kind}, with {shown(literal)}", f"Write {self.name} == {right}.")
        if type_of_axis[self.name] is Version and not is_version(str(literal)):
            what = f"compares {self.name} with {shown(literal)}, which is not a version"
            _reject(what, f"Write {self.name} >= {self.example}.")
        return literal


def _term(node: ast.expr) -> object:
    """An axis, a literal, or a tuple of them."""
    match node:
        case ast.Name(id=name):
            if name not in AXES:
                remedy = f"{did_you_mean(name, AXES)} Write values in quotes."
                _reject(f"has {shown(name)}, which is not an axis", remedy)
            return Axis(name)
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if type(value) is int:
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return tuple(map(_term, elements))
    _reject(f"has {shown(ast.unparse(node))}, which is not a comparison of an axis")


def _comparison(left: object, right: object, op: ast.cmpop, literals: list[tuple[str, AxisValue]]) -> Comparison:
    if type(op) not in _SYMBOLS:
        _reject("compares with 'is'", "Write == or != instead.")
    symbol = _SYMBOLS[type(op)]
    if symbol in _MEMBERSHIP and not (isinstance(left, Axis) and isinstance(right, tuple) and right):
        what = f"uses {symbol!r}, but not between an axis and a list of values"
        _reject(what, "Write world_size in [2, 4].")
    if not isinstance(left, Axis):
        if not isinstance(right, Axis):
            _reject("compares two literals", f"One side must be an axis: {', '.join(AXES)}.")
        left, symbol, right = right, _MIRRORED.get(symbol, symbol), left
    if symbol in _MIRRORED and type_of_axis[left.name] is str:
        what = f"uses {symbol} on {left.name}, whose values have no order"
        _reject(what, f"Compare {left.name} with ==, != or `in`, which need no order.")
    if isinstance(right, Axis):
        if left == right:
            _reject(f"compares {left.name} with itself", "Compare it with a value or with another axis.")
        if left.kind != right.kind:
            what = f"compares {left.name} ({left.kind}) with {right.name} ({right.kind})"
            _reject(what, "Compare axes of the same kind.")
        return Comparison(left.name, symbol, other=right.name)
    is_list = symbol in _MEMBERSHIP
    values = [left.check(literal) for literal in (cast("tuple[object, ...]", right) if is_list else (right,))]
    literals.extend((left.name, value) for value in values if symbol not in _MIRRORED)
    keys = tuple(comparable(left.name, value) for value in values)
    return Comparison(left.name, symbol, keys if is_list else keys[0])
