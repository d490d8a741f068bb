"""Where in a TOML text each key stands, which the standard library's parser does not tell.

The text is taken to be valid: it has been through :mod:`tomllib` before.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping

KeyPath = tuple[str | int, ...]
"""The way to a value: keys, and the position in an array of tables (``("matrix", "exclude", 0, "when")``)."""

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
    """The table that a header opens; in an array of tables, with the position of its newest entry."""
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
    """Notes a key, and the tables that come into being with it."""
    path = (*table, *key)
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], line)
