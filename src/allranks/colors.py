"""Colors in the terminal: NO_COLOR disables them, and FORCE_COLOR enables them even in pipes."""

import os
from collections.abc import Callable
from typing import Final, Literal, TextIO

Color = Literal["red", "green", "yellow"]

Paint = Callable[[str, Color], str]
"""Colors a string, if the output supports colors."""

_CODES: Final = {"red": "\x1b[1;31m", "green": "\x1b[1;32m", "yellow": "\x1b[1;33m"}

DUMB_TERMINALS: Final = frozenset({"", "dumb", "unknown"})
"""Values of ``TERM`` for terminals without cursor movement and colors."""


def without_color(text: str, _color: Color) -> str:
    """Return the string unchanged."""
    return text


def painted(text: str, color: Color, stream: TextIO) -> str:
    """Color a text, if the stream supports it."""
    is_terminal = stream.isatty() and os.environ.get("TERM", "") not in DUMB_TERMINALS
    if os.environ.get("NO_COLOR") or not (os.environ.get("FORCE_COLOR") or is_terminal):
        return text
    return f"{_CODES[color]}{text}\x1b[0m"
