"""A TOML file with typed access to its tables: what is wrong is said with file, line, key and remedy."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from allranks.errors import MatrixError
from allranks.matrix.lines import KeyPath, key_lines, line_of
from allranks.matrix.suggest import did_you_mean, listed, shown

PYPROJECT = "pyproject.toml"
PYPROJECT_TABLE = ("tool", "allranks")
LARGEST_NUMBER = 2**31 - 1

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)


def place(path: Path, line: int, key: str) -> str:
    """How a message says where it is: ``matrix.toml:12: matrix.backend``."""
    prefix = ".".join(PYPROJECT_TABLE) + "." if path.name == PYPROJECT else ""
    return f"{_label(path)}:{line}: {prefix}{key}"


def _label(path: Path) -> str:
    """The file as seen from the current folder, as compilers and editors write it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@dataclass(frozen=True)
class Document:
    """A TOML file that has been read.

    Attributes:
        path: The file.
        root: The table that everything of ours is under; empty for the whole file.
        lines: Where each key stands.
    """

    path: Path
    root: KeyPath = ()
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)

    def line(self, key: KeyPath) -> int:
        """The line of a key, counted from 1."""
        return line_of(self.lines, (*self.root, *key))

    def error(self, key: KeyPath, what: str, remedy: str, why: str = "") -> MatrixError:
        """An error about one key."""
        return MatrixError(f"{place(self.path, self.line(key), _dotted(key))}: {what}.", why=why, remedy=remedy)


@dataclass(frozen=True)
class Table:
    """One table of a document.

    Every reader gives back the default when the key is absent, and raises :class:`MatrixError` when its
    value is not what was asked for.
    """

    document: Document
    key: KeyPath
    values: Mapping[str, object]

    def __contains__(self, name: str) -> bool:
        """Whether the file gives this key."""
        return name in self.values

    @property
    def line(self) -> int:
        """Where the table begins."""
        return self.document.line(self.key)

    def error(self, name: str, what: str, remedy: str, why: str = "") -> MatrixError:
        """An error about one key of this table; about the table itself if ``name`` is empty."""
        return self.document.error((*self.key, name) if name else self.key, what, remedy, why)

    def only(self, *known: str) -> None:
        """Refuses every key that is not known."""
        for name in self.values:
            if name not in known:
                raise self.error(name, "there is no such key", did_you_mean(name, known))

    def needs(self, name: str, example: str) -> None:
        """Refuses the table when a key is absent."""
        if name not in self.values:
            raise self.error(name="", what=f"the key {name} is missing", remedy=f"Add, for example: {example}")

    def text(self, name: str, default: T, example: str = "") -> str | T:
        """A string that is not blank."""
        if name not in self.values:
            return default
        value = self.values[name]
        if not isinstance(value, str):
            raise self.mistyped(name, "a string", f'{name} = "{example or "…"}"')
        if not value.strip() or "\0" in value:
            raise self.error(name, "is blank or holds a NUL", f'Write {name} = "{example or "…"}", or leave it out.')
        return value

    def choice(self, name: str, allowed: tuple[Choice, ...], default: Choice) -> Choice:
        """One of a few strings."""
        value = self.text(name, default, allowed[0])
        chosen = [choice for choice in allowed if choice == value]
        if not chosen:
            raise self.error(name, f"{shown(value)} is none of {listed(allowed)}", did_you_mean(value, allowed))
        return chosen[0]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, none twice."""
        values = self.values.get(name, [])
        is_list_of_strings = isinstance(values, list) and all(isinstance(value, str) for value in values)
        if not isinstance(values, list) or not is_list_of_strings:
            raise self.mistyped(name, "a list of strings", f'{name} = ["…", "…"]')
        for value in values:
            if not value.strip() or "\0" in value:
                raise self.error(name, "one of the strings is blank or holds a NUL", "Remove it.")
        return tuple(values)

    def flag(self, name: str, default: T) -> bool | T:
        """True or false."""
        if name not in self.values:
            return default
        value = self.values[name]
        if not isinstance(value, bool):
            raise self.mistyped(name, "true or false", f"{name} = true")
        return value

    def whole(self, name: str, default: T, at_least: int) -> int | T:
        """A whole number."""
        if name not in self.values:
            return default
        return self.checked_whole(name, self.values[name], at_least)

    def checked_whole(self, name: str, value: object, at_least: int) -> int:
        """A whole number that stands under ``name``, alone or in a list."""
        if not isinstance(value, int) or isinstance(value, bool):
            what = f"{shown(value)} is not a whole number"
            raise self.error(name, what, f"Write a whole number of at least {at_least}, without quotes.")
        if not at_least <= value <= LARGEST_NUMBER:
            what = f"{shown(value)} is out of range"
            raise self.error(name, what, f"Write a whole number from {at_least} to {LARGEST_NUMBER}.")
        return value

    def seconds(self, name: str, default: float) -> float:
        """A time in seconds, more than nothing."""
        value = self.values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.mistyped(name, "a number of seconds", f"{name} = {default}")
        if not 0 < value <= LARGEST_NUMBER:
            raise self.error(name, f"{shown(value)} is no time to wait", "Write a number of seconds above 0.")
        return float(value)

    def strings(self, name: str) -> dict[str, str]:
        """A table of strings."""
        table = self.table(name)
        for key, value in table.values.items():
            if not isinstance(value, str):
                right = f'{key} = "{value}"' if isinstance(value, int) and value.bit_length() < 64 else f'{key} = "…"'
                raise table.mistyped(key, "a string", right)
            if "\0" in value:
                raise table.error(key, "holds a NUL", "Remove it.")
        return {key: str(value) for key, value in table.values.items()}

    def table(self, name: str) -> "Table":
        """A table below this one; an empty one when absent."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise self.mistyped(name, "a table", f"[{_dotted((*self.key, name))}]")
        return Table(self.document, (*self.key, name), value)

    def named_tables(self, name: str) -> dict[str, "Table"]:
        """The tables below ``[name.…]``, by their names, which are good for folder names too."""
        group = self.table(name)
        for child in group.values:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", child):
                remedy = "A name has letters, digits, '_', '-' and '.', begins with a letter or digit, and ends by 63."
                raise group.error(child, "cannot be a name", remedy)
        return {child: group.table(child) for child in group.values}

    def tables(self, name: str) -> tuple["Table", ...]:
        """The entries of an array of tables."""
        values = self.values.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.mistyped(name, "an array of tables", f"[[{_dotted((*self.key, name))}]]")
        return tuple(Table(self.document, (*self.key, name, index), value) for index, value in enumerate(values))

    def mistyped(self, name: str, wanted: str, example: str) -> MatrixError:
        """An error about a value of the wrong type."""
        return self.error(name, f"{shown(self.values[name])} is not {wanted}", f"Write it as: {example}")


