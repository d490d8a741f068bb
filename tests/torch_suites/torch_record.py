"""The record of what torch's own runner made of torch's own suites: one file for each torch version."""

import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from outcomes import Outcome, Recorded
from suite_files import CELL

T = TypeVar("T")

FOLDER: Final = Path(__file__).with_name("records")

Outcomes = Mapping[str, Outcome]
"""Outcomes by test, ``Class::test``."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What torch's own runner made of suites.

    Attributes:
        torch: Version, without what was built for (``+cpu``).
        suites: The newest outcome of each test, by suite.
        flaky: Where recordings differ: all outcomes that were seen.
    """

    torch: str
    cell: str = CELL
    suites: Mapping[str, Outcomes] = field(default_factory=dict)
    flaky: Mapping[str, Mapping[str, tuple[Outcome, ...]]] = field(default_factory=dict)

    def seen(self, suite: str, test: str) -> tuple[Outcome, ...]:
        """All outcomes that torch's own runner has shown of a test; none where it is not on record."""
        newest = self.suites.get(suite, {}).get(test)
        return self.flaky.get(suite, {}).get(test) or ((newest,) if newest else ())


class NoRecordError(Exception):
    """There is no record of this torch version."""


def installed_torch() -> str:
    """Version of the installed torch, without what it was built for."""
    return importlib.metadata.version("torch").partition("+")[0]


def record_of(recordings: Iterable[tuple[str, Iterable[Recorded]]], base: Record) -> Record:
    """A record with what recordings have seen.

    Args:
        recordings: Suite and what was seen in it, in order; of several of one test the last counts.
        base: What else is known: the record that they add to. A torch version's tests do not change, so that what no
            recording names stays, and what was seen earlier still tells that a test is flaky.
    """
    seen: dict[str, dict[str, list[Outcome]]] = {}
    for suite, recording in recordings:
        for item in recording:
            earlier = list(reversed(base.seen(suite, item.test)))
            seen.setdefault(suite, {}).setdefault(item.test, earlier).append(item.outcome)
    newest = {suite: {test: all_seen[-1] for test, all_seen in tests.items()} for suite, tests in seen.items()}
    flaky = {suite: dict(_flaky(tests)) for suite, tests in seen.items()}
    return replace(base, suites=_with(base.suites, newest), flaky=_with(base.flaky, flaky))


def _with(base: Mapping[str, Mapping[str, T]], added: Mapping[str, Mapping[str, T]]) -> dict[str, dict[str, T]]:
    return {suite: {**base.get(suite, {}), **added.get(suite, {})} for suite in [*base, *added]}


def _flaky(tests: Mapping[str, list[Outcome]]) -> Iterator[tuple[str, tuple[Outcome, ...]]]:
    for test, seen in tests.items():
        different: list[Outcome] = []
        for outcome in reversed(seen):
            if not any(outcome.agrees(other) for other in different):
                different.append(outcome)
        if len(different) > 1:
            yield test, tuple(different)


def read_record(torch: str, folder: Path = FOLDER) -> Record:
    """The record of a torch version.

    Raises:
        NoRecordError: With what to do.
    """
    path = path_of(torch, folder)
    if not path.exists():
        there = ", ".join(sorted(path.stem.removeprefix("torch-") for path in folder.glob("torch-*.json"))) or "none"
        msg = (
            f"There is no record of torch {torch} (there: {there}). "
            "Make one with this torch, which takes an hour: python tests/torch_suites/record.py --run FOLDER"
        )
        raise NoRecordError(msg)
    content = json.loads(path.read_text(encoding="utf-8"))
    return Record(
        torch=content["torch"],
        cell=content["cell"],
        suites={
            suite: {test: Outcome(*item) for test, item in tests.items()} for suite, tests in _items(content, "suites")
        },
        flaky={
            suite: {test: tuple(Outcome(*item) for item in seen) for test, seen in tests.items()}
            for suite, tests in _items(content, "flaky")
        },
    )


def _items(content: Mapping[str, Any], name: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    items: Iterable[tuple[str, Mapping[str, Any]]] = content[name].items()
    return items


def write_record(record: Record, folder: Path = FOLDER) -> Path:
    """Write a record, sorted, with a line for each test; its path."""
    path = path_of(record.torch, folder)
    head = "".join(f" {json.dumps(name)}: {json.dumps(getattr(record, name))},\n" for name in ("torch", "cell"))
    text = f'{{\n{head} "suites": {_table(record.suites)},\n "flaky": {_table(record.flaky)}\n}}\n'
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _table(suites: Mapping[str, Mapping[str, object]]) -> str:
    return _object([f"{json.dumps(suite)}: {_tests(suites[suite])}" for suite in sorted(suites) if suites[suite]], "  ")


def _tests(tests: Mapping[str, object]) -> str:
    lines = [f"{json.dumps(test)}: {json.dumps(tests[test], ensure_ascii=False)}" for test in sorted(tests)]
    return _object(lines, "   ")


def _object(lines: Iterable[str], indent: str) -> str:
    body = ",\n".join(indent + line for line in lines)
    return f"{{\n{body}\n{indent[1:]}}}" if body else "{}"


def path_of(torch: str, folder: Path = FOLDER) -> Path:
    """Where the record of a torch version is."""
    return folder / f"torch-{torch}.json"
