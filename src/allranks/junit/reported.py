"""junitparser's suites and testcases of a JUnit report, with the facts that allranks writes as properties.

Nothing here raises for the content of a report: missing and invalid values are None or empty.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any, Final, cast

import junitparser

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import MOST_RANKS
from allranks.report.case_details import details_of
from allranks.report.results import VerdictKind, kind_of
from allranks.report.untrusted import number, whole_number
from allranks.report.vocabulary import OURS, OUTCOMES, RERUNS, UnknownError, seconds_of

_RUN: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_TEXT: Final = re.compile(r"([\d,-]+)@(\d{1,9})\+(\d{1,9})", re.ASCII)
_ATTEMPT: Final = re.compile(r"(\d{1,9}):(\S+)", re.ASCII)
_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}
_KINDS: Final = {kind.value: kind for kind in SkipKind}
_FIRST_TRIES: Final = 10
"""If a report has elements for only some attempts, they are the first ones, of this number, and the last ones."""


@dataclass(frozen=True, kw_only=True)
class ReportedRank:
    """One rank of a test.

    Attributes:
        time: Seconds; None if unknown. If the times of all ranks differ by at most 0.01 s or 5 %, each rank has that of
            the slowest one.
        text: The message, traceback or stack; empty if the rank did not fail, or the report had no space for it.
        leads: True if this rank has the primary failure.
    """

    rank: int
    outcome: Outcome
    time: float | None = None
    text: str = ""
    leads: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportedAttempt:
    """A failed attempt at a test before the one that counts."""

    number: int  # from 1
    cause: str  # as :attr:`ReportedCase.cause`
    message: str = ""  # empty, like the text, for an attempt that the report only counts
    text: str = ""


class _Seconds(junitparser.FloatAttr):
    """A time that may be None, unlike junitparser's."""

    def __get__(self, instance: Any, _: object) -> float | None:  # noqa: ANN401 - junitparser has no types here
        text = instance._elem.get(self.name)  # noqa: SLF001
        with suppress(UnknownError):
            return None if text is None else seconds_of(text)
        return None


