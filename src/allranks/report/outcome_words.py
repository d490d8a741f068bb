"""Words by which writers of JUnit XML state outcomes: names of elements, and values of attributes."""

import re
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from allranks.protocol.outcomes import Outcome
from allranks.report.untrusted import number

RERUN_TAGS: Final[Mapping[str, Outcome]] = {
    "rerun": Outcome.FAILED,  # torch's test/conftest.py, in its repository
    "flakyFailure": Outcome.FAILED,  # Surefire's schema 3.0
    "flakyError": Outcome.ERRORED,
    "rerunFailure": Outcome.FAILED,
    "rerunError": Outcome.ERRORED,
}
OUTPUT_TAGS: Final = ("system-out", "system-err")
_WORDS: Final[Mapping[str, Outcome]] = MappingProxyType(
    {
        word: outcome
        for outcome, words in {
            Outcome.PASSED: "pass passed ok success successful succeeded run ran completed complete executed fixed",
            Outcome.SKIPPED: "skip skipped notrun suppressed disabled ignore ignored pending inconclusive todo "
            "excluded filtered notexecuted untested notapplicable deselected",
            Outcome.XFAILED: "xfail xfailed expectedfailure",
            Outcome.XPASSED: "xpass xpassed",
            Outcome.FAILED: "fail failed failure failures notok nok ko regression unexpectedsuccess rerunfailure",
            Outcome.ERRORED: "error errored errors abort aborted broken cancel canceled cancelled interrupted invalid "
            "notrunnable disconnected passedbutrunaborted missing undefined hookerror cleanuperror exception "
            "rerunerror aborts exceptions",
            Outcome.CRASHED: "crash crashed crashes killed died panic panicked segfault",
            Outcome.TIMED_OUT: "timeout timedout timeouts hang hung",
        }.items()
        for word in words.split()
    }
)
"""Words of GoogleTest, CTest, TRX, NUnit, xUnit.net, TestNG, Jenkins, Behave, TAP and of allranks itself."""

_WRONG: Final = (
    *("failed", "failure", "fail", "error", "exception", "exceptions", "crashed", "crashes", "aborted", "aborts"),
    *("timedout", "timeouts", "broken", "cancelled", "canceled", "interrupted", "killed", "died"),
)
"""Without ``timeout``, which may be a limit."""
_STATUS: Final = ("exitcode", "exitstatus", "returncode", "retcode")
_YES_AND_NO: Final[Mapping[str, tuple[Outcome, Outcome]]] = MappingProxyType(
    {
        "executed": (Outcome.PASSED, Outcome.SKIPPED),
        **dict.fromkeys(("success", "successful", "passed", "pass", "ok"), (Outcome.PASSED, Outcome.FAILED)),
        **dict.fromkeys(("disabled", "ignored", "skipped"), (Outcome.SKIPPED, Outcome.PASSED)),
        **{word: (_WORDS[word], Outcome.PASSED) for word in (*_WRONG, "failures", "errors")},
        **dict.fromkeys(_STATUS, (Outcome.ERRORED, Outcome.PASSED)),
    }
)
"""Those of which the first is bad may be numbers, too."""

_YES: Final = frozenset({"true", "1", "yes"})
_NO: Final = frozenset({"false", "0", "no"})
WORD_ATTRIBUTES: Final = frozenset({"status", "result", "outcome", "state", "conclusion", "verdict"})
_CASE_ATTRIBUTES: Final = WORD_ATTRIBUTES | _YES_AND_NO.keys()
_BEFORE_A_NAME: Final = re.compile(
    rf"(?:num(?:ber)?(?:of)?|total|tests?|is|has|was)(?=(?:{'|'.join(_CASE_ATTRIBUTES)})$)"
)
_BESIDE_A_NAME: Final = re.compile(
    r".*[:}]|(?:(?<=failure)|(?<=error)|(?<=exception))[\W_]*message$|[\W_]+|(?<=.)(?:count|tests?|cases?)$"
)
_VALUE_ELEMENTS: Final = WORD_ATTRIBUTES | {*_STATUS, "success", "successful", "passed", "ok"}
SUITE_ATTRIBUTES: Final = frozenset({*WORD_ATTRIBUTES, "success", "successful", *_WRONG, *_STATUS})
"""The other names of a suite are compared as counts."""

