"""Colors of a terminal: NO_COLOR turns them off, FORCE_COLOR on in pipes, too, and NO_COLOR wins."""

import os
from typing import Final, Literal, TextIO

Color = Literal["red", "green", "yellow"]

_CODES: Final = {"red": "\x1b[1;31m", "green": "\x1b[1;32m", "yellow": "\x1b[1;33m"}

CANNOT_MOVE: Final = frozenset({"", "dumb", "unknown"})
"""Values of ``TERM`` for a terminal that cannot move its cursor, and shows no colors."""


def painted(text: str, color: Color, stream: TextIO) -> str:
    """The text in a color, if the stream shows colors."""
    is_terminal = stream.isatty() and os.environ.get("TERM", "") not in CANNOT_MOVE
    if os.environ.get("NO_COLOR") or not (os.environ.get("FORCE_COLOR") or is_terminal):
        return text
    return f"{_CODES[color]}{text}\x1b[0m"
