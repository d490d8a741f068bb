"""The small language of ``when``: comparisons of axes, joined by ``and``, ``or`` and ``not``.

Python's grammar parses the text, each node is one of the few known here or refused, and Python itself never evaluates
anything. A condition is evaluated for all points of a matrix at once: a set of points is the bits of a whole number.
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
"""A bound that no condition written by a person reaches; it keeps recursion below Python's limit."""

Points = int
"""A set of points: the first combination of the axes is the highest bit."""


class ConditionError(ValueError):
    """A condition that cannot be used.

    Args:
        what: The problem, as the end of a sentence that begins with the key.
        remedy: The correct form.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}. {remedy}")


@dataclass(frozen=True)
class Comparison:
    """An axis beside a literal, or beside another axis."""

    axis: str
    symbol: str
    literal: Any = None  # comparable, or a tuple of such
    other: str = ""

    def holds(self, values: Mapping[str, Any]) -> bool:
        """True if it holds at a point, given by its comparable value on each axis."""
        return _OPERATORS[self.symbol](values[self.axis], values[self.other] if self.other else self.literal)


@dataclass(frozen=True)
class Point:
    """A single combination of values."""

    values: Mapping[str, Any]  # comparable, by axis
    everywhere: Points = 1

    def where(self, comparison: Comparison) -> Points:
        """1 if a comparison holds here, else 0."""
        return int(comparison.holds(self.values))


class Space:
    """Every combination of the values of some axes, in the order of :func:`itertools.product`."""

    def __init__(self, axes: Mapping[str, tuple[AxisValue, ...]]) -> None:
        self._written = axes
        self._values = {axis: [comparable(axis, value) for value in values] for axis, values in axes.items()}
        self._size = step = prod(map(len, axes.values()))
        self._steps: dict[str, int] = {}  # the distance of points that differ by one value of the axis
        for axis, values in axes.items():
            self._steps[axis] = step = step // len(values)
        self._known: dict[Comparison, Points] = {}  # many rules have some of the same
        self.everywhere: Points = (1 << self._size) - 1

    def where(self, comparison: Comparison) -> Points:
        """The points at which a comparison holds."""
        if comparison not in self._known:
            axes = [axis for axis in self._values if axis in (comparison.axis, comparison.other)]
            row = self._row(comparison, axes)
            self._known[comparison] = _repeated(int(row, 2), len(row), self._size // len(row))
        return self._known[comparison]

    def _row(self, comparison: Comparison, axes: list[str]) -> str:
        """A digit for each point, for as many of them as it takes until all digits repeat."""
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
        """The values of each point of a set, in their order."""
        digits = f"{points:0{self._size}b}".encode().translate(bytes.maketrans(b"01", b"\0\1"))
        return compress(product(*self._written.values()), digits)


def _repeated(points: Points, width: int, times: int) -> Points:
    """So many copies of a set, side by side; by doubling, since Python reads digits much slower than that."""
    result, count = 0, 0
    for digit in f"{times:b}":
        result, count = result << width * count | result, 2 * count
        if digit == "1":
            result, count = result << width | points, count + 1
    return result


Test = Callable[[Space | Point], Points]


@dataclass(frozen=True)
class Condition:
    """One ``when``."""

    source: str
    names: tuple[str, ...] = field(compare=False)  # the axes that it names, in axis order
    # Each axis with a value that it is compared with for equality.
    literals: tuple[tuple[str, AxisValue], ...] = field(repr=False, compare=False)
    points: Test = field(repr=False, compare=False)  # the points of a space at which it holds

    def holds(self, values: Mapping[str, AxisValue]) -> bool:
        """True if the condition holds at one point, given by its value on each axis."""
        return bool(self.points(Point({axis: comparable(axis, value) for axis, value in values.items()})))


def parse_condition(text: str) -> Condition:
    """Reads one ``when``."""
    tree = _syntax(text)
    literals: list[tuple[str, AxisValue]] = []
    try:
        test = _test(tree, literals, DEEPEST_NESTING)
    except RecursionError:  # of the text of a deep expression, for a message
        _reject(f"is nested more than {DEEPEST_NESTING} deep", "Split it into several rules.")
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return Condition(text, tuple(axis for axis in AXES if axis in named), tuple(literals), test)


_LANGUAGE = "A condition compares axes: backend == 'nccl' and gpu_count < world_size, or world_size in [2, 4]."

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
        with warnings.catch_warnings():  # Python warns of escapes like '\d', but this is the user's text and not code
            warnings.simplefilter("ignore")
            return ast.parse(" ".join(text.splitlines()).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        _reject(f"cannot be read: {why}")


def _test(node: ast.expr, literals: list[tuple[str, AxisValue]], room: int) -> Test:
    """What a node means, as a function of the space; its literals are appended to the list."""
    if room == 0:
        _reject(f"is nested more than {DEEPEST_NESTING} deep", "Split it into several rules.")
    match node:
        case ast.BoolOp(op=op, values=values):
            tests = [_test(value, literals, room - 1) for value in values]
            return _joined(operator.and_ if isinstance(op, ast.And) else operator.or_, tests)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            test = _test(operand, literals, room - 1)
            return lambda space: space.everywhere & ~test(space)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            terms = pairwise(map(_term, (left, *comparators)))
            links = [_comparison(*pair, op, literals) for pair, op in zip(terms, ops, strict=True)]
            return _joined(operator.and_, [partial(_where, link) for link in links])
        case ast.Name() | ast.Constant() if isinstance(term := _term(node), Axis):
            what = f"names the axis {term.name} without comparing it"
            _reject(what, f"Write {term.name} == {term.example}.")
    _reject(f"has {shown(ast.unparse(node))}, which is not a comparison of an axis")


def _where(comparison: Comparison, space: Space | Point) -> Points:
    return space.where(comparison)


def _joined(join: Callable[[Points, Points], Points], tests: list[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda space: reduce(join, (test(space) for test in tests))


@dataclass(frozen=True)
class Axis:
    """An axis as a term of a comparison."""

    name: str

    @property
    def kind(self) -> str:
        """What its values are, in words."""
        return {str: "a name", int: "a whole number", Version: "a version"}[type_of_axis[self.name]]

    @property
    def example(self) -> str:
        """One value, as a condition has it."""
        return {"backend": "'nccl'", "init_method": "'env'", "torch": "'2.14.1'"}.get(self.name, "2")

    def check(self, literal: object) -> AxisValue:
        """The literal, if the axis can be compared with it."""
        if isinstance(literal, Axis):
            _reject(f"has the axis {literal.name} inside a list", "A list holds literals only.")
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
                remedy = f"{did_you_mean(name, AXES)} A value is written in quotes."
                _reject(f"names {shown(name)}, which is not an axis", remedy)
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
        what = f"uses {symbol!r} otherwise than between an axis and a list of values"
        _reject(what, "Write world_size in [2, 4].")
    if not isinstance(left, Axis):
        if not isinstance(right, Axis):
            _reject("compares two literals", f"One side has to be an axis: {', '.join(AXES)}.")
        left, symbol, right = right, _MIRRORED.get(symbol, symbol), left
    if symbol in _MIRRORED and type_of_axis[left.name] is str:
        what = f"asks for an order with {symbol} on {left.name}"
        _reject(what, f"Names have none: use ==, != or in on {left.name}.")
    if isinstance(right, Axis):
        if left == right:
            _reject(f"compares {left.name} with itself", "Compare it with a value or with another axis.")
        if left.kind != right.kind:
            what = f"compares {left.name} ({left.kind}) with {right.name} ({right.kind})"
            _reject(what, "Compare axes of one kind.")
        return Comparison(left.name, symbol, other=right.name)
    is_list = symbol in _MEMBERSHIP
    values = [left.check(literal) for literal in (cast("tuple[object, ...]", right) if is_list else (right,))]
    literals.extend((left.name, value) for value in values if symbol not in _MIRRORED)
    keys = tuple(comparable(left.name, value) for value in values)
    return Comparison(left.name, symbol, keys if is_list else keys[0])
