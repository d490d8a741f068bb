"""Which axis a rate of failure follows: the best split of the cells, if beyond chance.

Each predicate on one axis (``world_size >= 4``) splits the cells in two. The split with the smallest probability under
equal rates is taken, multiplied by the number of splits and of looks (Bonferroni). Among the cells that fail
the search goes on: an axis may decide within another one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from allranks.matrix.axes import AxisValue
from allranks.protocol.rates import log_chance, percent
from allranks.report.axis_correlation import predicates


@dataclass(frozen=True, kw_only=True)
class CellRate:
    """How often the test failed in a cell.

    Attributes:
        axes: The cell's value on each axis.
    """

    cell: str
    axes: Mapping[str, AxisValue]
    bad: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class DecidingAxis:
    """A split of cells whose rates differ.

    Attributes:
        axis: Its name.
        predicate: What holds in the cells that fail more often: ``world_size >= 4``.
        also: Other axes that split the cells in the same way: these cells cannot tell them apart.
        inside: The cells in which it holds.
        outside: The others.
        confidence: One minus the probability of such a difference by chance.
    """

    axis: str
    predicate: str
    also: tuple[str, ...]
    inside: tuple[CellRate, ...]
    outside: tuple[CellRate, ...]
    confidence: float


def deciding_axes(rates: Sequence[CellRate], confidence: float, looks: int = 1) -> list[DecidingAxis]:
    """The axes that decide, the strongest first, each among the cells in which those before it hold; none if none does.

    Args:
        rates: The cells in which the test ran.
        confidence: The least that each must have.
        looks: How often the counts are looked at as they grow: each look is another chance to err.
    """
    found: list[DecidingAxis] = []
    while (split := _best_split(rates, looks)) and split.confidence >= confidence:
        found.append(split)
        rates = split.inside
    return found


def _best_split(rates: Sequence[CellRate], looks: int) -> DecidingAxis | None:
    axes = [dict(each.axes) for each in rates]
    told = [(axis, text, holds) for axis in (axes[0] if axes else ()) for text, holds in predicates(axis, axes)]
    splits = {holds for _, _, holds in told if 0 < len(holds) < len(rates)}
    worse = [holds for holds in splits if _rate(rates, holds) > _rate(rates, _rest(rates, holds))]
    if not worse:
        return None
    chances = {holds: _log_chance(rates, holds) for holds in worse}
    likeliest = min(chances.values())
    # In the order of the axes, and of the simplest predicate: of several splits alike the first is named.
    axis, text, inside = next(each for each in told if each[2] in chances and chances[each[2]] <= likeliest + 1e-9)
    others = {other: None for other, _, holds in told if holds == inside and other != axis}
    distinct = len({min(tuple(sorted(holds)), tuple(sorted(_rest(rates, holds)))) for holds in splits})
    return DecidingAxis(
        axis=axis,
        predicate=text,
        also=tuple(others),
        inside=tuple(each for place, each in enumerate(rates) if place in inside),
        outside=tuple(each for place, each in enumerate(rates) if place not in inside),
        confidence=max(0.0, 1.0 - looks * distinct * math.exp(likeliest)),
    )


def counts_of(rates: Iterable[CellRate]) -> tuple[int, int]:
    """How many repetitions failed in these cells together, of how many."""
    listed = list(rates)
    return sum(each.bad for each in listed), sum(each.runs for each in listed)


def _rest(rates: Sequence[CellRate], places: AbstractSet[int]) -> set[int]:
    return set(range(len(rates))) - places


def _picked(rates: Sequence[CellRate], places: Iterable[int]) -> tuple[int, int]:
    return counts_of(rates[place] for place in places)


def _rate(rates: Sequence[CellRate], places: Iterable[int]) -> float:
    bad, runs = _picked(rates, places)
    return bad / max(1, runs)


def _log_chance(rates: Sequence[CellRate], inside: frozenset[int]) -> float:
    return log_chance(*_picked(rates, inside), *_picked(rates, _rest(rates, inside)))


def in_words(found: Sequence[DecidingAxis], rates: Sequence[CellRate]) -> str:
    """The answer in a sentence: which values the failure follows, and how sure that is.

    Args:
        found: The axes that decide; none if none does.
        rates: All cells in which the test ran.
    """
    if not found:
        bad, runs = counts_of(rates)
        return f"fails {bad:,} of {runs:,} times over all {len(rates)} cells: no axis decides"
    clauses = [_clause(each) for each in found]
    names = [" or ".join((each.axis, *each.also)) for each in found]
    verb = "decide" if len(names) > 1 or found[0].also else "decides"
    unclear = ", which these cells cannot tell apart" if any(each.also for each in found) else ""
    sure = percent(min(each.confidence for each in found))
    return f"fails {', and there '.join(clauses)}: {', then '.join(names)} {verb}{unclear}, confidence {sure}"


def _clause(split: DecidingAxis) -> str:
    bad, runs = counts_of(split.outside)
    how = "never" if not bad else "less often"
    inside = "{:,} of {:,}".format(*counts_of(split.inside))
    where = f"{split.axis} {_values(split.inside, split.axis)} ({inside})"
    return f"at {where}, {how} at {_values(split.outside, split.axis)} ({bad:,} of {runs:,})"


def _values(rates: Iterable[CellRate], axis: str) -> str:
    *others, last = dict.fromkeys(str(each.axes[axis]) for each in rates)
    return f"{', '.join(others)} or {last}" if others else last
