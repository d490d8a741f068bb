"""Digests of the parameter values of tests: processes that collect the same suite compare these.

pytest numbers parameters that have no obvious name: ``test_x[case0]`` is the first one. If the parameters come from a
set, a folder listing or a random generator, the same id may have a different value in each process.

A digest has two parts. *Fixed* values, such as numbers, text and enums, must be equal in all processes of a run.
*Variable* values depend on the process or the time: paths below the temporary folder, UUIDs, times, and objects whose
``repr`` is in angle brackets.
"""

import dataclasses
import datetime as dt
import functools
import hashlib
import operator
import os
import re
import tempfile
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

_DEEPEST: Final = 8
_MOST_PARTS: Final = 10_000
"""Parts of one test's values that are compared; any others are ignored."""

_LENGTH: Final = 8
"""Hexadecimal digits of each part: about one in four billion pairs of different values has equal digests."""

_ADDRESS: Final = re.compile(r"\b0x[0-9a-fA-F]+|(?<=id=')\d+")
_VARIABLE_TYPES: Final = (uuid.UUID, dt.date, dt.time)
_PLAIN_TYPES: Final = frozenset({type(None), type(...), bool, int, float, complex, range, slice})


def digests(items: "Iterable[pytest.Item]") -> dict[str, str]:
    """The digest of each test's parameter values, by node id; empty for a test without parameters."""
    return {item.nodeid: digest(getattr(getattr(item, "callspec", None), "params", {})) for item in items}


def digest(values: Mapping[str, object]) -> str:
    """The digest of parameter values, by name: ``<fixed>``, or ``<fixed>.<variable>`` if there are variable values."""
    return _Description.of(values).digest() if values else ""


class _Description:
    """Hashes the texts of values; fixed and variable values are hashed separately."""

    def __init__(self) -> None:
        self._fixed, self._variable = hashlib.sha256(), hashlib.sha256()
        self._has_variable = False
        self._left = _MOST_PARTS

    @classmethod
    def of(cls, value: object) -> "_Description":
        new = cls()
        new.add(value, _DEEPEST)
        return new

    def digest(self) -> str:
        fixed = self._fixed.hexdigest()[:_LENGTH]
        return f"{fixed}.{self._variable.hexdigest()[:_LENGTH]}" if self._has_variable else fixed

    def add(self, value: object, depth: int) -> None:
        self._left -= 1
        if depth < 0 or self._left < 0:
            return
        try:
            self._add(value, depth)
        except Exception:  # noqa: BLE001 - this runs code of the suite; a value that raises is not compared
            return

    def _add(self, value: Any, depth: int) -> None:  # noqa: ANN401 - any parameter value
        kind = type(value)
        self._add_text(f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(value, Enum):
            self._add_text(repr(value.name))
        elif kind in _PLAIN_TYPES:
            self._add_text(repr(value))
        elif isinstance(value, str | bytes | os.PathLike):
            text = value if isinstance(value, str) else os.fsdecode(value)
            self._add_text(text, is_variable=_is_temporary(text))
        elif isinstance(value, _VARIABLE_TYPES):
            self._add_text(repr(value), is_variable=True)
        else:
            parts = _parts(value)
            if parts is None:
                self._add_opaque(value)
                return
            for part in parts:
                self.add(part, depth - 1)

    def _add_opaque(self, value: Any) -> None:  # noqa: ANN401 - as above
        """Add the number of an object with ``__index__``, such as ``ReduceOp.SUM``, or else its ``repr``."""
        if hasattr(type(value), "__index__"):
            with suppress(TypeError):
                self._add_text(str(operator.index(value)))
                return
        text = repr(value)
        self._add_text(_ADDRESS.sub("", text), is_variable=text.startswith("<") or _is_temporary(text))

    def _add_text(self, text: str, *, is_variable: bool = False) -> None:
        """Append a text with its length, so that different sequences of texts have different digests."""
        data = text.encode("utf-8", "surrogatepass")
        (self._variable if is_variable else self._fixed).update(b"%d:%b" % (len(data), data))
        self._has_variable = self._has_variable or is_variable


def _is_temporary(text: str) -> bool:
    return any(folder in text for folder in _temporary_folders())


@functools.cache
def _temporary_folders() -> frozenset[str]:
    return frozenset({tempfile.gettempdir(), os.path.realpath(tempfile.gettempdir())})


def _parts(value: Any) -> Iterable[object] | None:  # noqa: ANN401, PLR0911 - any parameter value, one line for each kind
    """The parts of a value, in an order that is the same in all processes; None if they are unknown."""
    if isinstance(value, Mapping):
        return _in_order(value.items())
    if isinstance(value, AbstractSet):
        return _in_order(value)
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, types.FunctionType):
        return _parts_of_function(value)
    if isinstance(value, type | types.BuiltinFunctionType | types.ModuleType):
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", value.__name__)
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        return _in_order(vars(value).items())
    return None


def _in_order(values: Iterable[object]) -> list[object]:
    return sorted(values, key=lambda value: _Description.of(value).digest())


def _parts_of_function(function: types.FunctionType) -> Iterator[object]:
    """The name; for a lambda or an inner function, whose name is not unique, also its code and captured values."""
    yield function.__module__
    yield function.__qualname__
    if "<" in function.__qualname__:
        code = function.__code__
        yield code.co_code.hex()
        yield code.co_names
        yield [const for const in code.co_consts if not isinstance(const, types.CodeType)]
        yield function.__defaults__
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # its variable is not assigned yet
                yield cell.cell_contents


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The differences between two collections."""

    other_values: tuple[str, ...] = ()  # node ids whose fixed values differ
    other_variables: tuple[str, ...] = ()  # node ids whose variable values differ, but not their fixed ones
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    """Compare two collections, which map node ids to digests."""
    both = [nodeid for nodeid in before if nodeid in after and before[nodeid] != after[nodeid]]
    return Changes(
        other_values=tuple(nodeid for nodeid in both if _fixed(before[nodeid]) != _fixed(after[nodeid])),
        other_variables=tuple(nodeid for nodeid in both if _fixed(before[nodeid]) == _fixed(after[nodeid])),
        added=tuple(nodeid for nodeid in after if nodeid not in before),
        removed=tuple(nodeid for nodeid in before if nodeid not in after),
    )


def _fixed(found: str) -> str:
    return found.partition(".")[0]


REMEDY: Final = (
    "Give the parameters an order and values that do not depend on the process: sort a set or a folder listing, and "
    "seed random generators. If you set PYTHONHASHSEED, set it to a number."
)

VARIABLE: Final = "variable parameters (temporary paths, times or objects)"
"""The description of variable values in messages."""
