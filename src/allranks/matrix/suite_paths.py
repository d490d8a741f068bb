"""``path`` and ``exclude`` of a suite: from patterns to the files and folders that they match."""

import glob
from collections.abc import Collection, Iterable
from pathlib import Path

from allranks.errors import shown
from allranks.matrix.toml_file import Table, exists

_BYTECODE = "__pycache__"


def suite_paths(table: Table) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The paths of a suite, in the order of the file, and the excluded paths below them.

    Args:
        table: ``[suites.NAME]``.

    Raises:
        MatrixError: A path does not exist or is outside of the repository, or a pattern matches nothing.
    """
    paths = _outermost(path for text in _texts(table) for path in _matches(table, "path", text))
    suite, excluded = frozenset(paths), set[Path]()
    for text in table.texts("exclude"):
        below = [path for path in _matches(table, "exclude", text) if _is_in(path, suite)]
        if not below:
            raise table.error(
                name="exclude", what=f"{shown(text)} excludes nothing of the suite", remedy="Correct or remove it."
            )
        excluded.update(below)
    left = tuple(path for path in paths if not _is_in(path, excluded))
    if not left:
        raise table.error(name="exclude", what="all of the suite is excluded", remedy="Exclude less.")
    return left, tuple(path for path in _outermost(sorted(excluded)) if _is_in(path, frozenset(left)))


def inside(table: Table, name: str, text: str) -> Path:
    """An existing path inside the repository, so that it can be copied into a job.

    Raises:
        MatrixError: It does not exist, or is outside of the repository.
    """
    _check_inside(table, name, text)
    return table.existing_path(name, text)


def _check_inside(table: Table, name: str, text: str) -> None:
    if ".." in table.relative_path(name, text).parts:
        remedy = "Only what is below the matrix file's folder is copied into a job: move it there."
        raise table.error(name, f"{shown(text)} leads out of the repository", remedy)


def _texts(table: Table) -> tuple[str, ...]:
    if not isinstance(table.values["path"], list):
        return (table.text("path", "", "tests"),)
    if not (texts := table.texts("path")):
        remedy = 'Write path = "tests", or path = ["tests/a", "tests/test_b.py"].'
        raise table.error(name="path", what="the list is empty", remedy=remedy)
    return texts


def _matches(table: Table, name: str, text: str) -> list[Path]:
    """The path of this text, or what it matches as a pattern, in alphabetical order."""
    _check_inside(table, name, text)
    root = table.path.parent
    # A name with brackets is more likely to be that file than a pattern of others.
    if not glob.has_magic(text) or exists(root / text):
        return [table.existing_path(name, text)]
    # Not Path.glob: up to Python 3.12 its `**` matches folders alone.
    found = [Path(each) for each in sorted(glob.glob(text, root_dir=root, recursive=True))]  # noqa: PTH207
    if not (kept := [path for path in found if _BYTECODE not in path.parts]):
        remedy = f"`*` and `?` stop at a slash, `**` does not; the pattern is relative to {root}."
        raise table.error(name, f"nothing matches {shown(text)}", remedy)
    return kept


def _outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths without those that are in another, or that occur again."""
    unique = dict.fromkeys(paths)
    return tuple(path for path in unique if unique.keys().isdisjoint(path.parents))


def _is_in(path: Path, others: Collection[Path]) -> bool:
    return path in others or any(parent in others for parent in path.parents)
