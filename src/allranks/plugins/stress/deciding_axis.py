"""Finds the axis that determines how often a test fails: the best split of the cells, if it is significant.

Each predicate on one axis (``world_size >= 4``) splits the cells in two. The split with the smallest probability under
equal rates wins; this probability is multiplied by the number of splits and of looks (Bonferroni). The search continues
among the cells that fail more often, because another axis may decide there.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from allranks.errors import counted
from allranks.matrix.axes import AxisValue
from allranks.protocol.rates import log_chance, percent
from allranks.report.axis_correlation import predicates


@dataclass(frozen=True, kw_only=True)
class CellRate:
    """How often the test failed in a cell."""

    cell: str
    axes: Mapping[str, AxisValue]
    bad: int
    runs: int


@dataclass(frozen=True, kw_only=True)
class DecidingAxis:
    """A split of the cells into two groups with different rates."""

    axis: str
    predicate: str  # true in the cells that fail more often: ``world_size >= 4``
    also: tuple[str, ...]  # other axes that split the cells in the same way
    inside: tuple[CellRate, ...]  # the cells in which the predicate is true
    outside: tuple[CellRate, ...]
    confidence: float  # one minus the probability of such a difference by chance


def deciding_axes(rates: Sequence[CellRate], confidence: float, looks: int = 1) -> list[DecidingAxis]:
    """The axes that decide, strongest first, each among the cells in which the predicates before it are true.

    Args:
        rates: The cells in which the test ran.
        confidence: The confidence that each axis needs.
        looks: How often the counts are checked as they grow: each check is another chance of an error.
    """
    found: list[DecidingAxis] = []
    while (split := _best_split(rates, looks)) and split.confidence >= confidence:
        found.append(split)
        rates = split.inside
    return found


def _best_split(rates: Sequence[CellRate], looks: int) -> DecidingAxis | None:
    axes = [dict(rate.axes) for rate in rates]
    candidates = [(axis, text, holds) for axis in (axes[0] if axes else ()) for text, holds in predicates(axis, axes)]
    splits = {holds for _, _, holds in candidates if 0 < len(holds) < len(rates)}
    worse = [holds for holds in splits if _rate(rates, holds) > _rate(rates, _rest(rates, holds))]
    if not worse:
        return None
    chances = {holds: _log_chance(rates, holds) for holds in worse}
    least = min(chances.values())
    # Of several equal splits, the first axis and its simplest predicate are named.
    axis, text, inside = next(found for found in candidates if chances.get(found[2], math.inf) <= least + 1e-9)
    others = {other: None for other, _, holds in candidates if holds == inside and other != axis}
    distinct = len({min(tuple(sorted(holds)), tuple(sorted(_rest(rates, holds)))) for holds in splits})
    return DecidingAxis(
        axis=axis,
        predicate=text,
        also=tuple(others),
        inside=tuple(rate for index, rate in enumerate(rates) if index in inside),
        outside=tuple(rate for index, rate in enumerate(rates) if index not in inside),
        confidence=max(0.0, 1.0 - looks * distinct * math.exp(least)),
    )


def _totals(rates: Iterable[CellRate]) -> tuple[int, int]:
    """The failures and the repetitions in all of these cells."""
    rates = list(rates)
    return sum(rate.bad for rate in rates), sum(rate.runs for rate in rates)


def _rest(rates: Sequence[CellRate], indices: AbstractSet[int]) -> set[int]:
    return set(range(len(rates))) - indices


def _totals_at(rates: Sequence[CellRate], indices: Iterable[int]) -> tuple[int, int]:
    return _totals(rates[index] for index in indices)


def _rate(rates: Sequence[CellRate], indices: Iterable[int]) -> float:
    bad, runs = _totals_at(rates, indices)
    return bad / max(1, runs)


def _log_chance(rates: Sequence[CellRate], inside: frozenset[int]) -> float:
    return log_chance(*_totals_at(rates, inside), *_totals_at(rates, _rest(rates, inside)))


def verdict_text(found: Sequence[DecidingAxis], rates: Sequence[CellRate]) -> str:
    """The answer in a sentence: the axis values with which the test fails, and the confidence.

    Args:
        found: The axes that decide, if any.
        rates: All cells in which the test ran.
    """
    if not found:
        bad, runs = _totals(rates)
        return f"fails {bad:,} of {runs:,} times in {counted(len(rates), 'cell')}: no axis decides"
    clauses = [_clause(axis) for axis in found]
    names = [" or ".join((axis.axis, *axis.also)) for axis in found]
    verb = "decide" if len(names) > 1 or found[0].also else "decides"
    unclear = ", which these cells cannot tell apart" if any(axis.also for axis in found) else ""
    sure = percent(min(axis.confidence for axis in found))
    return f"fails {', and there '.join(clauses)}: {', then '.join(names)} {verb}{unclear}, confidence {sure}"


def _clause(split: DecidingAxis) -> str:
    bad, runs = _totals(split.outside)
    how = "never" if not bad else "less often"
    inside = "{:,} of {:,}".format(*_totals(split.inside))
    where = f"{split.axis} {_values(split.inside, split.axis)} ({inside})"
    return f"at {where}, {how} at {_values(split.outside, split.axis)} ({bad:,} of {runs:,})"


def _values(rates: Iterable[CellRate], axis: str) -> str:
    *others, last = dict.fromkeys(str(rate.axes[axis]) for rate in rates)
    return f"{', '.join(others)} or {last}" if others else last
