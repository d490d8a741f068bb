"""Lists of disabled tests and expected failures: two files of a suite, and two of PyTorch's CI.

- ``disabled_tests.toml`` in the suite's folder: each entry has an owner, an issue and a last day. After that day, the
  entry is an error, so that no test stays disabled by oversight.
- ``expected_failures.toml`` in the same folder: tests that fail for reasons outside of the suite, in some cells or with
  some versions of torch.
- ``DISABLED_TESTS_FILE`` and ``SLOW_TESTS_FILE``, environment variables of PyTorch's CI: paths of JSON files. torch's
  own test cases read them in ``setUp``. Here they apply to every class, before any rank is started.
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

_AXES: Final[Mapping[str, type]] = {"backend": str, "world_size": int, "gpu_count": int, "init_method": str}
"""The axes of a cell and the types of their values."""

_FORMATS: Final = {
    DISABLED_TESTS: "It needs tables [[test]], each with test (Class::test or FILE::Class::test), reason, owner, "
    "issue, and until (a date).",
    EXPECTED_FAILURES: "It needs tables [[failure]], each with test, torch (a list of versions), reason, issue and, "
    f"if it applies only to some cells, when (a table of {', '.join(_AXES)}).",
}


class SuiteListError(ValueError):
    """A list cannot be read or has wrong content, or an entry has expired or matches tests of two files."""


def _format_error(path: Path, why: str) -> SuiteListError:
    return SuiteListError(f"{path.name} cannot be read: {why}.\n{_FORMATS[path.name]}")


def _entries(path: Path, table: str) -> Iterator[tuple[dict[str, Any], SuiteListError]]:
    """The entries of a file, each with the error to raise if its content is wrong; none if there is no file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise _format_error(path, str(error)) from error
    entries = content.pop(table, [])
    if content:
        raise _format_error(path, f"unknown keys: {', '.join(content)}")
    if not isinstance(entries, list):
        raise _format_error(path, f"{table} is not a list of tables")
    for number, entry in enumerate(entries, 1):
        yield (
            dict(entry) if isinstance(entry, dict) else {},
            _format_error(path, f"{table} number {number} has wrong keys or values"),
        )


def _are_strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


@dataclass(frozen=True, kw_only=True)
class DisabledTest:
    """A test that must not run."""

    test: str  # the part of the node id after the file, optionally with the file's name: ``FILE::Class::test``
    reason: str
    allows_suffix: bool = False  # the class name may have a suffix, such as the device in ``TestOpsCPU``

    def matches(self, nodeid: str) -> bool:
        """Whether the node id is this test, with any parameters."""
        file, _, test = nodeid.partition("::")
        test = test.partition("[")[0]
        if not self.allows_suffix:
            return self.test in (test, f"{Path(file).name}::{test}")
        case, _, name = self.test.partition("::")
        own_case, _, own_name = test.rpartition("::")
        return own_name == name and own_case.startswith(case)


def disable(items: Iterable[pytest.Item], paths: Iterable[Path], variables: Mapping[str, str]) -> None:
    """Mark disabled tests as skipped.

    Args:
        items: The collected tests.
        paths: The suite's files and folders, whose lists are read.
        variables: The environment, which may contain the variables of PyTorch's CI.

    Raises:
        SuiteListError: A list is wrong, or an entry has expired.
    """
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    today = datetime.now(UTC).date()
    own = (test for folder in folders for test in read_disabled(folder / DISABLED_TESTS, today))
    disabled = [*_disabled_by_pytorch(variables), *own]
    for item in items if disabled else ():
        test = next((test for test in disabled if test.matches(item.nodeid)), None)
        if test is not None:
            item.add_marker(pytest.mark.skip(reason=test.reason))


def read_disabled(path: Path, today: date) -> list[DisabledTest]:
    """Read a suite's list; an entry whose last day is before `today` is an error."""
    return [_disabled(path, entry, error, today) for entry, error in _entries(path, "test")]


def _disabled(path: Path, entry: dict[str, Any], error: SuiteListError, today: date) -> DisabledTest:
    until = entry.pop("until", None)
    if (
        entry.keys() != {"test", "reason", "owner", "issue"}
        or type(until) is not date
        or not _are_strings(entry.values())
    ):
        raise error
    if until < today:
        msg = (
            f"{path.name}: {entry['test']} was disabled until {until}, which has passed.\n"
            f"Enable the test, or ask its owner, {entry['owner']}, to set a new date: {entry['issue']}"
        )
        raise SuiteListError(msg)
    reason = f"disabled until {until}: {entry['reason']} ({entry['owner']}, {entry['issue']})"
    return DisabledTest(test=entry["test"], reason=reason)


