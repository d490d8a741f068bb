"""Suites and testcases of a JUnit report: junitparser's, with what allranks tells in properties.

Nothing here raises for the content of a report: a value that is absent, or is not one, is None or empty.
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
_WORDS: Final = {outcome.value: outcome for outcome in Outcome}
_KINDS: Final = {kind.value: kind for kind in SkipKind}
_FIRST_TRIES: Final = 10
"""Of more attempts than twice this, a report has the first ones and the last ones."""


@dataclass(frozen=True, kw_only=True)
class ReportedRank:
    """One rank of a test.

    Attributes:
        time: Seconds; None if the report does not tell. Ranks that differ by a hundredth of a second, or by a twentieth
            of it, at most have the time of the slowest.
        text: Its message, traceback or stack; empty for a good rank, and if the report was too long for it.
        leads: True if the verdict leads with this rank.
    """

    rank: int
    outcome: Outcome
    time: float | None = None
    text: str = ""
    leads: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportedAttempt:
    """A try of a test that went wrong before the one that counts.

    Attributes:
        number: From 1.
        cause: As :attr:`ReportedCase.cause`.
        message: Empty, as is the text, for an attempt that the report only counts.
    """

    number: int
    cause: str
    message: str = ""
    text: str = ""


class _Seconds(junitparser.FloatAttr):
    """A time that may be none, unlike junitparser's."""

    def __get__(self, instance: Any, _: object) -> float | None:  # noqa: ANN401 - junitparser has no types here
        said = instance._elem.get(self.name)  # noqa: SLF001
        with suppress(UnknownError):
            return None if said is None else seconds_of(said)
        return None


class ReportedCase(junitparser.TestCase):
    """A testcase: a test in a cell, with one verdict over all its ranks.

    Attributes:
        suite: The suite that it is in; None for a testcase that belongs to no report.
    """

    suite: "ReportedSuite | None" = None
    time = _Seconds()

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """What allranks tells in properties (``ranks``, ``rule``), without the prefix of their names."""
        return _facts_of(self._elem)

    @property
    def cell(self) -> str:
        """The cell's id; empty in a report of another writer."""
        return self.suite.cell if self.suite is not None else ""

    @property
    def job(self) -> str:
        """The name of allranks' suite in that cell; of another writer's report, that of its ``testsuite``."""
        return self.suite.job if self.suite is not None else ""

    @property
    def axes(self) -> Mapping[str, str | int]:
        """The cell's value on each axis; empty if the report does not tell."""
        return self.suite.axes if self.suite is not None else {}

    @property
    def nodeid(self) -> str:
        """The node id of pytest; ``classname::name`` if the report has none."""
        own = f"{self.classname}::{self.name}" if self.classname else self.name or ""
        return self.facts.get("nodeid") or own

    @property
    def verdict(self) -> VerdictKind:
        """The verdict over all ranks; the worst of several results."""
        return self._result[0]

    @property
    def is_bad(self) -> bool:
        """True for a failure or an error."""
        return self.verdict.is_bad

    @property
    def cause(self) -> str:
        """A word or two on the outcome: ``failed``, ``timed_out``, ``ranks disagree``, ``pytest.skip``."""
        kind, element = self._result
        return element.get("type") or "" if kind is not VerdictKind.PASSED else ""

    @property
    def message(self) -> str:
        """The message of the verdict, or the reason of a skip, also of one that counts as a pass."""
        return self._result[1].get("message") or self.facts.get("skip_but_pass", "")

    @property
    def text(self) -> str:
        """The text of the verdict, with the texts of all ranks."""
        return self._result[1].text or ""

    @property
    def _result(self) -> tuple[VerdictKind, Any]:
        """The worst result and its element, of lxml or of the standard library, as where ranks' XML is merged."""
        outcome, why, _ = details_of(self._elem).worst
        kind = kind_of(outcome)
        if kind is VerdictKind.PASSED:
            return kind, self._elem.makeelement("passed", {})
        tags = {tag for tag, told in OUTCOMES.items() if kind_of(told) is kind}
        found = (each for each in self._elem.iterfind("*") if each.tag in tags)
        return kind, next(found, self._elem.makeelement("said", {"message": why}))

    @property
    def leading(self) -> int | None:
        """The rank that the verdict leads with."""
        return whole_number(self.facts.get("leading"))

    @property
    def ranks(self) -> tuple[ReportedRank, ...]:
        """The ranks that took part, in order; empty if the report does not tell."""
        found = sorted(islice(_outcomes(self.facts.get("ranks", "")), MOST_RANKS))
        times = [number(said) for said in self.facts.get("seconds", "").split()]
        if len(times) != len(found):
            times = [self.time] * len(found)
        texts, leading = dict(islice(self._texts(), MOST_RANKS)), self.leading
        return tuple(
            ReportedRank(rank=rank, outcome=outcome, time=time, text=texts.get(rank, ""), leads=rank == leading)
            for (rank, outcome), time in zip(found, times, strict=True)
        )

    def rank(self, wanted: int) -> ReportedRank | None:
        """One rank; None if it took no part."""
        return next((each for each in self.ranks if each.rank == wanted), None)

    def _texts(self) -> Iterator[tuple[int, str]]:
        text = self.text
        for match in filter(None, map(_TEXT.fullmatch, self.facts.get("texts", "").split())):
            start, size = int(match[2]), int(match[3])
            own = text[start : start + size]
            yield from ((rank, own) for rank in _numbers(match[1]))

    @property
    def skip_code(self) -> int | None:
        """The exit code of torch's table of skips."""
        return whole_number(self.facts.get("skip_code"))

    @property
    def skip_kind(self) -> SkipKind | None:
        """Whether the environment lacked something; None for a plain skip, and for a test that ran."""
        return _KINDS.get(self.facts.get("skip_kind", ""))

    @property
    def skip_reason(self) -> str:
        """Why the test was skipped, also if that counts as a pass; empty for a test that ran."""
        is_skip = self.verdict is VerdictKind.SKIPPED or "skip_but_pass" in self.facts
        return self.message if is_skip else ""

    @property
    def attempts(self) -> tuple[ReportedAttempt, ...]:
        """The tries that went wrong before the one that counts, oldest first."""
        tries = [(kind_of(RERUNS[each.tag]).value, each) for each in self._elem.iterfind("*") if each.tag in RERUNS]
        said = _ATTEMPT.findall(self.facts.get("earlier", ""))
        told = said or [(str(at), kind) for at, (kind, _) in enumerate(tries, 1)]
        last = len(told) - (len(tries) - _FIRST_TRIES)
        known = {at if at < _FIRST_TRIES else last + at - _FIRST_TRIES: each for at, (_, each) in enumerate(tries)}
        return tuple(_attempt(int(count), cause, known.get(at)) for at, (count, cause) in enumerate(told))

    @property
    def is_flaky(self) -> bool:
        """True if the test went wrong in an earlier attempt, but not in the one that counts."""
        return bool(self.attempts) and not self.is_bad

    @property
    def file(self) -> str:
        """The test's source file; empty if the report does not tell."""
        return self._elem.get("file") or ""

    @property
    def line(self) -> int | None:
        """The line of that file that went wrong, or that the test begins in."""
        return whole_number(self._elem.get("line"))

    @property
    def row(self) -> dict[str, Any]:
        """The testcase in a flat form, with a key for each axis: a row of a table."""
        return {**self.axes, **self.own_row}

    @property
    def own_row(self) -> dict[str, Any]:
        """The row without the axes, whose names may be the same."""
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
        for each in self.ranks:
            own = asdict(each) | {"outcome": each.outcome.value}
            yield {**row, "rank_time": own.pop("time"), **own}


