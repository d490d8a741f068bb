"""Reads the merged report of a run, by the standard library alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET


@dataclass(frozen=True, kw_only=True)
class Case:
    """One testcase.

    Attributes:
        verdict: Kind and reason, as ``("error", "crashed")``; kind ``passed`` where there is nothing else.
        leading: The rank that leads the verdict; None for no rank.
        ranks: The outcome of each rank.
        seconds: From the start of the test to its last outcome.
    """

    cell: str
    gpus: tuple[str, ...]
    name: str
    verdict: tuple[str, str]
    leading: int | None
    ranks: dict[int, str]
    message: str
    text: str
    seconds: float


def read_cases(path: Path) -> tuple[Case, ...]:
    """The testcases of a report; none where the run has left no report."""
    if not path.exists():
        return ()
    root = ET.parse(path).getroot()  # noqa: S314 - our own report
    return tuple(_case(case, _facts(suite)) for suite in root.iter("testsuite") for case in suite.iter("testcase"))


def _facts(element: ET.Element) -> dict[str, str]:
    output = element.find("properties")
    found = () if output is None else output
    return {match.get("name", "").removeprefix("allranks."): match.get("value", "") for match in found}


def _case(case: ET.Element, suite: dict[str, str]) -> Case:
    facts = _facts(case)
    outcome = next((child for child in case if child.tag in {"failure", "error", "skipped"}), None)
    return Case(
        cell=suite.get("cell", ""),
        gpus=tuple(suite.get("gpus", "").split()),
        name=case.get("name", ""),
        verdict=("passed", "") if outcome is None else (outcome.tag, outcome.get("type", "")),
        leading=int(facts["leading"]) if "leading" in facts else None,
        ranks=dict(_by_rank(facts.get("ranks", ""))),
        message="" if outcome is None else outcome.get("message", ""),
        text="" if outcome is None else outcome.text or "",
        seconds=float(case.get("time", "0")),
    )


def _by_rank(compact: str) -> Iterator[tuple[int, str]]:
    """Each rank with its outcome, from ``0-2,5:passed 3:failed``."""
    for group in compact.split():
        numbers, word = group.split(":")
        for span in numbers.split(","):
            first, _, last = span.partition("-")
            yield from ((rank, word) for rank in range(int(first), int(last or first) + 1))
