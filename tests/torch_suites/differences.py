"""Where allranks and torch's own runner differ, and which differences are known."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from outcomes import Outcome
from suite_files import Selection
from torch_record import Record

KNOWN: Final = Path(__file__).with_name("known_differences.json")

Relation = Literal["same", "differs", "known", "not on record", "not run"]


@dataclass(frozen=True, kw_only=True)
class Known:
    """A difference that is not ours to mend.

    Attributes:
        allranks: What allranks says.
        cause: Why that is not what torch's own runner says.
    """

    allranks: Outcome
    cause: str


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One test on both sides.

    Attributes:
        torch: What torch's own runner has shown: more than one outcome where the test is flaky; none if not on record.
        allranks: None where the run has no such test.
        cause: Of a known difference.
    """

    suite: str
    test: str
    relation: Relation
    torch: tuple[Outcome, ...]
    allranks: Outcome | None
    cause: str = ""

    def __str__(self) -> str:
        """Both sides, for a person."""
        expected = " or ".join(map(str, self.torch)) or "(not on record)"
        sides = f"  torch:    {expected}\n  allranks: {self.allranks or '(not in the run)'}"
        cause = f"\n  known:    {self.cause}" if self.cause else ""
        return f"{self.relation}: {self.suite}::{self.test}\n{sides}{cause}"


def compare(
    record: Record,
    ran: Mapping[str, Mapping[str, Outcome]],
    selection: Selection,
    known: Mapping[tuple[str, str], Known],
) -> list[Compared]:
    """Every test that was to run, or that ran, on both sides.

    Args:
        record: torch's own side.
        ran: Outcomes under allranks, by suite and test.
        selection: What was to run.
        known: Differences that are listed, by suite and test.
    """
    return [
        _compare(suite, test, record.seen(suite, test), ran.get(suite, {}).get(test), known.get((suite, test)))
        for suite, test in _wanted(record, ran, selection)
    ]


def _wanted(
    record: Record, ran: Mapping[str, Mapping[str, Outcome]], selection: Selection
) -> Iterator[tuple[str, str]]:
    for suite, tests in selection.items():
        planned = tests or tuple(record.suites.get(suite, {}))
        for test in dict.fromkeys((*planned, *ran.get(suite, {}))):
            yield suite, test


def _compare(
    suite: str, test: str, torch: tuple[Outcome, ...], allranks: Outcome | None, known: Known | None
) -> Compared:
    relation: Relation
    cause = ""
    if allranks is None:
        relation = "not run"
    elif not torch:
        relation = "not on record"
    elif any(allranks.agrees(seen) for seen in torch):
        relation = "same"
    elif known is not None and allranks.agrees(known.allranks):
        relation, cause = "known", known.cause
    else:
        relation = "differs"
    return Compared(suite=suite, test=test, relation=relation, torch=torch, allranks=allranks, cause=cause)


def read_known(path: Path = KNOWN) -> dict[tuple[str, str], Known]:
    """The differences that are listed with their cause: by suite and test, what allranks says and why."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        (suite, test): Known(allranks=Outcome(*entry["allranks"]), cause=entry["cause"])
        for suite, tests in content.items()
        for test, entry in tests.items()
    }
