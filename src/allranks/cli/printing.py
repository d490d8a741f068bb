"""The output of commands: lines, JSON objects, and the verdict."""

import errno
import json
import os
import sys
from datetime import UTC, datetime

from allranks.colors import painted
from allranks.errors import MEANING, ExitCode


def say_verdict(code: ExitCode) -> None:
    """Print the exit code and its meaning, as the last line of a run or a report."""
    say(painted(f"exit code {code:d}: {MEANING[code]}", "red" if code else "green", sys.stdout))


def say_json(**document: object) -> None:
    """Print a JSON object; a change that breaks its readers increments ``schema``."""
    say(json.dumps({"schema": 1, **document}, indent=2))


def iso_time(seconds: float) -> str:
    """A time in seconds since the epoch as ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


_CLOSED = (errno.EPIPE, errno.EIO)


def say(line: str) -> None:
    """Print one line; a closed pipe or terminal is not an error."""
    try:
        # A single write, since concurrent jobs print from their own threads.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _CLOSED:
            raise
        # `allranks run | head`, or a closed terminal, must not end the run: only the output is lost.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr)
