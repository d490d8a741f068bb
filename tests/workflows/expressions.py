"""Expressions of GitHub Actions, as far as our workflows use them; whatever else is an error, and not null.

The grammar and its conversions are those of
https://docs.github.com/actions/reference/workflows-and-actions/expressions.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?)|(?P<string>'(?:[^']|'')*')|(?P<name>[A-Za-z_][A-Za-z0-9_-]*)"
    r"|(?P<operator>\|\||&&|==|!=|<=|>=|[!<>().,*\[\]]))"
)
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


class ExpressionError(Exception):
    """An expression that GitHub, or this evaluator, does not know."""


@dataclass(frozen=True)
class Open:
    """A part of a context that may have any property, all others being null: what a webhook sends."""

    value: Mapping[str, Any]


@dataclass(frozen=True)
class Scope:
    """What an expression may speak of.

    Attributes:
        contexts: Each with exactly the properties that it may have.
        status: The functions ``always``, ``success``, ``failure`` and ``cancelled``, where they are allowed.
    """

    contexts: Mapping[str, Any]
    status: Mapping[str, bool] = field(default_factory=dict)


def evaluate(text: str, scope: Scope) -> Any:
    """The value of one expression, without its braces."""
    return _Parser(text, scope).value()


def condition(text: str | bool | None, scope: Scope) -> bool:
    """The value of an ``if:``, in which ``success()`` is added where no status function is named."""
    if text is None:
        return scope.status["success"]
    source = str(text).strip()
    if whole := EXPRESSION.fullmatch(source):
        source = whole[1]
    found = truth(evaluate(source, scope))
    named = re.search(r"\b(always|success|failure|cancelled)\s*\(", source)
    return found if named else found and scope.status["success"]


def filled(value: Any, scope: Scope) -> Any:
    """A value of the workflow with its expressions evaluated: one that is all of a string keeps its type."""
    if isinstance(value, Mapping):
        return {key: filled(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, scope) for item in value]
    if not isinstance(value, str):
        return value
    if (whole := EXPRESSION.fullmatch(value.strip())) and "${{" not in whole[1]:
        return evaluate(whole[1], scope)
    return EXPRESSION.sub(lambda match: as_text(evaluate(match[1], scope)), value)


def truth(value: Any) -> bool:
    return value not in (None, False, 0, "") or isinstance(value, (dict, list, Open))


def as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case str() | int() | float():
            return str(value)
    msg = f"{value!r} has no text"
    raise ExpressionError(msg)


def as_number(value: Any) -> float:
    match value:
        case None:
            return 0.0
        case bool() | int() | float():
            return float(value)
        case str():
            try:
                return float(value or 0)
            except ValueError:
                return math.nan
    return math.nan


class _Parser:
    """Reads from left to right and evaluates as it goes."""

    def __init__(self, text: str, scope: Scope) -> None:
        self._text = text
        self._scope = scope
        self._tokens = list(_tokens(text))
        self._functions: Mapping[str, Callable[..., Any]] = {
            "contains": _contains,
            "format": lambda text, *values: as_text(text).format(*map(as_text, values)),
            "fromjson": lambda text: json.loads(as_text(text)),
            "startswith": lambda text, beginning: as_text(text).lower().startswith(as_text(beginning).lower()),
            "tojson": lambda value: json.dumps(value, indent=2),
            **{name: (lambda value=value: value) for name, value in scope.status.items()},
        }

    def value(self) -> Any:
        found = self._either()
        if self._tokens:
            self._fail(f"{self._tokens[0][1]!r} is left")
        return found

    def _fail(self, why: str) -> None:
        msg = f"{self._text.strip()!r}: {why}"
        raise ExpressionError(msg)

    def _next(self, *operators: str) -> str | None:
        if self._tokens and self._tokens[0][0] == "operator" and self._tokens[0][1] in operators:
            return self._tokens.pop(0)[1]
        return None

    def _need(self, operator: str) -> None:
        if not self._next(operator):
            self._fail(f"{operator!r} is missing")

    def _either(self) -> Any:
        left = self._both()
        while self._next("||"):
            right = self._both()
            left = left if truth(left) else right
        return left

    def _both(self) -> Any:
        left = self._compared()
        while self._next("&&"):
            right = self._compared()
            left = right if truth(left) else left
        return left

    def _compared(self) -> Any:
        left = self._negated()
        while operator := self._next(*COMPARISONS):
            left = _compare(operator, left, self._negated())
        return left

    def _negated(self) -> Any:
        return not truth(self._negated()) if self._next("!") else self._path()

    def _path(self) -> Any:
        value = self._first()
        while dot := self._next(".", "["):
            if dot == "." and self._next("*"):
                return self._of_all(value)
            if dot == ".":
                name = self._take("name")
            else:
                name = as_text(self._either())
                self._need("]")
            value = self._property(value, name)
        return value.value if isinstance(value, Open) else value

    def _of_all(self, value: Any) -> list[Any]:
        """A property of all elements of a list that a webhook sends; without the list there are none."""
        self._need(".")
        name = self._take("name")
        if value == Open(None):
            return []
        if not isinstance(value, list):
            self._fail("the stand-in knows .* of lists alone")
        return [element[name] for element in value if name in element]

    def _property(self, value: Any, name: str) -> Any:
        if isinstance(value, Open):
            found = (value.value or {}).get(name)
            return Open(found) if isinstance(found, dict) or found is None else found
        if name.isdecimal() and isinstance(value, (list, Mapping)):
            # Past the end of a list, and in what is none, there is nothing.
            return value[int(name)] if isinstance(value, list) and int(name) < len(value) else None
        if not isinstance(value, Mapping) or name not in value:
            self._fail(f"there is no {name!r}")
        return value[name]

    def _take(self, kind: str) -> str:
        if not self._tokens or self._tokens[0][0] != kind:
            self._fail(f"a {kind} is missing")
        return self._tokens.pop(0)[1]

    def _first(self) -> Any:
        if self._next("("):
            value = self._either()
            self._need(")")
            return value
        if not self._tokens:
            self._fail("it ends too early")
        kind, text = self._tokens.pop(0)
        match kind:
            case "number":
                return float(text)
            case "string":
                return text[1:-1].replace("''", "'")
            case "name":
                return self._named(text)
        self._fail(f"{text!r} is out of place")
        return None

    def _named(self, name: str) -> Any:
        if name in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[name]
        if self._next("("):
            return self._called(name)
        if name not in self._scope.contexts:
            self._fail(f"there is no context {name!r} here")
        return self._scope.contexts[name]

    def _called(self, name: str) -> Any:
        if name.lower() not in self._functions:
            self._fail(f"there is no function {name!r} here")
        arguments = []
        while not self._next(")"):
            arguments.append(self._either())
            self._next(",")
        return self._functions[name.lower()](*arguments)


def _tokens(text: str):
    place = 0
    while text[place:].strip():
        found = TOKEN.match(text, place)
        if not found:
            msg = f"{text.strip()!r}: {text[place:].strip()[:10]!r} is no expression"
            raise ExpressionError(msg)
        place = found.end()
        yield found.lastgroup, found[found.lastgroup]


def _compare(operator: str, left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        pair: tuple[Any, Any] = (left.lower(), right.lower())
    elif left is None and right is None:
        pair = (0, 0)
    elif isinstance(left, (Mapping, list)) or isinstance(right, (Mapping, list)):
        pair = (0, 0 if left is right else 1)
    else:
        pair = (as_number(left), as_number(right))
    one, other = pair
    return {
        "==": one == other,
        "!=": one != other,
        "<": one < other,
        "<=": one <= other,
        ">": one > other,
        ">=": one >= other,
    }[operator]


def _contains(where: Any, what: Any) -> bool:
    if isinstance(where, list):
        return any(_compare("==", item, what) for item in where)
    return as_text(what).lower() in as_text(where).lower()
