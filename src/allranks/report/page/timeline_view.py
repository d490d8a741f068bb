"""The timeline of a failed test's ranks, and the difference between the outputs of two ranks, for the page."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final

from allranks.errors import counted
from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import clean_cut, clipped, readable
from allranks.report.rank_timeline import RankTimeline, missing_ranks, waits
from allranks.report.results import RankResult, TestVerdict, own_failures

MOST_ROWS: Final = 16
"""The largest number of rows: the primary failure, other own failures, early and late ranks, then any others."""

MOST_SENTENCES: Final = 3

MOST_LINES: Final = 200
"""Lines that are compared, from the end of an output."""

MOST_SHOWN: Final = 60
_LINE: Final = 300
_AROUND: Final = 2
_OUTPUT: Final = MOST_LINES * _LINE

_VARYING: Final = re.compile(
    r"0x[0-9a-f]+|\b(?:local[_ ])?ranks?\W{0,3}\d+|\b(?:pid|port)\W{0,3}\d+|\d+(?:[:/-]\d+){2,}(?:[.,]\d+)?",
    re.IGNORECASE,
)
"""What differs between any two ranks: addresses, rank numbers, process ids, ports, and times of day."""


def timeline_rows(timeline: RankTimeline, test: TestVerdict) -> dict[str, Any]:
    """Phases and collectives of ranks, in milliseconds from the start of the test; empty if none are known.

    ``e`` is the end, ``r`` has the rows of ranks (number, outcome, end, phases, waits), ``n`` is the number of ranks
    without a row, ``c`` has the collectives, and ``s`` has sentences on which rank waited for which.
    """
    ranks = [rank for rank in test.ranks if rank.at is not None]
    ends = {rank.rank: max(0.0, (rank.at or 0.0) - timeline.began) for rank in ranks}
    if not ends:
        return {}
    shown = _rows(timeline, test, ranks)
    spans = _waiting(timeline, ranks, ends)
    rows = [
        [
            rank.rank,
            rank.outcome.value,
            _ms(ends[rank.rank]),
            [
                [phase.when[:20], phase.outcome.value, _ms(phase.seconds)]
                for phase in timeline.phases.get(rank.rank, ())
            ],
            spans.get(rank.rank, []),
        ]
        for rank in shown
    ]
    shown_ranks = {rank.rank for rank in shown}
    calls = [
        [collective.name, [[rank, _ms(at)] for rank, at in collective.entered.items() if rank in shown_ranks]]
        for collective in timeline.collectives
    ]
    return {
        "e": _ms(max(ends.values())),
        "r": rows,
        "n": len(ranks) - len(shown),
        "c": [call for call in calls if call[1]],
        "s": list(islice(waits(timeline, ranks), MOST_SENTENCES)),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1 if seconds < 1 else None)


def _rows(timeline: RankTimeline, test: TestVerdict, ranks: Sequence[RankResult]) -> list[RankResult]:
    own = sorted(own_failures(ranks))
    extremes = [rank for collective in timeline.collectives for rank in (collective.latest, collective.first)]
    primary = [] if test.verdict.leading is None else [test.verdict.leading]
    by_interest = dict.fromkeys([*primary, *own[: MOST_ROWS // 2], *reversed(extremes), *(rank.rank for rank in ranks)])
    chosen = set(list(by_interest)[:MOST_ROWS])
    return [rank for rank in ranks if rank.rank in chosen][:MOST_ROWS]


def _waiting(
    timeline: RankTimeline, ranks: Sequence[RankResult], ends: Mapping[int, float]
) -> dict[int, list[list[Any]]]:
    """For each rank, when it waited in a collective that other ranks had not called yet: start, end, name."""
    found: dict[int, list[list[Any]]] = {}
    least = max(ends.values()) / 100
    for collective in timeline.collectives:
        last = max(ends.values()) if missing_ranks(timeline, collective, ranks) else max(collective.seconds)
        for rank, seconds in collective.entered.items():
            until = min(last, ends.get(rank, 0.0))
            if until - seconds > least:
                found.setdefault(rank, []).append([_ms(seconds), _ms(until), collective.name])
    return found


def output_diff(timeline: RankTimeline | None, test: TestVerdict) -> dict[str, Any]:
    """The difference between the outputs of the primary failure and another rank; empty if there is no output.

    ``o`` is the other rank and ``w`` its outcome. ``t`` has the lines: ``-`` for the other rank, ``+`` for the primary
    failure; it is absent if there is no difference.
    """
    primary, other = test.primary, _other(timeline, test)
    if primary is None or other is None or not (primary.stdout or primary.stderr or other.stdout or other.stderr):
        return {}
    streams = (("stdout", other.stdout, primary.stdout), ("stderr", other.stderr, primary.stderr))
    parts = [(name, list(_difference(_lines(theirs), _lines(own)))) for name, theirs, own in streams]
    lines = [line for name, part in parts if part for line in (f"@ {name}", *part)]
    if len(lines) > MOST_SHOWN:
        lines = [*lines[:MOST_SHOWN], f"@ {counted(len(lines) - MOST_SHOWN, 'more line')}"]
    return {"o": other.rank, "w": other.outcome.value, **({"t": lines} if lines else {})}


def _other(timeline: RankTimeline | None, test: TestVerdict) -> RankResult | None:
    """A rank that passed, or else a secondary failure."""
    if timeline and timeline.passed is not None:
        return RankResult(
            nodeid=test.nodeid,
            classname=test.classname,
            name=test.name,
            rank=timeline.passed,
            outcome=Outcome.PASSED,
            stdout=timeline.stdout,
            stderr=timeline.stderr,
        )
    others = [rank for rank in test.ranks if rank.rank != test.verdict.leading and (rank.stdout or rank.stderr)]
    secondary = [rank for rank in others if rank.consequence or rank.outcome is Outcome.ABORTED]
    return next((rank for rank in others if not rank.outcome.is_bad), next(iter(secondary), None))


def _lines(text: str) -> list[str]:
    lines = readable(clean_cut(text, _OUTPUT)).splitlines()[-MOST_LINES:]
    return [clipped(line, _LINE) for line in lines]


def _difference(theirs: Sequence[str], own: Sequence[str]) -> Iterator[str]:
    """The lines that differ by more than :data:`_VARYING` allows, with some lines of context."""
    matcher = SequenceMatcher(None, _plain(theirs), _plain(own), autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(_AROUND)):
        if number:
            yield "@ …"
        for tag, from_theirs, to_theirs, from_own, to_own in group:
            if tag == "equal":
                yield from (f" {line}" for line in own[from_own:to_own])
            else:
                yield from (f"-{line}" for line in theirs[from_theirs:to_theirs])
                yield from (f"+{line}" for line in own[from_own:to_own])


def _plain(lines: Iterable[str]) -> list[str]:
    return [_VARYING.sub("*", line.rstrip()) for line in lines]
