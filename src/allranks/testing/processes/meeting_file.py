"""A file at which ranks meet."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def meeting_file() -> Iterator[str]:
    """An empty file that nobody had before, for as long as ranks may meet at it."""
    descriptor, name = tempfile.mkstemp(prefix="allranks-")
    os.close(descriptor)
    try:
        yield name
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
