"""Searches for the delays that a failure needs: delta debugging on the delays that its repetition drew.

A race fails only at some rate, so each set of delays is tried as often as that rate requires. The caller runs the test.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from allranks.plugins.stress.agent.skew import Delay, DelayKind, format_delays, milliseconds
from allranks.protocol.rates import log_chance
from allranks.protocol.repetitions import OFF, interval

T = TypeVar("T")

Count = Callable[[str, int, int], tuple[int, int]]
"""Repeats a test with a skew, up to a number of repetitions and of failures; returns failures and repetitions."""

_FIRST: Final = 10
"""Repetitions that measure a rate."""

_CLEAR: Final = 4
"""Failures after which these repetitions stop, because each failure that hangs takes seconds."""

_MORE: Final = 50
"""Additional repetitions if none of the first failed."""

_MOST: Final = 60
"""The most repetitions for one set of delays."""

_WITHOUT: Final = 200
"""Repetitions without delays, at the end."""

_MISSED: Final = 0.01
"""The accepted probability that repetitions pass by chance, or that rates with and without delays differ by chance."""

_HALVINGS: Final = 6
"""How often a delay is halved: to 1.6 % of the one that was drawn."""

_DOUBLINGS: Final = 3
"""How often delays are doubled: the shortest delays that fail are borderline, and longer ones may always fail."""

_CLEARLY_MORE: Final = 3
"""Additional failures in :data:`_FIRST` repetitions that justify longer delays."""

_CALLS: Final[Sequence[tuple[int, DelayKind]]] = [
    (0, "before"),
    *((call, place) for call in range(1, 8) for place in ("before", "after")),
]
"""Calls that may replace a delay from outside: the start of the test, and its first calls."""

_ON_ONE_RANK: Final = ("stopped", "throttled", "crowded")

_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a search."""

    delays: tuple[Delay, ...] = ()  # those that the failure needs; empty if they were not found
    bad: int = 0  # failed repetitions with these delays, or with all delays if they were not found
    runs: int = 0
    bad_without: int = 0  # failed repetitions without any delays
    runs_without: int = 0


def shrink(
    drawn: Sequence[Delay],
    search: Count,
    confirm: Count,
    delays_made: Callable[[Sequence[Delay]], Sequence[Delay]] = tuple,
) -> Shrunk:
    """Reduce the delays of a failed repetition to the fewest and shortest that still make it fail.

    Args:
        drawn: All of its delays.
        search: Counts failures; without time left it counts none.
        confirm: Counts failures with the result.
        delays_made: Selects the delays that ranks have made; most are for calls that a test never makes.
    """
    bad, runs = search(format_delays(drawn), _FIRST, _CLEAR)
    if not bad:
        more_bad, more = search(format_delays(drawn), _MORE, _CLEAR)
        bad, runs = more_bad, runs + more
    if not bad:
        return Shrunk(runs=runs)
    tries = tries_for(bad, runs)
    enough = max(1, int(tries * bad / runs / 2))

    def fails(delays: Sequence[Delay]) -> bool:
        return search(format_delays(delays), tries, enough)[0] >= enough

    if fails(()):
        bad_without, runs_without = confirm(OFF, _MOST, _MOST)
        return Shrunk(bad=bad, runs=runs, bad_without=bad_without, runs_without=runs_without)
    found = list(smallest(_likely(drawn, delays_made(drawn), fails), fails))
    for index in range(len(found)):
        for _ in range(_HALVINGS):
            shorter = replace(found[index], seconds=found[index].seconds / 2)
            if not fails([*found[:index], shorter, *found[index + 1 :]]):
                break
            found[index] = shorter
    found = _made_reliable(_replaced_by_calls(found, fails), search)
    found_bad, found_runs = confirm(format_delays(found), max(_FIRST, tries), _MOST)
    bad_without, runs_without = confirm(OFF, _WITHOUT, _WITHOUT)
    if math.exp(log_chance(found_bad, found_runs, bad_without, runs_without)) > _MISSED:
        return Shrunk(bad=bad, runs=runs, bad_without=bad_without, runs_without=runs_without)
    counts = {"bad": found_bad, "runs": found_runs, "bad_without": bad_without, "runs_without": runs_without}
    return Shrunk(delays=tuple(found), **counts)


def _likely(drawn: Sequence[Delay], made: Sequence[Delay], fails: Callable[[Sequence[Delay]], bool]) -> Sequence[Delay]:
    """The delays to search: only delays of calls if these suffice, because a call has a source line."""
    calls = [delay for delay in made if delay.is_at_call]
    parts = (calls, made) if len(calls) < len(made) else (made,)
    return next((some for some in parts if 0 < len(some) < len(drawn) and fails(some)), drawn)


