"""How jobs are to be divided into packs."""

from dataclasses import dataclass
from typing import Final

MOST_ENTRIES: Final = 256
"""Most jobs that GitHub makes of one matrix (https://docs.github.com/actions/reference/limits)."""

MINUTES_PER_ENTRY: Final = 20
"""Default work of a machine: its start alone costs a minute or two."""


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How to divide jobs."""

    most: int = MOST_ENTRIES
    minutes: int = MINUTES_PER_ENTRY
