"""Rates of failure: how often a test must pass to count as good, and whether two rates differ.

Both are exact for independent repetitions, and need nothing but the counts. What passes ``n`` times may still fail:
its unknown rate has the posterior of Jeffreys' prior after the counts known of it, Beta(bad + 1/2, passed + 1/2), and
the probability of ``n`` passes is the mean of (1 - rate)^n over that. Few failures known of a test so demand more
repetitions than a point estimate would. Two rates are compared by Fisher's exact test.
"""

import math
from typing import Final

MOST: Final = 1_000_000
"""Repetitions beyond which a number is none that anyone waits for."""


def missed(bad: int, runs: int, passes: int) -> float:
    """The probability that a test which failed `bad` of `runs` times passes so many times in a row."""
    good = runs - bad + 0.5
    whole = bad + good + 0.5
    return math.exp(math.lgamma(good + passes) - math.lgamma(good) + math.lgamma(whole) - math.lgamma(whole + passes))


def needed(bad: int, runs: int, risk: float) -> int:
    """The fewest passes that such a test has in a row with at most this probability; at most :data:`MOST`."""
    low, high = 0, 1
    while high < MOST and missed(bad, runs, high) > risk:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if missed(bad, runs, middle) <= risk else (middle, high)
    return min(high, MOST)


def unseen_rate(passes: int, risk: float) -> float:
    """The lowest rate that so many passes rule out, but for this risk."""
    return float(1.0 - risk ** (1.0 / passes)) if passes else 1.0


def log_chance(bad: int, runs: int, other_bad: int, other_runs: int) -> float:
    """The logarithm of the probability that equal rates differ as much as these or more, in either direction."""
    if not runs or not other_runs:
        return 0.0
    whole, total = bad + other_bad, runs + other_runs
    span = range(max(0, whole - other_runs), min(runs, whole) + 1)
    sides = (range(span.start, bad + 1), range(bad, span.stop))
    log_all = _log_choices(total, whole)
    found = min(_log_sum([_log_choices(runs, k) + _log_choices(other_runs, whole - k) for k in side]) for side in sides)
    return min(0.0, math.log(2.0) + found - log_all)


def percent(confidence: float) -> str:
    """A confidence, never rounded up to certainty."""
    return "over 99.9 %" if confidence > 0.999 else f"{math.floor(1000 * confidence) / 10:g} %"


def _log_choices(of: int, some: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(some + 1) - math.lgamma(of - some + 1)


def _log_sum(logs: list[float]) -> float:
    most = max(logs)
    return most + math.log(sum(math.exp(each - most) for each in logs))
