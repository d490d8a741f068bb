"""How bad an outcome is, and one result out of several of the same rank."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from allranks.harness.outcome import Outcome
from allranks.report.model import RankResult

SEVERITY: Final = (
    Outcome.PASSED,
    Outcome.XPASSED,
    Outcome.XFAILED,
    Outcome.SKIPPED,
    Outcome.ABORTED,
    Outcome.FAILED,
    Outcome.ERRORED,
    Outcome.TIMED_OUT,
    Outcome.CRASHED,
    Outcome.MISSING,
)
"""The outcomes from the best to the worst.

What *worst* means where the order of arrival is not known: the further a rank was from ending its test by itself, the
worse. A crash is worse than a time-out because a crashed rank is what its peers hang on; an aborted rank was well until
it was stopped.
"""

_SEVERITY_OF: Final = {outcome: place for place, outcome in enumerate(SEVERITY)}


def severity(outcome: Outcome) -> int:
    """The place of an outcome in :data:`SEVERITY`; the higher, the worse."""
    return _SEVERITY_OF[outcome]


def fold(results: Sequence[RankResult]) -> RankResult:
    """One result for several of the same rank and test: the worst, with what the others say after its own text.

    The order of ``results`` makes no difference.

    Args:
        results: At least one.
    """
    if len(results) == 1:
        return results[0]
    first, *others = worst_first(results)
    texts = dict.fromkeys(text for text in (first.text, *(f"{o.message}\n{o.text}".strip() for o in others)) if text)
    return replace(
        first,
        text="\n\n".join(texts),
        duration=max(result.duration for result in results),
        stdout="".join(dict.fromkeys(result.stdout for result in [first, *others])),
        stderr="".join(dict.fromkeys(result.stderr for result in [first, *others])),
    )


def worst_first(results: Iterable[RankResult]) -> list[RankResult]:
    """Results by rank, and those of one rank from the worst to the best; whatever order they came in."""
    return sorted(results, key=lambda result: (result.rank, *_worst_first(result)))


def _worst_first(result: RankResult) -> tuple[object, ...]:
    """A total order, so that what is folded does not depend on the order of the file."""
    earliest = (result.at is None, result.at or 0.0)
    said = (result.message, result.text, result.stdout, result.stderr, result.classname, result.name)
    more = (result.consequence, str(result.caused_by), str(result.skip_kind), str(result.skip_code), result.duration)
    return (-severity(result.outcome), *earliest, *said, *more, result.phase, str(result.world_size))
