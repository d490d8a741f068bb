"""The one file of durations: read as a snapshot, renewed under a lock, and never in the way of a run.

A run does not need the file: one that cannot be used is said and left alone, and the shards are as even as without it.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from allranks.locking import hold
from allranks.report.durations import Durations, renewed
from allranks.user_cache import cache_folder

SCHEMA: Final = 1
ABOUT: Final = "Seconds that tests took, kept by allranks for even shards: suite, backend, test."


class DurationsError(Exception):
    """A file that holds no durations of this version of allranks; the message ends a sentence about it."""


def read_durations(path: Path, say: Callable[[str], None]) -> Durations:
    """What a file knows; nothing where there is none yet, and where it cannot be used, which is said."""
    try:
        return parse(_text(path))
    except DurationsError as error:
        say(f"{path} is left out: it {error}. Shards are split as if nothing were known; remove it to begin anew.")
        return {}


def keep_durations(path: Path, new: Durations, say: Callable[[str], None]) -> None:
    """Renew a file by what was measured; a file that is not ours is left alone, which is said.

    Args:
        path: The file, which may not be there yet, in a folder that is.
        new: What was measured.
        say: Prints one line.
    """
    if not any(tests for backends in new.values() for tests in backends.values()):
        return
    try:
        with hold(_lock_of(path)):
            before = _text(path)
            after = render(renewed(parse(before), new))
            if after != before:
                _write(path, after)
    except DurationsError as error:
        say(f"{path} was not renewed by what this run took: it {error}. Remove it, and the next run makes a new one.")
    except OSError as error:
        say(f"{path} was not renewed by what this run took: {error.strerror or error}.")


def parse(text: str) -> Durations:
    """What :func:`render` has made; empty for an empty text.

    Raises:
        DurationsError: The text is something else.
    """
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
        schema, seconds = document["schema"], document["seconds"]
        if not isinstance(schema, int) or schema > SCHEMA:
            msg = "was written by a newer version of allranks"
            raise DurationsError(msg)
        return {
            suite: {
                backend: {test: _checked(value) for test, value in tests.items()} for backend, tests in backends.items()
            }
            for suite, backends in seconds.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"holds no durations of allranks ({type(error).__name__}: {error})"
        raise DurationsError(msg) from error


def render(durations: Durations) -> str:
    """The text of the file: sorted, a test a line, so that two versions of it differ where tests do."""
    document = {"about": ABOUT, "schema": SCHEMA, "seconds": durations}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _checked(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        msg = f"{value!r} is no number of seconds"
        raise ValueError(msg)
    return float(value)


def _text(path: Path) -> str:
    """What the file says; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot be read ({error})"
        raise DurationsError(msg) from error


def _lock_of(path: Path) -> Path:
    """A file of this user's for the lock: one beside the durations would be there for ever, and be committed."""
    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"durations-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
