"""The delays of ``--skew``: drawn at random from seed, rank and call number, or listed explicitly.

A race shows if one rank is late at one point, so each repetition draws which ranks are late, in how many of their
calls, and how much. Equal delays of all calls would hide a race that a single delay shows. C++ threads make no calls,
so the supervisor also stops whole ranks, and runs busy processes next to them
(:mod:`allranks.plugins.stress.agent.outside_skew`).
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, cast

from allranks.protocol.repetitions import OFF

DelayKind = Literal["before", "after", "joining", "stopped", "throttled", "crowded", "busy"]

JOINING: Final = "joining"
OUTSIDE: Final = ("stopped", "throttled", "crowded", "busy")
"""Delays by the supervisor during a test."""

MOST_BUSY: Final = 64
"""The most busy processes at a time."""

_DELAY: Final = re.compile(
    rf"(?P<rank>\d{{1,6}}):(?P<kind>before|after|{'|'.join((JOINING, *OUTSIDE))})"
    r":(?P<call>\d{1,9}):(?P<ms>\d{1,5}(\.\d{1,6})?)ms",
    re.ASCII,
)

MOST_CALLS: Final = 400
"""The number of a rank's first calls whose delays :func:`drawn_delays` lists."""

_SHORTEST: Final = 1e-5
"""Seconds: a call itself takes longer than a shorter delay."""

_SHARES: Final = (1.0, 0.5, 0.125)
"""Shares of a late rank's calls that are delayed."""

_SCALES: Final = (1.0, 0.2, 0.02)
"""The longest delay of a repetition, relative to that of its level."""

_OUTSIDE_ODDS: Final = {JOINING: 0.25, "stopped": 0.125, "throttled": 0.06, "crowded": 0.06, "busy": 0.06}
"""The probability of each action of the supervisor, per rank, except that ``busy`` is drawn once for all ranks."""

_LAST: Final = 500
"""Milliseconds into a test by which an action from outside starts; most tests take a few."""


@dataclass(frozen=True, kw_only=True)
class SkewLevel:
    """How much ranks are delayed."""

    longest: float  # seconds of one delay
    most: float  # seconds of all delays of a rank in a repetition


LEVELS: Final = {"light": SkewLevel(longest=0.02, most=0.2), "heavy": SkewLevel(longest=0.5, most=2.0)}


@dataclass(frozen=True, kw_only=True)
class Delay:
    """One delay of a rank, or one action of the supervisor.

    Attributes:
        rank: The rank; for ``busy``, the number of busy processes.
        kind: By the rank: ``before`` or ``after`` a call. By the supervisor: ``joining``, stopped before it joins its
            gang; ``stopped`` in the test; ``throttled`` to a fifth of a core; ``crowded`` by busy processes on its
            core; ``busy`` processes on any core.
        call: The number of the call, 0 for the start of the test; for the supervisor, milliseconds from the start.
    """

    rank: int
    kind: DelayKind
    call: int
    seconds: float

    @property
    def is_at_call(self) -> bool:
        """Whether the rank delays one of its own calls."""
        return self.kind in {"before", "after"}

    def __str__(self) -> str:
        """Format it for ``--skew``: ``1:before:2:40ms``."""
        return f"{self.rank}:{self.kind}:{self.call}:{milliseconds(self.seconds)}ms"


@dataclass(frozen=True, kw_only=True)
class LateRank:
    """A rank that is late in a repetition."""

    seed: int
    rank: int
    share: float  # of its calls that are delayed
    longest: float  # seconds of one delay
    most: float  # seconds of all delays

    def delay(self, call: int) -> tuple[float, float]:
        """Seconds before and after the call of this number; one of them is 0."""
        if _drawn(self.seed, self.rank, call, "whether") >= self.share:
            return 0.0, 0.0
        seconds = _SHORTEST * (self.longest / _SHORTEST) ** _drawn(self.seed, self.rank, call, "seconds")
        return (seconds, 0.0) if _drawn(self.seed, self.rank, call, "place") < 0.6 else (0.0, seconds)


def late_rank(level: SkewLevel, seed: int, rank: int) -> LateRank | None:
    """How a rank is late in the repetition with this seed; None if it is not late.

    Each rank is late with a probability of one half, so that often only some ranks are late.
    """
    if _drawn(seed, rank, "late") < 0.5:
        return None
    share = _SHARES[int(len(_SHARES) * _drawn(seed, rank, "share"))]
    scale = _SCALES[int(len(_SCALES) * _drawn(seed, rank, "scale"))]
    return LateRank(seed=seed, rank=rank, share=share, longest=scale * level.longest, most=level.most)


