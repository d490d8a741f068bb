"""Runs a child process that ends when its parent is interrupted or reaches a time limit."""

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from allranks.agent.linux import is_readable, signal_group
from allranks.interruption import CHECK_INTERVAL, check

_GRACE = 3.0
"""Seconds for a child to remove its temporary files."""


@contextmanager
def child(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with its output and errors in one pipe.

    An exception in the block kills the command and its children, such as compilers. Otherwise, they would continue for
    minutes, since an interrupt from nox or a CI runner reaches only this process.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        except BaseException:
            if process.returncode is None:
                signal_group(process.pid, signal.SIGTERM)
                descriptor = os.pidfd_open(process.pid)
                is_readable(descriptor, _GRACE)
                os.close(descriptor)
                # The child has not been waited for, so no other process group can have its id yet.
                signal_group(process.pid, signal.SIGKILL)
            raise


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """Yield the lines of a child's output as they arrive; raises what :func:`allranks.interruption.check` raises."""
    rest = b""
    while process.stdout is not None:
        check()
        if not select.select([process.stdout], [], [], CHECK_INTERVAL)[0]:
            continue
        piece = os.read(process.stdout.fileno(), 1 << 16)
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace").rstrip() for line in lines)
        if not piece:
            break
    if rest:
        yield rest.decode(errors="replace").rstrip()


def succeeds(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> bool:
    """Run a command, ignore its output, and return whether it succeeded."""
    with child(command, environ=environ) as process:
        for _ in lines_of(process):
            pass
    return process.returncode == 0
