"""Repetitions of a test: their names, their commands, and their failure rates as text.

Rates have Wilson's score interval (Wilson 1927, J. Am. Stat. Assoc. 22). It needs no inverse of the beta distribution
and, unlike the normal approximation, is accurate near 0, where the rates of flaky tests are.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from allranks.protocol.rates import log_chance, percent

OFF: Final = "off"
"""The skew of repetitions without delays."""

_NAME: Final = re.compile(
    r"(?P<test>.+) \(repetition [1-9]\d{0,17}, seed (?P<seed>\d{1,10})(?:, skew (?P<skew>[a-z\d:.,]+))?\)", re.DOTALL
)

_Z: Final = 1.959964
"""95 % of a normal distribution is within this many standard deviations of its mean."""

_CHANCE: Final = 0.01
"""Two rates differ if equal rates would produce such a difference with at most this probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepetitionTally:
    """The results of the repetitions of a test."""

    runs: int = 0  # repetitions that have an outcome
    bad: int = 0  # failed repetitions
    kept: int = 0  # failed repetitions that are reported one by one
    first_bad: int = 0  # the number of the first failed repetition; 0 for none
    first_bad_after: float = 0.0  # seconds from the start of the first repetition of any test to that failure
    median: float = 0.0  # seconds of a repetition, accurate to 5 %
    slowest: float = 0.0  # seconds of the slowest repetition
    slowest_at: int = 0  # the number of the slowest repetition
    left: int = 0  # processes that outlived the ranks that started them, and were killed
    shrunk: str = ""  # a sentence on the delays that the most frequent failure needs; empty if not sought
    command: str = ""  # the command of allranks that repeats the test
    how: str = ""  # the option of this command that drew the delays: ``--skew heavy``
    beside_runs: int = 0  # repetitions under torch's own runner
    beside_bad: int = 0  # failed repetitions among them
    beside: str = ""  # the command of one of them, or why there are none; empty if not requested


def name_of_repetition(nodeid: str, number: int, seed: int, skew: str = OFF) -> str:
    """The name under which a failed repetition is reported."""
    return f"{nodeid} (repetition {number}, seed {seed}{'' if skew == OFF else f', skew {skew}'})"


def repeated_test(name: str) -> str:
    """The node id in the name of a repetition; any other name is returned unchanged."""
    found = _NAME.fullmatch(name)
    return found["test"] if found else name


def options_of(skew: str) -> list[str]:
    """The command-line option for the delays of repetitions; empty for no delays."""
    return [] if skew == OFF else ["--skew", skew]


def command_to_repeat(name: str, selection: Sequence[str], tally: RepetitionTally | None = None) -> list[str]:
    """The command that reruns a test or a failed repetition, which is replayed with its seed.

    Args:
        name: The node id of a test, or the name of a repetition.
        selection: The options that select the job.
        tally: The results of the repetitions; None if the test was not repeated.
    """
    found = _NAME.fullmatch(name)
    nodeid = found["test"] if found else name
    test = ["--", f"./{nodeid}" if nodeid.startswith("-") else nodeid] if nodeid else []
    if tally is None or not tally.command:
        return ["allranks", "run", *selection, *test]
    if found is not None:
        skew = options_of(found["skew"] or OFF)
        return ["allranks", tally.command, *selection, *skew, "--replay", found["seed"], *test]
    return ["allranks", tally.command, *selection, *tally.how.split(), "--count", str(max(1, tally.runs)), *test]


def interval(bad: int, runs: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a failure rate."""
    if not runs:
        return 0.0, 1.0
    bad = min(bad, runs)  # the numbers may come from an edited file
    rate, z2 = bad / runs, _Z * _Z
    middle = (rate + z2 / (2 * runs)) / (1 + z2 / runs)
    half = _Z / (1 + z2 / runs) * math.sqrt(rate * (1 - rate) / runs + z2 / (4 * runs * runs))
    return (0.0 if not bad else max(0.0, middle - half)), (1.0 if bad == runs else min(1.0, middle + half))


def full_rate(bad: int, runs: int) -> str:
    """``3 of 1,000 repetitions failed: 0.3 % (95 % interval 0.1 to 0.88 %)``."""
    low, high = interval(bad, runs)
    plural = "s" * (runs != 1)
    return (
        f"{bad:,} of {runs:,} repetition{plural} failed: {percentage(bad / runs if runs else 0.0)} % "
        f"(95 % interval {percentage(low)} to {percentage(high)} %)"
    )


def short_rate(bad: int, runs: int) -> str:
    """``3 of 1,000: 0.3 % (0.1 to 0.88 %)``."""
    low, high = interval(bad, runs)
    return f"{bad:,} of {runs:,}: {percentage(bad / max(1, runs))} % ({percentage(low)} to {percentage(high)} %)"


def summary_of(nodeid: str, tally: RepetitionTally) -> str:
    """A sentence, without its full stop, on the repetitions of a test."""
    parts = [full_rate(tally.bad, tally.runs)]
    if tally.bad:
        parts.append(f"the first failure was repetition {tally.first_bad}, after {_seconds(tally.first_bad_after)}")
        if tally.shrunk:
            parts.append(tally.shrunk)
        if tally.bad > tally.kept:
            parts.append(f"the report has {tally.kept:,} of the failures, and the others are similar")
    parts.append(f"median {_seconds(tally.median)}, slowest {_seconds(tally.slowest)} (repetition {tally.slowest_at})")
    if tally.beside:
        parts.append(reference_comparison(tally))
    if tally.left:
        parts.append(f"{tally.left:,} process{'es' * (tally.left != 1)} left behind and killed")
    return f"{nodeid}: {'; '.join(parts)}"


def reference_comparison(tally: RepetitionTally) -> str:
    """The failure rate under torch's own runner, and whether it differs."""
    if not tally.beside_runs:
        return f"not repeated under torch's runner: {tally.beside}"
    return f"under torch's runner {full_rate(tally.beside_bad, tally.beside_runs)}: {difference(tally)}"


def difference(tally: RepetitionTally) -> str:
    """Whether a test fails significantly more often under allranks or under torch's own runner."""
    chance = math.exp(log_chance(tally.bad, tally.runs, tally.beside_bad, tally.beside_runs))
    if chance > _CHANCE:
        return "no significant difference"
    is_ours = tally.bad * tally.beside_runs > tally.beside_bad * tally.runs
    return f"it fails more often under {'allranks' if is_ours else 'torch'}, confidence {percent(1 - chance)}"


def percentage(rate: float) -> str:
    """A rate in percent, without ``%``, rounded to two or three digits."""
    return f"{100 * rate:.2g}" if rate < 0.1 else f"{100 * rate:.1f}".removesuffix(".0")


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
