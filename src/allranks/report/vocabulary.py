"""The elements and attributes of JUnit XML that are accepted, and the outcomes that they state.

These are the ones that pytest, unittest-xml-reporting, Maven Surefire, GoogleTest, Jest, Node.js and allranks itself
write; ``tests/report/writers`` has real files. Anything else is an error, because its meaning could only be guessed.
``docs/other-junit.md`` has the same table.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.xml_text import TEXT_LIMIT, clipped, printable
from allranks.report.untrusted import MOST_SECONDS


class UnknownError(Exception):
    """The document has something that is not in the vocabulary.

    Args:
        what: What it has, without a full stop.
        remedy: A sentence on what to do.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        self.remedy = remedy or "Give XML of pytest, Surefire, GoogleTest, Jest or Node: see docs/other-junit.md."
        super().__init__(what)


class Element(NamedTuple):
    """The possible parents and attributes of an element."""

    within: frozenset[str]
    attributes: frozenset[str]


ROOTS: Final = frozenset({"testsuites", "testsuite"})
"""The possible root elements."""

COUNTS: Final = ("tests", "failures", "errors", "skipped", "disabled")
"""The attributes of a suite that are compared with its testcases."""

OUTCOMES: Final[Mapping[str, Outcome]] = MappingProxyType(
    {"failure": Outcome.FAILED, "error": Outcome.ERRORED, "skipped": Outcome.SKIPPED}
)
"""The elements that state the outcome of a testcase; without one, it passed."""

RERUNS: Final[Mapping[str, Outcome]] = MappingProxyType(
    {
        "rerun": Outcome.FAILED,
        "flakyFailure": Outcome.FAILED,
        "flakyError": Outcome.ERRORED,
        "rerunFailure": Outcome.FAILED,
        "rerunError": Outcome.ERRORED,
    }
)
"""The elements that state an earlier try of a testcase."""

TO_THE_END: Final = frozenset({"rerunFailure", "rerunError"})
"""The elements for tries of a test that never passed."""

OUTPUTS: Final = frozenset({"system-out", "system-err"})
TEXTS: Final = frozenset({*OUTCOMES, *RERUNS, *OUTPUTS, "stackTrace"})
"""The elements that may have text."""


def _element(within: str, attributes: str = "") -> Element:
    return Element(frozenset(within.split()), frozenset(attributes.split()))


_SUITE_ATTRIBUTES: Final = f"name time timestamp {' '.join(COUNTS)}"
_OUTCOME_ATTRIBUTES: Final = "message type"
_SUREFIRE_TRIES: Final = "flakyFailure flakyError rerunFailure rerunError"
ELEMENTS: Final[Mapping[str, Element]] = MappingProxyType(
    {
        "testsuites": _element("document", f"{_SUITE_ATTRIBUTES} random_seed"),
        "testsuite": _element(
            "document testsuites testsuite",
            f"{_SUITE_ATTRIBUTES} hostname file group version xmlns:xsi xsi:noNamespaceSchemaLocation",
        ),
        "properties": _element("testsuite testcase"),
        "property": _element("properties", "name value"),
        "testcase": _element(
            "testsuites testsuite",
            "classname name time file line url timestamp group type_param value_param status result failure",
        ),
        "failure": _element("testcase", _OUTCOME_ATTRIBUTES),
        "error": _element("testcase", _OUTCOME_ATTRIBUTES),
        "skipped": _element("testcase", _OUTCOME_ATTRIBUTES),
        "rerun": _element("testcase", "message"),
        **dict.fromkeys(_SUREFIRE_TRIES.split(), _element("testcase", _OUTCOME_ATTRIBUTES)),
        "stackTrace": _element(_SUREFIRE_TRIES),
        **dict.fromkeys(sorted(OUTPUTS), _element(f"testsuite testcase {_SUREFIRE_TRIES}")),
    }
)
"""All elements; the parent of a root is ``document``."""

XFAIL_TYPES: Final = frozenset({"pytest.xfail", "XFAIL"})
"""The types of a skip that mean an expected failure, in pytest and in unittest-xml-reporting."""

OURS: Final = "allranks."
"""The prefix of allranks' own properties."""

_ANY: Final = r"(?s:.)*"
_WHOLE: Final = r"0|[1-9]\d{0,9}"
_SIZE: Final = r"[1-9]\d{0,9}"
_OUTCOME: Final = "|".join(outcome.value for outcome in Outcome)
_SECONDS: Final = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"


def _list(item: str) -> str:
    """A pattern for items separated by spaces; a list over the limit of texts was cut, so its items are not checked."""
    return rf"(?:{item})(?: (?:{item}))*|(?s:.){{{TEXT_LIMIT + 1},}}"


_Patterns = Mapping[str, re.Pattern[str]]


def _patterns(**patterns: str) -> _Patterns:
    return {name: re.compile(pattern, re.ASCII) for name, pattern in patterns.items()}


_OF_SUITE: Final = _patterns(
    rank=_WHOLE,
    world_size=_SIZE,
    **dict.fromkeys(("cell", "suite", "engine", "image", "gpus"), _ANY),
    **dict.fromkeys(("attempt", "part", "deselected", "skip_but_pass", "flaky"), _WHOLE),
    elapsed=rf"-?{_SECONDS}",
)
_OF_CASE: Final = _patterns(
    outcome=_OUTCOME,
    world_size=_SIZE,
    at=r"\d{1,12}(?:\.\d{1,12})?",
    consequence="1",
    skip_kind="|".join(kind.value for kind in SkipKind),
    **dict.fromkeys(("nodeid", "phase", "skip_but_pass"), _ANY),
    **dict.fromkeys(("caused_by", "skip_code", "gpus_needed", "rule", "leading", "earlier_left_out"), _WHOLE),
    ranks=_list(rf"[\d,-]+:(?:{_OUTCOME})"),
    seconds=_list(_SECONDS),
    texts=_list(r"[\d,-]+@\d+\+\d+"),
    earlier=_list(r"\d+:[^ ]+"),
)
"""The properties of allranks in rank XML and in merged reports, with the patterns of their values."""

