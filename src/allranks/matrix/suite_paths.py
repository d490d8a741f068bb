"""Resolves ``path`` and ``exclude`` of a suite: patterns of files and folders, or ``allranks:NAME``."""

import glob
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from allranks.errors import did_you_mean, shown
from allranks.matrix.model import Suite
from allranks.matrix.toml_file import Table, exists

_BYTECODE = "__pycache__"


def suite_paths(table: Table, suite: Suite) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The paths of a suite, in the order of the file, and the excluded paths."""
    paths = _outermost(path for pattern in suite.paths for path in _matches(table, "path", pattern))
    whole, excluded = frozenset(paths), set[Path]()
    for pattern in suite.ignored:
        below = [path for path in _matches(table, "exclude", pattern) if _is_in(path, whole)]
        if not below:
            what = f"{shown(str(pattern))} excludes nothing from the suite"
            table.reject("exclude", what, "Correct it, or remove it.")
        excluded.update(below)
    left = tuple(path for path in paths if not _is_in(path, excluded))
    if not left:
        table.reject("exclude", "all tests of the suite are excluded", "Exclude fewer files.")
    return left, _outermost(sorted(excluded))


def _matches(table: Table, name: str, pattern: Path) -> list[Path]:
    """The path itself, or the paths that it matches as a pattern, in alphabetical order."""
    text, root = str(pattern), table.path.parent
    # A file whose name has brackets takes precedence over the pattern.
    if exists(root / text):
        return [pattern]
    if not glob.has_magic(text):
        table.reject(name, f"there is no {shown(text)}", f"Create it, or write a path relative to {root}.")
    # Not Path.glob: up to Python 3.12, its `**` only matches folders.
    found = [Path(path) for path in sorted(glob.glob(text, root_dir=root, recursive=True))]  # noqa: PTH207
    if not (kept := [path for path in found if _BYTECODE not in path.parts]):
        remedy = f"`*` and `?` stop at a slash, `**` does not; the pattern is relative to {root}."
        table.reject(name, f"nothing matches {shown(text)}", remedy)
    return kept


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Remove duplicates, and paths that are below others."""
    unique = dict.fromkeys(paths)
    return tuple(path for path in unique if unique.keys().isdisjoint(path.parents))


def _is_in(path: Path, others: Collection[Path]) -> bool:
    return path in others or any(parent in others for parent in path.parents)


PREFIX: Final = "allranks:"


def own_folder() -> Path:
    """The folder of the suites of allranks: inside the package in a wheel, or next to ``src`` in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "suites"
    return installed if installed.is_dir() else package.parents[1] / "suites"


def own_names() -> tuple[str, ...]:
    """The names of the suites of allranks: folders that directly contain tests."""
    return tuple(sorted({path.parent.name for path in own_folder().glob("*/test_*.py")}))


def own_path(table: Table, suite: Suite) -> Path | None:
    """The path of a suite of allranks, relative to :func:`own_folder`; None for a suite of the user."""
    named = [text for text in map(str, suite.paths) if text.startswith(PREFIX)]
    if not named:
        return None
    if len(suite.paths) > 1:
        what = f"{shown(named[0])} cannot be one of several paths"
        table.reject("path", what, "Give it its own [suites.NAME], since its tests are in another folder.")
    for name in {"exclude", "files"} & table.values.keys():
        remedy = "Remove it. To leave out tests, use pytest_args with -k or --deselect."
        table.reject(name, f"{name} does not apply to a suite of allranks", remedy)
    name, names = named[0].removeprefix(PREFIX), own_names()
    if name not in names:
        table.reject("path", f"allranks has no suite {shown(name)}", did_you_mean(name, names))
    return Path(name)
