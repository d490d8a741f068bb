"""Searches for the delays that a failure needs: delta debugging over those that its repetition drew.

A race fails at a rate, so each question is asked as often as that rate demands. Nothing here runs a test: the caller
counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from allranks.plugins.stress.agent.skew import Delay, Place, milliseconds, skew_of
from allranks.protocol.rates import log_chance
from allranks.protocol.repetitions import OFF, interval

T = TypeVar("T")

Count = Callable[[str, int, int], tuple[int, int]]
"""Repeats a test with a skew, so many times at most, until so many failed; returns how many failed, of how many."""

_FIRST: Final = 10
"""Repetitions that measure a rate."""

_CLEAR: Final = 4
"""Of these, failures after which it is known well enough: one that hangs takes seconds."""

_MORE: Final = 50
"""Further ones if none of these failed."""

_MOST: Final = 60
"""Repetitions for one question."""

_WITHOUT: Final = 200
"""Repetitions without the delays, in the end."""

_MISSED: Final = 0.01
"""The probability that a question's repetitions all pass by chance, or that a result differs by chance from none."""

_HALVINGS: Final = 6
"""The shortest delay that is tried is 1.6 % of the one that was drawn."""

_DOUBLINGS: Final = 3
"""The shortest delays that fail are at the edge: longer ones may show it each time."""

_CLEARLY_MORE: Final = 3
"""Further failures of :data:`_FIRST` repetitions that are worth a longer delay."""

_CALLS: Final[Sequence[tuple[int, Place]]] = [
    (0, "before"),
    *((call, place) for call in range(1, 8) for place in ("before", "after")),
]
"""Where a rank is late instead of being disturbed from outside: at the beginning of the test, and its first calls."""

_OF_A_RANK: Final = ("stopped", "throttled", "crowded")

_NAMED: Final = 3


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """What a search has come to.

    Attributes:
        delays: Those that the failure needs; none if they were not found.
        bad: How many repetitions failed with them, or with all of the delays drawn.
        runs: Of so many.
        bad_without: How many failed without any.
        runs_without: Of so many.
    """

    delays: tuple[Delay, ...] = ()
    bad: int = 0
    runs: int = 0
    bad_without: int = 0
    runs_without: int = 0


def shrink(
    drawn: Sequence[Delay],
    search: Count,
    confirm: Count,
    made: Callable[[Sequence[Delay]], Sequence[Delay]] = tuple,
) -> Shrunk:
    """The fewest and shortest of the delays of a failed repetition that still make it fail.

    Args:
        drawn: All of them.
        search: Counts failures; one that has no time left counts none.
        confirm: Counts those of the result.
        made: Those of some delays that ranks seem to have made; most are of calls that a test never does.
    """
    bad, runs = search(skew_of(drawn), _FIRST, _CLEAR)
    if not bad:
        more_bad, more = search(skew_of(drawn), _MORE, _CLEAR)
        bad, runs = more_bad, runs + more
    if not bad:
        return Shrunk(runs=runs)
    tries = tries_for(bad, runs)
    enough = max(1, int(tries * bad / runs / 2))

    def fails(delays: Sequence[Delay]) -> bool:
        return search(skew_of(delays), tries, enough)[0] >= enough

    if fails(()):
        bad_without, runs_without = confirm(OFF, _MOST, _MOST)
        return Shrunk(bad=bad, runs=runs, bad_without=bad_without, runs_without=runs_without)
    found = list(smallest(_likely(drawn, made(drawn), fails), fails))
    for place in range(len(found)):
        for _ in range(_HALVINGS):
            shorter = replace(found[place], seconds=found[place].seconds / 2)
            if not fails([*found[:place], shorter, *found[place + 1 :]]):
                break
            found[place] = shorter
    found = _made_reliable(_at_calls(found, fails), search)
    found_bad, found_runs = confirm(skew_of(found), max(_FIRST, tries), _MOST)
    bad_without, runs_without = confirm(OFF, _WITHOUT, _WITHOUT)
    if math.exp(log_chance(found_bad, found_runs, bad_without, runs_without)) > _MISSED:
        return Shrunk(bad=bad, runs=runs, bad_without=bad_without, runs_without=runs_without)
    counts = {"bad": found_bad, "runs": found_runs, "bad_without": bad_without, "runs_without": runs_without}
    return Shrunk(delays=tuple(found), **counts)


