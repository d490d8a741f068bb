"""Converts frozen dataclasses to JSON and back, and checks every field: the codec for data between processes.

An object has the fields that differ from their defaults. A value that may be one of several dataclasses, such as a line
or a field whose type is a union, is an array of the class's name and its object. Fields can also be strings, numbers,
enumerations, literals, paths, named tuples, tuples of any length, and mappings from strings or integers.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache, partial
from json import dumps, loads
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

Bits = NewType("Bits", int)
"""A bit field of any size; hexadecimal in JSON."""


class RecordError(ValueError):
    """A line is not a record of this version; the message has the reason, such as "is not JSON"."""


def by_name(kinds: Iterable[type[T]]) -> Mapping[str, type[T]]:
    """Classes by their names, for :func:`decode_line`."""
    return {kind.__name__: kind for kind in kinds}


def encode_line(message: object) -> bytes:
    """Encode a dataclass as a line: an array of its class's name and its fields, without a line feed."""
    return dumps(_named(message), separators=(",", ":")).encode()


def decode_line(line: bytes, kinds: Mapping[str, type[T]]) -> T:
    """Decode a line as one of these classes; RecordError if it is anything else."""
    try:
        value = loads(line)
    except (ValueError, RecursionError) as error:
        msg = "is not JSON"
        raise RecordError(msg) from error
    return _from_named(kinds, value)


def check_length(line: bytes, limit: int) -> None:
    """Raise a RecordError if a line is too long."""
    if len(line) > limit:
        msg = f"has {len(line)} bytes, over the limit of {limit}"
        raise RecordError(msg)


def to_object(value: object) -> dict[str, Any]:
    """The JSON object of a dataclass, without fields that have their defaults."""
    members: dict[str, Any] = {}
    kind: Any = type(value)
    for name, field in _fields(kind).items():
        member = getattr(value, name)
        if member is not field.default and member != field.default:
            members[name] = member if field.write is None else field.write(member)
    return members


def from_object(kind: type[T], value: object) -> T:
    """Build a dataclass from its JSON object; RecordError for any missing, unknown or mistyped field."""
    if not isinstance(value, dict):
        msg = f"has no object as its {kind.__name__}"
        raise RecordError(msg)
    key: Any = kind
    fields = _fields(key)
    if unknown := value.keys() - fields.keys():
        msg = f"has a field that {kind.__name__} does not have: {min(unknown)[:40]!r}"
        raise RecordError(msg)
    if missing := _required(key) - value.keys():
        msg = f"lacks {min(missing)} of {kind.__name__}"
        raise RecordError(msg)
    arguments = {}
    for name, member in value.items():
        try:
            arguments[name] = fields[name].read(member)
        except RecordError:
            raise
        except (TypeError, ValueError) as error:
            msg = f"has {str(member)[:40]!r} as {name} of {kind.__name__}"
            raise RecordError(msg) from error
    return kind(**arguments)


def _named(value: object) -> list[object]:
    return [type(value).__name__, to_object(value)]


def _from_named(kinds: Mapping[str, type[T]], value: object) -> T:
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
        msg = "is not a record: a name and an object"
        raise RecordError(msg)
    kind = kinds.get(value[0])
    if kind is None:
        msg = f"is of an unknown kind: {value[0][:40]!r}"
        raise RecordError(msg)
    return from_object(kind, value[1])


class _Codec(NamedTuple):
    """Writes and reads values of one type; reading raises TypeError or ValueError for any other value."""

    write: Callable[[Any], Any] | None  # None if the values are JSON already
    read: Callable[[Any], Any]


class _Field(NamedTuple):
    default: Any
    write: Callable[[Any], Any] | None
    read: Callable[[Any], Any]


@cache
def _fields(kind: Any) -> Mapping[str, _Field]:  # noqa: ANN401 - a dataclass, which no type expresses
    hints = get_type_hints(kind)
    return {field.name: _Field(_default(field), *_codec(hints[field.name])) for field in dataclasses.fields(kind)}


@cache
def _required(kind: Any) -> frozenset[str]:  # noqa: ANN401 - as above
    return frozenset(name for name, field in _fields(kind).items() if field.default is dataclasses.MISSING)


def _default(field: "dataclasses.Field[Any]") -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _codec(hint: Any) -> _Codec:  # noqa: ANN401 - any annotation
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {UnionType, Union}:
        return _union(arguments)
    if origin is tuple:
        return _list(_codec(arguments[0]))
    if origin is Mapping:
        return _mapping(*arguments)
    if origin is Literal:
        return _Codec(None, partial(_one_of, arguments))
    return _SIMPLE.get(hint) or _class(hint)


def _class(kind: type) -> _Codec:
    if issubclass(kind, Enum):
        return _Codec(lambda value: value.value, kind)
    if issubclass(kind, tuple):
        return _named_tuple(kind)
    return _Codec(to_object, partial(from_object, kind))


def _union(kinds: tuple[Any, ...]) -> _Codec:
    """One type or several dataclasses, possibly with None."""
    others = [kind for kind in kinds if kind is not NoneType]
    inner = _codec(others[0]) if len(others) == 1 else _Codec(_named, partial(_from_named, by_name(others)))
    if len(others) == len(kinds):
        return inner
    write, read = inner
    return _Codec(
        write and (lambda value: None if value is None else write(value)),
        lambda value: None if value is None else read(value),
    )


def _list(item: _Codec) -> _Codec:
    write, read = item
    return _Codec(
        write and (lambda values: [write(value) for value in values]),
        lambda values: tuple(map(read, _checked(list, values))),
    )


def _mapping(key: Any, value: Any) -> _Codec:  # noqa: ANN401 - annotations
    """A mapping with strings or numbers as keys, which are strings in JSON."""
    write, read = _codec(value)
    return _Codec(
        lambda values: {str(name): write(member) if write else member for name, member in values.items()},
        lambda values: {key(name): read(member) for name, member in _checked(dict, values).items()},
    )


def _named_tuple(kind: Any) -> _Codec:  # noqa: ANN401 - its fields are in no type
    codecs = [_codec(hint) for hint in get_type_hints(kind).values()]

    def write(value: tuple[Any, ...]) -> list[Any]:
        return [codec.write(item) if codec.write else item for codec, item in zip(codecs, value, strict=True)]

    def read(value: object) -> object:
        return kind(*(codec.read(item) for codec, item in zip(codecs, _checked(list, value), strict=True)))

    return _Codec(write, read)


def _checked(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _one_of(values: tuple[object, ...], value: object) -> object:
    if value not in values:
        raise ValueError
    return value


def _whole(value: object) -> int:
    """A 64-bit integer: the uptime of a host in nanoseconds exceeds 53 bits after 104 days."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise TypeError
    return value


def _number(value: object) -> float:
    """Seconds since the epoch, or a duration; values that no clock can produce are rejected."""
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e12:  # type: ignore[arg-type]
        raise TypeError
    return float(value)  # type: ignore[arg-type]


def _text(value: object) -> str:
    return _checked(str, value)


_SIMPLE: Final[Mapping[Any, _Codec]] = {
    str: _Codec(None, _text),
    int: _Codec(None, _whole),
    float: _Codec(None, _number),
    bool: _Codec(None, partial(_checked, bool)),
    Any: _Codec(None, lambda value: value),
    Path: _Codec(str, lambda value: Path(_text(value))),
    Bits: _Codec(hex, lambda value: int(_text(value), 16)),
}
