"""The statements of rank XML, in the elements of testcases and in attributes besides."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from allranks.protocol import skip_codes
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.xml_text import cut, without_colours
from allranks.report.outcome_words import (
    OUTPUT_TAGS,
    RERUN_TAGS,
    SHOWN,
    SUITE_ATTRIBUTES,
    element_said,
    has_value,
    is_of_interest,
    outcome_of,
    outcomes_said,
    plain_name,
    said_in,
)
from allranks.report.results import Key, RankResult, severity
from allranks.report.untrusted import number, whole_number

_TO_THE_END: Final = frozenset({"rerunFailure", "rerunError"})
"""A try of a test that never passed; for a test that passed in the end the tag is ``flakyFailure``."""

_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}
_PLAIN: Final = frozenset(
    f"allranks.{name}" for name in ("nodeid", "outcome", "at", "world_size")
)  # properties of a plain pass, which needs no details


def details_of(case: Any) -> "CaseDetails":  # noqa: ANN401 - an element, of lxml or of the standard library
    """The statements of a testcase that is in memory; as in rank XML, elements in an outcome or an output are text."""
    details, left = CaseDetails(), [case]
    while left:
        for each in left.pop().iterfind("*"):
            if is_of_interest(each.tag, each.attrib):
                details.add(each.tag, each.attrib, "".join(each.itertext()))
            if has_value(each.tag) or not is_of_interest(each.tag, each.attrib):
                left.append(each)
    details.end([said for said in outcomes_said(case.attrib) if said[0] is not Outcome.PASSED])
    return details


@dataclass(kw_only=True)
class CaseDetails:
    """The content of a testcase besides its attributes.

    Attributes:
        outcomes: The outcomes, each with its message and its text.
        reruns: The earlier tries, in the same form.
        said: The outcomes that other elements state by attributes or text.
        counts: See :func:`allranks.report.declared.counted`.
    """

    properties: dict[str, str] = field(default_factory=dict)
    outcomes: list[tuple[Outcome, str, str]] = field(default_factory=list)
    reruns: list[tuple[Outcome, str, str]] = field(default_factory=list)
    said: list[tuple[Outcome, str]] = field(default_factory=list)
    has_failed_to_the_end: bool = False
    output: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def has_passed(self) -> bool:
        """True if it states only a pass, its time of arrival and its world size."""
        said = self.properties
        passed = not self.outcomes and said.get("allranks.outcome", "passed") == "passed"
        return passed and not self.output and not self.reruns and said.keys() <= _PLAIN

    @property
    def worst(self) -> tuple[Outcome, str, str]:
        """The outcome that counts, with its message and its text; a pass if there is none."""
        return max(self.outcomes, key=lambda told: severity(told[0]), default=(Outcome.PASSED, "", ""))

    def add(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        """Add an element that :func:`is_of_interest`."""
        message, text = without_colours(cut(attributes.get("message", ""))), without_colours(text)
        if tag in OUTPUT_TAGS:
            self.output[tag] = self.output.get(tag, "") + text
        elif tag in RERUN_TAGS:
            self.reruns.append((RERUN_TAGS[tag], message, text))
            self.has_failed_to_the_end |= tag in _TO_THE_END
        elif said := list(element_said(tag, attributes, text)):
            self.said += said
        elif (outcome := outcome_of(tag)) not in {None, Outcome.PASSED}:
            is_xfail = outcome is Outcome.SKIPPED and attributes.get("type") == "pytest.xfail"
            self.outcomes.append((Outcome.XFAILED if is_xfail else outcome, message, text))

    def end(self, said: Sequence[tuple[Outcome, str]]) -> None:
        """Add the outcomes in the testcase's attributes, unless its elements, which have details, are as bad."""
        said = [*self.said, *said]
        if self.has_failed_to_the_end:
            said = [
                *said,
                (self.reruns[-1][0], "a rerun of a test that failed to its end, and nothing of that end"),
            ]
        if (word := self.properties.get("allranks.outcome", Outcome.PASSED)) not in _OUTCOMES:
            said = [*said, (Outcome.ERRORED, f'allranks.outcome="{word[:SHOWN]}" is unknown')]
        elements = [outcome for outcome, _, _ in self.outcomes]
        worst = max(map(severity, elements), default=0)
        if self.reruns and worst == severity(Outcome.SKIPPED):
            failed, why, _ = self.reruns[-1]
            skip = next((words for _, words, _ in self.outcomes if words), "a skip")
            said = [*said, (failed, f"{why.rstrip('.')}; then {skip}")]
        if any(outcome.is_bad for outcome in elements):
            said = ()
        said = [*said, *((Outcome.SKIPPED, why) for why in self._sandcastle_skip() if not elements)]
        self.outcomes += [(outcome, words, "") for outcome, words in said if severity(outcome) > worst]
        added = [outcome for outcome, _, _ in self.outcomes[len(elements) :]]
        self.counts = counted(elements, added, len(self.reruns))

    def _sandcastle_skip(self) -> Iterator[str]:
        """The reason of a skip that torch's own runner reports as a pass, which it does on sandcastle."""
        if "allranks.outcome" not in self.properties:
            reason = skip_codes.sandcastle_reason(self.output.get("system-err", ""))
            if reason is not None:
                self.properties["allranks.skip_kind"] = SkipKind.ENVIRONMENT.value
                yield reason

    def _kind_of_skip(self, outcome: Outcome, message: str) -> tuple[SkipKind | None, int | None, int | None]:
        """Kind, exit code and needed GPUs of a skip: as stated, or as the text of torch's own runner has them."""
        said = self.properties.get
        numbers = whole_number(said("allranks.skip_code")), whole_number(said("allranks.gpus_needed"))
        stated = (_SKIP_KINDS.get(said("allranks.skip_kind", "")), *numbers)
        if outcome is not Outcome.SKIPPED or any(stated) or said("allranks.outcome"):
            return stated
        found = skip_codes.skip_of_text(message)
        return (skip_codes.kind(found[0]), found[0].value, found[1]) if found else stated

    def result(self, key: Key, rank: int, seconds: float, texts: dict[str, str]) -> RankResult:
        """The result that the details add up to; equal texts become one object, kept in ``texts``."""
        outcome, message, text = self.worst
        said = self.properties.get
        skip_kind, skip_code, gpus_needed = self._kind_of_skip(outcome, message)
        size = whole_number(said("allranks.world_size"))
        nodeid, stdout, stderr = key.nodeid, self.output.get("system-out", ""), self.output.get("system-err", "")
        result = RankResult(
            nodeid=texts.setdefault(nodeid, nodeid),
            classname=key.classname,
            name=key.name,
            rank=rank,
            outcome=self._outcome(outcome),
            at=number(said("allranks.at")),
            consequence=said("allranks.consequence") == "1",
            caused_by=whole_number(said("allranks.caused_by")),
            skip_kind=skip_kind,
            skip_code=skip_code,
            gpus_needed=gpus_needed,
            phase=said("allranks.phase", ""),
            message=texts.setdefault(message, message),
            text=texts.setdefault(text, text),
            duration=seconds,
            stdout=texts.setdefault(stdout, stdout),
            stderr=texts.setdefault(stderr, stderr),
            world_size=size if size and size <= MOST_RANKS else None,
        )
        if not self.reruns:
            return result
        before = replace(result, consequence=False, caused_by=None, stdout="", stderr="")
        tries = (replace(before, outcome=each, message=words, text=long) for each, words, long in self.reruns)
        return replace(result, reruns=tuple(tries))

    def _outcome(self, shown: Outcome) -> Outcome:
        """The property's outcome, which is finer than the elements', unless it contradicts them."""
        outcome = _OUTCOMES.get(self.properties.get("allranks.outcome", ""), shown)
        return shown if self.outcomes and count_of(outcome) != count_of(shown) else outcome


