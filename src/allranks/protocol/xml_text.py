"""Makes texts and names of tests safe for XML, terminals and logs, and short enough to read."""

import os
import re
import shlex
from collections.abc import Iterable
from typing import Final

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LIKE_ESCAPED = re.compile("#(?=x(?:[01][0-9A-F]|23|D[89A-F][0-9A-F]{2}|FFF[EF]))")


def split_nodeid(nodeid: str) -> tuple[str, str]:
    """``classname`` and ``name`` of a node id, as in pytest's own JUnit report.

    ``pkg/test_a.py::TestB::test_c[x::y]`` becomes ``("pkg.test_a.TestB", "test_c[x::y]")``, and a module that was
    skipped as a whole, ``pkg/test_a.py``, becomes ``("", "pkg.test_a")``.
    """
    path, bracket, parameters = nodeid.partition("[")
    file, *names = path.split("::")
    module = file.removesuffix(".py").replace(os.sep, ".")
    if not names:
        return "", module
    *classes, name = names
    return ".".join((module, *classes)), name + bracket + parameters


def file_of(nodeid: str) -> str:
    """The file in the node id of a test; empty if there is none."""
    file, _, rest = nodeid.partition("::")
    return file if rest and file.endswith(".py") else ""


def command(words: Iterable[str]) -> str:
    """A command line for bash, with control characters escaped."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(sign: str) -> str:
    if sign in "\\'":
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08x}"


def legal(text: str) -> str:
    """`text`, with characters that XML 1.0 forbids written as ``#xNN``."""
    return _ILLEGAL.sub(lambda match: f"#x{ord(match.group()):02X}", text)


def xml_id(nodeid: str) -> str:
    """A node id, or another name, as reports write it: :func:`legal`, and different for different ids.

    If an id already contains such a ``#xNN``, its ``#`` becomes ``#x23``.
    """
    return legal(_LIKE_ESCAPED.sub("#x23", nodeid))


TEXT_LIMIT = 64 * 1024
"""The longest text in the report, in characters."""

MESSAGE_LIMIT = 4 * 1024
"""The longest message, in characters: clients show messages in lists."""

_ROUGH: Final = 4
"""How much is cleaned on either side of a cut, in limits: cleaning rarely removes most of a text."""

_PLAIN: Final = re.compile(r"[ !#-%'-;=?-~]*").fullmatch
"""Matches nearly all names: a fast check for text that needs no cleaning and no escaping."""

_ESCAPED: Final = re.compile(r"[&<>\r]").search
_CLEAN: Final = re.compile(r"[ -~\n\t]*").fullmatch

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_WRITTEN_ANSI = re.compile(r"#x1B(?:\[[0-?]*[ -/]*[@-~]|\][^\n#]*(?:#x07|#x1B\\)?|[@-Z\\^_])")
_OLD_COMMAND = re.compile(r"##(?=\w*\[)")
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")

_RESETS: Final = ("\x1b[0m", "\x1b[m")

_IN_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_IN_ATTRIBUTE = {**_IN_TEXT, **str.maketrans({'"': "&quot;", "\n": "&#10;", "\t": "&#9;"})}


def readable(text: str) -> str:
    """``text`` without terminal escape sequences, and legal in XML."""
    return text if _CLEAN(text) else legal(_ANSI.sub("", text))


def without_colors(text: str) -> str:
    """``text`` without terminal escape sequences in the form that pytest writes to XML (``#x1B[31m``)."""
    return _WRITTEN_ANSI.sub("", text) if "#x1B" in text else text


def printable(text: str) -> str:
    """``text`` on one line, without control characters."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "�" for sign in text)


def for_log(text: str) -> str:
    """``text`` on one line that no CI service interprets as a command, if other text comes before it.

    GitHub interprets lines that begin with two colons, and ``##[name]`` anywhere in a line; Azure ``##vso[name]``.
    """
    return _OLD_COMMAND.sub("## ", printable(text))


def for_terminal(text: str) -> str:
    """``text`` without control characters, except for colors, line ends and tabs."""
    return text if _CLEAN(text) else "\n".join(map(_shown_line, text.split("\n")))


def _shown_line(line: str) -> str:
    colors = list(_COLOR.finditer(line))
    starts, ends = [0, *(color.end() for color in colors)], [*(color.start() for color in colors), len(line)]
    between = [
        "\t".join(map(printable, _ANSI.sub("", line[a:b]).split("\t"))) for a, b in zip(starts, ends, strict=True)
    ]
    shown = "".join(part for pair in zip(between, [*(color[0] for color in colors), ""], strict=True) for part in pair)
    # The text after the line must not change its color.
    return f"{shown}\x1b[0m" if colors and colors[-1][0] not in _RESETS else shown


def attribute(text: str) -> str:
    """``text``, made readable, as the value of an attribute in quotation marks."""
    return quoted(readable(text))


def quoted(text: str) -> str:
    """``text``, which must be legal in XML, as the value of an attribute in quotation marks."""
    return f'"{text}"' if _PLAIN(text) else f'"{text.translate(_IN_ATTRIBUTE)}"'


def element_text(text: str) -> str:
    """``text``, which must be readable, as the content of an element."""
    if not _ESCAPED(text):
        return text
    return text.translate(_IN_TEXT)


_WORD: Final = 32
"""The longest undivided word, in characters; a longer one may be a path, a node id, or a whole text."""


def _word_at(text: str, offset: int) -> tuple[int, int]:
    """The start and end of the word that a cut at this offset would divide; the offset twice if there is none."""
    before, after = text[max(0, offset - _WORD) : offset], text[offset : offset + _WORD]
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return offset, offset
    head, tail = len(before.split()[-1]), len(after.split(maxsplit=1)[0])
    return (offset, offset) if head + tail > _WORD else (offset - head, offset + tail)


def two_ends(text: str, limit: int) -> tuple[str, str]:
    """The beginning and the end of a long text, cut between words, together at most ``limit`` characters.

    The time does not grow with the text's length.
    """
    first, last = limit // 2, len(text) - (limit - limit // 2)
    return text[: _word_at(text, first)[0]], text[_word_at(text, last)[1] :]


def clipped(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters: if it is longer, its beginning, cut between words, with an ellipsis."""
    return text if len(text) <= limit else f"{text[: _word_at(text, limit - 1)[0]].rstrip()}…"


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """``text``, with its middle replaced by a note if it is longer than ``limit`` characters.

    The middle of a traceback matters least.
    """
    if len(text) <= limit:
        return text
    head, tail = two_ends(text, limit)
    return f"{head}{_note(len(text) - len(head) - len(tail))}{tail}"


def clean_cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """``text`` made readable and cut; only its ends are cleaned, so the time does not grow with its length."""
    ends = limit * _ROUGH
    if len(text) <= 2 * ends:
        return cut(readable(text), limit)
    head, tail = readable(text[:ends]), readable(text[-ends:])
    return f"{two_ends(head, limit)[0]}{_note(len(text) - limit)}{two_ends(tail, limit)[1]}"


def _note(left_out: int) -> str:
    return f"\n[... {left_out} characters cut here; the files of the rank may have more ...]\n"


def first_line(text: str) -> str:
    """The first line that is not blank; empty if there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
