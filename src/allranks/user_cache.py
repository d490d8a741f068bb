"""Where allranks keeps what it can make again. The standard library alone: noxfiles import this."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder of allranks (XDG Base Directory Specification), which may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "allranks"
