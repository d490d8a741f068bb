"""Dataclasses to JSON and back, with every field checked; a line has the name of its class, too."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from json import dumps, loads
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
_Read = Callable[[Any], Any]


class RecordError(ValueError):
    """A line is not a record of this version; the message gives the reason, as in "is not JSON"."""


def encode_line(message: object) -> bytes:
    """The line of a dataclass: an array of its class's name and its fields; without a line feed."""
    return dumps([type(message).__name__, told(message)], separators=(",", ":")).encode()


def decode_line(line: bytes, kinds: Mapping[str, type[T]]) -> T:
    """The dataclass on a line, of one of these classes.

    Raises:
        RecordError: The line is none of these.
    """
    try:
        value = loads(line)
    except (ValueError, RecursionError) as error:
        msg = "is not JSON"
        raise RecordError(msg) from error
    return build_named(value, kinds)


def check_length(line: bytes, limit: int) -> None:
    """Check that a line is not too long.

    Raises:
        RecordError: It is.
    """
    if len(line) > limit:
        msg = f"has {len(line)} bytes, over the limit of {limit}"
        raise RecordError(msg)


def build_named(value: object, kinds: Mapping[str, type[T]]) -> T:
    """The dataclass in the parsed JSON of a line.

    Raises:
        RecordError: The value is none of these classes.
    """
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
        msg = "is not a record: a name and an object"
        raise RecordError(msg)
    kind = kinds.get(value[0])
    if kind is None:
        msg = f"is of an unknown kind: {value[0][:40]!r}"
        raise RecordError(msg)
    return build(kind, value[1])


def build(kind: type[T], told: object) -> T:
    """Build a frozen dataclass from an object of JSON types, and check every field.

    Raises:
        RecordError: A field is missing, unknown, or of another type.
    """
    if not isinstance(told, dict):
        msg = f"has no object as its {kind.__name__}"
        raise RecordError(msg)
    key: Any = kind
    readers, required = _fields(key)
    if unknown := told.keys() - readers.keys():
        msg = f"has a field that {kind.__name__} has not: {min(unknown)[:40]!r}"
        raise RecordError(msg)
    if missing := required - told.keys():
        msg = f"lacks {min(missing)} of {kind.__name__}"
        raise RecordError(msg)
    values = {}
    for name, value in told.items():
        try:
            values[name] = readers[name](value)
        except RecordError:
            raise
        except (TypeError, ValueError) as error:
            msg = f"has {str(value)[:40]!r} as {name} of {kind.__name__}"
            raise RecordError(msg) from error
    return kind(**values)


def told(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """A record's field value in JSON types; a dataclass omits the fields that have their defaults."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        key: Any = type(value)
        defaults = _defaults(key)
        found = ((name, getattr(value, name)) for name in defaults)
        return {name: told(each) for name, each in found if each is not defaults[name] and each != defaults[name]}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [told(each) for each in value] if value and not isinstance(value[0], str | int | float) else value
    return value


@cache
def _defaults(kind: Any) -> Mapping[str, object]:  # noqa: ANN401 - a dataclass, which no type expresses
    return {field.name: field.default for field in dataclasses.fields(kind)}


@cache
def _fields(kind: Any) -> tuple[Mapping[str, _Read], frozenset[str]]:  # noqa: ANN401 - as above
    """The reader of each field, and the names of the required fields."""
    hints, defaults = get_type_hints(kind), _defaults(kind)
    required = frozenset(name for name, default in defaults.items() if default is dataclasses.MISSING)
    return {name: _reader(hints[name]) for name in defaults}, required


def _reader(hint: Any) -> _Read:  # noqa: ANN401 - any annotation
    if get_origin(hint) is UnionType:
        (other,) = (each for each in get_args(hint) if each is not NoneType)
        read = _reader(other)
        return lambda value: None if value is None else read(value)
    if get_origin(hint) is tuple:
        read, read_list = _reader(get_args(hint)[0]), _reader_of(list)
        return lambda value: tuple(map(read, read_list(value)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        nested: type = hint
        return lambda value: build(nested, value)
    return _SIMPLE[hint]


def _reader_of(kind: type) -> _Read:
    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return read


def _whole(value: object) -> int:
    if type(value) is not int or not -(2**53) < value < 2**53:
        raise TypeError
    return value


def _number(value: object) -> float:
    """Seconds, as a time since the epoch or a duration; values that no clock can produce are refused."""
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e12:  # type: ignore[arg-type]
        raise TypeError
    return float(value)  # type: ignore[arg-type]


_SIMPLE: Final[Mapping[type, _Read]] = {str: _reader_of(str), int: _whole, float: _number, bool: _reader_of(bool)}