class ReportedCase(junitparser.TestCase):
    """A testcase: a test in a cell, with one verdict over all its ranks."""

    suite: "ReportedSuite | None" = None  # None for a testcase that belongs to no report
    time = _Seconds()

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """The properties of allranks (``ranks``, ``rule``), without the prefix of their names."""
        return _facts_of(self._elem)

    @property
    def cell(self) -> str:
        """The cell's id; empty in a report of another writer."""
        return self.suite.cell if self.suite is not None else ""

    @property
    def job(self) -> str:
        """The name of allranks' suite in that cell; in a report of another writer, the name of its ``testsuite``."""
        return self.suite.job if self.suite is not None else ""

    @property
    def axes(self) -> Mapping[str, str | int]:
        """The cell's value on each axis; empty if unknown."""
        return self.suite.axes if self.suite is not None else {}

    @property
    def nodeid(self) -> str:
        """Pytest's node id, or else ``classname::name``."""
        own = f"{self.classname}::{self.name}" if self.classname else self.name or ""
        return self.facts.get("nodeid") or own

    @property
    def verdict(self) -> VerdictKind:
        """The verdict over all ranks; if there are several results, the worst one."""
        return self._result[0]

    @property
    def is_bad(self) -> bool:
        """True for a failure or an error."""
        return self.verdict.is_bad

    @property
    def cause(self) -> str:
        """One or two words: ``failed``, ``timed_out``, ``ranks disagree``, ``pytest.skip``."""
        kind, element = self._result
        return element.get("type") or "" if kind is not VerdictKind.PASSED else ""

    @property
    def message(self) -> str:
        """The message of the verdict, or the reason of a skip, including one that counts as a pass."""
        return self._result[1].get("message") or self.facts.get("skip_but_pass", "")

    @property
    def text(self) -> str:
        """The text of the verdict, which includes the texts of all ranks."""
        return self._result[1].text or ""

    @property
    def _result(self) -> tuple[VerdictKind, Any]:
        """The worst result, as a merge of rank XML determines it, and its element."""
        outcome, why, _ = details_of(self._elem).worst
        kind = kind_of(outcome)
        if kind is VerdictKind.PASSED:
            return kind, self._elem.makeelement("passed", {})
        tags = {tag for tag, stated in OUTCOMES.items() if kind_of(stated) is kind}
        found = (element for element in self._elem.iterfind("*") if element.tag in tags)
        return kind, next(found, self._elem.makeelement("outcome", {"message": why}))

    @property
    def leading(self) -> int | None:
        """The rank with the primary failure."""
        return whole_number(self.facts.get("leading"))

    @property
    def ranks(self) -> tuple[ReportedRank, ...]:
        """The ranks of the test, in order; empty if unknown."""
        found = sorted(islice(_outcomes(self.facts.get("ranks", "")), MOST_RANKS))
        times = [number(text) for text in self.facts.get("seconds", "").split()]
        if len(times) != len(found):
            times = [self.time] * len(found)
        texts, leading = dict(islice(self._texts(), MOST_RANKS)), self.leading
        return tuple(
            ReportedRank(rank=rank, outcome=outcome, time=time, text=texts.get(rank, ""), leads=rank == leading)
            for (rank, outcome), time in zip(found, times, strict=True)
        )

    def rank(self, wanted: int) -> ReportedRank | None:
        """One rank; None if the test did not have it."""
        return next((rank for rank in self.ranks if rank.rank == wanted), None)

    def _texts(self) -> Iterator[tuple[int, str]]:
        text = self.text
        for match in filter(None, map(_TEXT.fullmatch, self.facts.get("texts", "").split())):
            start, size = int(match[2]), int(match[3])
            own = text[start : start + size]
            yield from ((rank, own) for rank in _numbers(match[1]))

    @property
    def skip_code(self) -> int | None:
        """The exit code in torch's table of skips."""
        return whole_number(self.facts.get("skip_code"))

    @property
    def skip_kind(self) -> SkipKind | None:
        """The kind of an environment skip; None for a plain skip, and for a test that ran."""
        return _KINDS.get(self.facts.get("skip_kind", ""))

    @property
    def skip_reason(self) -> str:
        """Why the test was skipped, even if the skip counts as a pass; empty for a test that ran."""
        is_skip = self.verdict is VerdictKind.SKIPPED or "skip_but_pass" in self.facts
        return self.message if is_skip else ""

    @property
    def attempts(self) -> tuple[ReportedAttempt, ...]:
        """The failed attempts before the one that counts, oldest first."""
        elements = [element for element in self._elem.iterfind("*") if element.tag in RERUNS]
        listed = _ATTEMPT.findall(self.facts.get("earlier", "")) or [
            (str(number), kind_of(RERUNS[element.tag]).value) for number, element in enumerate(elements, 1)
        ]
        left_out = len(listed) - len(elements)  # attempts in the middle, which have no element
        by_index = {
            index if index < _FIRST_TRIES else index + left_out: element for index, element in enumerate(elements)
        }
        return tuple(_attempt(int(number), cause, by_index.get(index)) for index, (number, cause) in enumerate(listed))

    @property
    def is_flaky(self) -> bool:
        """True if the test failed in an earlier attempt, but not in the one that counts."""
        return bool(self.attempts) and not self.is_bad

    @property
    def file(self) -> str:
        """The test's source file; empty if unknown."""
        return self._elem.get("file") or ""

    @property
    def line(self) -> int | None:
        """The line of that file in which the test failed, or at which it starts."""
        return whole_number(self._elem.get("line"))

    @property
    def row(self) -> dict[str, Any]:
        """The testcase as a row of a table, with a key for each axis."""
        return {**self.axes, **self.own_row}

    @property
    def own_row(self) -> dict[str, Any]:
        """The row without the axes, whose names may conflict with other keys."""
        return {
            "cell": self.cell,
            "suite": self.job,
            "nodeid": self.nodeid,
            "verdict": self.verdict.value,
            "cause": self.cause,
            "message": self.message,
            "leading": self.leading,
            "time": self.time,
            "skip_code": self.skip_code,
            "skip_kind": self.skip_kind.value if self.skip_kind else None,
            "flaky": self.is_flaky,
            "attempts": len(self.attempts) + 1,
            "file": self.file,
            "line": self.line,
        }

    @property
    def rank_rows(self) -> Iterator[dict[str, Any]]:
        """A row for each rank: that of the test with ``rank``, ``outcome``, ``rank_time``, ``text`` and ``leads``."""
        row = self.row
        for rank in self.ranks:
            own = asdict(rank) | {"outcome": rank.outcome.value}
            yield {**row, "rank_time": own.pop("time"), **own}


