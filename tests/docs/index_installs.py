"""Finds texts that would install allranks by name, from the index that pip uses."""

import re
import shlex
from collections.abc import Iterator

_INSTALLER = re.compile(
    r"(?:"
    r"\bpip[\d.]*\s+(?:install|download|wheel)"
    r"|\bpipx\s+(?:install|run|inject|upgrade)"
    r"|\buvx\b"
    r"|\buv\s+(?:run|add|(?:tool|pip)\s+(?:install|run))"
    r"|\b(?:poetry|pdm|rye|pixi|hatch)\s+add"
    r"|\b(?:conda|mamba)\s+install"
    r")(?P<rest>[^\n]*)"
)
"""A command that installs its arguments."""

_NAME = (
    r"allranks(?:\s*\[[^\]]*\])?(?:\s*(?:===?|[<>~!]=|<|>)[^@;\n]*)?"
    r"(?:\s*;\s*[a-z_]+\s*(?:[<>=!~]=?|\bin\b|\bnot\b)[^\n]*)?"
)
_BY_NAME = re.compile(rf"\s*{_NAME}\s*", re.IGNORECASE)
"""A requirement without an address (PEP 508)."""

_LISTED = re.compile(
    r"(?:\b(?:dependencies|requires|install_requires|extras_require|requirements|packages|deps|additional_dependencies"
    r"|setup_requires|tests_require)\b[\"']?\s*[=:]|\binstall(?=\())[ \t]*"
)
"""The beginning of a list of requirements in TOML, YAML or Python."""

_LINE = re.compile(rf"^\s*(?:-\s+)?[\"']?(?P<name>{_NAME})[\"']?\s*(?:#.*)?$", re.IGNORECASE | re.MULTILINE)
"""A line of a requirements file, or of a list in YAML."""


def index_installs(text: str, *, has_requirement_lines: bool = True) -> Iterator[str]:
    """The installations of allranks by name in a text.

    Args:
        text: A page, a script, a file of requirements, or any other text.
        has_requirement_lines: Whether a line that is only a requirement counts.
    """
    joined = re.sub(r"\\\n\s*", " ", text)
    for command in _INSTALLER.finditer(joined):
        if any(_BY_NAME.fullmatch(argument) for argument in _arguments(command["rest"])):
            yield command[0].strip()
    for listed in _LISTED.finditer(joined):
        items = _items(joined[listed.end() :])
        if any(_BY_NAME.fullmatch(item) for item in items):
            yield f"{listed[0].strip()} {', '.join(items)}"
    if has_requirement_lines:
        yield from (line["name"] for line in _LINE.finditer(joined))


def _items(text: str) -> list[str]:
    """The items of a list at the beginning of a text, or of the rest of its line."""
    quoted_or_not = re.compile(
        r"\"([^\"\n]*)\"|'([^'\n]*)'|([\[({])|([\])}])|([^\s,\"'(){}\[\]]+(?:\[[\w,]*\][^\s,]*)?)|(\n)"
    )
    depth, items = 0, []
    for one, other, opening, closing, bare, end in (found.groups("") for found in quoted_or_not.finditer(text)):
        depth += bool(opening) - bool(closing)
        if (end or closing) and depth <= 0:
            break
        items.append(one or other or bare)
    return [item for item in items if item]


def _arguments(rest: str) -> list[str]:
    """The arguments of a command, up to its end in a sentence, a table or a script."""
    words = shlex.shlex(re.split(r"[`|&;]|\$\(|\s#", rest)[0], posix=True, punctuation_chars=False)
    words.whitespace_split, words.commenters = True, ""
    found: list[str] = []
    try:
        found.extend(words)
    except ValueError:  # an unbalanced quotation mark
        found = rest.split()
    # What follows the options' names may be their value, as in `--from allranks` and `--spec=allranks`.
    parts = [part for word in found for part in (word, word.partition("=")[2] if word.startswith("-") else "")]
    return [part.strip("\"',.()") for part in parts]
