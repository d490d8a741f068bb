"""What builds keep on the host between runs, and the locks that let two runs share it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from allranks import user_cache
from allranks.errors import ImageError
from allranks.locking import hold


def cache_folder(name: str) -> Path:
    """A folder of the user's cache (XDG Base Directory Specification), made if it is not there.

    Args:
        name: What is kept in it, such as ``wheels``.

    Raises:
        ImageError: The folder cannot be made.
    """
    folder = user_cache.cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"The cache folder {folder} cannot be made."
        raise ImageError(
            what,
            why=f"{error.strerror or error}.",
            remedy="Set XDG_CACHE_HOME to a folder that can be written.",
        ) from error
    return folder


def keep(file: Path, text: str) -> None:
    """Write a file of the cache so that no other run ever reads half of it."""
    private = file.with_suffix(f".{os.getpid()}")
    private.write_text(text, encoding="utf-8")
    private.replace(file)


@contextmanager
def locked(key: str) -> Iterator[None]:
    """Hold the host-wide lock of one key, so that two runs never make the same thing twice."""
    with hold(cache_folder("locks") / f"{key}.lock"):
        yield
