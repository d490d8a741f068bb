"""Environment variables for the time of a test."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def changed_variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set and unset some environment variables, and put each back as it was, whatever happens in between.

    Args:
        changes: The value that each variable has meanwhile; None for one that is not set.
    """
    before = {name: os.environ.get(name) for name in changes}
    _apply(changes)
    try:
        yield
    finally:
        _apply(before)


def _apply(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
