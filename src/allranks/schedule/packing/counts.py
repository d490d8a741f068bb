"""How many hosts each of several kinds gets, so that a host of any kind has about as much to do as any other."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

_STEP: Final = 1.005
_LONGER: Final = 50
"""How much longer than wished hosts may work where that makes them even: up to this many steps, a quarter."""

EVEN: Final = 0.06
"""The part of the longest time by which another kind of hosts may be done earlier, and nobody looks further."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What hosts of one kind have to do together.

    Attributes:
        seconds: What one host would take for all of it.
        longest: Seconds of its longest task.
        tasks: How many there are, and so how many hosts have something to do.
        least: How many hosts there have to be.
    """

    seconds: float
    longest: float
    tasks: int
    least: int = 1

    def hosts(self, seconds: float) -> int:
        """How many hosts, if each works about so long; for no less time than the longest task takes."""
        return min(self.tasks, max(self.least, round(self.seconds / max(seconds, self.longest))))


def host_counts(works: Sequence[Work], seconds: float, most: int) -> list[int]:
    """How many hosts of each kind.

    Args:
        works: What each kind has to do.
        seconds: What one host should have to do, where there may be so many.
        most: Hosts that there may be, of all kinds together: no fewer than all kinds need at least.
    """
    shortest = next(
        length
        for length in (seconds * _STEP**number for number in count())
        if sum(work.hosts(length) for work in works) <= most
    )
    found = [(length, [work.hosts(length) for work in works]) for length in _lengths(shortest)]
    uneven = [_unevenness(works, counts, length) for length, counts in found]
    wanted = max(EVEN, min(uneven))
    return next(counts for (_, counts), each in zip(found, uneven, strict=True) if each <= wanted)


def _lengths(shortest: float) -> list[float]:
    return [shortest * _STEP**number for number in range(_LONGER)]


def _unevenness(works: Sequence[Work], counts: Sequence[int], length: float) -> float:
    """The part of the longest time by which some host is done earlier; of kinds of which one host is enough, none."""
    each = [
        work.seconds / number
        for work, number in zip(works, counts, strict=True)
        if number > 1 and work.longest <= length
    ]
    return 1 - min(each) / max(each) if each else 0.0
