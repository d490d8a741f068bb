"""What a testcase shows when it is opened: each rank, earlier attempts, and links to files.

Packed in chunks of their own, which the browser unpacks when one of their tests is opened. Where a run has more to say
than the page has room for, later tests say less: the rank's own files have all of it, and the page links to them.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from allranks.report.judged import JobSummary
from allranks.report.page.index import dumps, pack
from allranks.report.results import EarlierAttempt, PassedRanks, RankResult, TestVerdict, compact, numbers
from allranks.report.verdict import severity
from allranks.xml_text import cut, readable

BUDGET: Final = 640 * 1024
"""Base64 characters that all details together may have."""

_CHUNK: Final = 128 * 1024
"""Characters of a chunk before packing: opening a test unpacks one chunk."""

_MESSAGE: Final = 1000
_MOST_TIMES: Final = 1024
_MOST_SHORT: Final = 64


@dataclass(frozen=True, kw_only=True)
class _Room:
    """How much one testcase may say.

    Attributes:
        until: Characters used by those before it, up to which this holds.
        text: Characters of one rank's traceback.
        output: Characters of one stream of one rank.
        groups: Ranks that say different things and are shown in full.
    """

    until: int
    text: int
    output: int
    groups: int


_ROOMS: Final = (
    _Room(until=BUDGET // 2, text=4000, output=2000, groups=16),
    _Room(until=BUDGET * 3 // 4, text=2500, output=500, groups=3),
    _Room(until=BUDGET, text=800, output=0, groups=1),
)


class Details:
    """Takes the testcases that have something to tell, and keeps it packed."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._open: list[Any] = []
        self._open_size = 0
        self._used = 0
        self.left_out = 0

    @property
    def chunks(self) -> Sequence[str]:
        """What was taken, packed."""
        self._close()
        return self._chunks

    def add(self, test: TestVerdict) -> tuple[int, int] | None:
        """Where the details of a testcase are: chunk, and place in it. None where there was no room for them."""
        room = next((room for room in _ROOMS if self._used < room.until), None)
        if room is None:
            self.left_out += 1
            return None
        detail = _detail(test, room)
        place = (len(self._chunks), len(self._open))
        self._open.append(detail)
        self._open_size += len(dumps(detail))
        if self._open_size >= _CHUNK:
            self._close()
        return place

    def _close(self) -> None:
        if self._open:
            self._chunks.append(pack(self._open))
            self._used += len(self._chunks[-1])
            self._open, self._open_size = [], 0


def _detail(test: TestVerdict, room: _Room) -> dict[str, Any]:
    said = {
        "m": cut(readable(test.verdict.message), _MESSAGE),
        "t": "" if test.ranks else cut(readable(test.verdict.text), room.text),
        "d": [round(rank.duration * 1000) for rank in test.ranks[:_MOST_TIMES]],
        "a": [_attempt(attempt, room) for attempt in test.earlier],
    }
    if not isinstance(test.ranks, PassedRanks):
        said |= _ranks(test.ranks, test.verdict.leading, room)
    return _without_empty(said)


def _ranks(ranks: Sequence[RankResult], leading: int | None, room: _Room) -> dict[str, Any]:
    groups = sorted(_alike(ranks), key=lambda group: _order(group, leading))
    shown, short = groups[: room.groups], groups[room.groups :]
    return {
        "r": [_group(group, room) for group in shown],
        "o": [_without_empty(_head(group)) for group in short[:_MOST_SHORT]],
    }


def _alike(ranks: Sequence[RankResult]) -> Iterator[list[RankResult]]:
    """The ranks that have something to tell, those that say the same together."""
    groups: dict[tuple[str, ...], list[RankResult]] = {}
    for rank in ranks:
        said = (rank.message, rank.text, rank.stdout, rank.stderr)
        if any(said) or rank.outcome.is_bad:
            groups.setdefault((rank.outcome.value, *said), []).append(rank)
    yield from groups.values()


def _order(group: Sequence[RankResult], leading: int | None) -> tuple[bool, int, int]:
    """The rank that leads first, then the worst."""
    return all(rank.rank != leading for rank in group), -severity(group[0].outcome), group[0].rank


def _group(ranks: Sequence[RankResult], room: _Room) -> dict[str, Any]:
    rank = ranks[0]
    texts = {"t": (rank.text, room.text), "so": (rank.stdout, room.output), "se": (rank.stderr, room.output)}
    said = {key: readable(text).strip("\n") for key, (text, _) in texts.items()}
    was_cut = any(len(said[key]) > limit for key, (_, limit) in texts.items())
    return _without_empty(
        {
            **_head(ranks),
            **{key: cut(said[key], limit) if limit else "" for key, (_, limit) in texts.items()},
            "c": was_cut,
        }
    )


def _head(ranks: Sequence[RankResult]) -> dict[str, Any]:
    rank = ranks[0]
    return {
        "n": compact_numbers(ranks),
        "o": rank.outcome.value,
        "m": cut(readable(rank.message), _MESSAGE),
        "by": rank.caused_by,
        "ph": rank.phase,
    }


def compact_numbers(ranks: Sequence[RankResult]) -> str:
    """``0-2,5``."""
    return numbers(rank.rank for rank in ranks).replace(" ", "")


def _attempt(attempt: EarlierAttempt, room: _Room) -> dict[str, Any]:
    return _without_empty(
        {
            "n": attempt.number,
            "k": attempt.verdict.kind.value,
            "m": cut(readable(attempt.verdict.message), _MESSAGE),
            "t": cut(readable(attempt.verdict.text), room.text),
            "s": compact(attempt.ranks),
        }
    )


def _without_empty(said: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if value not in ("", None, [], False)}


_PLAIN: Final = re.compile(r"[A-Za-z0-9_@=+-][A-Za-z0-9_.@=+-]{0,200}")
"""What the name of a folder has to look like to become part of a link: no separator, no scheme, not ``..``."""

_OF_RANK: Final = re.compile(r"rank-(\d{1,6})\.(xml|log|stacks\.txt)", re.ASCII)


def folder_to_link(facts: JobSummary) -> str:
    """Where a job's files are; empty where that is not surely a relative path below the page's folder."""
    return facts.folder if all(map(_PLAIN.fullmatch, facts.folder.split("/"))) else ""


def files_of_ranks(root: Path, folder: str) -> Mapping[str, str]:
    """For each kind of file that ranks left in a folder below ``root``, which of them did: ``{"xml": "0-63"}``."""
    try:
        names = os.listdir(root / folder) if folder else []  # noqa: PTH208 - names are all that is needed of 200 files
    except OSError:
        return {}
    found: dict[str, list[int]] = {}
    for name in names:
        if match := _OF_RANK.fullmatch(name):
            found.setdefault(match[2], []).append(int(match[1]))
    return {kind: numbers(ranks).replace(" ", "") for kind, ranks in sorted(found.items())}
