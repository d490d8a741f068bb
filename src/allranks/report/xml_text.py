"""Text made safe for XML and short enough to read."""

import re

from allranks.harness.rank_xml import legal

TEXT_LIMIT = 64 * 1024
"""Characters that one text of the report may have."""

MESSAGE_LIMIT = 4 * 1024
"""Characters that one message may have: clients show messages in lists."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")

_IN_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_IN_ATTRIBUTE = {**_IN_TEXT, **str.maketrans({'"': "&quot;", "\n": "&#10;", "\t": "&#9;"})}


def readable(text: str) -> str:
    """``text`` without terminal colours and cursor movements, and legal in XML."""
    return legal(_ANSI.sub("", text))


def attribute(text: str) -> str:
    """``text`` as the value of an attribute, with its quotation marks; made readable."""
    return f'"{readable(text).translate(_IN_ATTRIBUTE)}"'


def element_text(text: str) -> str:
    """``text``, which is readable, as what stands in an element."""
    return text.translate(_IN_TEXT)


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """``text`` with its middle left out, and a note that says so, when it is longer than ``limit`` characters.

    The head of a traceback says where it began and the tail what it came to; the middle is what a reader misses least.
    """
    if len(text) <= limit:
        return text
    note = f"\n[... {len(text) - limit} characters cut here; the rank's own files have all of it ...]\n"
    head = limit // 2
    return f"{text[:head]}{note}{text[len(text) - (limit - head) :]}"


def first_line(text: str) -> str:
    """The first line that says something; empty where there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
