"""Which calls of a rank ``--skew`` delays: drawn from seed, rank and number, or named one by one.

A race needs a rank that is late in one place, so a repetition draws which ranks are late, how many of their calls, and
up to how much. Equal delays of all calls would hide a race that one delay shows. Threads of C++ make no calls, so the
supervisor stops whole ranks, too, and has busy processes beside them
(:mod:`allranks.plugins.stress.agent.outside_skew`).
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, cast

from allranks.protocol.repetitions import OFF

Place = Literal["before", "after", "joining", "stopped", "throttled", "crowded", "busy"]

JOINING: Final = "joining"
OUTSIDE: Final = ("stopped", "throttled", "crowded", "busy")
"""Where the supervisor acts during a test."""

MOST_BUSY: Final = 64
"""Busy processes at a time."""

_DELAY: Final = re.compile(
    rf"(?P<rank>\d{{1,6}}):(?P<place>before|after|{'|'.join((JOINING, *OUTSIDE))})"
    r":(?P<call>\d{1,9}):(?P<ms>\d{1,5}(\.\d{1,6})?)ms",
    re.ASCII,
)

MOST_CALLS: Final = 400
"""Calls of a rank, from its first on, whose delays :func:`drawn_delays` lists."""

_SHORTEST: Final = 1e-5
"""Seconds: a shorter delay is less than what a call itself takes."""

_SHARES: Final = (1.0, 0.5, 0.125)
"""Of the calls of a late rank, those that are delayed."""

_SCALES: Final = (1.0, 0.2, 0.02)
"""Of the longest delay of a level, the longest of a repetition."""

_OUTSIDE_ODDS: Final = {JOINING: 0.25, "stopped": 0.125, "throttled": 0.06, "crowded": 0.06, "busy": 0.06}
"""How often the supervisor acts; ``busy`` once for all ranks."""

_LAST: Final = 500
"""Milliseconds into a test in which an action from outside begins; most tests take a few."""


@dataclass(frozen=True, kw_only=True)
class SkewLevel:
    """How much ranks are delayed.

    Attributes:
        longest: Seconds of one delay.
        most: Seconds of all delays of a rank in a repetition.
    """

    longest: float
    most: float


LEVELS: Final = {"light": SkewLevel(longest=0.02, most=0.2), "heavy": SkewLevel(longest=0.5, most=2.0)}


@dataclass(frozen=True, kw_only=True)
class Delay:
    """One delay of a rank, or one action of the supervisor.

    Attributes:
        rank: Whose; where it is ``busy``, how many busy processes there are.
        place: Beside a call: ``before`` or ``after``. Of the supervisor: ``joining``, stopped before it joins its
            gang; ``stopped`` in the test; ``throttled``, with a fifth of a core; ``crowded``, with busy processes on
            its core; ``busy``, with some anywhere.
        call: The number of the call, 0 for the beginning of the test; of the supervisor's, milliseconds from there.
    """

    rank: int
    place: Place
    call: int
    seconds: float

    @property
    def is_of_a_call(self) -> bool:
        """Whether the rank delays itself, beside a call."""
        return self.place in {"before", "after"}

    def __str__(self) -> str:
        """``1:before:2:40ms``, as ``--skew`` takes it."""
        return f"{self.rank}:{self.place}:{self.call}:{milliseconds(self.seconds)}ms"


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """A rank in a repetition in which it is late.

    Attributes:
        share: Of its calls, those that are delayed.
        longest: Seconds of one delay.
        most: Seconds of all delays.
    """

    seed: int
    rank: int
    share: float
    longest: float
    most: float

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
    return LateRank(seed=seed, rank=rank, share=share, longest=scale * level.longest, most=level.most)


@dataclass(frozen=True, kw_only=True)
class NamedDelays:
    """The delays of a rank that are named one by one."""

    delays: Sequence[Delay]
    most: float = math.inf

    def delay(self, call: int) -> tuple[float, float]:
        own = [each for each in self.delays if each.call == call]
        before = sum(each.seconds for each in own if each.place == "before")
        return before, sum(each.seconds for each in own if each.place == "after")


def lateness(skew: str, seed: int, rank: int) -> LateRank | NamedDelays | None:
    """How a rank is late in the repetition with this seed; None if it is not.

    Args:
        skew: ``off``, a level, or delays as :func:`skew_of` writes them.
        seed: The repetition's.
        rank: Which.
    """
    if skew in LEVELS:
        return late_rank(LEVELS[skew], seed, rank)
    own = [each for each in delays_of(skew) if each.rank == rank]
    return NamedDelays(delays=own) if own else None


def drawn_delays(skew: str, seed: int, ranks: int) -> tuple[Delay, ...]:
    """The delays of all ranks in the repetition with this seed, rank by rank, in the order of their calls."""
    own = tuple(each for rank in range(ranks) for each in _delays_of_rank(skew, seed, rank))
    return (*drawn_outside(skew, seed, ranks), *own)


def drawn_outside(skew: str, seed: int, ranks: int) -> tuple[Delay, ...]:
    """What the supervisor does in the repetition with this seed."""
    if skew not in LEVELS:
        return tuple(each for each in delays_of(skew) if not each.is_of_a_call)
    longest = LEVELS[skew].longest
    found = []
    for place, odds in _OUTSIDE_ODDS.items():
        for rank in range(1 if place == "busy" else ranks):
            if _drawn(seed, rank, place) < odds:
                at = 0 if place == JOINING else int(_LAST ** _drawn(seed, rank, place, "at")) - 1
                seconds = longest * (0.001 / longest) ** _drawn(seed, rank, place, "seconds")
                who = 2 << int(3 * _drawn(seed, "many")) if place == "busy" else rank
                found.append(Delay(rank=who, place=cast("Place", place), call=at, seconds=seconds))
    return tuple(found)


def outside_in(skew: str, seed: int, ranks: int, *, is_joining: bool) -> str:
    """What the supervisor does in a repetition, as :func:`delays_of` reads it; empty for nothing.

    Args:
        skew: As for :func:`lateness`.
        seed: The repetition's.
        ranks: How many there are.
        is_joining: Whether ranks join their gang, or else run the test.
    """
    drawn = drawn_outside(skew, seed, ranks)
    return ",".join(str(each) for each in drawn if (each.place == JOINING) == is_joining)


def delays_of(skew: str) -> tuple[Delay, ...]:
    """Delays that are named one by one; none for ``off``.

    Raises:
        ValueError: The text names none.
    """
    found = [] if skew == OFF else [(each, _DELAY.fullmatch(each)) for each in skew.split(",")]
    if wrong := [each for each, match in found if match is None]:
        msg = f"{wrong[0]!r} is no delay: write RANK:before:CALL:40ms, or after, joining, {', '.join(OUTSIDE)}"
        raise ValueError(msg)
    return tuple(
        Delay(
            rank=int(match["rank"]),
            place=cast("Place", match["place"]),
            call=int(match["call"]),
            seconds=float(match["ms"]) / 1000,
        )
        for _, match in found
        if match is not None
    )


def skew_of(delays: Iterable[Delay]) -> str:
    """The text of delays that :func:`delays_of` reads."""
    return ",".join(map(str, delays)) or OFF


def stretch(skew: str, ranks: int) -> float:
    """Seconds that delays may add to a repetition: ranks may wait for each other's, one after the other."""
    if skew not in LEVELS:
        return sum(each.seconds for each in delays_of(skew))
    level = LEVELS[skew]
    return (level.most + len(_OUTSIDE_ODDS) * level.longest) * ranks


def milliseconds(seconds: float) -> str:
    """Three digits of a time in milliseconds, without its unit."""
    return f"{float(f'{1000 * seconds:.3g}'):g}"


def _delays_of_rank(skew: str, seed: int, rank: int) -> Iterator[Delay]:
    if (late := lateness(skew, seed, rank)) is None:
        return
    left = late.most
    for call in range(MOST_CALLS):
        before, after = late.delay(call)
        if seconds := min(before, left):
            yield Delay(rank=rank, place="before", call=call, seconds=seconds)
        elif call and (seconds := min(after, left)):
            yield Delay(rank=rank, place="after", call=call, seconds=seconds)
        left -= seconds


def _drawn(*parts: object) -> float:
    """A number from 0 to 1, below 1, that is random in each of its parts."""
    digest = blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)