def _disabled_by_pytorch(variables: Mapping[str, str]) -> Iterator[DisabledTest]:
    for name, value in _content(variables, DISABLED):
        match value:
            case [str(issue), list(platforms)]:
                if not platforms or sys.platform in platforms:
                    reason = f"disabled by {DISABLED}: {issue}"
                    yield DisabledTest(test=_node_of(name), reason=reason, allows_suffix=True)
            case _:
                msg = f"{DISABLED}: {name} needs [issue, [platforms...]], not {json.dumps(value)[:60]}."
                raise SuiteListError(msg)
    if variables.get(WITH_SLOW) != "1":
        for name, _ in _content(variables, SLOW):
            reason = f"slow according to {SLOW}: set {WITH_SLOW}=1 to run it"
            yield DisabledTest(test=_node_of(name), reason=reason, allows_suffix=True)


def _content(variables: Mapping[str, str], variable: str) -> Iterable[tuple[str, object]]:
    if not (name := variables.get(variable)):
        return ()
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()  # like torch: its CI also sets the variable in jobs without the file
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{variable}: {name} cannot be read: {error}."
        raise SuiteListError(msg) from error
    if not isinstance(content, dict):
        msg = f'{variable}: {name} is not a JSON object with tests as keys: {{"test_y (__main__.TestX)": …}}.'
        raise SuiteListError(msg)
    return [(key, value) for key, value in content.items() if len(key.split()) > 1]


def _node_of(name: str) -> str:
    """Convert ``test_y (__main__.TestX)`` to a part of a node id."""
    test, qualified_class = name.split()[:2]
    if not (case := qualified_class.strip("()").rpartition(".")[2]):
        msg = f"{DISABLED} or {SLOW}: {name!r} has no class, so it would match tests of all classes."
        raise SuiteListError(msg)
    return f"{case}::{test}"


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """A test that fails for reasons outside of its suite."""

    test: str  # the part of the node id after the file, ``Class::test``; ``FILE::Class::test`` if that is ambiguous
    torch: tuple[str, ...]  # the affected versions of torch, matched as prefixes: ``2.13`` includes ``2.13.1``
    reason: str
    issue: str  # where the failure is discussed
    when: Mapping[str, str | int] = field(default_factory=dict)  # required values of the cell's axes

    def applies_to(self, config: AgentConfig, version: str) -> bool:
        """Whether the test is expected to fail in this cell with this version of torch."""
        applies_to_cell = all(getattr(config, name) == value for name, value in self.when.items())
        return applies_to_cell and any(f"{version}.".startswith(f"{prefix}.") for prefix in self.torch)


def expect_failures(items: Iterable[pytest.Item], config: AgentConfig, code: Path) -> None:
    """Mark the expected failures of this cell with ``xfail``.

    Raises:
        SuiteListError: A list is wrong, or an entry matches tests of two files.
    """
    version = str(torch.__version__).partition("+")[0]
    suites = (code / path for path in config.paths)
    for path in dict.fromkeys((suite if suite.is_dir() else suite.parent) / EXPECTED_FAILURES for suite in suites):
        expected = {entry.test: entry for entry in read_expected(path) if entry.applies_to(config, version)}
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
            why = f"{failure.test!r} matches tests of {files[failure.test]} and of {file}; write FILE::TEST"
            raise _format_error(path, why)
        item.add_marker(pytest.mark.xfail(reason=f"{failure.reason} ({failure.issue})", strict=False))


def read_expected(path: Path) -> list[ExpectedFailure]:
    """Read a suite's list of expected failures."""
    return [_expected(entry, error) for entry, error in _entries(path, "failure")]


def _expected(entry: dict[str, Any], error: SuiteListError) -> ExpectedFailure:
    versions, when = entry.pop("torch", None), entry.pop("when", {})
    if (
        entry.keys() != {"test", "reason", "issue"}
        or not isinstance(versions, list)
        or not _are_strings([*entry.values(), *versions])
        or not isinstance(when, dict)
        or not all(type(value) is _AXES.get(name) for name, value in when.items())
    ):
        raise error
    return ExpectedFailure(torch=tuple(versions), when=when, **entry)
