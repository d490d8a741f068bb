"""Where allranks keeps what it can make again. The standard library alone: noxfiles import this."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

UNUSED = 14 * 24 * 3600.0
"""Seconds that something stays in the cache which no run asks for."""


def cache_folder() -> Path:
    """The user's cache folder of allranks (XDG Base Directory Specification), which may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "allranks"


def is_unused(folder: Path) -> bool:
    """Whether no run has asked for a folder of the cache lately: who does sets its time."""
    with suppress(FileNotFoundError):
        return time.time() - folder.stat().st_mtime > UNUSED
    return False


def forget_unused(folder: Path) -> None:
    """Remove the folders in a folder of the cache that no run has asked for lately."""
    for each in folder.iterdir():
        if each.is_dir() and is_unused(each):
            shutil.rmtree(each, ignore_errors=True)
