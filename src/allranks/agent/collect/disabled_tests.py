"""Tests that are not to run for now, read from a suite's list of them and from PyTorch's two lists.

- ``disabled_tests.toml`` in the suite's folder: each entry has an owner, an issue and a last day. After that day it is
  an error, so that no test stays disabled because nobody looked.
- ``DISABLED_TESTS_FILE`` and ``SLOW_TESTS_FILE``, variables of PyTorch's CI, name JSON files. torch's own test cases
  read them, too, each in its ``setUp``; read here, they hold for any class, and cost no process.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pytest

FILE: Final = "disabled_tests.toml"
"""The name of a suite's list, in its folder."""

DISABLED: Final = "DISABLED_TESTS_FILE"
SLOW: Final = "SLOW_TESTS_FILE"
WITH_SLOW: Final = "PYTORCH_TEST_WITH_SLOW"

_KEYS: Final = {"test", "reason", "owner", "issue", "until"}
_FORM: Final = (
    "It has tables [[test]], each with test (Class::test or FILE::Class::test), reason, owner, issue, and until, a day."
)


class DisabledTestsError(ValueError):
    """A list cannot be read, has wrong content, or has an entry whose last day is over."""


@dataclass(frozen=True, kw_only=True)
class DisabledTest:
    """An entry of a list."""

    test: str  # the part of a node id after the file, or all of it from the file's name on
    reason: str
    allows_suffix: bool = False  # the class may have more at its end, as those that are made for each device do

    def names(self, nodeid: str) -> bool:
        """Whether this is the test, or one of its parameters."""
        file, _, test = nodeid.partition("::")
        test = test.partition("[")[0]
        if not self.allows_suffix:
            return self.test in (test, f"{Path(file).name}::{test}")
        case, _, name = self.test.partition("::")
        own_case, _, own_name = test.rpartition("::")
        return own_name == name and own_case.startswith(case)


def disable(items: Iterable[pytest.Item], paths: Iterable[Path], variables: Mapping[str, str]) -> None:
    """Mark the tests that the lists name as skipped."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    today = datetime.now(UTC).date()
    disabled = [*_of_pytorch(variables), *(each for folder in folders for each in read(folder / FILE, today))]
    for item in items if disabled else ():
        found = next((each for each in disabled if each.names(item.nodeid)), None)
        if found is not None:
            item.add_marker(pytest.mark.skip(reason=found.reason))


def read(path: Path, today: date) -> list[DisabledTest]:
    """Read a suite's list; an empty one if there is no file. An entry whose last day is before `today` is an error."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise DisabledTestsError(_refusal(path, str(error))) from error
    entries = content.pop("test", [])
    if content or not isinstance(entries, list):
        raise DisabledTestsError(_refusal(path, f"it has {', '.join(content) or 'one test that is no list'}"))
    return [_entry(path, number, entry, today) for number, entry in enumerate(entries, 1)]


def _entry(path: Path, number: int, entry: object, today: date) -> DisabledTest:
    fields: dict[str, Any] = dict(entry) if isinstance(entry, dict) else {}
    until = fields.get("until")
    texts = [fields.get(name) for name in sorted(_KEYS - {"until"})]
    if fields.keys() != _KEYS or type(until) is not date or not all(isinstance(text, str) and text for text in texts):
        raise DisabledTestsError(_refusal(path, f"test number {number} says something else"))
    if until < today:
        msg = (
            f"{path.name}: {fields['test']} was disabled until {until}, and that day is over.\n"
            f"Enable it, or have its owner, {fields['owner']}, set a new date: {fields['issue']}"
        )
        raise DisabledTestsError(msg)
    reason = f"disabled until {until}: {fields['reason']} ({fields['owner']}, {fields['issue']})"
    return DisabledTest(test=fields["test"], reason=reason)


def _of_pytorch(variables: Mapping[str, str]) -> Iterator[DisabledTest]:
    for name, value in _content(variables, DISABLED):
        match value:
            case [str(issue), list(platforms)]:
                if not platforms or sys.platform in platforms:
                    reason = f"disabled by {DISABLED}: {issue}"
                    yield DisabledTest(test=_node_of(name), reason=reason, allows_suffix=True)
            case _:
                msg = f"{DISABLED} says {json.dumps(value)[:60]} of {name}, and not its issue and a list of platforms."
                raise DisabledTestsError(msg)
    if variables.get(WITH_SLOW) != "1":
        for name, _ in _content(variables, SLOW):
            reason = f"slow by {SLOW}: set {WITH_SLOW}=1 to run it"
            yield DisabledTest(test=_node_of(name), reason=reason, allows_suffix=True)


def _content(variables: Mapping[str, str], variable: str) -> Iterable[tuple[str, object]]:
    if not (name := variables.get(variable)):
        return ()
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()  # as torch, whose CI sets the variable in jobs without the file
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{variable} names {name}, which cannot be read: {error}."
        raise DisabledTestsError(msg) from error
    if not isinstance(content, dict):
        msg = f'{variable} names {name}, which is no table of tests: {{"test_y (__main__.TestX)": …}}.'
        raise DisabledTestsError(msg)
    return [(key, value) for key, value in content.items() if len(key.split()) > 1]


def _node_of(name: str) -> str:
    """``test_y (__main__.TestX)`` as a part of a node id."""
    test, said = name.split()[:2]
    if not (case := said.strip("()").rpartition(".")[2]):
        msg = f"A list of PyTorch's names {name!r}: it has no class, and would name tests of all classes."
        raise DisabledTestsError(msg)
    return f"{case}::{test}"


def _refusal(path: Path, why: str) -> str:
    return f"{path.name} cannot be read: {why}.\n{_FORM}"
