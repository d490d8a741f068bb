"""Text made safe for XML and short enough to read."""

import re

from allranks.harness.rank_xml import legal

TEXT_LIMIT = 64 * 1024
"""Characters that one text of the report may have."""

MESSAGE_LIMIT = 4 * 1024
"""Characters that one message may have: clients show messages in lists."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


def readable(text: str) -> str:
    """``text`` without terminal colours and cursor movements, and legal in XML."""
    return legal(_ANSI.sub("", text))


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
