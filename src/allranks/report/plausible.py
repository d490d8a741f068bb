"""Numbers that files of ranks state, as far as they can be true."""

import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_DIGITS: Final = 18
_MOST: Final = 1e15
_MOST_SECONDS: Final = 1e9
"""Seconds that a test may take, 31 years: a few of 1e308, which are numbers, too, add up to none."""


def whole_number(value: str | None) -> int | None:
    """A whole number; of one that is beyond counting, its first digits are beyond counting, too."""
    return int(value[:_DIGITS]) if value and re.fullmatch("[0-9]+", value) else None


def number(value: str | None) -> float | None:
    """A number that a clock may show; commas as thousands separators, which some runners write, are left out."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) <= _MOST else None


def duration(seconds: float) -> float:
    """How long something took: nothing where no clock can have said so."""
    return seconds if 0 < seconds <= _MOST_SECONDS else 0.0


def durations(times: Sequence[str | float | None]) -> "array[float]":
    """The durations that testcases state: 0 where one states none, or none that can be."""
    with suppress(TypeError, ValueError):  # of nothing, and of words
        seconds = array("d", map(float, times))  # type: ignore[arg-type]
        if min(seconds, default=0.0) >= 0 and sum(seconds) <= _MOST_SECONDS:  # false where one is no number
            return seconds
    return array("d", (duration((number(time) if isinstance(time, str) else time) or 0.0) for time in times))
