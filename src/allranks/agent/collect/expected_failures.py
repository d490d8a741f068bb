"""Failures that a suite expects for reasons outside of it, read from its file of them."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from allranks.protocol.config import AgentConfig

FILE: Final = "expected_failures.toml"
"""The name of the file, in the suite's folder."""

_WHEN: Final[Mapping[str, type]] = {"backend": str, "world_size": int, "gpu_count": int, "init_method": str}
"""The axes of a cell, each with the type of its values."""


class ExpectedFailuresError(ValueError):
    """The file cannot be read, or has wrong content."""


@dataclass(frozen=True, kw_only=True)
class ExpectedFailure:
    """An entry of the file."""

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
    for path in dict.fromkeys(_file_of(code / path) for path in config.paths):
        expected = {each.test: each for each in read(path) if each.applies_to(config, version)}
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
            raise ExpectedFailuresError(_refusal(path, why))
        item.add_marker(pytest.mark.xfail(reason=f"{failure.reason} ({failure.issue})", strict=False))


def _file_of(suite: Path) -> Path:
    return (suite if suite.is_dir() else suite.parent) / FILE


def read(path: Path) -> list[ExpectedFailure]:
    """Read the entries of a file; an empty list if there is no file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ExpectedFailuresError(_refusal(path, str(error))) from error
    entries = content.pop("failure", [])
    if content or not isinstance(entries, list):
        raise ExpectedFailuresError(_refusal(path, f"it has {', '.join(content) or 'one failure that is no list'}"))
    return [_entry(path, number, entry) for number, entry in enumerate(entries, 1)]


def _entry(path: Path, number: int, entry: object) -> ExpectedFailure:
    fields: dict[str, Any] = dict(entry) if isinstance(entry, dict) else {}
    versions, when = fields.pop("torch", None), fields.pop("when", {})
    if (
        fields.keys() != {"test", "reason", "issue"}
        or not all(isinstance(text, str) and text for text in fields.values())
        or not isinstance(versions, list)
        or not all(isinstance(version, str) and version for version in versions)
        or not isinstance(when, dict)
        or not all(type(value) is _WHEN.get(name) for name, value in when.items())
    ):
        raise ExpectedFailuresError(_refusal(path, f"failure number {number} says something else"))
    return ExpectedFailure(torch=tuple(versions), when=when, **fields)


def _refusal(path: Path, why: str) -> str:
    return (
        f"{path.name} cannot be read: {why}.\nIt has tables [[failure]], each with test, torch (a list of versions), "
        f"reason, issue and, if only some cells are meant, when (a table of {', '.join(_WHEN)})."
    )
