"""Properties that tell the ranks of a testcase apart: the seconds of each, and where its text is."""

from collections.abc import Iterator, Sequence

from allranks.protocol.outcomes import numbers
from allranks.report.judge.rules import own_text, sections
from allranks.report.results import PassedRanks, RankResult, TestVerdict, VerdictRule

_LEADS_THE_TEXT = frozenset({VerdictRule.LEADING_OUTCOME, VerdictRule.UNACCOUNTED})


def seconds_of(ranks: Sequence[RankResult]) -> str:
    """``0.25 0.31``: what the test took on each rank, by rank; empty if they differ by 0.01 s or 5 % at most.

    Ranks run in lockstep, so that nearly all tests have none. Of 64 ranks they would be half of the report.
    """
    if isinstance(ranks, PassedRanks):
        team, place = ranks.team, ranks.place
        is_alike = _is_alike(team.fastest[place], team.slowest[place])
        return "" if is_alike else _written([file.seconds[place] for file in team.files])
    times = [rank.duration for rank in ranks]
    return "" if not times or _is_alike(min(times), max(times)) else _written(times)


def _is_alike(fastest: float, slowest: float) -> bool:
    return slowest - fastest <= 0.01 or fastest >= 0.95 * slowest


def _written(times: Sequence[float]) -> str:
    return ("%.3g " * len(times) % tuple(times))[:-1]  # in one call: a report may have millions


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
