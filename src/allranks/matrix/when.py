"""The small language of ``when``: a boolean expression over the axes.

It has comparisons (chained too), ``and``, ``or``, ``not``, ``in`` and ``not in`` with a list of literals, and
nothing else. Python's own grammar parses the text, and then every node is either one of the few known here or
refused: Python itself never evaluates anything.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from packaging.version import Version

from allranks.errors import did_you_mean, listed, shown
from allranks.matrix.axes import AXES, NO_TORCH, AxisValue, Values, comparable, is_version, type_of_axis, written_type

LONGEST_CONDITION = 10_000
DEEPEST_NESTING = 50
"""A bound that no condition written by a person reaches; it keeps recursion below Python's limit."""


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


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis on the right-hand side of a comparison."""

    name: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """``axis operator right``."""

    axis: str
    operator: str
    right: Axis | AxisValue | tuple[AxisValue, ...]

    @property
    def names(self) -> frozenset[str]:
        """The one or two axes that are compared."""
        return frozenset((self.axis, self.right.name) if isinstance(self.right, Axis) else (self.axis,))

    def holds(self, values: Mapping[str, AxisValue]) -> bool:
        """True if the comparison holds at one point."""
        right = values[self.right.name] if isinstance(self.right, Axis) else self.right
        return _TEST_OF[self.operator](comparable(self.axis, values[self.axis]), comparable(self.axis, right))


@dataclass(frozen=True, slots=True)
class Not:
    """Holds if its part does not."""

    part: "Node"

    def holds(self, values: Mapping[str, AxisValue]) -> bool:
        """True if the part does not hold at one point."""
        return not self.part.holds(values)


@dataclass(frozen=True, slots=True)
class Group:
    """Holds if all, or any, of its parts do."""

    join: Callable[[Iterable[bool]], bool]
    parts: tuple["Node", ...]

    def holds(self, values: Mapping[str, AxisValue]) -> bool:
        """True if the group holds at one point."""
        return self.join(part.holds(values) for part in self.parts)


Node = Comparison | Not | Group


@dataclass(frozen=True)
class Condition:
    """One ``when``."""

    source: str
    tree: Node = field(repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes that the condition names, in axis order."""
        named = {name for comparison in comparisons(self.tree) for name in comparison.names}
        return tuple(axis for axis in AXES if axis in named)

    def holds(self, values: Mapping[str, AxisValue]) -> bool:
        """True if the condition holds at one point (see :meth:`allranks.matrix.model.Cell.axes`)."""
        return self.tree.holds(values)


def comparisons(node: Node) -> Iterator[Comparison]:
    """Every comparison of a condition, from left to right."""
    match node:
        case Comparison():
            yield node
        case Not(part):
            yield from comparisons(part)
        case Group(_, parts):
            for part in parts:
                yield from comparisons(part)


def parse_condition(text: str) -> Condition:
    """Reads one ``when``.

    Raises:
        ConditionError: The text is not a condition, names an unknown axis, or compares incomparable values.
    """
    return Condition(source=text, tree=_node(_syntax(text), DEEPEST_NESTING))


def check_literals(condition: Condition, values: Values) -> None:
    """Refuses a condition that compares an axis with a value that the axis does not have.

    Args:
        condition: A condition of a matrix.
        values: Every value that a cell of that matrix has, by axis.

    Raises:
        ConditionError: Suggests the value that may have been meant.
    """
    for axis, literal in absent_literals(condition, values):
        raise off_axis(axis, literal, values)


def off_axis(axis: str, literal: AxisValue, values: Values) -> ConditionError:
    """The error for a value that an axis does not have."""
    known = values[axis]
    what = f"asks for {shown(literal)}, which is not on the axis {axis} ({listed(known)})"
    return ConditionError(what, did_you_mean(literal, known))


