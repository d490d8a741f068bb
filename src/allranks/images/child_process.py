"""A child process that outlives neither an interrupt of its parent nor its time limit."""

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from allranks.agent.linux import is_readable, signal_group
from allranks.interruption import PATIENCE, check

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
    """Run a command with a pipe from its output and errors.

    An exception in the block ends the command and what it has started, such as compilers: an interrupt that reaches
    this process alone, as from nox or a CI runner, would otherwise leave a build of minutes running.
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
                # It is dead but not yet reaped, so its number still names this group and no other.
                signal_group(process.pid, signal.SIGKILL)
            raise


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines that a child writes, as they come; ends as :func:`allranks.interruption.check` asks."""
    rest = b""
    while process.stdout is not None:
        check()
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            continue
        piece = os.read(process.stdout.fileno(), 1 << 16)
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace").rstrip() for line in lines)
        if not piece:
            break
    if rest:
        yield rest.decode(errors="replace").rstrip()


def succeeds(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> bool:
    """Run a command whose output does not matter; False if it fails."""
    with child(command, environ=environ) as process:
        for _ in lines_of(process):
            pass
    return process.returncode == 0