def read(path: Path) -> Table:
    """Reads a TOML file; of a pyproject.toml, the table ``[tool.allranks]``.

    Raises:
        MatrixError: The file cannot be read, or is not TOML.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        why = error.strerror or str(error)
        raise MatrixError(
            what=f"{_label(path)} cannot be read.", why=f"{why}.", remedy="Check its permissions."
        ) from None
    except UnicodeDecodeError as error:
        raise _malformed(path, 1, f"it is not UTF-8 ({error.reason} at byte {error.start})") from None
    values = _parse(path, text)
    is_pyproject = path.name == PYPROJECT
    document = Document(path, PYPROJECT_TABLE if is_pyproject else (), key_lines(text))
    return Table(document, (), _below(document, values) if is_pyproject else values)


def _below(document: Document, values: Mapping[str, object]) -> Mapping[str, object]:
    for depth, name in enumerate(document.root, start=1):
        child = values.get(str(name), {})
        if not isinstance(child, dict):
            line = line_of(document.lines, document.root[:depth])
            what = f"{_label(document.path)}:{line}: {_dotted(document.root[:depth])} is not a table."
            raise MatrixError(what, remedy=f"Write [{_dotted(document.root)}] above the matrix.")
        values = child
    return values


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
    return MatrixError(what, why=f"The parser says: {why}.", remedy="See https://toml.io for how values are written.")


def _dotted(key: KeyPath) -> str:
    parts = [_bare(part) for part in key if isinstance(part, str)]
    return ".".join(parts) or "the file"


def _bare(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else shown(part)
