"""What a test needs of the number of ranks."""

from allranks.testing.environment import RankEnvironment
from allranks.testing.skips.requirement import Requirement, skip
from allranks.testing.skips.skipcodes import SkipCode
from allranks.testing.whole_numbers import at_least_one


def require_world_size(minimum: int) -> Requirement:
    """The test needs at least ``minimum`` ranks (code 73)."""
    at_least_one(minimum, "ranks")

    def check() -> None:
        world_size = RankEnvironment.read().world_size
        if world_size < minimum:
            skip(SkipCode.SMALL_WORLD_SIZE, f"{world_size} of at least {minimum} ranks")

    return Requirement(check)


def skip_if_small_world_size(minimum: int) -> Requirement:
    """:func:`require_world_size` by another name: at least ``minimum`` ranks (code 73)."""
    return require_world_size(minimum)


def require_exact_world_size(n: int) -> Requirement:
    """The test needs ``n`` ranks, no fewer (code 73) and no more (code 86: torch's table has none for it)."""
    minimum = require_world_size(n)

    def check() -> None:
        minimum.check()
        world_size = RankEnvironment.read().world_size
        if world_size > n:
            skip(SkipCode.GENERIC, f"the world is too large for this test: {world_size} ranks, and it needs {n}")

    return Requirement(check)


def _check_even_world_size() -> None:
    world_size = RankEnvironment.read().world_size
    if world_size % 2:
        skip(SkipCode.ODD_WORLD_SIZE, f"{world_size} ranks")


skip_if_odd_world_size = Requirement(_check_even_world_size)
"""The test needs an even number of ranks (code 87)."""