def _replaced_by_calls(found: list[Delay], fails: Callable[[Sequence[Delay]], bool]) -> list[Delay]:
    """Replace delays from outside by delays of the rank's first calls, which have a source line, if it still fails."""
    for index, outside in enumerate(found):
        calls = _CALLS if outside.kind in _ON_ONE_RANK else ()
        lengths = (outside.seconds * factor for factor in (1.0, 0.5, 2.0))
        at_calls = (replace(outside, kind=kind, call=call, seconds=s) for s in lengths for call, kind in calls)
        candidates = ([*found[:index], delay, *found[index + 1 :]] for delay in at_calls)
        found = next(filter(fails, candidates), found)
    return found


def _made_reliable(found: list[Delay], search: Count) -> list[Delay]:
    """Double the delays, to be less borderline: once if they fail reliably, else while they fail clearly more often."""
    bad, runs = search(format_delays(found), _FIRST, _FIRST)
    for doubling in range(_DOUBLINGS if bad else 0):
        is_sure = bad >= 0.9 * runs
        if doubling and is_sure:
            break
        longer = [replace(delay, seconds=2 * delay.seconds) for delay in found]
        longer_bad, longer_runs = search(format_delays(longer), _FIRST, _FIRST)
        if longer_bad < (bad if is_sure else bad + _CLEARLY_MORE):
            break
        found, bad, runs = longer, longer_bad, longer_runs
    return found


def smallest(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """A minimal subset of the parts that still fails (ddmin; Zeller and Hildebrandt 2002)."""
    pieces = 2
    while len(parts) > 1:
        size = math.ceil(len(parts) / pieces)
        starts = range(0, len(parts), size)
        halves = ([*parts[start : start + size]] for start in starts)
        rests = ([*parts[:start], *parts[start + size :]] for start in starts if pieces > 2)  # of two, each is a half
        if (half := next(filter(fails, halves), None)) is not None:
            parts, pieces = half, 2
        elif (rest := next(filter(fails, rests), None)) is not None:
            parts, pieces = rest, max(2, pieces - 1)
        elif size == 1:
            break
        else:
            pieces *= 2
    return parts


def tries_for(bad: int, runs: int) -> int:
    """How many repetitions make a failure 99 % probable, at the lowest rate that fits the counts."""
    low = interval(bad, runs)[0]
    return _MOST if low <= 0 else min(_MOST, math.ceil(math.log(_MISSED) / math.log1p(-low)))


def sentence(shrunk: Shrunk, locations: Mapping[str, str]) -> str:
    """The result as a sentence that follows the name of a test.

    Args:
        shrunk: The result.
        locations: The locations of delays, by their text; for other delays, the number of the call is given.
    """
    if not shrunk.bad:
        return f"the delays of its most frequent failure did not reproduce it: 0 of {shrunk.runs} failed"
    without = f"{shrunk.bad_without} of {shrunk.runs_without} without"
    if not shrunk.delays:
        return f"fails {shrunk.bad} of {shrunk.runs} times with the delays of its most frequent failure, {without}"
    shown = [_clause(delay, locations) for delay in shrunk.delays[:_SHOWN]]
    hidden = len(shrunk.delays) - _SHOWN
    more = [f"{hidden} more delay{'s' if hidden > 1 else ''}"] if hidden > 0 else []
    return f"fails {shrunk.bad} of {shrunk.runs} times if {' and '.join([*shown, *more])}, {without}"


def _clause(delay: Delay, locations: Mapping[str, str]) -> str:
    rank, after, for_ms = f"rank {delay.rank}", f"{delay.call} ms into the test", f"{milliseconds(delay.seconds)} ms"
    match delay.kind:
        case "joining":
            return f"{rank} joins its gang {for_ms} late"
        case "stopped":
            return f"{rank} is stopped for {for_ms}, {after}"
        case "throttled":
            return f"{rank} has a fifth of a core for {for_ms}, {after}"
        case "crowded":
            return f"{rank} shares its core with busy processes for {for_ms}, {after}"
        case "busy":
            return f"{delay.rank} busy processes run for {for_ms}, {after}"
    unknown = f"{delay.kind} its call {delay.call}" if delay.call else "before the test"
    return f"{rank} is {for_ms} late {locations.get(str(delay), unknown)}"
