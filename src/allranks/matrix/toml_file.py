"""A TOML file with typed access to its tables: an error names file, line, key and remedy."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from allranks.errors import MatrixError, did_you_mean, listed, shown
from allranks.matrix.axes import Known
from allranks.matrix.when import (
    Condition,
    ConditionError,
    absent_literals,
    check_literals,
    off_axis,
    parse_condition,
)

PYPROJECT = "pyproject.toml"
PYPROJECT_TABLE = ("tool", "allranks")
LARGEST_NUMBER = 2**31 - 1

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)

KeyPath = tuple[str | int, ...]
"""The path of a value: keys, and positions in arrays of tables (``("matrix", "exclude", 0, "when")``)."""


def place(path: Path, line: int, key: str) -> str:
    """The location as messages show it: ``matrix.toml:12: matrix.backend``."""
    prefix = ".".join(PYPROJECT_TABLE) + "." if path.name == PYPROJECT else ""
    return f"{_label(path)}:{line}: {prefix}{key}"


def _label(path: Path) -> str:
    """The path relative to the current folder, as compilers and editors write it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of a TOML file.

    Every reader returns the default if the key is absent, and raises :class:`MatrixError` if its
    value is not of the requested type.
    """

    path: Path
    values: Mapping[str, object]
    key: KeyPath = ()  # the path of the table from the root of allranks' own tables
    lines: Mapping[KeyPath, int] = field(repr=False)  # the line of each key below that root, counted from 1
    # What the readers of this file's tables found that is no error, in their order.
    warnings: list[str] = field(default_factory=list, repr=False)

    def __contains__(self, name: str) -> bool:
        """True if the table has this key."""
        return name in self.values

    @property
    def line(self) -> int:
        """The line on which the table begins."""
        return line_of(self.lines, self.key)

    def error(self, name: str, what: str, remedy: str) -> MatrixError:
        """An error about one key of this table; about the table itself if ``name`` is empty."""
        key = (*self.key, name) if name else self.key
        return MatrixError(f"{place(self.path, line_of(self.lines, key), _dotted(key))}: {what}.", remedy=remedy)

    def mistyped(self, name: str, wanted: str, example: str) -> MatrixError:
        """An error about a value of the wrong type."""
        return self.error(name, f"{shown(self.values[name])} is not {wanted}", f"Write it as: {example}")

    def only(self, *known: str) -> None:
        """Refuses every key that is not known."""
        for name in self.values:
            if name not in known:
                raise self.error(name, "there is no such key", did_you_mean(name, known))

    def needs(self, name: str, example: str) -> None:
        """Refuses the table when a key is absent."""
        if name not in self.values:
            raise self.error(name="", what=f"the key {name} is missing", remedy=f"Add, for example: {example}")

    def text(self, name: str, default: T, example: str = "…") -> str | T:
        """A string that is not blank."""
        if name not in self.values:
            return default
        value = self.values[name]
        if not isinstance(value, str):
            raise self.mistyped(name, "a string", f'{name} = "{example}"')
        if _is_blank(value):
            raise self.error(name, "is blank or holds a NUL", f'Write {name} = "{example}", or leave it out.')
        return value

    def choice(self, name: str, allowed: tuple[Choice, ...], default: T) -> Choice | T:
        """One of a few strings."""
        if name not in self.values:
            return default
        value = self.text(name, "", allowed[0])
        chosen = [choice for choice in allowed if choice == value]
        if not chosen:
            raise self.error(name, f"{shown(value)} is none of {listed(allowed)}", did_you_mean(value, allowed))
        return chosen[0]

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, none blank."""
        values = self.values.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.mistyped(name, "a list of strings", f'{name} = ["…", "…"]')
        if any(map(_is_blank, values)):
            raise self.error(name, "one of the strings is blank or holds a NUL", "Remove it.")
        return tuple(values)

    def lists(self, name: str) -> dict[str, tuple[str, ...]]:
        """A table of lists of strings, by its keys."""
        table = self.table(name)
        return {key: table.texts(key) for key in table.values}

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.mistyped(name, "true or false", f"{name} = true")
        return value

    def whole(self, name: str, default: T, at_least: int) -> int | T:
        """A whole number."""
        if name not in self.values:
            return default
        return self.checked_whole(name, self.values[name], at_least)

    def checked_whole(self, name: str, value: object, at_least: int, at_most: int = LARGEST_NUMBER) -> int:
        """Check a whole number under ``name``, alone or in a list."""
        if not isinstance(value, int) or isinstance(value, bool):
            what = f"{shown(value)} is not a whole number"
            raise self.error(name, what, f"Write a whole number of at least {at_least}, without quotes.")
        if not at_least <= value <= at_most:
            what = f"{shown(value)} is out of range"
            raise self.error(name, what, f"Write a whole number from {at_least} to {at_most}.")
        return value

    def seconds(self, name: str, default: float) -> float:
        """A time in seconds, greater than zero."""
        value = self.values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.mistyped(name, "a number of seconds", f"{name} = {default}")
        if not 0 < value <= LARGEST_NUMBER:
            raise self.error(name, f"{shown(value)} is not a valid time", "Write a number of seconds above 0.")
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

    def condition(self, known: Known) -> Condition:
        """The condition under ``when``, which is required.

        Values that an axis could have, but no cell has, are warnings: rules stay valid while an axis is cut short.
        """
        try:
            condition = parse_condition(self.text("when", "", "backend == 'gloo'"))
            for axis, value in absent_literals(condition, known.values):
                error = off_axis(axis, value, known.values)
                if not known.could_have(axis, value):
                    raise error
                self._warn("when", f"the condition {error.what}")
        except ConditionError as error:
            raise self._condition_error(error) from None
        return condition

    def optional_condition(self, known: Known) -> Condition | None:
        """The condition under ``when``; None if there is none, which holds everywhere."""
        return self.condition(known) if "when" in self else None

    def strict_condition(self, known: Known) -> Condition | None:
        """As :meth:`optional_condition`, but every value has to be on its axis."""
        condition = self.optional_condition(known)
        try:
            if condition is not None:
                check_literals(condition, known.values)
        except ConditionError as error:
            raise self._condition_error(error) from None
        return condition

    def _condition_error(self, error: ConditionError) -> MatrixError:
        return self.error(name="when", what=f"the condition {error.what}", remedy=error.remedy)

    def _warn(self, name: str, what: str) -> None:
        key = (*self.key, name)
        self.warnings.append(f"{place(self.path, line_of(self.lines, key), _dotted(key))}: {what}")

    def relative_path(self, name: str, text: str) -> Path:
        """A path under ``name``, of a file that may not exist."""
        if PurePosixPath(text).is_absolute():
            remedy = "Write it relative to the matrix file, so that it is the same on every machine."
            raise self.error(name, f"{shown(text)} is an absolute path", remedy)
        return Path(text)

    def existing_path(self, name: str, text: str) -> Path:
        """A path under ``name``, of an existing file or folder."""
        path, root = self.relative_path(name, text), self.path.parent
        if not exists(root / path):
            raise self.error(name, f"there is no {shown(text)}", f"Create it, or write a path relative to {root}.")
        return path

    def new_file(self, name: str, default: str) -> Path:
        """The path of a file that a run creates; its folder must exist."""
        text = self.text(name, default, default)
        path = self.relative_path(name, text)
        place = self.path.parent / path
        if exists(place) and place.is_dir():
            raise self.error(name, f"{shown(text)} is a folder", f'Write {name} = "{default}", or leave it out.')
        if not exists(place.parent):
            raise self.error(name, f"there is no folder for {shown(text)}", "Create it, or name another file.")
        return path

    def table(self, name: str) -> "Table":
        """A table below this one; an empty one when absent."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise self.mistyped(name, "a table", f"[{_dotted((*self.key, name))}]")
        return replace(self, key=(*self.key, name), values=value)

    def named_tables(self, name: str) -> dict[str, "Table"]:
        """The tables below ``[name.…]``, by name; the names are valid folder names too."""
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
        return tuple(replace(self, key=(*self.key, name, index), values=value) for index, value in enumerate(values))


def exists(path: Path) -> bool:
    """True if there is such a file or folder and it is accessible."""
    try:
        return path.exists()
    except OSError:  # a name that is too long, a folder that may not be entered
        return False


def _is_blank(text: str) -> bool:
    return not text.strip() or "\0" in text


def _dotted(key: KeyPath) -> str:
    parts = [part for part in key if isinstance(part, str)]
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else shown(part) for part in parts) or "the file"


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
    table = Table(path=path, values=_parse(path, text), lines=key_lines(text))
    return _pyproject_table(table) if path.name == PYPROJECT else table


def _pyproject_table(table: Table) -> Table:
    values, size = table.values, len(PYPROJECT_TABLE)
    for depth, name in enumerate(PYPROJECT_TABLE, start=1):
        child = values.get(name, {})
        if not isinstance(child, dict):
            outer = PYPROJECT_TABLE[:depth]
            what = f"{_label(table.path)}:{line_of(table.lines, outer)}: {_dotted(outer)} is not a table."
            raise MatrixError(what, remedy=f"Write [{_dotted(PYPROJECT_TABLE)}] above the matrix.")
        values = child
    lines = {key[size:]: line for key, line in table.lines.items() if key[:size] == PYPROJECT_TABLE}
    return replace(table, values=values, lines=lines)


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
    return MatrixError(
        what, why=f"The parser reports: {why}.", remedy="See https://toml.io for how values are written."
    )


# The line of each key, which the standard library's parser does not report. It has already accepted the text.

_WORD = re.compile(
    r'''
    """(?:\\.|[^\\])*?"""{1,3} | \'\'\'.*?\'\'\'{1,3}   # a multi-line string may end in quotes of its own
    | "(?:\\.|[^"\\\n])*" | '[^'\n]*'
    | \#[^\n]* | \n | [\[\]{}=.,] | [^\s\[\]{}=.,"'\#]+
    ''',
    re.VERBOSE | re.DOTALL,
)
_DEPTH_OF = {"[": 1, "{": 1, "]": -1, "}": -1}

Statement = tuple[int, list[str]]
"""A table header or a key with its value: the line it begins on, and its words."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each key and table of a TOML text, counted from 1."""
    lines: dict[KeyPath, int] = {}
    sizes: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, words in _statements(text):
        if words[0] == "[":
            table = _header(words, sizes)
            _note(lines, table, (), line)
        elif "=" in words:
            _note(lines, table, _key(words[: words.index("=")]), line)
    return lines


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of a key, or of the nearest table around it that has one."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _statements(text: str) -> Iterator[Statement]:
    line, depth, start, words = 1, 0, 1, list[str]()
    for word in _WORD.findall(text):
        if word == "\n" and depth == 0:
            if words:
                yield start, words
            words = []
        elif word != "\n" and not word.startswith("#"):
            start = start if words else line
            words.append(word)
        depth += _DEPTH_OF.get(word, 0)
        line += word.count("\n")
    if words:
        yield start, words


def _header(words: list[str], sizes: dict[KeyPath, int]) -> KeyPath:
    """The table that a header opens; for an array of tables, with the position of its newest entry."""
    is_array = words[:2] == ["[", "["]
    *parents, name = _key([word for word in words if word not in _DEPTH_OF])
    path: KeyPath = ()
    for part in parents:
        path = _newest((*path, part), sizes)
    path = (*path, name)
    if is_array:
        sizes[path] = sizes.get(path, 0) + 1
    return _newest(path, sizes)


def _newest(path: KeyPath, sizes: Mapping[KeyPath, int]) -> KeyPath:
    return (*path, sizes[path] - 1) if path in sizes else path


def _key(words: list[str]) -> KeyPath:
    return tuple(_plain(word) for word in words if word != ".")


def _plain(word: str) -> str:
    is_quoted = word[0] in "\"'"
    return str(tomllib.loads(f"key = {word}")["key"]) if is_quoted else word


def _note(lines: dict[KeyPath, int], table: KeyPath, key: KeyPath, line: int) -> None:
    """Records the line of a key, and of the tables that it creates implicitly."""
    path = (*table, *key)
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], line)
