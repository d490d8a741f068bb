"""Repetitions of a test: how each is named, and what they come to together, in words.

A rate has Wilson's score interval (Wilson 1927, J. Am. Stat. Assoc. 22): it needs no inverse of the beta distribution,
and unlike the normal approximation it holds near 0, where rates of flaky tests are.
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
"""The normal distribution has 95 % within as many standard deviations."""

_CHANCE: Final = 0.01
"""The probability of a difference by chance up to which two rates are said to differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepetitionTally:
    """How the repetitions of a test have fared."""

    runs: int = 0  # those that have an outcome
    bad: int = 0  # those of them that went wrong
    kept: int = 0  # those of them that are reported one by one
    first_bad: int = 0  # the number of the first of them; 0 for none
    first_bad_after: float = 0.0  # seconds to its end, from the first repetition of any test on
    median: float = 0.0  # seconds of a repetition, to 5 %
    slowest: float = 0.0  # seconds of the slowest
    slowest_at: int = 0  # its number
    left: int = 0  # processes that outlived the ranks that had started them, and were killed
    shrunk: str = ""  # which delays the most frequent of them need, in words; empty if that was not searched
    command: str = ""  # the command of allranks that repeats it
    how: str = ""  # the option of this command that drew their delays: ``--skew heavy``
    beside_runs: int = 0  # repetitions under torch's own runner
    beside_bad: int = 0  # those of them that went wrong
    beside: str = ""  # the command of one of them, or why there is none; empty if it was not asked for


def name_of_repetition(nodeid: str, number: int, seed: int, skew: str = OFF) -> str:
    """The name under which a repetition is reported that went wrong."""
    return f"{nodeid} (repetition {number}, seed {seed}{'' if skew == OFF else f', skew {skew}'})"


def repeated_test(name: str) -> str:
    """The test that a repetition is of; the name itself if it is none of a repetition."""
    found = _NAME.fullmatch(name)
    return found["test"] if found else name


def options_of(skew: str) -> list[str]:
    """The option that delays the ranks of repetitions, word by word; empty for no delays."""
    return [] if skew == OFF else ["--skew", skew]


def command_to_repeat(name: str, selection: Sequence[str], told: RepetitionTally | None = None) -> list[str]:
    """The command that repeats a result, word by word.

    A repetition that went wrong is repeated alone: what it drew from its seed, each of these draws again. It depends on
    how the repetitions have fared; None if none was repeated.
    """
    found = _NAME.fullmatch(name)
    nodeid = found["test"] if found else name
    test = ["--", f"./{nodeid}" if nodeid.startswith("-") else nodeid] if nodeid else []
    if told is None or not told.command:
        return ["allranks", "run", *selection, *test]
    if found is not None:
        how = options_of(found["skew"] or OFF)
        return ["allranks", told.command, *selection, *how, "--replay", found["seed"], *test]
    return ["allranks", told.command, *selection, *told.how.split(), "--count", str(max(1, told.runs)), *test]


def interval(bad: int, runs: int) -> tuple[float, float]:
    """The 95 % interval of a failure rate, by Wilson."""
    if not runs:
        return 0.0, 1.0
    bad = min(bad, runs)  # a file may have any numbers
    rate, z2 = bad / runs, _Z * _Z
    middle = (rate + z2 / (2 * runs)) / (1 + z2 / runs)
    half = _Z / (1 + z2 / runs) * math.sqrt(rate * (1 - rate) / runs + z2 / (4 * runs * runs))
    return (0.0 if not bad else max(0.0, middle - half)), (1.0 if bad == runs else min(1.0, middle + half))


def rate_in_words(bad: int, runs: int) -> str:
    """``3 of 1,000 repetitions went wrong: 0.3 % (95 % interval 0.1 to 0.88 %)``."""
    low, high = interval(bad, runs)
    plural = "s" * (runs != 1)
    return (
        f"{bad:,} of {runs:,} repetition{plural} went wrong: {percentage(bad / runs if runs else 0.0)} % "
        f"(95 % interval {percentage(low)} to {percentage(high)} %)"
    )


def rate_in_short(bad: int, runs: int) -> str:
    """``3 of 1,000: 0.3 % (0.1 to 0.88 %)``."""
    low, high = interval(bad, runs)
    return f"{bad:,} of {runs:,}: {percentage(bad / max(1, runs))} % ({percentage(low)} to {percentage(high)} %)"


def summary_of(nodeid: str, told: RepetitionTally) -> str:
    """All that is known of a test's repetitions, in a sentence without its full stop."""
    said = [rate_in_words(told.bad, told.runs)]
    if told.bad:
        said.append(f"the first was repetition {told.first_bad}, after {_seconds(told.first_bad_after)}")
        if told.shrunk:
            said.append(told.shrunk)
        if told.bad > told.kept:
            said.append(f"{told.kept:,} of them are in the report, the others are like these")
    said.append(f"median {_seconds(told.median)}, slowest {_seconds(told.slowest)} (repetition {told.slowest_at})")
    if told.beside:
        said.append(beside_in_words(told))
    if told.left:
        said.append(f"{told.left:,} process{'es' * (told.left != 1)} left behind and killed")
    return f"{nodeid}: {'; '.join(said)}"


def beside_in_words(told: RepetitionTally) -> str:
    """How a test fares under torch's own runner, and whether that differs."""
    if not told.beside_runs:
        return f"not repeated under torch's runner: {told.beside}"
    return f"under torch's runner {rate_in_words(told.beside_bad, told.beside_runs)}: {difference_in_words(told)}"


def difference_in_words(told: RepetitionTally) -> str:
    """Whether a test fails more often under allranks or under torch's own runner, beyond chance."""
    chance = math.exp(log_chance(told.bad, told.runs, told.beside_bad, told.beside_runs))
    if chance > _CHANCE:
        return "no difference shown"
    is_ours = told.bad * told.beside_runs > told.beside_bad * told.runs
    return f"it fails more often under {'allranks' if is_ours else 'torch'}, confidence {percent(1 - chance)}"


def percentage(rate: float) -> str:
    """A rate in percent, without the sign, to two digits and more."""
    return f"{100 * rate:.2g}" if rate < 0.1 else f"{100 * rate:.1f}".removesuffix(".0")


def _seconds(value: float) -> str:
    """A time in the unit that a reader would use."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
