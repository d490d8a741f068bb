"""Which calls of a rank ``--skew`` delays: drawn from a seed, the rank and the call's number.

A race needs a rank that is late in one place, so a repetition draws which ranks are late, how many of their calls, and
up to how much. Equal delays of all calls would hide a race that one delay shows.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal

Skew = Literal["off", "light", "heavy"]

_SHORTEST: Final = 1e-5
"""Seconds: a shorter delay is less than what a call itself takes."""

_SHARES: Final = (1.0, 0.5, 0.125)
"""Of the calls of a late rank, those that are delayed."""

_SCALES: Final = (1.0, 0.2, 0.02)
"""Of the longest delay of a level, the longest of a repetition."""


@dataclass(frozen=True, kw_only=True)
class SkewLevel:
    """How much ranks are delayed.

    Attributes:
        longest: Seconds of one delay.
        most: Seconds of all delays of a rank in a repetition.
    """

    longest: float
    most: float

    def stretch(self, ranks: int) -> float:
        """Seconds that delays may add to a repetition: ranks may wait for each other's, one after the other."""
        return self.most * ranks


LEVELS: Final = {"light": SkewLevel(longest=0.02, most=0.2), "heavy": SkewLevel(longest=0.5, most=2.0)}


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """A rank in a repetition in which it is late.

    Attributes:
        share: Of its calls, those that are delayed.
        longest: Seconds of one delay.
    """

    seed: int
    rank: int
    share: float
    longest: float

    def delay(self, call: int) -> tuple[float, float]:
        """Seconds before and after a call of this number; one of them is 0."""
        if _drawn(self.seed, self.rank, call, "whether") >= self.share:
            return 0.0, 0.0
        seconds = _SHORTEST * (self.longest / _SHORTEST) ** _drawn(self.seed, self.rank, call, "seconds")
        return (seconds, 0.0) if _drawn(self.seed, self.rank, call, "place") < 0.6 else (0.0, seconds)


def late_rank(level: SkewLevel, seed: int, rank: int) -> LateRank | None:
    """How a rank is late in the repetition with this seed; None if it is not.

    Each rank is with a probability of one half: of two ranks, most often one.
    """
    if _drawn(seed, rank, "late") < 0.5:
        return None
    share = _SHARES[int(len(_SHARES) * _drawn(seed, rank, "share"))]
    scale = _SCALES[int(len(_SCALES) * _drawn(seed, rank, "scale"))]
    return LateRank(seed=seed, rank=rank, share=share, longest=scale * level.longest)


def _drawn(*parts: object) -> float:
    """A number from 0 to 1, below 1, that is random in each of its parts."""
    digest = blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)
