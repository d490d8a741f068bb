"""What commands print."""

import errno
import os
import sys

_NOBODY_READS = (errno.EPIPE, errno.EIO)


def say(line: str) -> None:
    """Print one line; that nobody reads it any more is no error."""
    try:
        # In one piece: jobs that run side by side have a thread each.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        # `allranks run | head`, or a closed terminal, must not end the run: what is printed is lost, the report is not.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def remark(line: str) -> None:
    """Say something beside what is printed for a program."""
    print(line, file=sys.stderr)
