"""Files that come home whole or not at all: a full disk must not cut what lies in their place already."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DRAFT = ".allranks.part"


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """A path to write a file to, which takes the place of `target` at the end, and is gone where that went wrong.

    One writer in a folder at a time. The name is a short one, since that of the file may be as long as names can be.
    """
    draft = target.with_name(DRAFT)
    try:
        yield draft
        draft.replace(target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
