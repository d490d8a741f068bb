"""Lists of tests that are not to run, or that are expected to fail: a suite's own two, and PyTorch's two.

- ``disabled_tests.toml`` in the suite's folder: each entry has an owner, an issue and a last day. After that day it is
  an error, so that no test stays disabled because nobody looked.
- ``expected_failures.toml`` beside it: what fails for reasons outside of the suite, in some cells or under some torch.
- ``DISABLED_TESTS_FILE`` and ``SLOW_TESTS_FILE``, variables of PyTorch's CI, name JSON files. torch's own test cases
  read them, too, each in its ``setUp``; read here, they hold for any class, and cost no process.
"""

import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from allranks.protocol.config import AgentConfig

DISABLED_TESTS: Final = "disabled_tests.toml"
EXPECTED_FAILURES: Final = "expected_failures.toml"

DISABLED: Final = "DISABLED_TESTS_FILE"
SLOW: Final = "SLOW_TESTS_FILE"
WITH_SLOW: Final = "PYTORCH_TEST_WITH_SLOW"

_WHEN: Final[Mapping[str, type]] = {"backend": str, "world_size": int, "gpu_count": int, "init_method": str}
"""The axes of a cell, each with the type of its values."""

_FORMS: Final = {
    DISABLED_TESTS: "It has tables [[test]], each with test (Class::test or FILE::Class::test), reason, owner, issue, "
    "and until, a day.",
    EXPECTED_FAILURES: "It has tables [[failure]], each with test, torch (a list of versions), reason, issue and, if "
    f"only some cells are meant, when (a table of {', '.join(_WHEN)}).",
}


class SuiteListError(ValueError):
    """A list cannot be read, has wrong content, matches tests of two files, or has an entry whose last day is over."""


def _refusal(path: Path, why: str) -> SuiteListError:
    return SuiteListError(f"{path.name} cannot be read: {why}.\n{_FORMS[path.name]}")


def _entries(path: Path, table: str) -> Iterator[tuple[dict[str, Any], SuiteListError]]:
    """The entries of a file, each with the error that it is if it says something else; none if there is no file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(path, str(error)) from error
    entries = content.pop(table, [])
    if content or not isinstance(entries, list):
        raise _refusal(path, f"it has {', '.join(content) or f'one {table} that is no list'}")
    for number, entry in enumerate(entries, 1):
        yield (
            dict(entry) if isinstance(entry, dict) else {},
            _refusal(path, f"{table} number {number} says something else"),
        )


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


@dataclass(frozen=True, kw_only=True)
class DisabledTest:
    """A test that is not to run."""

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
    """Mark the tests that the lists of these folders and files, and of these variables, name as skipped."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    today = datetime.now(UTC).date()
    own = (each for folder in folders for each in read_disabled(folder / DISABLED_TESTS, today))
    disabled = [*_of_pytorch(variables), *own]
    for item in items if disabled else ():
        found = next((each for each in disabled if each.names(item.nodeid)), None)
        if found is not None:
            item.add_marker(pytest.mark.skip(reason=found.reason))


def read_disabled(path: Path, today: date) -> list[DisabledTest]:
    """Read a suite's list. An entry whose last day is before `today` is an error."""
    return [_disabled(path, entry, wrong, today) for entry, wrong in _entries(path, "test")]


def _disabled(path: Path, entry: dict[str, Any], wrong: SuiteListError, today: date) -> DisabledTest:
    until = entry.pop("until", None)
    if (
        entry.keys() != {"test", "reason", "owner", "issue"}
        or type(until) is not date
        or not _are_texts(entry.values())
    ):
        raise wrong
    if until < today:
        msg = (
            f"{path.name}: {entry['test']} was disabled until {until}, and that day is over.\n"
            f"Enable it, or have its owner, {entry['owner']}, set a new date: {entry['issue']}"
        )
        raise SuiteListError(msg)
    reason = f"disabled until {until}: {entry['reason']} ({entry['owner']}, {entry['issue']})"
    return DisabledTest(test=entry["test"], reason=reason)


