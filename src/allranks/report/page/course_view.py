"""For the page: the time line of a failed test's ranks, and how the outputs of two of them differ."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final

from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import clean_cut, clipped, readable
from allranks.report.rank_course import RankCourse, absent, waits
from allranks.report.results import RankResult, TestVerdict, own_failures

MOST_ROWS: Final = 16
"""Ranks of a time line: the leading one, those that went wrong by themselves, first and last comers, then any."""

MOST_SENTENCES: Final = 3

MOST_LINES: Final = 200
"""Lines of an output that are compared, its last ones."""

MOST_SHOWN: Final = 60
_LINE: Final = 300
_AROUND: Final = 2
_OUTPUT: Final = MOST_LINES * _LINE

_VARYING: Final = re.compile(
    r"0x[0-9a-f]+|\b(?:local[_ ])?ranks?\W{0,3}\d+|\b(?:pid|port)\W{0,3}\d+|\d+(?:[:/-]\d+){2,}(?:[.,]\d+)?",
    re.IGNORECASE,
)
"""What differs between any two ranks: addresses, their own numbers, process ids, ports, and times of day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutput:
    """What a rank printed."""

    rank: int
    outcome: str
    stdout: str
    stderr: str


def time_line(course: RankCourse, test: TestVerdict) -> dict[str, Any]:
    """Phases and collectives of ranks, in milliseconds from the start of the test; empty if none are known.

    ``e`` is the end, ``r`` has a row for each rank (number, outcome, end, phases, waits), ``n`` is the number of ranks
    without a row, ``c`` has the collectives, and ``s`` who waited for whom, in words.
    """
    ranks = [rank for rank in test.ranks if rank.at is not None]
    ends = {rank.rank: max(0.0, (rank.at or 0.0) - course.began) for rank in ranks}
    if not ends:
        return {}
    shown = _rows(course, test, ranks)
    spans = _waiting(course, ranks, ends)
    rows = [
        [
            rank.rank,
            rank.outcome.value,
            _ms(ends[rank.rank]),
            [[phase.when[:20], phase.outcome.value, _ms(phase.seconds)] for phase in course.phases.get(rank.rank, ())],
            spans.get(rank.rank, []),
        ]
        for rank in shown
    ]
    of_shown = {rank.rank for rank in shown}
    called = [
        [each.name, [[rank, _ms(at)] for rank, at in each.entered.items() if rank in of_shown]]
        for each in course.collectives
    ]
    return {
        "e": _ms(max(ends.values())),
        "r": rows,
        "n": len(ranks) - len(shown),
        "c": [each for each in called if each[1]],
        "s": list(islice(waits(course, ranks), MOST_SENTENCES)),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1 if seconds < 1 else None)


def _rows(course: RankCourse, test: TestVerdict, ranks: Sequence[RankResult]) -> list[RankResult]:
    own = sorted(own_failures(ranks))
    telling = [rank for each in course.collectives for rank in (each.latest, each.first)]
    lead = [] if test.verdict.leading is None else [test.verdict.leading]
    wanted = dict.fromkeys([*lead, *own[: MOST_ROWS // 2], *reversed(telling), *(rank.rank for rank in ranks)])
    chosen = set(list(wanted)[:MOST_ROWS])
    return [rank for rank in ranks if rank.rank in chosen][:MOST_ROWS]


def _waiting(course: RankCourse, ranks: Sequence[RankResult], ends: Mapping[int, float]) -> dict[int, list[list[Any]]]:
    """For each rank, when it was in a collective that others had not called: start, end, name."""
    found: dict[int, list[list[Any]]] = {}
    least = max(ends.values()) / 100
    for each in course.collectives:
        last = max(ends.values()) if absent(course, each, ranks) else max(each.seconds)
        for rank, seconds in each.entered.items():
            until = min(last, ends.get(rank, 0.0))
            if until - seconds > least:
                found.setdefault(rank, []).append([_ms(seconds), _ms(until), each.name])
    return found


def output_diff(course: RankCourse | None, test: TestVerdict) -> dict[str, Any]:
    """How what the leading rank printed differs from what another did; empty if neither can be compared.

    ``o`` is the other rank and ``w`` what became of it. ``t`` has the lines: ``-`` the other rank's, ``+`` the leading
    one's; it is absent if there is no difference.
    """
    lead, other = test.lead, _other(course, test)
    if lead is None or other is None or not (lead.stdout or lead.stderr or other.stdout or other.stderr):
        return {}
    streams = (("stdout", other.stdout, lead.stdout), ("stderr", other.stderr, lead.stderr))
    parts = [(name, list(_difference(_lines(theirs), _lines(own)))) for name, theirs, own in streams]
    lines = [line for name, part in parts if part for line in (f"@ {name}", *part)]
    if len(lines) > MOST_SHOWN:
        lines = [*lines[:MOST_SHOWN], f"@ {len(lines) - MOST_SHOWN} more lines"]
    return {"o": other.rank, "w": other.outcome, **({"t": lines} if lines else {})}


def _other(course: RankCourse | None, test: TestVerdict) -> RankOutput | None:
    """A rank that passed if there is one, else one that went wrong because of the leading rank."""
    if course and course.passed is not None:
        return RankOutput(rank=course.passed, outcome=Outcome.PASSED.value, stdout=course.stdout, stderr=course.stderr)
    others = [rank for rank in test.ranks if rank.rank != test.verdict.leading and (rank.stdout or rank.stderr)]
    of_others = [rank for rank in others if rank.consequence or rank.outcome is Outcome.ABORTED]
    best = next((rank for rank in others if not rank.outcome.is_bad), next(iter(of_others), None))
    if best is None:
        return None
    return RankOutput(rank=best.rank, outcome=best.outcome.value, stdout=best.stdout, stderr=best.stderr)


def _lines(text: str) -> list[str]:
    lines = readable(clean_cut(text, _OUTPUT)).splitlines()[-MOST_LINES:]
    return [clipped(line, _LINE) for line in lines]


def _difference(theirs: Sequence[str], own: Sequence[str]) -> Iterator[str]:
    """The lines that differ by more than any two ranks' do, with some around them."""
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