_COUNTS: Final = MappingProxyType(
    {
        **dict.fromkeys(("tests", "total"), "tests"),
        "errors": "errors",
        "failures": "failures",
        **dict.fromkeys(("skipped", "skips", "skip"), "skipped"),
    }
)
_PYTEST: Final = "pytest tests"
_CATCH2: Final = "tbd"
"""The host in every report of Catch2 (JunitReporter), which counts assertions as tests."""
_DOCTEST: Final = plain_name("doctest_version")
"""An attribute in reports of doctest (C++), which does so, too."""


def counted(elements: Collection[Outcome], said: Collection[Outcome], reruns: int) -> Counter[str]:
    """How a testcase with these outcomes, of its elements and in its attributes, may be counted: how often, as what."""
    kinds = Counter(map(count_of, elements))
    found = Counter(kinds)
    for kind, times in kinds.items():
        found[f"fewer {kind}"] += times - 1 if len(kinds) == 1 else times
    if kinds["errors"]:
        found.update(("more tests", "fewer tests"))
    for kind in map(count_of, said):
        found.update((kind, f"fewer {kind}"))
    for kind in ("tests", "errors", "failures") if reruns else ():
        found[f"more {kind}"] += reruns
    return found


@dataclass
class _Suite:
    """An open suite.

    Attributes:
        before: The counts when it began.
        nested: The counts in suites within it.
    """

    attributes: Mapping[str, str]
    before: Counter[str]
    nested: Counter[str] = field(default_factory=Counter)


