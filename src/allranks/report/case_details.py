"""The content of a testcase in JUnit XML, apart from its attributes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allranks.protocol import skip_codes
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.xml_text import cut, without_colors
from allranks.report.results import Key, RankResult, VerdictKind, kind_of, severity
from allranks.report.untrusted import number, whole_number
from allranks.report.vocabulary import (
    OUTCOMES,
    OUTPUTS,
    RERUNS,
    TO_THE_END,
    XFAIL_TYPES,
    stated_outcome,
)

_OUTCOME: Final = "allranks.outcome"
_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}
_COUNTS: Final = {VerdictKind.FAILURE: "failures", VerdictKind.ERROR: "errors", VerdictKind.SKIPPED: "skipped"}
_PLAIN: Final = frozenset(
    f"allranks.{name}" for name in ("nodeid", "outcome", "at", "world_size")
)  # properties of a plain pass, which needs no details


def details_of(case: Any) -> "CaseDetails":  # noqa: ANN401 - an element, of lxml or of the standard library
    """The details of a testcase that is in memory."""
    details = CaseDetails()
    for element in case.iterfind("properties/property"):
        details.properties.setdefault(element.get("name") or "", element.get("value") or "")
    for element in case.iterfind("*"):
        details.add(element.tag, element.attrib, "".join(element.itertext()))
    details.end(stated_outcome(case.attrib))
    return details


@dataclass(kw_only=True)
class CaseDetails:
    """The content of a testcase."""

    properties: dict[str, str] = field(default_factory=dict)
    outcomes: list[tuple[Outcome, str, str]] = field(default_factory=list)  # with message and text
    reruns: list[tuple[Outcome, str, str]] = field(default_factory=list)  # the earlier tries, with message and text
    has_failed_to_the_end: bool = False  # True if there are tries of a test that never passed
    output: dict[str, str] = field(default_factory=dict)  # by the name of the element; complete at the testcase's end
    # The number of elements by the suite's attribute that counts them (``failures``); for tries, the key is ``reruns``
    # in the form of PyTorch's files, and ``tries`` in that of Surefire's.
    elements: Counter[str] = field(default_factory=Counter)
    _printed: dict[str, list[str]] = field(default_factory=dict, repr=False)

    @property
    def has_passed(self) -> bool:
        """True if it states only a pass, its time of arrival and its world size."""
        passed = not self.outcomes and self.properties.get(_OUTCOME, "passed") == "passed"
        return passed and not self.output and not self.reruns and self.properties.keys() <= _PLAIN

    @property
    def worst(self) -> tuple[Outcome, str, str]:
        """The outcome that counts, with its message and text; by default, a pass."""
        return max(self.outcomes, key=lambda stated: severity(stated[0]), default=(Outcome.PASSED, "", ""))

    def add(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        """Add a child element with all of its text."""
        message, text = without_colors(cut(attributes.get("message", ""))), without_colors(text)
        if tag in OUTPUTS:
            self._printed.setdefault(tag, []).append(text)
        elif tag in RERUNS:
            self.reruns.append((RERUNS[tag], message, text))
            self.has_failed_to_the_end |= tag in TO_THE_END
            self.elements["reruns" if tag == "rerun" else "tries"] += 1
        elif outcome := OUTCOMES.get(tag):
            is_xfail = tag == "skipped" and attributes.get("type") in XFAIL_TYPES
            self.outcomes.append((Outcome.XFAILED if is_xfail else outcome, message, text))
            self.elements[_COUNTS[kind_of(outcome)]] += 1

    def end(self, in_attributes: tuple[Outcome, str]) -> None:
        """Add the outcome in the testcase's attributes, and outcomes that follow from the elements."""
        self.output = {tag: cut("".join(texts)) for tag, texts in self._printed.items()}
        self._printed.clear()
        worst, stated = self.worst[0], _OUTCOMES.get(self.properties.get(_OUTCOME, ""), Outcome.PASSED)
        if not worst.is_bad and kind_of(stated) is not kind_of(worst) and severity(stated) > severity(worst):
            self.outcomes.append((stated, "", ""))
        if severity(in_attributes[0]) > severity(worst):
            self.outcomes.append((*in_attributes, ""))
        if self.reruns and not worst.is_bad and (self.has_failed_to_the_end or worst is not Outcome.PASSED):
            failed, why, _ = self.reruns[-1]
            skip = next((message for _, message, _ in self.outcomes if message), "skipped")
            then = skip if self.outcomes else "no outcome"
            self.outcomes.append((failed, f"{why.rstrip('.') or 'it failed'}; then {then}", ""))
        if not self.outcomes and _OUTCOME not in self.properties:
            # On sandcastle, torch's own runner reports a skip as a pass.
            reason = skip_codes.sandcastle_reason(self.output.get("system-err", ""))
            if reason is not None:
                self.properties["allranks.skip_kind"] = SkipKind.ENVIRONMENT.value
                self.outcomes.append((Outcome.SKIPPED, reason, ""))

    def _kind_of_skip(self, outcome: Outcome, message: str) -> tuple[SkipKind | None, int | None, int | None]:
        """Kind, exit code and needed GPUs of a skip: as stated, or according to the text of torch's own runner."""
        get = self.properties.get
        numbers = whole_number(get("allranks.skip_code")), whole_number(get("allranks.gpus_needed"))
        stated = (_SKIP_KINDS.get(get("allranks.skip_kind", "")), *numbers)
        if outcome is not Outcome.SKIPPED or any(stated) or get(_OUTCOME):
            return stated
        found = skip_codes.skip_of_text(message)
        return (skip_codes.kind(found[0]), found[0].value, found[1]) if found else stated

    def result(self, key: Key, rank: int, seconds: float, texts: dict[str, str]) -> RankResult:
        """The result on a rank; equal texts become one object, kept in ``texts``."""
        outcome, message, text = self.worst
        get = self.properties.get
        skip_kind, skip_code, gpus_needed = self._kind_of_skip(outcome, message)
        size = whole_number(get("allranks.world_size"))
        nodeid, stdout, stderr = key.nodeid, self.output.get("system-out", ""), self.output.get("system-err", "")
        result = RankResult(
            nodeid=texts.setdefault(nodeid, nodeid),
            classname=key.classname,
            name=key.name,
            rank=rank,
            outcome=self._outcome(outcome),
            at=number(get("allranks.at")),
            consequence=get("allranks.consequence") == "1",
            caused_by=whole_number(get("allranks.caused_by")),
            skip_kind=skip_kind,
            skip_code=skip_code,
            gpus_needed=gpus_needed,
            phase=get("allranks.phase", ""),
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
        tries = (replace(before, outcome=outcome, message=message, text=text) for outcome, message, text in self.reruns)
        return replace(result, reruns=tuple(tries))

    def _outcome(self, shown: Outcome) -> Outcome:
        """The outcome in the property, which is more specific than the elements, unless it contradicts them."""
        outcome = _OUTCOMES.get(self.properties.get(_OUTCOME, ""), shown)
        return shown if self.outcomes and kind_of(outcome) is not kind_of(shown) else outcome
