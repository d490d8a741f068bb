"""Whether the user's own project changed since its wheel was built."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from allranks.image.cache import cache_folder

_MADE_BY_TOOLS = frozenset({"build", "dist", "results", "node_modules"})


def source_digest(folder: Path) -> str:
    """A hash of a project's files.

    Hidden entries, virtual environments and what tools leave behind do not count. Contents are read only when
    the size or the time of change of some file differs from the last call: every run asks for this hash.

    Args:
        folder: The project's folder.
    """
    files = sorted(_sources(folder, top=folder))
    stats = _hash(f"{path}:{_stamp(path)}" for path in files)
    memory = cache_folder("projects") / f"{_hash([str(folder)])}.json"
    remembered = _recall(memory)
    if remembered.get("stats") == stats:
        return remembered["digest"]
    digest = _hash(f"{path.relative_to(folder)}:{_content(path)}" for path in files)
    memory.write_text(json.dumps({"stats": stats, "digest": digest}), encoding="utf-8")
    return digest


def _sources(folder: Path, *, top: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.is_file(follow_symlinks=True):
                yield path
            elif entry.is_dir(follow_symlinks=False) and not _is_left_over(path, top):
                yield from _sources(path, top=top)


def _is_left_over(folder: Path, top: Path) -> bool:
    name = folder.name
    return (
        name.startswith(".")
        or name == "__pycache__"
        or name.endswith(".egg-info")
        or (folder.parent == top and name in _MADE_BY_TOOLS)
        or (folder / "pyvenv.cfg").is_file()
    )


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"


def _recall(memory: Path) -> dict[str, str]:
    try:
        remembered = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _content(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()