def _likely(drawn: Sequence[Delay], made: Sequence[Delay], fails: Callable[[Sequence[Delay]], bool]) -> Sequence[Delay]:
    """Of the delays drawn, those to search: of calls alone if these are enough, because a call has a line."""
    calls = [each for each in made if each.is_of_a_call]
    parts = (calls, made) if len(calls) < len(made) else (made,)
    return next((some for some in parts if 0 < len(some) < len(drawn) and fails(some)), drawn)


def _at_calls(found: list[Delay], fails: Callable[[Sequence[Delay]], bool]) -> list[Delay]:
    """The same delays, but those from outside at one of the rank's first calls, if that fails, too: it has a line."""
    for index, outside in enumerate(found):
        places = _CALLS if outside.place in _OF_A_RANK else ()
        lengths = (outside.seconds * times for times in (1.0, 0.5, 2.0))
        beside = (replace(outside, place=p, call=c, seconds=s) for s in lengths for c, p in places)
        tried = ([*found[:index], each, *found[index + 1 :]] for each in beside)
        found = next(filter(fails, tried), found)
    return found


def _made_reliable(found: list[Delay], search: Count) -> list[Delay]:
    """The same delays, twice as long if that fails as often (off the edge), and more if it fails clearly more often."""
    bad, runs = search(skew_of(found), _FIRST, _FIRST)
    for doubling in range(_DOUBLINGS if bad else 0):
        is_sure = bad >= 0.9 * runs
        if doubling and is_sure:
            break
        longer = [replace(each, seconds=2 * each.seconds) for each in found]
        longer_bad, longer_runs = search(skew_of(longer), _FIRST, _FIRST)
        if longer_bad < (bad if is_sure else bad + _CLEARLY_MORE):
            break
        found, bad, runs = longer, longer_bad, longer_runs
    return found


def smallest(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Some of the parts that still fail, and of which none can be left out (ddmin; Zeller and Hildebrandt 2002).

    Args:
        parts: All of them, which fail.
        fails: Whether some of them do.
    """
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
    """Repetitions of which at least one fails in 99 % of all cases, at the lowest rate that the counts allow."""
    low = interval(bad, runs)[0]
    return _MOST if low <= 0 else min(_MOST, math.ceil(math.log(_MISSED) / math.log1p(-low)))


def sentence(shrunk: Shrunk, places: Mapping[str, str]) -> str:
    """The result in words, to follow the name of a test.

    Args:
        shrunk: The result.
        places: Where delays are, by their text; of others the number of the call is named.
    """
    if not shrunk.bad:
        return f"the delays of its most frequent failure did not show it again in {shrunk.runs} repetitions"
    without = f"{shrunk.bad_without} of {shrunk.runs_without} without"
    if not shrunk.delays:
        return f"fails {shrunk.bad} of {shrunk.runs} times with the delays of its most frequent failure, {without}"
    named = [_late(each, places) for each in shrunk.delays[:_NAMED]]
    more = [f"{len(shrunk.delays) - _NAMED} more delays"] if len(shrunk.delays) > _NAMED else []
    return f"fails {shrunk.bad} of {shrunk.runs} times if {' and '.join([*named, *more])}, {without}"


def _late(delay: Delay, places: Mapping[str, str]) -> str:
    rank, after, for_ms = f"rank {delay.rank}", f"{delay.call} ms into the test", f"{milliseconds(delay.seconds)} ms"
    match delay.place:
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
    unknown = f"{delay.place} its call {delay.call}" if delay.call else "before the test"
    return f"{rank} is {for_ms} late {places.get(str(delay), unknown)}"
