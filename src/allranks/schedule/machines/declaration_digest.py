"""What a matrix file declares, part by part, as digests: two machines can say in which part their files differ."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from allranks.matrix.model import Matrix
from allranks.matrix.when import Condition

LENGTH: Final = 16
"""Hexadecimal digits of a digest: nobody looks for two plans with the same one."""

_NO_DECLARATION: Final = frozenset({"path", "line"})


def digest(value: object) -> str:
    """A digest of a value made of JSON's types."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def declaration_digests(matrix: Matrix) -> dict[str, str]:
    """A digest for each part of the file, by its name: ``axes``, ``suites.collectives``, ``limits``.

    Comments, and where things stand in the file, count for nothing.
    """
    return {name: digest(_plain(value)) for name, value in _parts(matrix)}


def _parts(matrix: Matrix) -> Iterator[tuple[str, object]]:
    for field in fields(matrix):
        value = getattr(matrix, field.name)
        if field.name in {"suites", "images"}:
            yield from ((f"{field.name}.{name}", each) for name, each in value.items())
        elif field.name not in _NO_DECLARATION:
            yield field.name, value


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of a declaration in, any JSON value out
    match value:
        case Condition():
            return value.source
        case Path():
            return value.as_posix()
        case Mapping():
            # In order: which suite comes first is part of what is declared.
            return [[str(key), _plain(item)] for key, item in value.items()]
        case list() | tuple():
            return [_plain(item) for item in value]
    if is_dataclass(value):
        return [[each.name, _plain(getattr(value, each.name))] for each in fields(value) if each.name != "line"]
    return value


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The parts that differ, or that only one of two files has."""
    return [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
