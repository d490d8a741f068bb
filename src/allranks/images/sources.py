"""Detects changes of the user's project during and after the build of its wheel."""

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
from allranks.user_cache import made_cache_folder, write_atomically

T = TypeVar("T")

_TRIES = 2
_UNKNOWN = "unknown-"

_GENERATED_AT_TOP = frozenset({"build", "dist", "results", "node_modules"})
"""Folders that tools create at the top of a project; further down, such a name may be a package."""

_Identity = tuple[int, int]
"""A folder's device and inode, which identify it regardless of links."""


def source_digest(folder: Path, *, tests: Sequence[Path] = ()) -> str:
    """A hash of a project's files.

    Links are followed. Hidden folders, virtual environments and files of tools are left out. To save time, contents are
    read only if the size, the modification time or the inode of a file differs from the last call.

    Args:
        folder: The project's folder.
        tests: Files and folders of tests, whose names are hashed, but not their contents.
    """
    files = sorted(_project_files(str(folder)), key=lambda entry: entry.path)
    test_paths = {entry.path for entry in files if _is_test(entry, folder, tests)}
    stamps = _hash(f"{entry.path}:{'' if entry.path in test_paths else _stamp(entry.stat())}" for entry in files)
    cache = made_cache_folder("projects") / f"{_hash(map(str, (folder, *tests)))}.json"
    cached = _read_cache(cache)
    if cached.get("stamps") == stamps:
        return cached["digest"]
    names = {entry.path: os.path.relpath(entry.path, folder) for entry in files}
    digest = _hash(f"{name}:{'' if path in test_paths else _content(path)}" for path, name in names.items())
    write_atomically(cache, json.dumps({"stamps": stamps, "digest": digest}))
    return digest


_TEST_SUFFIXES = frozenset({".py", ".json", ".yaml", ".yml", ".csv", ".npz", ".pt"})
"""Files that a build copies or ignores; other files may be compiled."""

_BUILD_SCRIPTS = frozenset({"setup.py", "build.py", "hatch_build.py", "pdm_build.py"})


def _is_test(entry: os.DirEntry[str], folder: Path, tests: Iterable[Path]) -> bool:
    """Whether a file belongs to tests; a path of tests that contains the whole project is ignored."""
    if os.path.splitext(entry.name)[1] not in _TEST_SUFFIXES or entry.name in _BUILD_SCRIPTS:  # noqa: PTH122
        return False
    return any(f"{entry.path}{os.sep}".startswith(f"{path}{os.sep}") for path in tests if folder in path.parents)


def has_test(wheel: Path, folder: Path, tests: Sequence[Path]) -> bool:
    """Whether a project's wheel contains a file with the content or the name of a test, so that it depends on tests."""
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
    """The names that a file may have in a wheel: relative to any of its parent folders, and without suffix."""
    parts = Path(path).with_suffix("").parts
    return ("/".join(parts[start:]) for start in range(len(parts)))


def change_error(folder: Path) -> SourceChangedError:
    """The error for a project that changed during its build."""
    return SourceChangedError(
        f"{folder.name} changed while it was built{_newest(folder)}.",
        why="The result may contain both old and new files.",
        remedy="Run again when nothing writes to its folder.",
    )


def build_until_stable(folder: Path, build: Callable[[str], T], progress: Progress) -> T:
    """Build something from a project, and build it again if the project changed during the build.

    If each build changes the project, for example by writing a time stamp, the result gets a random hash, so that no
    other run uses it.

    Args:
        folder: The project's folder.
        build: Receives the hash of the source; raises :class:`SourceChangedError` if :func:`has_changed`.
        progress: Receives a line for each change.
    """
    for _ in range(_TRIES):
        try:
            return build(source_digest(folder))
        except SourceChangedError as error:
            progress(f"{error.what} Trying again.")
    progress(f"{folder.name} changes with each build{_newest(folder)}: only this run uses the result.")
    return build(f"{_UNKNOWN}{secrets.token_hex(8)}")


def _newest(folder: Path) -> str:
    """Which file of a project was written last; empty if it cannot be read anymore."""
    try:
        newest = max(_project_files(str(folder)), key=lambda entry: entry.stat().st_mtime_ns, default=None)
    except OSError:
        return ""
    return f" (newest file: {os.path.relpath(newest, folder)})" if newest else ""


def has_changed(folder: Path, source: str) -> bool:
    """Whether a project no longer has this hash; False if the hash is a random one."""
    return is_known(source) and source_digest(folder) != source


def is_known(source: str) -> bool:
    """Whether a hash is one of :func:`source_digest`, and not random."""
    return not source.startswith(_UNKNOWN)


def _project_files(project: str) -> Iterator[os.DirEntry[str]]:
    entries = [entry for entry in _entries(project) if entry.name != ".coverage" and not _is_generated_at_top(entry)]
    yield from _files_among(entries, above=frozenset({_identity(Path(project).stat())}))


def _files_among(entries: Iterable[os.DirEntry[str]], *, above: frozenset[_Identity]) -> Iterator[os.DirEntry[str]]:
    """Yield the files of a folder and its subfolders.

    Args:
        entries: The folder's entries.
        above: The folder and its parents, which are not entered again through links.
    """
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir() and not entry.name.startswith(".") and not _is_generated(entry.name):
            identity = _identity(entry.stat())
            if identity not in above:
                yield from _files_among(_entries(entry.path), above=above | {identity})


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """The entries of a folder; empty for a virtual environment."""
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if not _is_broken_link(entry)]
    return [] if any(entry.name == "pyvenv.cfg" for entry in entries) else entries


def _is_broken_link(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)  # noqa: PTH110 - Path raises for a link to itself


def _identity(stat: os.stat_result) -> _Identity:
    return stat.st_dev, stat.st_ino


def _is_generated_at_top(entry: os.DirEntry[str]) -> bool:
    """Whether tools created an entry at the top; a folder with an ``__init__.py`` is a package of the user."""
    return entry.name in _GENERATED_AT_TOP and entry.is_dir() and not Path(entry.path, "__init__.py").exists()


def _is_generated(name: str) -> bool:
    return name == "__pycache__" or name.endswith(".egg-info")


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


def _read_cache(file: Path) -> dict[str, str]:
    try:
        cached = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cached if isinstance(cached, dict) else {}


def _content(path: str) -> str:
    with open(path, "rb") as file:  # noqa: PTH123 - a Path for each of 15,000 files doubles the time
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()
