"""A child process that does not outlive an interrupt of its parent."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def child(
    command: Sequence[str], *, environ: Mapping[str, str], folder: Path | None = None, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with a pipe from its output and errors.

    An exception in the block ends the command, too: an interrupt that reaches this process alone, as from nox or a CI
    runner, would otherwise leave a build of minutes running.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines that a child writes, as they come."""
    for line in process.stdout or ():
        yield line.decode(errors="replace").rstrip()