@dataclass(frozen=True, kw_only=True)
class NamedDelays:
    """A rank's delays that are listed explicitly."""

    delays: Sequence[Delay]
    most: float = math.inf

    def delay(self, call: int) -> tuple[float, float]:
        own = [delay for delay in self.delays if delay.call == call]
        before = sum(delay.seconds for delay in own if delay.kind == "before")
        return before, sum(delay.seconds for delay in own if delay.kind == "after")


def lateness(skew: str, seed: int, rank: int) -> LateRank | NamedDelays | None:
    """How a rank is late in the repetition with this seed; None if it is not late.

    `skew` is ``off``, a level, or a list of delays as :func:`format_delays` writes them.
    """
    if skew in LEVELS:
        return late_rank(LEVELS[skew], seed, rank)
    own = [delay for delay in parse_delays(skew) if delay.rank == rank]
    return NamedDelays(delays=own) if own else None


def drawn_delays(skew: str, seed: int, ranks: int) -> tuple[Delay, ...]:
    """All delays in the repetition with this seed: first the supervisor's, then by rank and call."""
    own = tuple(delay for rank in range(ranks) for delay in _delays_of_rank(skew, seed, rank))
    return (*drawn_outside(skew, seed, ranks), *own)


def drawn_outside(skew: str, seed: int, ranks: int) -> tuple[Delay, ...]:
    """The supervisor's delays in the repetition with this seed."""
    if skew not in LEVELS:
        return tuple(delay for delay in parse_delays(skew) if not delay.is_at_call)
    longest = LEVELS[skew].longest
    found = []
    for kind, odds in _OUTSIDE_ODDS.items():
        for rank in range(1 if kind == "busy" else ranks):
            if _drawn(seed, rank, kind) < odds:
                at = 0 if kind == JOINING else int(_LAST ** _drawn(seed, rank, kind, "at")) - 1
                seconds = longest * (0.001 / longest) ** _drawn(seed, rank, kind, "seconds")
                number = 2 << int(3 * _drawn(seed, "many")) if kind == "busy" else rank
                found.append(Delay(rank=number, kind=cast("DelayKind", kind), call=at, seconds=seconds))
    return tuple(found)


def format_outside(skew: str, seed: int, ranks: int, *, is_joining: bool) -> str:
    """The supervisor's delays in a repetition, as :func:`parse_delays` reads them; empty for none.

    Args:
        skew: As for :func:`lateness`.
        seed: The repetition's seed.
        ranks: The number of ranks.
        is_joining: Whether ranks are joining their gang, or running the test.
    """
    drawn = drawn_outside(skew, seed, ranks)
    return ",".join(str(delay) for delay in drawn if (delay.kind == JOINING) == is_joining)


def parse_delays(skew: str) -> tuple[Delay, ...]:
    """The delays in a list; none for ``off``.

    Raises:
        ValueError: The text is not a list of delays.
    """
    found = [] if skew == OFF else [(text, _DELAY.fullmatch(text)) for text in skew.split(",")]
    if wrong := [text for text, match in found if match is None]:
        kinds = ", ".join(("before", "after", JOINING, *OUTSIDE))
        msg = f"{wrong[0]!r} is not a delay: write RANK:KIND:CALL:40ms, KIND being one of {kinds}"
        raise ValueError(msg)
    return tuple(
        Delay(
            rank=int(match["rank"]),
            kind=cast("DelayKind", match["kind"]),
            call=int(match["call"]),
            seconds=float(match["ms"]) / 1000,
        )
        for _, match in found
        if match is not None
    )


def format_delays(delays: Iterable[Delay]) -> str:
    """Delays as a text that :func:`parse_delays` reads."""
    return ",".join(map(str, delays)) or OFF


def max_delay(skew: str, ranks: int) -> float:
    """Seconds that delays may add to a repetition, if ranks wait for each other's delays one after another."""
    if skew not in LEVELS:
        return sum(delay.seconds for delay in parse_delays(skew))
    level = LEVELS[skew]
    return (level.most + len(_OUTSIDE_ODDS) * level.longest) * ranks


def milliseconds(seconds: float) -> str:
    """A time in milliseconds with three digits, without the unit."""
    return f"{float(f'{1000 * seconds:.3g}'):g}"


def _delays_of_rank(skew: str, seed: int, rank: int) -> Iterator[Delay]:
    if (late := lateness(skew, seed, rank)) is None:
        return
    left = late.most
    for call in range(MOST_CALLS):
        before, after = late.delay(call)
        if seconds := min(before, left):
            yield Delay(rank=rank, kind="before", call=call, seconds=seconds)
        elif call and (seconds := min(after, left)):
            yield Delay(rank=rank, kind="after", call=call, seconds=seconds)
        left -= seconds


def _drawn(*parts: object) -> float:
    """A pseudorandom number in [0, 1) that depends on all parts."""
    digest = blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)