class ReportedSuite(junitparser.TestSuite):
    """A suite: a job of allranks, or whatever another writer takes for one."""

    testcase = ReportedCase

    def __iter__(self) -> Iterator[ReportedCase]:
        """Its testcases, also those of suites in it."""
        for case in super().__iter__():
            own = cast("ReportedCase", case)
            own.suite = own.suite if own.suite is not None else self
            yield own

    @cached_property
    def facts(self) -> Mapping[str, str]:
        """What allranks tells in properties (``cell``, ``engine``, ``elapsed``), without the prefix of their names."""
        return _facts_of(self._elem)

    @property
    def cell(self) -> str:
        """The cell's id; empty in a report of another writer."""
        return self.facts.get("cell", "")

    @property
    def job(self) -> str:
        """The name of allranks' suite; of another writer's report, its own."""
        return self.facts.get("suite") or self.name or ""

    @property
    def axes(self) -> Mapping[str, str | int]:
        """The cell's value on each axis; empty if the report does not tell."""
        prefix = "axis."
        return {
            name.removeprefix(prefix): int(value) if re.fullmatch("0|[1-9][0-9]{0,8}", value) else value
            for name, value in self.facts.items()
            if name.startswith(prefix)
        }


class DownloadedReport(junitparser.JUnitXml):
    """A report with all its suites; junitparser's own methods do what they do there."""

    testsuite = ReportedSuite

    def __iter__(self) -> Iterator[ReportedSuite]:
        """Its suites."""
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
    """The testcases that are wanted; without an argument, all.

    Args:
        cases: Testcases in their suites.
        cell: The id of a cell, or a pattern: ``gloo-w2-*``.
        verdict: One verdict or several: ``passed``, ``skipped``, ``failure``, ``error``.
        rank: A rank that took part.
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


def _attempt(count: int, cause: str, element: Any) -> ReportedAttempt:  # noqa: ANN401 - an element
    if element is None:
        return ReportedAttempt(number=count, cause=cause)
    text = element.findtext("stackTrace") or element.text or ""
    return ReportedAttempt(number=count, cause=cause, message=element.get("message") or "", text=text.strip("\n"))


def _facts_of(element: Any) -> dict[str, str]:  # noqa: ANN401 - an element
    said = ((each.get("name") or "", each.get("value") or "") for each in element.iterfind("properties/property"))
    return {name.removeprefix(OURS): value for name, value in said if name.startswith(OURS)}


def _outcomes(said: str) -> Iterator[tuple[int, Outcome]]:
    """The ranks with their outcomes in ``0-2:passed 3:crashed``."""
    for part in said.split():
        ranks, _, word = part.partition(":")
        if word in _WORDS:
            yield from ((rank, _WORDS[word]) for rank in _numbers(ranks))


def _numbers(said: str) -> Iterator[int]:
    """The ranks in ``0-2,5``; none that no run can have."""
    for match in _RUN.finditer(said):
        first, last = int(match[1]), int(match[2] or match[1])
        yield from range(first, min(last, MOST_RANKS - 1) + 1)