_DECIDING: Final = frozenset({"status", "result", "failure"})
_STATES: Final[Mapping[tuple[str | None, str | None], Outcome]] = MappingProxyType(
    {
        (None, None): Outcome.PASSED,
        ("run", None): Outcome.PASSED,
        ("run", "completed"): Outcome.PASSED,
        ("run", "skipped"): Outcome.SKIPPED,
        ("notrun", "suppressed"): Outcome.SKIPPED,
    }
)
"""The outcomes by GoogleTest's ``status`` and ``result``; versions before 1.10 have no ``result``."""

_IS_DISABLED: Final = re.compile(r"(?:^|[/.])DISABLED_").search
_SHOWN: Final = 60

_NUMBER: Final = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII).fullmatch
_THOUSANDS: Final = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+\.\d+", re.ASCII).fullmatch
_DECIMAL_COMMA: Final = re.compile(r"(?![1-9]\d{0,2},\d{3}$)\d+,\d+", re.ASCII).fullmatch
_LONGEST_NUMBER: Final = 40


def checked(tag: str, parent: str, attributes: Mapping[str, str], allowed: frozenset[str]) -> None:
    """Check the parent and the attributes of an element; UnknownError if they are not in the vocabulary.

    The parent of the root is ``document``. Suites and testcases may also have the ``allowed`` attributes.
    """
    known = ELEMENTS.get(tag)
    if parent == "document" and tag not in ROOTS:
        msg = f"its root element is <{_shown(tag)}>, but JUnit XML begins with <testsuites> or <testsuite>"
        raise UnknownError(msg)
    if known is None or parent not in known.within:
        msg = f"<{_shown(tag)}> is in <{parent}>, where no known writer of JUnit XML puts it"
        raise UnknownError(msg)
    if attributes.keys() <= known.attributes:
        return
    is_open = tag == "testcase" or tag in ROOTS
    for name in attributes:
        if name not in known.attributes and not (is_open and name in allowed):
            msg = f"<{tag}> has {quoted(name, attributes[name])}, which no known writer of JUnit XML uses"
            remedy = f"If it states no outcome, merge the file with: allranks report --allow-attribute {_shown(name)}."
            raise UnknownError(msg, remedy if is_open else "")


def checked_property(name: str, value: str, *, is_of_case: bool) -> None:
    """Check a property of a testcase or suite; UnknownError for one of allranks that allranks never writes."""
    if not name.startswith(OURS):
        return
    own = name.removeprefix(OURS)
    pattern = (_OF_CASE if is_of_case else _OF_SUITE).get(own)
    if (pattern and pattern.fullmatch(value)) or (not is_of_case and own.startswith("axis.")):
        return
    where = "testcase" if is_of_case else "suite"
    what = "a value" if pattern else "a property"
    msg = f"a {where} has the property {_shown(name)} with {quoted('value', value)}, {what} that allranks never writes"
    raise UnknownError(msg, f"Names that begin with {OURS} are reserved: remove or rename the property.")


def stated_outcome(case: Mapping[str, str]) -> tuple[Outcome, str]:
    """The outcome in a testcase's attributes, and these attributes; a pass if they state none.

    Raises:
        UnknownError: A value is unknown, or the test did not run although it was not disabled.
    """
    if _DECIDING.isdisjoint(case.keys()):
        return Outcome.PASSED, ""
    if "failure" in case:  # Node
        return Outcome.FAILED, case["failure"]
    state = case.get("status"), case.get("result")
    attributes = " and ".join(quoted(name, case[name]) for name in ("status", "result") if name in case)
    if state == ("notrun", None) and (_IS_DISABLED(case.get("name", "")) or _IS_DISABLED(case.get("classname", ""))):
        return Outcome.SKIPPED, attributes
    if state not in _STATES:
        name = _shown(case.get("name", ""))
        did_not_run = "notrun" in state
        why = "although it is not disabled" if did_not_run else "which is not a known outcome"
        msg = f"the testcase {name} has {attributes}, {why}"
        raise UnknownError(msg, "Find out why the test did not run." if did_not_run else "")
    return _STATES[state], attributes


def seconds_of(text: str | None) -> float:
    """Parse seconds: ``1.5``, ``1,234.5`` with thousands separators, or ``1,5`` with a decimal comma.

    ``-0.000`` is 0: pytest writes it if the clock was set back by less than half a millisecond during a test.

    Raises:
        UnknownError: The text is not a number, or is ambiguous (``1,024``), negative or larger than 31 years.
    """
    if text is None:
        return 0.0
    if len(text) > _LONGEST_NUMBER:
        number = -1.0
    elif _NUMBER(text):
        number = float(text)
    elif _THOUSANDS(text):
        number = float(text.replace(",", ""))
    elif _DECIMAL_COMMA(text):
        number = float(text.replace(",", "."))
    else:
        number = -1.0
    if not 0 <= number <= MOST_SECONDS:
        msg = f"{quoted('time', text)} is not a number of seconds"
        raise UnknownError(msg, "Write it with a decimal point: 1024, 1.024 or 1,024.0.")
    return abs(number)


def quoted(name: str, value: str) -> str:
    """An attribute as it is written, cut if it is long."""
    return f'{_shown(name)}="{_shown(value)}"'


def _shown(text: str) -> str:
    return clipped(printable(text), _SHOWN)
