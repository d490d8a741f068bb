"""What a testcase of JUnit XML states besides its attributes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allranks.protocol import skip_codes
from allranks.protocol.outcomes import Outcome, SkipKind
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.xml_text import cut, without_colours
from allranks.report.results import Key, RankResult, VerdictKind, kind_of, severity
from allranks.report.untrusted import number, whole_number
from allranks.report.vocabulary import (
    OUTCOMES,
    OUTPUTS,
    RERUNS,
    TO_THE_END,
    XFAIL_TYPES,
    outcome_said,
)

_OUTCOME: Final = "allranks.outcome"
_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}
_COUNTS: Final = {VerdictKind.FAILURE: "failures", VerdictKind.ERROR: "errors", VerdictKind.SKIPPED: "skipped"}
_PLAIN: Final = frozenset(
    f"allranks.{name}" for name in ("nodeid", "outcome", "at", "world_size")
)  # properties of a plain pass, which needs no details


def details_of(case: Any) -> "CaseDetails":  # noqa: ANN401 - an element, of lxml or of the standard library
    """The statements of a testcase that is in memory."""
    details = CaseDetails()
    for each in case.iterfind("properties/property"):
        details.properties.setdefault(each.get("name") or "", each.get("value") or "")
    for each in case.iterfind("*"):
        details.add(each.tag, each.attrib, "".join(each.itertext()))
    details.end(outcome_said(case.attrib))
    return details


@dataclass(kw_only=True)
class CaseDetails:
    """The content of a testcase.

    Attributes:
        outcomes: The outcomes, each with its message and its text.
        output: What it printed, by the name of the element; known at its end.
        reruns: The earlier tries, in the same form.
        elements: How many elements state each outcome, by the name of the suite's count, and how many a try: ``reruns``
            in PyTorch's form, ``tries`` in Surefire's.
    """

    properties: dict[str, str] = field(default_factory=dict)
    outcomes: list[tuple[Outcome, str, str]] = field(default_factory=list)
    reruns: list[tuple[Outcome, str, str]] = field(default_factory=list)
    has_failed_to_the_end: bool = False
    output: dict[str, str] = field(default_factory=dict)
    elements: Counter[str] = field(default_factory=Counter)
    _printed: dict[str, list[str]] = field(default_factory=dict, repr=False)

    @property
    def has_passed(self) -> bool:
        """True if it states only a pass, its time of arrival and its world size."""
        said = self.properties
        passed = not self.outcomes and said.get(_OUTCOME, "passed") == "passed"
        return passed and not self.output and not self.reruns and said.keys() <= _PLAIN

    @property
    def worst(self) -> tuple[Outcome, str, str]:
        """The outcome that counts, with its message and its text; a pass if there is none."""
        return max(self.outcomes, key=lambda told: severity(told[0]), default=(Outcome.PASSED, "", ""))

    def add(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        """Add an element with all text in it."""
        message, text = without_colours(cut(attributes.get("message", ""))), without_colours(text)
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

    def end(self, said: tuple[Outcome, str]) -> None:
        """Add the outcome in the testcase's attributes, and what follows from the elements."""
        self.output = {tag: cut("".join(texts)) for tag, texts in self._printed.items()}
        self._printed.clear()
        worst, stated = self.worst[0], _OUTCOMES.get(self.properties.get(_OUTCOME, ""), Outcome.PASSED)
        if not worst.is_bad and kind_of(stated) is not kind_of(worst) and severity(stated) > severity(worst):
            self.outcomes.append((stated, "", ""))
        if severity(said[0]) > severity(worst):
            self.outcomes.append((*said, ""))
        if self.reruns and not worst.is_bad and (self.has_failed_to_the_end or worst is not Outcome.PASSED):
            failed, why, _ = self.reruns[-1]
            skip = next((told for _, told, _ in self.outcomes if told), "a skip")
            then = skip if self.outcomes else "nothing of its end"
            self.outcomes.append((failed, f"{why.rstrip('.') or 'it went wrong'}; then {then}", ""))
        if not self.outcomes and _OUTCOME not in self.properties:
            # On sandcastle, torch's own runner reports a skip as a pass.
            reason = skip_codes.sandcastle_reason(self.output.get("system-err", ""))
            if reason is not None:
                self.properties["allranks.skip_kind"] = SkipKind.ENVIRONMENT.value
                self.outcomes.append((Outcome.SKIPPED, reason, ""))

    def _kind_of_skip(self, outcome: Outcome, message: str) -> tuple[SkipKind | None, int | None, int | None]:
        """Kind, exit code and needed GPUs of a skip: as stated, or as the text of torch's own runner has them."""
        said = self.properties.get
        numbers = whole_number(said("allranks.skip_code")), whole_number(said("allranks.gpus_needed"))
        stated = (_SKIP_KINDS.get(said("allranks.skip_kind", "")), *numbers)
        if outcome is not Outcome.SKIPPED or any(stated) or said(_OUTCOME):
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
        outcome = _OUTCOMES.get(self.properties.get(_OUTCOME, ""), shown)
        return shown if self.outcomes and kind_of(outcome) is not kind_of(shown) else outcome