SILENT: Final = frozenset({"classname", "name", "time", "file", "line", "timestamp"})
"""Attributes of a testcase that state no outcome."""

SHOWN: Final = 20
"""Characters of a word in a message."""


@lru_cache(maxsize=1024)
def outcome_of(word: str) -> Outcome | None:
    """The outcome that a word means, in any spelling (``NOT_RUN``, ``notRun``); None for an unknown word."""
    return _WORDS.get(re.sub(r"[\W_]+", "", word.rpartition(":")[2].lower()))


def outcomes_said(case: Mapping[str, str]) -> Iterator[tuple[Outcome, str]]:
    """The outcomes in a testcase's attributes, each with the attribute; an unknown word is an error.

    CTest and GoogleTest mark a test that did not run by these attributes alone.
    """
    return iter(()) if SILENT.issuperset(case.keys()) else said_in(case, _CASE_ATTRIBUTES)


def element_said(tag: str, attributes: Mapping[str, str], text: str) -> Iterator[tuple[Outcome, str]]:
    """What went wrong as an element states it by its attributes or text: ``<result>fail</result>``."""
    if outcome_of(tag) in {None, Outcome.PASSED} and tag not in RERUN_TAGS and tag not in OUTPUT_TAGS:
        word = (attributes.get("value") or text).strip() if has_value(tag) else ""
        told = [*said_in(attributes, _CASE_ATTRIBUTES, None), *said_in({tag: word}, _VALUE_ELEMENTS, None)]
        yield from (each for each in told if each[0].is_bad)


@lru_cache(maxsize=1024)
def plain_name(name: str) -> str:
    """The core of a name: that of ``isPassed`` is passed, of ``numFailedTests`` failed, of ``x:errorCount`` error."""
    return _BEFORE_A_NAME.sub("", _BESIDE_A_NAME.sub("", name.lower()), 1)


def has_value(tag: str) -> bool:
    """True if an element of this name may have an outcome as its text: ``<exitCode>137</exitCode>``."""
    return plain_name(tag) in _VALUE_ELEMENTS


def said_in(
    attributes: Mapping[str, str], names: Container[str], unknown: Outcome | None = Outcome.ERRORED
) -> Iterator[tuple[Outcome, str]]:
    """The outcomes in attributes with these plain names; ``unknown`` for a word that is unknown, unless it is None."""
    for name, said in attributes.items():
        if (plain := plain_name(name)) not in names or not (word := said.strip()):
            continue
        yes, no = _YES_AND_NO.get(plain, (None, None))
        if plain == "passed" and number(word) is not None:
            continue
        if yes and yes.is_bad and (tally := number(word)) is not None:
            word = "yes" if tally else "no"
        outcome = yes if word.lower() in _YES else no if word.lower() in _NO else outcome_of(word)
        words = f'{plain}="{word[:SHOWN]}"'
        if outcome is not None:
            yield outcome, words
        elif unknown is not None:
            yield unknown, f"{words} is unknown, so the test is not known to have passed"


def is_bad(tag: str) -> bool:
    """True if an element in a testcase states that the test went wrong."""
    outcome = outcome_of(tag)
    return outcome is not None and outcome.is_bad


def is_of_interest(tag: str, attributes: Mapping[str, str]) -> bool:
    """True if an element in a testcase states the test's outcome or its output."""
    is_by_name = tag in RERUN_TAGS or tag in OUTPUT_TAGS or outcome_of(tag) not in {None, Outcome.PASSED}
    return is_by_name or has_value(tag) or any(element_said(tag, attributes, ""))
