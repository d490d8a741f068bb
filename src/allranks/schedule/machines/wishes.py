"""What is asked of a division of jobs among machines."""

from dataclasses import dataclass
from typing import Final

MOST_ENTRIES: Final = 256
"""Jobs that GitHub makes of one matrix at most (https://docs.github.com/actions/reference/limits)."""

MINUTES_PER_ENTRY: Final = 20
"""What a machine should have to do, unless somebody says otherwise: its start costs a minute or two."""


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is asked of a division.

    Attributes:
        most: Packs that there may be.
        minutes: What a pack should take.
    """

    most: int = MOST_ENTRIES
    minutes: int = MINUTES_PER_ENTRY