class Declarations:
    """Compares the counts that suites declare with their content.

    No two writers count alike, so each count has a tolerance. A suite may or may not count the content of suites
    within it. A testcase with several elements may count once or once per element (GoogleTest, pytest). pytest counts
    a test whose tear-down fails after its call twice, or once although it has two testcases; Surefire counts each try;
    Catch2 and doctest count assertions, Mocha and ESLint failures as errors, and Ginkgo some skips as disabled.

    Attributes:
        problem: The first contradiction; empty for none.
        note: An oddity that may be harmless.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.note = ""
        self._found: Counter[str] = Counter()
        self._open: list[_Suite] = []
        self._is_pytests = False

    def begin(self, attributes: Mapping[str, str], tests: int) -> None:
        """Begin a suite, or the root, before which this many testcases have come."""
        self._is_pytests = self._is_pytests or (not self._open and attributes.get("name") == _PYTEST)
        self._open.append(_Suite({plain_name(name): value for name, value in attributes.items()}, self._so_far(tests)))

    def case(self, counts: Counter[str]) -> None:
        """Count a testcase that has more than a name and a time, with the result of :func:`counted`."""
        if counts:
            self._found.update(counts)

    def suite(self, outcome: Outcome) -> None:
        """Count an element of the suite itself, which is a testcase here."""
        self._found.update(counted((), (outcome,), 0))
        self._found["fewer tests"] += 1

    def end(self, tests: int, *, is_of_allranks: bool) -> None:
        """End the suite that was begun last, before whose end this many testcases have come."""
        suite = self._open.pop()
        found = self._so_far(tests)
        found.subtract(suite.before)
        own = Counter(found)
        own.subtract(suite.nested)
        if self._open:
            self._open[-1].nested.update(found)
        wrong = {
            name: said
            for name, kind in _COUNTS.items()
            if (said := suite.attributes.get(name, "").strip())
            and not (kind == "tests" and (suite.attributes.get("hostname") == _CATCH2 or _DOCTEST in suite.attributes))
            and not any(_may_be(_number(said), kind, counted) for counted in (found, own))
        }
        if _declared(suite, "errors", "failures") == found["errors"] + found["failures"]:
            wrong = {name: said for name, said in wrong.items() if _COUNTS[name] not in {"errors", "failures"}}
        if "skipped" in wrong and _declared(suite, "skipped", "disabled") == found["skipped"]:
            del wrong["skipped"]
        if not is_of_allranks and self._is_pytests and wrong.keys() == {"tests"} and _number(wrong["tests"]) > tests:
            self.note = f"pytest declares {wrong['tests']} tests and has {found['tests']}: it counts subtests, too"
        elif wrong:
            declared = ", ".join(f"{name}={said[:SHOWN]}" for name, said in wrong.items())
            has = ", ".join(f"{name}={found[_COUNTS[name]]}" for name in wrong)
            self.contradiction(f"a suite declares {declared}, and has {has}")
        for outcome, words in said_in(suite.attributes, SUITE_ATTRIBUTES):
            if outcome.is_bad and not (found["errors"] or found["failures"]):
                self.contradiction(f"a suite reports {words}, but no test in it went wrong")
            if outcome is Outcome.SKIPPED and found["tests"] > found["skipped"]:
                self.contradiction(f"a suite reports {words}, but tests in it ran")

    def _so_far(self, tests: int) -> Counter[str]:
        found = Counter(self._found)
        found["tests"] = tests
        return found

    def contradiction(self, problem: str) -> None:
        """Record a contradiction; only the first is kept."""
        self.problem = self.problem or problem


def count_of(outcome: Outcome) -> str:
    """The name of the suite's count that includes this outcome."""
    match outcome:
        case Outcome.FAILED:
            return "failures"
        case Outcome.SKIPPED | Outcome.XFAILED:
            return "skipped"
        case Outcome.PASSED | Outcome.XPASSED:
            return "passed"
    return "errors"


def _declared(suite: _Suite, *names: str) -> float:
    return sum(abs(_number(suite.attributes.get(name) or "0")) for name in names)


def _may_be(count: float, kind: str, found: Counter[str]) -> bool:
    return -found[f"fewer {kind}"] <= count - found[kind] <= found[f"more {kind}"]


def _number(said: str) -> float:
    """Parse a count; NaN for an invalid one, which equals no count."""
    try:
        return float(said.replace(",", ""))
    except ValueError:
        return math.nan
