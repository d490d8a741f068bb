"""What commands print: lines for people, objects for programs, and the verdict."""

import errno
import json
import os
import sys
from datetime import UTC, datetime

from allranks.colors import painted
from allranks.errors import MEANING, ExitCode


def say_verdict(code: ExitCode) -> None:
    """Print the exit code and its meaning, the last line of a run or a report."""
    say(painted(f"exit code {code:d}: {MEANING[code]}", "red" if code else "green", sys.stdout))


def say_json(**document: object) -> None:
    """Print an object for programs; a change that breaks its readers raises ``schema``."""
    say(json.dumps({"schema": 1, **document}, indent=2))


def moment(seconds: float) -> str:
    """A time as programs and people read it: ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


_NOBODY_READS = (errno.EPIPE, errno.EIO)


def say(line: str) -> None:
    """Print one line; a closed pipe or terminal is not an error."""
    try:
        # One write: each of the jobs that run side by side has a thread.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        # `allranks run | head`, or a closed terminal, must not end the run: only output is lost, not the report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(line: str) -> None:
    """Print a line to standard error, apart from the output meant for programs."""
    print(line, file=sys.stderr)
