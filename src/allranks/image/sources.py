"""Whether the user's own project changed since its wheel was built."""

import hashlib
import json
import os
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from allranks.image.cache import cache_folder, keep

_NO_SOURCES_AT_THE_TOP = frozenset({"build", "dist", "results", "node_modules", ".coverage"})
"""What tools leave at the top of a project; deeper down a folder of such a name is a package like others."""


def source_digest(folder: Path) -> str:
    """A hash of a project's files.

    Hidden folders, virtual environments and what tools leave behind do not count. Contents are read only when
    the size or the time of change of some file differs from the last call: every run asks for this hash.

    Args:
        folder: The project's folder.
    """
    files = sorted(_sources(str(folder), left_out=_NO_SOURCES_AT_THE_TOP), key=lambda entry: entry.path)
    stamps = _hash(f"{entry.path}:{_stamp(entry.stat())}" for entry in files)
    memory = cache_folder("projects") / f"{_hash([str(folder)])}.json"
    remembered = _recall(memory)
    if remembered.get("stamps") == stamps:
        return remembered["digest"]
    digest = _hash(f"{os.path.relpath(entry.path, folder)}:{_content(entry.path)}" for entry in files)
    keep(memory, json.dumps({"stamps": stamps, "digest": digest}))
    return digest


def _sources(folder: str, *, left_out: Container[str]) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as scan:
        entries = [entry for entry in scan if entry.name not in left_out]
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and not _is_made(entry.name):
            yield from _sources(entry.path, left_out=())


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
