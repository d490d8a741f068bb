"""Failure rates: how often a test must pass to count as fixed, and whether two rates differ.

Both are exact for independent repetitions, and need only the counts. A test that passes ``n`` times may still fail: its
unknown failure rate has the posterior distribution Beta(failures + 1/2, passes + 1/2) (Jeffreys' prior), and the
probability of ``n`` passes is the mean of (1 - rate)^n over it. If a test has failed only a few times, this requires
more repetitions than a point estimate would. Two rates are compared with Fisher's exact test.
"""

import math
from typing import Final

MOST: Final = 1_000_000
"""The largest number of repetitions: nobody waits for more."""


def chance_of_passes(bad: int, runs: int, passes: int) -> float:
    """The probability that a test that failed `bad` of `runs` times passes `passes` times in a row."""
    passed = runs - bad + 0.5
    total = bad + passed + 0.5
    return math.exp(
        math.lgamma(passed + passes) - math.lgamma(passed) + math.lgamma(total) - math.lgamma(total + passes)
    )


def needed(bad: int, runs: int, risk: float) -> int:
    """The fewest passes in a row whose probability, for a test that failed `bad` of `runs` times, is at most `risk`.

    The result is at most :data:`MOST`.
    """
    low, high = 0, 1
    while high < MOST and chance_of_passes(bad, runs, high) > risk:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance_of_passes(bad, runs, middle) <= risk else (middle, high)
    return min(high, MOST)


def unseen_rate(passes: int, risk: float) -> float:
    """The lowest failure rate that `passes` passes in a row rule out; `risk` is the probability of an error."""
    return float(1.0 - risk ** (1.0 / passes)) if passes else 1.0


def log_chance(bad: int, runs: int, other_bad: int, other_runs: int) -> float:
    """The logarithm of the two-sided p-value of Fisher's exact test: twice the smaller tail; 0 if a test never ran."""
    if not runs or not other_runs:
        return 0.0
    all_bad = bad + other_bad
    span = range(max(0, all_bad - other_runs), min(runs, all_bad) + 1)
    tails = (range(span.start, bad + 1), range(bad, span.stop))
    log_all = _log_choices(runs + other_runs, all_bad)
    log_tail = min(
        _log_sum([_log_choices(runs, k) + _log_choices(other_runs, all_bad - k) for k in tail]) for tail in tails
    )
    return min(0.0, math.log(2.0) + log_tail - log_all)


def percent(confidence: float) -> str:
    """A confidence in percent, never rounded up to 100 %."""
    return "over 99.9 %" if confidence > 0.999 else f"{math.floor(1000 * confidence) / 10:g} %"


def _log_choices(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_sum(logs: list[float]) -> float:
    largest = max(logs)
    return largest + math.log(sum(math.exp(log - largest) for log in logs))
