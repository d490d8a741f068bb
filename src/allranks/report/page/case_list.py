"""The list of testcases and their details, packed for the page.

The browser's ``DecompressionStream`` unpacks them (Chrome 80, Firefox 113, Safari 16.4).

A block of rows is one line of JSON: names that no earlier row had, status letters, milliseconds, and the fields that
only a few rows have. A test that passed on all ranks costs a letter, a number and, the first time, its name.

Details are packed in separate chunks, which the browser unpacks when one of their tests is opened. If a run has more
details than fit the page, later tests get shorter ones; the page links to the complete files of the ranks. If a run has
more tests than fit, the later ones are counted but not listed, beginning with tests that passed.
"""

import base64
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from allranks.protocol.grouping import by_key
from allranks.protocol.outcomes import compact_numbers
from allranks.protocol.tracebacks import excerpt, folded
from allranks.protocol.xml_text import cut, readable
from allranks.report.judged import JobSummary
from allranks.report.page.timeline_view import output_diff, timeline_rows
from allranks.report.rank_timeline import RankTimeline
from allranks.report.report_json import without_empty
from allranks.report.results import PassedRanks, RankResult, TestVerdict, compact, severity
from allranks.report.status import Status

_LEVEL: Final = 6


class Packer:
    """Packs lines of JSON one by one."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL)
        self._packed = bytearray()

    @property
    def size(self) -> int:
        """Packed bytes so far."""
        return len(self._packed)

    def add(self, value: object) -> None:
        self._packed += self._deflate.compress(dumps(value) + b"\n")
        # Without this flush the size would lag by zlib's buffer, which may be most of a small page.
        self._packed += self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> str:
        """Return all packed lines in base64; nothing can be added afterwards."""
        self._packed += self._deflate.flush()
        return base64.b64encode(self._packed).decode()


def pack(value: object) -> str:
    """Pack a single value."""
    return base64.b64encode(zlib.compress(dumps(value), _LEVEL)).decode()


def dumps(value: object) -> bytes:
    """Compact JSON in ASCII, without characters that HTML or JavaScript would treat as line ends."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


LIST_BUDGET: Final = 640 * 1024
"""Packed bytes beyond which tests that passed or were skipped are counted but not listed."""

FAILURES_BUDGET: Final = 896 * 1024
"""Packed bytes beyond which failed tests are not listed either."""

MOST_NAMES: Final = 60_000
"""The most distinct names, beyond which only failed tests add any: names stay in memory until the page is written."""

_BLOCK: Final = 1000


class Index:
    """Collects the testcases of a run, job by job."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._names: dict[str, int] = {}
        self.left_out: Counter[Status] = Counter()  # the numbers of tests that are not listed
        self._begin(0)

    def has_room(self, status: Status, nodeid: str) -> bool:
        """True if a testcase with this status can be listed; if not, it is counted as left out."""
        if status.is_bad:
            has_room = self._packer.size <= FAILURES_BUDGET
        else:
            is_known = nodeid in self._names or len(self._names) < MOST_NAMES
            has_room = is_known and self._packer.size <= LIST_BUDGET
        self.left_out.update(() if has_room else [status])
        return has_room

    def add(self, job: int, nodeid: str, status: Status, seconds: float, extra: Mapping[str, Any] | None) -> None:
        """Add a testcase; ``extra`` has the script's one-letter fields that most testcases lack."""
        if job != self._job or len(self._letters) >= _BLOCK:
            self._flush()
            self._begin(job)
        if extra:
            self._extras[len(self._letters)] = extra
        self._numbers.append(self._number(nodeid))
        self._letters.append(status)
        self._times.append(round(seconds * 1000))

    def name_number(self, nodeid: str) -> int | None:
        """The script's number for a name; None if it is not listed."""
        return self._names.get(nodeid)

    def finish(self, rest: Mapping[str, Any]) -> str:
        """All rows and, as the last line, the rest of the script's data."""
        self._flush()
        self._packer.add(rest)
        return self._packer.finish()

    def _begin(self, job: int) -> None:
        self._job = job
        self._letters: list[str] = []
        self._numbers: list[int] = []
        self._times: list[int] = []
        self._extras: dict[int, Mapping[str, Any]] = {}
        self._new_names: list[str] = []

    def _number(self, nodeid: str) -> int:
        if nodeid not in self._names:
            self._names[nodeid] = len(self._names)
            self._new_names.append(nodeid)
        return self._names[nodeid]

    def _flush(self) -> None:
        if self._letters:
            block = {
                "j": self._job,
                "n": _runs(self._numbers),
                "v": "".join(self._letters),
                "t": self._times,
                "s": self._new_names,
                "x": self._extras,
            }
            self._packer.add(block)