def absent_literals(condition: Condition, values: Values) -> Iterator[tuple[str, AxisValue]]:
    """Each axis and value that a condition compares where no cell has that value.

    Only equality and ``in`` are checked: ``world_size > 3`` is valid whatever values the axis has.

    Raises:
        ConditionError: The condition names ``torch``, which is no axis of this matrix.
    """
    for comparison in comparisons(condition.tree):
        if isinstance(comparison.right, Axis):
            continue
        known = values[comparison.axis]
        if set(known) == {NO_TORCH}:
            what = f"names {comparison.axis}, which is no axis of this matrix"
            raise ConditionError(what, f'Add {comparison.axis} = ["2.13.0", "2.14.1"] to [matrix].')
        if comparison.operator in _ORDER:
            continue
        right = comparison.right if isinstance(comparison.right, tuple) else (comparison.right,)
        keys = {comparable(comparison.axis, value) for value in known}
        for literal in right:
            if comparable(comparison.axis, literal) not in keys:
                yield comparison.axis, literal


_TEST_OF: Mapping[str, Callable[..., bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}

_ORDER: Mapping[str, str] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The ordering operators, each with its mirror image for swapped operands."""

_OPERATOR_OF: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}

_REFUSED: Mapping[type[ast.AST], str] = {
    ast.Call: "calls a function",
    ast.Attribute: "reads an attribute",
    ast.Subscript: "takes an item",
    ast.BinOp: "does arithmetic",
    ast.UnaryOp: "does arithmetic or compares a truth value",
    ast.Lambda: "defines a function",
    ast.IfExp: "uses if",
    ast.JoinedStr: "formats a string",
    ast.NamedExpr: "assigns with :=",
}

_LANGUAGE = "A condition compares axes: backend == 'nccl' and gpu_count < world_size, or world_size in [2, 4]."


def _syntax(text: str) -> ast.expr:
    if len(text) > LONGEST_CONDITION:
        raise ConditionError(
            what=f"is longer than {LONGEST_CONDITION} characters", remedy="Split it into several rules."
        )
    try:
        with warnings.catch_warnings():  # Python warns of escapes like '\d', but this is the user's text and not code
            warnings.simplefilter("ignore")
            return ast.parse(" ".join(text.splitlines()).strip(), mode="eval").body
    except SyntaxError as error:
        raise ConditionError(what=f"cannot be read as a condition: {error.msg}", remedy=_LANGUAGE) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConditionError(what=f"cannot be read as a condition: {error}", remedy=_LANGUAGE) from None


def _node(node: ast.expr, room: int) -> Node:
    if room == 0:
        raise ConditionError(what=f"is nested more than {DEEPEST_NESTING} deep", remedy="Split it into several rules.")
    match node:
        case ast.BoolOp(op=op, values=values):
            return Group(all if isinstance(op, ast.And) else any, tuple(_node(value, room - 1) for value in values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(_node(operand, room - 1))
        case ast.Compare():
            return _chain(node)
        case ast.Name(id=name):
            axis = _axis(name).name
            raise ConditionError(
                what=f"names the axis {axis} without comparing it", remedy=f"Write {axis} == {_example(axis)}."
            )
        case ast.Constant(value=value):
            raise ConditionError(what=f"holds a bare {shown(value)}", remedy=_LANGUAGE)
        case _:
            raise _refusal(node)


def _chain(node: ast.Compare) -> Node:
    terms = [node.left, *node.comparators]
    links = zip(pairwise(terms), node.ops, strict=True)
    parts = tuple(_comparison(left, _operator(op), right) for (left, right), op in links)
    return parts[0] if len(parts) == 1 else Group(all, parts)


def _operator(op: ast.cmpop) -> str:
    if type(op) not in _OPERATOR_OF:
        raise ConditionError(what="compares with 'is'", remedy="Write == or != instead.")
    return _OPERATOR_OF[type(op)]


def _comparison(left: ast.expr, symbol: str, right: ast.expr) -> Comparison:
    if symbol in {"in", "not in"}:
        return _membership(left, symbol, right)
    match _operand(left), _operand(right):
        case Axis() as first, Axis() as second:
            return _between_axes(first, symbol, second)
        case Axis(axis), literal:
            return _with_literal(axis, symbol, literal)
        case literal, Axis(axis):
            return _with_literal(axis, _ORDER.get(symbol, symbol), literal)
        case _:
            raise ConditionError(what="compares two literals", remedy=f"One side has to be an axis: {', '.join(AXES)}.")


def _membership(left: ast.expr, symbol: str, right: ast.expr) -> Comparison:
    axis = _operand(left)
    if not isinstance(axis, Axis) or not isinstance(right, ast.List | ast.Tuple):
        what = f"uses {symbol!r} otherwise than between an axis and a list"
        raise ConditionError(what, "Write world_size in [2, 4].")
    literals = tuple(_operand(element) for element in right.elts)
    if not literals:
        raise ConditionError(what=f"uses {symbol!r} with an empty list", remedy=f"Give {axis.name} at least one value.")
    return Comparison(axis.name, symbol, tuple(_literal_for(axis.name, literal) for literal in literals))


def _between_axes(first: Axis, symbol: str, second: Axis) -> Comparison:
    if first == second:
        raise ConditionError(
            what=f"compares {first.name} with itself", remedy="Compare it with a value or with another axis."
        )
    if type_of_axis[first.name] is not type_of_axis[second.name]:
        what = f"compares {first.name} ({_kind(first.name)}) with {second.name} ({_kind(second.name)})"
        raise ConditionError(what, "Compare axes of one kind.")
    _check_order(first.name, symbol)
    return Comparison(first.name, symbol, second)


def _with_literal(axis: str, symbol: str, literal: Axis | AxisValue) -> Comparison:
    _check_order(axis, symbol)
    return Comparison(axis, symbol, _literal_for(axis, literal))


def _check_order(axis: str, symbol: str) -> None:
    if symbol in _ORDER and type_of_axis[axis] is str:
        raise ConditionError(
            what=f"asks for an order with {symbol} on {axis}", remedy=f"Names have none: use ==, != or in on {axis}."
        )


def _literal_for(axis: str, literal: Axis | AxisValue) -> AxisValue:
    if isinstance(literal, Axis):
        raise ConditionError(what=f"has the axis {literal.name} inside a list", remedy="A list holds literals only.")
    if type(literal) is not written_type(axis):
        what = f"compares {axis}, {_kind(axis)}, with {shown(literal)}"
        raise ConditionError(what, f"Write {axis} == {_right_literal(axis, literal)}.")
    if type_of_axis[axis] is Version and not is_version(str(literal)):
        what = f"compares {axis} with {shown(literal)}, which is no version"
        raise ConditionError(what, f"Write {axis} >= {_example(axis)}.")
    return literal


def _right_literal(axis: str, literal: AxisValue) -> str:
    is_number_in_quotes = type_of_axis[axis] is int and str(literal).isdecimal() and len(str(literal)) < 10
    return str(literal) if is_number_in_quotes else _example(axis)


def _operand(node: ast.expr) -> Axis | AxisValue:
    match node:
        case ast.Name(id=name):
            return _axis(name)
        case ast.Constant(value=str() | int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if not isinstance(value, bool):
            return -value
        case ast.Constant(value=value):
            raise ConditionError(
                what=f"compares with {shown(value)}", remedy="A value is a whole number or a quoted name."
            )
        case ast.List() | ast.Tuple():
            raise ConditionError(what="compares with a list", remedy="Write world_size in [2, 4].")
        case _:
            raise _refusal(node)


def _axis(name: str) -> Axis:
    if name not in AXES:
        remedy = f"{did_you_mean(name, AXES)} A value is written in quotes."
        raise ConditionError(what=f"names {shown(name)}, which is no axis", remedy=remedy)
    return Axis(name)


def _refusal(node: ast.expr) -> ConditionError:
    deed = _REFUSED.get(type(node), "holds more than comparisons of axes with values")
    return ConditionError(f"{deed}, which a condition cannot", _LANGUAGE)


def _kind(axis: str) -> str:
    if type_of_axis[axis] is Version:
        return "a version"
    return "a name" if type_of_axis[axis] is str else "a whole number"


def _example(axis: str) -> str:
    return {"backend": "'nccl'", "init_method": "'env'", "torch": "'2.14.1'"}.get(axis, "2")
