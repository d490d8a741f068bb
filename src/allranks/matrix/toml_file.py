"""Reads TOML files into tables, with errors that have the file, the line, the key and a remedy."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from allranks.errors import MatrixError, shown
from allranks.matrix.when import Condition

PYPROJECT = "pyproject.toml"
PYPROJECT_TABLE = ("tool", "allranks")
LARGEST_NUMBER = 2**31 - 1

KeyPath = tuple[str | int, ...]
"""The path of a value: keys, and positions in arrays of tables (``("matrix", "exclude", 0, "when")``)."""


def location(path: Path, line: int, key: str) -> str:
    """A location in messages: ``matrix.toml:12: matrix.backend``; line 0 is unknown."""
    prefix = ".".join(PYPROJECT_TABLE) + "." if path.name == PYPROJECT else ""
    return f"{_label(path)}:{f'{line}:' if line else ''} {prefix}{key}"


def _label(path: Path) -> str:
    """The path relative to the current folder, if possible."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a TOML file."""

    path: Path
    values: Mapping[str, object]
    key: KeyPath = ()  # the path of the table, relative to [tool.allranks] in pyproject.toml
    lines: Mapping[KeyPath, int] = field(repr=False)  # the line of each key in the file, counted from 1
    # All conditions in this file with their tables, to check them against the axes.
    conditions: list[tuple["Table", Condition]] = field(default_factory=list, repr=False)

    @property
    def line(self) -> int:
        """The first line of the table."""
        return line_of(self.lines, self.key)

    def location(self, name: str = "") -> str:
        """The location of a key of this table, or of the table itself, in messages."""
        key = (*self.key, name) if name else self.key
        return location(self.path, line_of(self.lines, key), dotted(key))

    def reject(self, name: str, what: str, remedy: str) -> NoReturn:
        """Raise an error about a key of this table, or about the table itself if `name` is empty."""
        raise MatrixError(what=f"{self.location(name)}: {what}.", remedy=remedy)

    def below(self, name: str, *index: int) -> "Table":
        """A subtable, or an item of an array of tables; an empty table if the key is absent."""
        value = self.values.get(name, {})
        if index and isinstance(value, list):
            value = value[index[0]]
        if not isinstance(value, dict):
            what = f"{shown(value)} is not a table"
            self.reject(name, what, f"Write it as: [{dotted((*self.key, name))}]")
        return replace(self, key=(*self.key, name, *index), values=value)


def exists(path: Path) -> bool:
    """Whether a file or folder exists and is accessible."""
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be entered
        return False


def dotted(key: KeyPath) -> str:
    """A key path in TOML's syntax, without indexes of arrays."""
    parts = [part for part in key if isinstance(part, str)]
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else shown(part) for part in parts) or "the file"


def read(path: Path) -> Table:
    """Read a TOML file, or the table ``[tool.allranks]`` of pyproject.toml."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        what, why = f"{_label(path)} cannot be read.", f"{error.strerror or error}."
        raise MatrixError(what, why=why, remedy="Check its permissions.") from None
    except UnicodeDecodeError as error:
        raise _malformed(path, 1, f"it is not UTF-8 ({error.reason} at byte {error.start})") from None
    values = _parse(path, text)
    table = Table(path=path, values=values, lines=key_lines(text, values))
    if path.name != PYPROJECT:
        return table
    for name in PYPROJECT_TABLE:
        if not isinstance(child := table.values.get(name, {}), dict):
            key = (*table.key, name)
            what = f"{_label(path)}:{line_of(table.lines, key)}: {dotted(key)} is not a table."
            raise MatrixError(what, remedy=f"Put the matrix below [{dotted(PYPROJECT_TABLE)}].")
        table = replace(table, key=(*table.key, name), values=child)
    size = len(PYPROJECT_TABLE)
    lines = {key[size:]: line for key, line in table.lines.items() if key[:size] == PYPROJECT_TABLE}
    return replace(table, key=(), lines=lines)


def _parse(path: Path, text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        position = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", message)
        line = int(position[1] or text.count("\n") + 1) if position else 1
        raise _malformed(path, line, message) from None


def _malformed(path: Path, line: int, why: str) -> MatrixError:
    what = f"{_label(path)}:{line}: this is not valid TOML."
    return MatrixError(what, why=f"The parser reports: {why}.", remedy="See https://toml.io for the syntax.")


# tomllib does not report the lines of keys, so they are found with regular expressions.

_NAME = r"""(?:[\w-]+|"[^"\\\n]*"|'[^'\n]*')"""
_NAMES = rf"{_NAME}(?:\s*\.\s*{_NAME})*"
_STATEMENT = re.compile(rf"\s*(?:(?P<open>\[\[?)\s*(?P<table>{_NAMES})\s*\]|(?P<key>{_NAMES})\s*=)", re.ASCII)
_LONG_STRING = re.compile(r'"""(?s:.*?)"""|\'\'\'(?s:.*?)\'\'\'')


def key_lines(text: str, values: Mapping[str, object]) -> dict[KeyPath, int]:
    """The line of each key and table that starts a line, counted from 1; empty if a line was misread."""
    lines: dict[KeyPath, int] = {}
    sizes: dict[KeyPath, int] = {}
    table: KeyPath = ()
    text = _LONG_STRING.sub(lambda string: "\n" * string[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), start=1):
        if (found := _STATEMENT.match(line)) is None:
            continue
        is_header = found["table"] is not None
        names = [name.strip("\"'") for name in re.findall(_NAME, found["table"] or found["key"])]
        path = () if is_header else table
        for depth, name in enumerate(names, start=1):
            path = (*path, name)
            lines.setdefault(path, number)
            if found["open"] == "[[" and depth == len(names):
                sizes[path] = sizes.get(path, -1) + 1
            if is_header and path in sizes:
                path = (*path, sizes[path])
                lines.setdefault(path, number)
        table = path if is_header else table
    return lines if all(_has(values, path) for path in lines) else {}


def _has(values: object, path: KeyPath) -> bool:
    """Whether the parsed file has a value at this path: a line in an array or a string can look like a key."""
    for part in path:
        try:
            values = values[part]  # type: ignore[index]
        except (TypeError, LookupError):
            return False
    return True


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of a key, or of the nearest enclosing table with a known line; 0 if no line is known."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1 if lines else 0)