def _of_pytorch(variables: Mapping[str, str]) -> Iterator[DisabledTest]:
    for name, value in _content(variables, DISABLED):
        match value:
            case [str(issue), list(platforms)]:
                if not platforms or sys.platform in platforms:
                    reason = f"disabled by {DISABLED}: {issue}"
                    yield DisabledTest(test=_node_of(name), reason=reason, allows_suffix=True)
            case _:
                msg = f"{DISABLED} says {json.dumps(value)[:60]} of {name}, and not its issue and a list of platforms."
                raise SuiteListError(msg)
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
        raise SuiteListError(msg) from error
    if not isinstance(content, dict):
        msg = f'{variable} names {name}, which is no table of tests: {{"test_y (__main__.TestX)": …}}.'
        raise SuiteListError(msg)
    return [(key, value) for key, value in content.items() if len(key.split()) > 1]


def _node_of(name: str) -> str:
    """``test_y (__main__.TestX)`` as a part of a node id."""
    test, said = name.split()[:2]
    if not (case := said.strip("()").rpartition(".")[2]):
        msg = f"A list of PyTorch's names {name!r}: it has no class, and would name tests of all classes."
        raise SuiteListError(msg)
    return f"{case}::{test}"


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A test that fails for reasons outside of its suite."""

    test: str  # the part of a node id after the file, ``Class::test``; the file's name goes before it if ambiguous
    torch: tuple[str, ...]  # the affected versions of torch, matched as prefixes: ``2.13`` includes ``2.13.1``
    reason: str
    issue: str  # where the failure is discussed
    # Values of the cells in which the test fails; without any, it fails in every cell.
    when: Mapping[str, str | int] = field(default_factory=dict)

    def applies_to(self, config: AgentConfig, version: str) -> bool:
        """Whether the test is expected to fail in this cell, with this version of torch."""
        is_of_cell = all(getattr(config, name) == value for name, value in self.when.items())
        return is_of_cell and any(f"{version}.".startswith(f"{each}.") for each in self.torch)


def expect_failures(items: Iterable[pytest.Item], config: AgentConfig, code: Path) -> None:
    """Mark the tests that the suite's files name for this cell as expected to fail."""
    version = str(torch.__version__).partition("+")[0]
    suites = (code / path for path in config.paths)
    for path in dict.fromkeys((suite if suite.is_dir() else suite.parent) / EXPECTED_FAILURES for suite in suites):
        expected = {each.test: each for each in read_expected(path) if each.applies_to(config, version)}
        own = [item for item in items if (code / item.nodeid.partition("::")[0]).is_relative_to(path.parent)]
        _expect_failures(own, expected, path)


def _expect_failures(items: Iterable[pytest.Item], expected: Mapping[str, ExpectedFailure], path: Path) -> None:
    files: dict[str, str] = {}
    for item in items:
        file, _, test = item.nodeid.partition("::")
        failure = expected.get(f"{Path(file).name}::{test}") or expected.get(test)
        if failure is None:
            continue
        if files.setdefault(failure.test, file) != file:
            why = f"{failure.test!r} is a test of {files[failure.test]} and of {file}: name the file, as in FILE::TEST"
            raise _refusal(path, why)
        item.add_marker(pytest.mark.xfail(reason=f"{failure.reason} ({failure.issue})", strict=False))


def read_expected(path: Path) -> list[ExpectedFailure]:
    """Read a suite's list of expected failures."""
    return [_expected(entry, wrong) for entry, wrong in _entries(path, "failure")]


def _expected(entry: dict[str, Any], wrong: SuiteListError) -> ExpectedFailure:
    versions, when = entry.pop("torch", None), entry.pop("when", {})
    if (
        entry.keys() != {"test", "reason", "issue"}
        or not isinstance(versions, list)
        or not _are_texts([*entry.values(), *versions])
        or not isinstance(when, dict)
        or not all(type(value) is _WHEN.get(name) for name, value in when.items())
    ):
        raise wrong
    return ExpectedFailure(torch=tuple(versions), when=when, **entry)
