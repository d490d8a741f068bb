"""What XML declares besides its testcases' elements: counts of suites, and words in attributes such as ``status``."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from allranks.harness.outcome import Outcome

_WORDS: Final[Mapping[str, Outcome]] = MappingProxyType(
    {
        word: outcome
        for outcome, words in {
            Outcome.PASSED: "pass passed ok success successful succeeded run ran completed complete executed fixed",
            Outcome.SKIPPED: "skip skipped notrun suppressed disabled ignore ignored pending inconclusive todo "
            "excluded filtered notexecuted untested notapplicable deselected",
            Outcome.XFAILED: "xfail xfailed expectedfailure",
            Outcome.XPASSED: "xpass xpassed",
            Outcome.FAILED: "fail failed failure failures notok nok ko regression unexpectedsuccess",
            Outcome.ERRORED: "error errored errors abort aborted broken cancel canceled cancelled interrupted invalid "
            "notrunnable disconnected passedbutrunaborted missing undefined hookerror cleanuperror",
            Outcome.CRASHED: "crash crashed killed",
            Outcome.TIMED_OUT: "timeout timedout",
        }.items()
        for word in words.split()
    }
)
"""Words of GoogleTest, CTest, TRX, NUnit, xUnit.net, TestNG, Jenkins, Behave, TAP and of allranks itself."""

_YES_AND_NO: Final[Mapping[str, tuple[Outcome, Outcome]]] = MappingProxyType(
    {
        "executed": (Outcome.PASSED, Outcome.SKIPPED),
        "success": (Outcome.PASSED, Outcome.FAILED),
        "disabled": (Outcome.SKIPPED, Outcome.PASSED),
        "ignored": (Outcome.SKIPPED, Outcome.PASSED),
        "skipped": (Outcome.SKIPPED, Outcome.PASSED),
    }
)
_YES: Final = frozenset({"true", "1", "yes"})
_NO: Final = frozenset({"false", "0", "no"})
_SUITE_ATTRIBUTES: Final = ("status", "result", "outcome", "state")
_CASE_ATTRIBUTES: Final = (*_SUITE_ATTRIBUTES, *_YES_AND_NO)
_COUNTS: Final = MappingProxyType(
    {
        "tests": "tests",
        "errors": "errors",
        "failures": "failures",
        **dict.fromkeys(("skipped", "skips", "skip"), "skipped"),
    }
)
_SHOWN: Final = 20
_PYTEST: Final = "pytest tests"


@lru_cache(maxsize=1024)
def outcome_of(word: str) -> Outcome | None:
    """What a word says, however it is spelt (``NOT_RUN``, ``notRun``); None for an unknown one."""
    return _WORDS.get(re.sub(r"[\W_]+", "", word.rpartition(":")[2].lower()))


def outcomes_said(case: Mapping[str, str]) -> Iterator[tuple[Outcome, str]]:
    """What the attributes of a testcase say, each with the attribute; an unknown word is an error.

    CTest and GoogleTest tell a test that did not run by nothing else.
    """
    return _said(case, _CASE_ATTRIBUTES)


def _said(attributes: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[Outcome, str]]:
    for name in names:
        word = attributes.get(name, "").strip()
        if not word:
            continue
        yes, no = _YES_AND_NO.get(name, (None, None))
        outcome = yes if word.lower() in _YES else no if word.lower() in _NO else outcome_of(word)
        words = f'{name}="{word[:_SHOWN]}"'
        if outcome is None:
            yield Outcome.ERRORED, f"{words} is not known, so nothing says that the test passed"
        else:
            yield outcome, words


def counted(elements: Collection[Outcome], said: Collection[Outcome], reruns: int) -> Counter[str]:
    """How a testcase may be counted: once or more often, as this or as that.

    Args:
        elements: What its elements say.
        said: What its attributes say besides.
        reruns: How many tries came before.
    """
    kinds = Counter(map(count_of, elements))
    found = Counter(kinds)
    for kind, number in kinds.items():
        found[f"fewer {kind}"] += number - 1 if len(kinds) == 1 else number
    if kinds["errors"]:
        found.update(("more tests", "fewer tests"))
    for kind in map(count_of, said):
        found.update((kind, f"fewer {kind}"))
    for kind in ("tests", "errors", "failures") if reruns else ():
        found[f"more {kind}"] += reruns
    return found


@dataclass
class _Suite:
    """A suite that is open.

    Attributes:
        before: What had been counted when it began.
        nested: What was counted in suites within it.
    """

    attributes: Mapping[str, str]
    before: Counter[str]
    nested: Counter[str] = field(default_factory=Counter)


class Declarations:
    """Compares what suites declare with what is in them.

    No two writers count alike, so each count may be a few more, or fewer. A suite may or may not count what is in
    suites within it. A testcase may have several elements, and count once or as often (GoogleTest, pytest). pytest
    counts a test twice whose tear-down fails after its call, or once though it has two testcases; Surefire counts
    each try.

    Attributes:
        problem: The first contradiction; empty for none.
        note: What is odd, and may be well.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.note = ""
        self._found: Counter[str] = Counter()
        self._open: list[_Suite] = []
        self._is_pytests = False

    def begin(self, attributes: Mapping[str, str], tests: int) -> None:
        """A suite, or the root, begins.

        Args:
            attributes: Its own.
            tests: How many testcases came before it.
        """
        self._is_pytests = self._is_pytests or (not self._open and attributes.get("name") == _PYTEST)
        self._open.append(_Suite(attributes, self._so_far(tests)))

    def case(self, counts: Counter[str]) -> None:
        """Count a testcase that says more than its name and time, as :func:`counted` counts it."""
        if counts:
            self._found.update(counts)

    def suite(self, outcome: Outcome) -> None:
        """Count an element of a suite itself, which stands as a testcase here."""
        self._found.update(counted((), (outcome,), 0))
        self._found["fewer tests"] += 1

    def end(self, tests: int, *, is_of_allranks: bool) -> None:
        """The suite that was begun last ends.

        Args:
            tests: How many testcases came before its end.
            is_of_allranks: Whether allranks wrote the document.
        """
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
            and not any(_may_be(_number(said), kind, counted) for counted in (found, own))
        }
        if not is_of_allranks and self._is_pytests and wrong.keys() == {"tests"} and _number(wrong["tests"]) > tests:
            self.note = f"pytest declares {wrong['tests']} tests and has {found['tests']}: it counts subtests, too"
        elif wrong:
            declared = ", ".join(f"{name}={said[:_SHOWN]}" for name, said in wrong.items())
            has = ", ".join(f"{name}={found[_COUNTS[name]]}" for name in wrong)
            self.contradiction(f"a suite declares {declared}, and has {has}")
        for outcome, words in _said(suite.attributes, _SUITE_ATTRIBUTES):
            if outcome.is_bad and not (found["errors"] or found["failures"]):
                self.contradiction(f"a suite says {words}, and no test in it went wrong")
            if outcome is Outcome.SKIPPED and found["tests"] > found["skipped"]:
                self.contradiction(f"a suite says {words}, and tests in it ran")

    def _so_far(self, tests: int) -> Counter[str]:
        found = Counter(self._found)
        found["tests"] = tests
        return found

    def contradiction(self, problem: str) -> None:
        """Keep the first thing that cannot be."""
        self.problem = self.problem or problem


def count_of(outcome: Outcome) -> str:
    """The count of a suite in which a testcase of this outcome is."""
    match outcome:
        case Outcome.FAILED:
            return "failures"
        case Outcome.SKIPPED | Outcome.XFAILED:
            return "skipped"
        case Outcome.PASSED | Outcome.XPASSED:
            return "passed"
    return "errors"


def _may_be(count: float, kind: str, found: Counter[str]) -> bool:
    return -found[f"fewer {kind}"] <= count - found[kind] <= found[f"more {kind}"]


def _number(said: str) -> float:
    """A count; what is none is equal to none."""
    try:
        return float(said.replace(",", ""))
    except ValueError:
        return math.nan
