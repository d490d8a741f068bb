"""Whether the user's own project changed: since its wheel was built, and while it is."""

import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from allranks.errors import SourceChangedError
from allranks.images.daemon import Progress
from allranks.user_cache import keep, made_cache_folder

T = TypeVar("T")

_TRIES = 2
_UNKNOWN = "unknown-"

_MADE_AT_THE_TOP = frozenset({"build", "dist", "results", "node_modules"})
"""Folders that tools leave at the top of a project; deeper down a folder of such a name is an ordinary package."""

_Identity = tuple[int, int]
"""A folder's device and inode, which identify it regardless of the links that lead to it."""


def source_digest(folder: Path, *, tests: Sequence[Path] = ()) -> str:
    """A hash of a project's files.

    Hidden folders, virtual environments and leftovers of tools do not count; links are followed. Contents are read
    only if the size or the time of change of some file differs from the last call, since every run needs this hash.

    Args:
        folder: The project's folder.
        tests: Files and folders of tests, of whose files the names count but not the contents.
    """
    files = sorted(_project_files(str(folder)), key=lambda entry: entry.path)
    apart = {entry.path for entry in files if _is_test(entry, folder, tests)}
    stamps = _hash(f"{entry.path}:{'' if entry.path in apart else _stamp(entry.stat())}" for entry in files)
    memory = made_cache_folder("projects") / f"{_hash(map(str, (folder, *tests)))}.json"
    remembered = _recall(memory)
    if remembered.get("stamps") == stamps:
        return remembered["digest"]
    names = {entry.path: os.path.relpath(entry.path, folder) for entry in files}
    digest = _hash(f"{name}:{'' if path in apart else _content(path)}" for path, name in names.items())
    keep(memory, json.dumps({"stamps": stamps, "digest": digest}))
    return digest


_READ_BY_TESTS = frozenset({".py", ".json", ".yaml", ".yml", ".csv", ".npz", ".pt"})
"""Files that a build either takes as they are or does not need; others may be compiled."""

_BUILD_SCRIPTS = frozenset({"setup.py", "build.py", "hatch_build.py", "pdm_build.py"})


def _is_test(entry: os.DirEntry[str], folder: Path, tests: Iterable[Path]) -> bool:
    """Whether a file is part of tests: of a suite that is the whole project, none is."""
    if os.path.splitext(entry.name)[1] not in _READ_BY_TESTS or entry.name in _BUILD_SCRIPTS:  # noqa: PTH122
        return False
    return any(f"{entry.path}{os.sep}".startswith(f"{path}{os.sep}") for path in tests if folder in path.parents)


def has_test(wheel: Path, folder: Path, tests: Sequence[Path]) -> bool:
    """Whether a project's wheel has one of its tests, by content or by name, so that a change of tests changes it."""
    found = [entry for entry in _project_files(str(folder)) if _is_test(entry, folder, tests)]
    with zipfile.ZipFile(wheel) as archive:
        members = [member for member in archive.infolist() if found and not member.is_dir()]
        names = {os.path.splitext(member.filename)[0] for member in members}  # noqa: PTH122
        sizes = {entry.stat().st_size for entry in found} - {0}
        contents = {hashlib.sha256(archive.read(member)).hexdigest() for member in members if member.file_size in sizes}
    return any(
        not names.isdisjoint(_names_of(os.path.relpath(entry.path, folder))) or _content(entry.path) in contents
        for entry in found
    )


def _names_of(path: str) -> Iterator[str]:
    """The names that a file may have in a wheel, without suffix: below each of the folders above it."""
    parts = Path(path).with_suffix("").parts
    return ("/".join(parts[start:]) for start in range(len(parts)))


def changed(folder: Path) -> SourceChangedError:
    """The error of a project that has changed during its build."""
    return SourceChangedError(
        f"{folder.name} changed while it was built.",
        why="The result may mix old files with new ones.",
        remedy="Run again when nothing writes into its folder.",
    )


def build_until_stable(folder: Path, make: Callable[[str], T], progress: Progress) -> T:
    """Build something from a project, and once more if the project changed meanwhile.

    If it changes each time, as when its own build writes the time into it, the last result gets a hash that no source
    has: it is never found again, and each run builds its own.

    Args:
        folder: The project's folder.
        make: Takes the hash of the source; raises :class:`SourceChangedError` if :func:`has_changed`.
        progress: Receives a line for each change.
    """
    for _ in range(_TRIES):
        try:
            return make(source_digest(folder))
        except SourceChangedError as error:
            progress(f"{error.what} Trying again.")
    progress(f"{folder.name} changes with each build: this run alone uses the result.")
    return make(f"{_UNKNOWN}{secrets.token_hex(8)}")


def has_changed(folder: Path, source: str) -> bool:
    """Whether a project no longer has this hash."""
    return is_known(source) and source_digest(folder) != source


def is_known(source: str) -> bool:
    """Whether a hash is of a source, and not of one that changed with each build."""
    return not source.startswith(_UNKNOWN)


def _project_files(project: str) -> Iterator[os.DirEntry[str]]:
    entries = [entry for entry in _entries(project) if entry.name != ".coverage" and not _is_made_at_the_top(entry)]
    yield from _files_among(entries, above=frozenset({_identity(Path(project).stat())}))


def _files_among(entries: Iterable[os.DirEntry[str]], *, above: frozenset[_Identity]) -> Iterator[os.DirEntry[str]]:
    """The files among entries of one folder, and those further down.

    Args:
        entries: The folder's contents.
        above: The folder and those above it: a link back to one of them would never end.
    """
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not entry.name.startswith(".") and not _is_made(entry.name):
            identity = _identity(entry.stat())
            if identity not in above:
                yield from _files_among(_entries(entry.path), above=above | {identity})


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """The contents of a folder; empty if it is a virtual environment."""
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if not _leads_nowhere(entry)]
    return [] if any(entry.name == "pyvenv.cfg" for entry in entries) else entries


def _leads_nowhere(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110 - Path raises for a link to itself


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_dev, stat.st_ino


def _is_made_at_the_top(entry: os.DirEntry[str]) -> bool:
    """Whether tools made it: a folder with an ``__init__.py`` is the user's own."""
    return entry.name in _MADE_AT_THE_TOP and entry.is_dir() and not Path(entry.path, "__init__.py").exists()


def _is_made(name: str) -> bool:
    return name == "__pycache__" or name.endswith(".egg-info")


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


def _recall(memory: Path) -> dict[str, str]:
    try:
        remembered = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _content(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - a Path for each of 15,000 files doubles the time
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()
