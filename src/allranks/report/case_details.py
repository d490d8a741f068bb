"""What the elements in a testcase of rank XML say, and the result that they add up to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from allranks.harness.outcome import Outcome, SkipKind
from allranks.records import MOST_RANKS
from allranks.report.columns import Key
from allranks.report.declared import count_of, counted, outcome_of
from allranks.report.model import RankResult, Rerun
from allranks.report.plausible import number, whole_number
from allranks.report.severity import severity
from allranks.report.xml_text import cut

_RERUN_TAGS: Final[Mapping[str, Outcome]] = {
    "rerun": Outcome.FAILED,  # torch's test/conftest.py, in its repository
    "flakyFailure": Outcome.FAILED,  # Surefire's schema 3.0
    "flakyError": Outcome.ERRORED,
    "rerunFailure": Outcome.FAILED,
    "rerunError": Outcome.ERRORED,
}
_TO_THE_END: Final = frozenset({"rerunFailure", "rerunError"})
"""A try of a test that failed in all of them: of one that passed in the end it is a ``flakyFailure``."""

_OUTPUT_TAGS: Final = ("system-out", "system-err")
_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}
_PLAIN: Final = frozenset(
    f"allranks.{name}" for name in ("nodeid", "outcome", "at", "world_size")
)  # what a pass says without being worth a value of its own


def is_of_interest(tag: str) -> bool:
    """Whether an element in a testcase says how the test went, or what it printed."""
    return tag in _RERUN_TAGS or tag in _OUTPUT_TAGS or outcome_of(tag) not in {None, Outcome.PASSED}


@dataclass(kw_only=True)
class CaseDetails:
    """What a testcase has besides its attributes.

    Attributes:
        outcomes: Each with its message and its text.
        counts: See :func:`allranks.report.declared.counted`.
    """

    properties: dict[str, str] = field(default_factory=dict)
    outcomes: list[tuple[Outcome, str, str]] = field(default_factory=list)
    reruns: list[Rerun] = field(default_factory=list)
    has_failed_to_the_end: bool = False
    output: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def has_passed(self) -> bool:
        """Whether it says nothing but that it passed, when, and in how large a world."""
        said = self.properties
        passed = not self.outcomes and said.get("allranks.outcome", "passed") == "passed"
        return passed and not self.output and not self.reruns and said.keys() <= _PLAIN

    def add(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        """Take in an element that :func:`is_of_interest`."""
        message = cut(attributes.get("message", ""))
        if tag in _OUTPUT_TAGS:
            self.output[tag] = self.output.get(tag, "") + text
        elif tag in _RERUN_TAGS:
            self.reruns.append(Rerun(outcome=_RERUN_TAGS[tag], message=message, text=text))
            self.has_failed_to_the_end |= tag in _TO_THE_END
        else:
            is_xfail = attributes.get("type") == "pytest.xfail"
            self.outcomes.append((Outcome.XFAILED if is_xfail else outcome_of(tag) or Outcome.ERRORED, message, text))

    def end(self, said: Sequence[tuple[Outcome, str]]) -> None:
        """Take in what the attributes of the testcase say, unless its elements, which say more, are as bad."""
        if self.has_failed_to_the_end:
            said = [
                *said,
                (self.reruns[-1].outcome, "a rerun of a test that failed to its end, and nothing of that end"),
            ]
        elements = [outcome for outcome, _, _ in self.outcomes]
        worst = max(map(severity, elements), default=0)
        if any(outcome.is_bad for outcome in elements):
            said = ()
        self.outcomes += [(outcome, words, "") for outcome, words in said if severity(outcome) > worst]
        added = [outcome for outcome, _, _ in self.outcomes[len(elements) :]]
        self.counts = counted(elements, added, len(self.reruns))

    def result(self, key: Key, rank: int, seconds: float, texts: dict[str, str]) -> RankResult:
        """What it adds up to.

        Args:
            key: The test.
            rank: Of the file.
            seconds: How long it took.
            texts: Each by itself: equal texts are in memory once.
        """
        outcome, message, text = max(
            self.outcomes, key=lambda told: severity(told[0]), default=(Outcome.PASSED, "", "")
        )
        said = self.properties.get
        size = whole_number(said("allranks.world_size"))
        nodeid, stdout, stderr = key.nodeid, self.output.get("system-out", ""), self.output.get("system-err", "")
        return RankResult(
            nodeid=texts.setdefault(nodeid, nodeid),
            classname=key.classname,
            name=key.name,
            rank=rank,
            outcome=self._outcome(outcome),
            at=number(said("allranks.at")),
            consequence=said("allranks.consequence") == "1",
            caused_by=whole_number(said("allranks.caused_by")),
            skip_kind=_SKIP_KINDS.get(said("allranks.skip_kind", "")),
            skip_code=whole_number(said("allranks.skip_code")),
            phase=said("allranks.phase", ""),
            message=texts.setdefault(message, message),
            text=texts.setdefault(text, text),
            duration=seconds,
            stdout=texts.setdefault(stdout, stdout),
            stderr=texts.setdefault(stderr, stderr),
            world_size=size if size and size <= MOST_RANKS else None,
            reruns=tuple(self.reruns),
        )

    def _outcome(self, shown: Outcome) -> Outcome:
        """What the property says, which knows more words than the elements, unless it contradicts them."""
        outcome = _OUTCOMES.get(self.properties.get("allranks.outcome", ""), shown)
        return shown if self.outcomes and count_of(outcome) != count_of(shown) else outcome
