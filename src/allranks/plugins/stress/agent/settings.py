"""How a job repeats its tests, and the seeds of repetitions."""

import zlib
from dataclasses import dataclass

from allranks.protocol.repetitions import OFF


@dataclass(frozen=True, kw_only=True)
class Stress:
    """How a job repeats its tests."""

    count: int | None = None  # repetitions of each test; None for no limit
    seconds: float | None = None  # how long to start repetitions, from the first one on; None for no limit
    replay: int | None = None  # the seed of every repetition; None to derive the seeds from the job's
    skew: str = OFF  # how ranks are delayed
    baseline: bool = False  # whether tests that start their own ranks are also repeated under torch's own runner


def seed_of_repetition(own: int, number: int) -> int:
    """The seed of a test's repetition: the test's own for the first."""
    return own if number == 1 else zlib.crc32(str(number).encode(), own)
