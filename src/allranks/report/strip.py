"""The outcomes of a test's ranks in one line."""

from collections.abc import Iterable, Sequence

from allranks.harness.outcome import Outcome
from allranks.report.model import RankResult


def describe(outcome: Outcome) -> str:
    """An outcome as a word or two of prose."""
    return outcome.value.replace("_", " ")


def strip(ranks: Sequence[RankResult], leading: RankResult | None = None) -> str:
    """``0, 2-3 aborted by rank 1; 1 failed (leads)``: every rank with its outcome, equal ones together."""
    by_outcome: dict[str, list[int]] = {}
    for rank in ranks:
        by_outcome.setdefault(_with_role(rank, leading), []).append(rank.rank)
    return "; ".join(f"{numbers(group)} {words}" for words, group in by_outcome.items())


def numbers(ranks: Iterable[int]) -> str:
    """Rank numbers in ascending order, runs of three and more shortened: ``0, 2-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(_run(run) for run in runs)


def _run(run: Sequence[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run))


def _with_role(rank: RankResult, leading: RankResult | None) -> str:
    words = describe(rank.outcome)
    if rank is leading:
        return f"{words} (leads)"
    if rank.outcome is Outcome.ABORTED and rank.caused_by is not None:
        return f"{words} by rank {rank.caused_by}"
    return f"{words} (consequence)" if rank.consequence and rank.outcome.is_bad else words
