"""The parts of allranks that agents need, as files on this host."""

import hashlib
import os
from pathlib import Path

import allranks
from allranks.engine.spec import FileCopy

_NEEDED = ("__init__.py", "records.py", "typed_json.py", "harness", "testing")


def package_folder() -> Path:
    """The folder of the package ``allranks`` that is running."""
    return Path(allranks.__file__).resolve().parent


def package_files() -> tuple[FileCopy, ...]:
    """What to copy so that ``python -m allranks.harness`` works, relative to a folder on Python's path."""
    folder = package_folder()
    return tuple(FileCopy(source=folder / name, target=Path("allranks") / name) for name in _NEEDED)


def package_path(cache: Path) -> Path:
    """A folder to put on another Python's path: it holds ``allranks``, and nothing that would shadow anything.

    Args:
        cache: Where a folder with a link to the package may be kept, for a package among others in site-packages.
    """
    folder = package_folder()
    if [entry.name for entry in folder.parent.iterdir() if not entry.name.startswith(".")] == [folder.name]:
        return folder.parent
    alone = cache / hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    alone.mkdir(parents=True, exist_ok=True)
    link = alone / folder.name
    if not link.exists():
        draft = alone / f".{folder.name}-{os.getpid()}"
        draft.symlink_to(folder, target_is_directory=True)
        draft.rename(link)
    return alone