def _runs(numbers: list[int]) -> list[int]:
    """Encode as ``[first, count, first, count, ...]``: names mostly recur in the order of their first appearance."""
    runs: list[int] = []
    for number in numbers:
        if runs and number == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs


DETAILS_BUDGET: Final = 512 * 1024
"""The most base64 characters of all details together."""

MOST_DETAILS: Final = 5000
"""The most testcases with details: equal details take little space, but no less time than others."""

_CHUNK: Final = 128 * 1024
"""Characters of a chunk before packing: opening a test unpacks one chunk."""

_MESSAGE: Final = 1000
_MOST_TIMES: Final = 1024
_MOST_SHORT: Final = 64


@dataclass(frozen=True, kw_only=True)
class _Limits:
    """The limits on the details of one testcase."""

    until: int  # the limits apply while earlier testcases have used fewer characters than this
    text: int  # characters of one rank's traceback
    output: int  # characters of one stream of one rank
    groups: int  # groups of ranks, by message and output, that are shown in full


_LIMITS: Final = (
    _Limits(until=DETAILS_BUDGET // 2, text=4000, output=2000, groups=16),
    _Limits(until=DETAILS_BUDGET * 3 // 4, text=2500, output=500, groups=3),
    _Limits(until=DETAILS_BUDGET, text=800, output=0, groups=1),
)


class Details:
    """Collects and packs the details of testcases."""

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._open: list[Any] = []
        self._open_size = 0
        self._used = self._count = 0
        self.left_out = 0

    @property
    def chunks(self) -> Sequence[str]:
        """The collected details, packed."""
        self._close()
        return self._chunks

    def add(self, test: TestVerdict, timeline: RankTimeline | None = None) -> tuple[int, int] | None:
        """Add a testcase's details; return their chunk and index in it, or None if there was no space."""
        limits = next((limits for limits in _LIMITS if self._used < limits.until), None)
        if limits is None or self._count >= MOST_DETAILS:
            self.left_out += 1
            return None
        detail = _detail(test, limits)
        if limits.output and test.verdict.is_bad:
            rows = timeline_rows(timeline, test) if timeline else {}
            detail |= without_empty({"w": without_empty(rows), "x": output_diff(timeline, test)})
        self._count += 1
        location = (len(self._chunks), len(self._open))
        self._open.append(detail)
        self._open_size += len(dumps(detail))
        if self._open_size >= _CHUNK:
            self._close()
        return location

    def _close(self) -> None:
        if self._open:
            self._chunks.append(pack(self._open))
            self._used += len(self._chunks[-1])
            self._open, self._open_size = [], 0


def _detail(test: TestVerdict, limits: _Limits) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "m": cut(readable(test.verdict.message), _MESSAGE),
        "t": "" if test.ranks else cut(readable(test.verdict.text), limits.text),
        "d": [round(rank.duration * 1000) for rank in test.ranks[:_MOST_TIMES]],
        "a": [_attempt(attempt, limits) for attempt in test.earlier],
    }
    if not isinstance(test.ranks, PassedRanks):
        fields |= _ranks(test, limits)
    return without_empty(fields)


def _ranks(test: TestVerdict, limits: _Limits) -> dict[str, Any]:
    groups = sorted(_by_report(test.ranks), key=lambda group: _order(group, test.verdict.leading))
    full, short = groups[: limits.groups], groups[limits.groups :]
    full_groups = [_group(group, limits) for group in full]
    if limits.output and test.primary and full and test.primary in full[0]:
        full_groups[0]["e"] = "\n".join(excerpt(test.primary.text, test.source[0], test.primary.message))
    return {
        "r": full_groups,
        "o": [without_empty(_head(group)) for group in short[:_MOST_SHORT]],
    }


def _by_report(ranks: Sequence[RankResult]) -> Iterator[list[RankResult]]:
    """The ranks that failed or have output, grouped by equal reports."""
    groups: dict[tuple[str, ...], list[RankResult]] = {}
    for rank in ranks:
        report = (rank.message, rank.text, rank.stdout, rank.stderr)
        if any(report) or rank.outcome.is_bad:
            groups.setdefault((rank.outcome.value, *report), []).append(rank)
    yield from groups.values()


def _order(group: Sequence[RankResult], leading: int | None) -> tuple[bool, int, int]:
    """The primary failure first, then the worst outcome."""
    return all(rank.rank != leading for rank in group), -severity(group[0].outcome), group[0].rank


def _group(ranks: Sequence[RankResult], limits: _Limits) -> dict[str, Any]:
    rank = ranks[0]
    sources = {"t": (rank.text, limits.text), "so": (rank.stdout, limits.output), "se": (rank.stderr, limits.output)}
    texts = {key: readable(text).strip("\n") for key, (text, _) in sources.items()}
    texts["t"] = folded(texts["t"])
    was_cut = any(len(texts[key]) > limit for key, (_, limit) in sources.items())
    return without_empty(
        {
            **_head(ranks),
            **{key: cut(texts[key], limit) if limit else "" for key, (_, limit) in sources.items()},
            "c": was_cut,
        }
    )


def _head(ranks: Sequence[RankResult]) -> dict[str, Any]:
    rank = ranks[0]
    return {
        "n": compact_numbers(rank.rank for rank in ranks),
        "o": rank.outcome.value,
        "m": cut(readable(rank.message), _MESSAGE),
        "by": rank.caused_by,
        "ph": rank.phase,
    }


def _attempt(attempt: TestVerdict, limits: _Limits) -> dict[str, Any]:
    return without_empty(
        {
            "n": attempt.number,
            "k": attempt.verdict.kind.value,
            "m": cut(readable(attempt.verdict.message), _MESSAGE),
            "t": cut(readable(attempt.verdict.text), limits.text),
            "s": compact(attempt.ranks),
        }
    )


_PLAIN: Final = re.compile(r"[A-Za-z0-9_@=+-][A-Za-z0-9_.@=+-]{0,200}")
"""Folder names that may be part of a link: no separator, no scheme, not ``..``."""

_OF_RANK: Final = re.compile(r"rank-(\d{1,6})\.(xml|log|stacks\.txt)", re.ASCII)


def folder_to_link(job: JobSummary) -> str:
    """The folder of a job's files; empty unless it is certainly a relative path below the page's folder."""
    return job.folder if all(map(_PLAIN.fullmatch, job.folder.split("/"))) else ""


def files_of_ranks(root: Path, folder: str) -> Mapping[str, str]:
    """The ranks that have a file in a folder below ``root``, by kind of file: ``{"xml": "0-63"}``."""
    try:
        names = os.listdir(root / folder) if folder else []  # noqa: PTH208 - 200 names, not 200 paths
    except OSError:
        return {}
    found = by_key((match[2], int(match[1])) for name in names if (match := _OF_RANK.fullmatch(name)))
    return {kind: compact_numbers(ranks) for kind, ranks in sorted(found.items())}