class ReportedSuite(junitparser.TestSuite):
    """A suite: a job of allranks, or a suite of another writer."""

    testcase = ReportedCase

    def __iter__(self) -> Iterator[ReportedCase]:
        """Iterate over its testcases, including those of nested suites."""
        for case in super().__iter__():
            own = cast("ReportedCase", case)
            own.suite = own.suite if own.suite is not None else self
            yield own

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """The properties of allranks (``cell``, ``engine``, ``elapsed``), without the prefix of their names."""
        return _facts_of(self._elem)

    @property
    def cell(self) -> str:
        """The cell's id; empty in a report of another writer."""
        return self.facts.get("cell", "")

    @property
    def job(self) -> str:
        """The name of allranks' suite; in a report of another writer, its own name."""
        return self.facts.get("suite") or self.name or ""

    @property
    def axes(self) -> Mapping[str, str | int]:
        """The cell's value on each axis; empty if unknown."""
        prefix = "axis."
        return {
            name.removeprefix(prefix): int(value) if re.fullmatch("0|[1-9][0-9]{0,8}", value) else value
            for name, value in self.facts.items()
            if name.startswith(prefix)
        }


class DownloadedReport(junitparser.JUnitXml):
    """A report with all its suites, which also has the methods of junitparser."""

    testsuite = ReportedSuite

    def __iter__(self) -> Iterator[ReportedSuite]:
        return cast("Iterator[ReportedSuite]", super().__iter__())

    def cases(self, **wanted: Any) -> Iterator[ReportedCase]:  # noqa: ANN401 - see selected
        """The testcases of all suites, filtered as by :func:`selected`."""
        return selected((case for suite in self for case in suite), **wanted)


def selected(
    cases: Iterable[ReportedCase],
    *,
    cell: str = "",
    verdict: str | Iterable[str] = (),
    rank: int | None = None,
    **axes: str | int,
) -> Iterator[ReportedCase]:
    """Filter testcases.

    Args:
        cases: The testcases.
        cell: The id of a cell, or a pattern: ``gloo-w2-*``.
        verdict: One verdict or several: ``passed``, ``skipped``, ``failure``, ``error``.
        rank: A rank that the test must have.
        axes: The cell's value on an axis: ``world_size=4``.
    """
    verdicts = frozenset([verdict] if isinstance(verdict, str) else verdict)
    for case in cases:
        if (
            (not cell or fnmatchcase(case.cell, cell))
            and (not verdicts or case.verdict in verdicts)
            and (rank is None or case.rank(rank) is not None)
            and (not axes or axes.items() <= case.axes.items())
        ):
            yield case


def _attempt(attempt: int, cause: str, element: Any) -> ReportedAttempt:  # noqa: ANN401 - an element
    if element is None:
        return ReportedAttempt(number=attempt, cause=cause)
    text = element.findtext("stackTrace") or element.text or ""
    return ReportedAttempt(number=attempt, cause=cause, message=element.get("message") or "", text=text.strip("\n"))


def _facts_of(element: Any) -> dict[str, str]:  # noqa: ANN401 - an element
    properties = ((one.get("name") or "", one.get("value") or "") for one in element.iterfind("properties/property"))
    return {name.removeprefix(OURS): value for name, value in properties if name.startswith(OURS)}


def _outcomes(text: str) -> Iterator[tuple[int, Outcome]]:
    """Parse ``0-2:passed 3:crashed``."""
    for part in text.split():
        ranks, _, outcome = part.partition(":")
        if outcome in _OUTCOMES:
            yield from ((rank, _OUTCOMES[outcome]) for rank in _numbers(ranks))


def _numbers(text: str) -> Iterator[int]:
    """Parse ``0-2,5``; implausible rank numbers are ignored."""
    for match in _RUN.finditer(text):
        first, last = int(match[1]), int(match[2] or match[1])
        yield from range(first, min(last, MOST_RANKS - 1) + 1)
