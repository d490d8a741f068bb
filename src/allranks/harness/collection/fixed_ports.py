"""Finds the fixed port of a launcher test in its source: tests of one port must not overlap.

A scan finds what people write (``os.environ["MASTER_PORT"] = "6789"``, ``port=29500``, ``tcp://localhost:29500``) in a
test, in its class's set-up, in a function that it calls by name, or beside them in its file. A number that is no port
only costs some overlap. A port that is computed, or two calls away, is not found: a test group names such tests.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

_LITERAL: Final = re.compile(
    rb"port[\"'\])]*\s*[=:,]\s*[\"']?([0-9]{4,5})\b|tcp://[\w.-]+:([0-9]{4,5})\b", re.IGNORECASE
)
_SET_UP: Final = ("setUp", "setUpClass", "_run", "run_test", "_init_pg")
"""Methods that run for each test of a class without being named in it."""

_INSTALLED: Final = "/site-packages/"
_OF_TESTS: Final = "/torch/testing/"


@dataclass(frozen=True)
class _Ports:
    """The literal ports of a file."""

    of_functions: Mapping[int, str]  # by the first line of a function, counted with its decorators
    of_file: str = ""  # one outside all functions; empty for none


_NONE: Final = _Ports({})


def fixed_port(test_class: type, name: str) -> str:
    """The port, in digits, that a test binds by its source; empty if none was found."""
    test = _function(inspect.getattr_static(test_class, name, None))
    if test is None:
        return ""
    own = test.__code__
    called = (_function(_named(test_class, test, each)) for each in sorted(set(_names(own))))
    set_up = (_function(vars(base).get(each)) for base in test_class.__mro__ for each in _SET_UP)
    functions = (each for each in (test, *called, *set_up) if each is not None)
    return next(filter(None, map(_port_of, functions)), "") or _ports_in(own.co_filename).of_file


def _named(test_class: type, test: FunctionType, name: str) -> object:
    """What a name in a test may mean: an attribute of its class, or a global of its module."""
    return inspect.getattr_static(test_class, name, None) or test.__globals__.get(name)


def _function(value: object) -> FunctionType | None:
    """The function behind a method and its decorators."""
    found = getattr(value, "__func__", value)
    found = inspect.unwrap(found) if callable(found) else found
    return found if isinstance(found, FunctionType) else None


def _names(code: CodeType) -> Iterator[str]:
    """The names that a function uses, itself or in functions inside it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _port_of(function: FunctionType) -> str:
    code = function.__code__
    if _INSTALLED in code.co_filename and _OF_TESTS not in code.co_filename:
        return ""
    return _ports_in(code.co_filename).of_functions.get(code.co_firstlineno, "")


@cache
def _ports_in(file: str) -> _Ports:
    try:
        source = Path(file).read_bytes()
    except OSError:
        return _NONE
    literals = list(_LITERAL.finditer(source))
    if not literals:
        return _NONE
    found = {source.count(b"\n", 0, each.start()) + 1: (each[1] or each[2]).decode() for each in literals}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return _NONE
    functions = list(_outer_functions(tree))
    homes = {line: next((first for first, last in functions if first <= line <= last), 0) for line in found}
    of_file = next((found[line] for line, home in homes.items() if not home), "")
    return _Ports({home: found[line] for line, home in homes.items() if home}, of_file)


def _outer_functions(node: ast.AST) -> Iterator[tuple[int, int]]:
    """The first line, counted with decorators, and the last line of each function that is in no other."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min((decorator.lineno for decorator in each.decorator_list), default=each.lineno)
            yield first, each.end_lineno or first
        else:
            yield from _outer_functions(each)
