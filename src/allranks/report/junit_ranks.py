"""Properties that tell the ranks of a testcase apart: the seconds of each, and where its text is."""

from collections.abc import Iterator, Sequence

from allranks.report.results import PassedRanks, RankResult, TestVerdict, VerdictRule, numbers
from allranks.report.verdict import own_text, sections

_LEADS_THE_TEXT = frozenset({VerdictRule.LEADING_OUTCOME, VerdictRule.UNACCOUNTED})


def seconds_of(ranks: Sequence[RankResult]) -> str:
    """``0.25 0.31``: what the test took on each rank, by rank; empty for a single one, whose time is the test's."""
    if len(ranks) < 2:
        return ""
    times = ranks.seconds if isinstance(ranks, PassedRanks) else [rank.duration for rank in ranks]
    return " ".join([f"{time:.4g}" for time in times])


def places_of_texts(test: TestVerdict, text: str) -> str:
    """``1@52+310 0,2@420+80``: the ranks whose own text, or else message, stands in a text from there, so long.

    Any text may look like the beginning of another rank's, so its readers cannot find these places by themselves. A
    text that was cut has none.
    """
    return " ".join(_places(test, text))


def _places(test: TestVerdict, text: str) -> Iterator[str]:
    at = 0
    lead = test.lead if test.verdict.rule in _LEADS_THE_TEXT else None
    for ranks, section in sections(test.ranks, lead):
        start = text.find(section, at)
        if start < 0:
            continue
        at = start + len(section)
        own = own_text(ranks[0])
        yield f"{numbers(rank.rank for rank in ranks).replace(' ', '')}@{at - len(own)}+{len(own)}"
