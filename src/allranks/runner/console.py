"""The output of a run: lines in a log, or a live table on a terminal."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TextIO

from allranks.colors import DUMB_TERMINALS, Paint, painted, without_color
from allranks.interruption import block_signals
from allranks.protocol.xml_text import for_terminal
from allranks.report.judged import MergedRun
from allranks.runner.ci_service import ci_service
from allranks.runner.listener import Detail, RunListener

_INTERVAL: Final = 0.25
"""Seconds between two updates of the progress of a run."""


class Console(Protocol):
    """The output of a run."""

    def say(self, line: str, /) -> None:
        """Print one line."""

    def watch(self, job_ids: Sequence[str], /) -> AbstractContextManager[RunListener]:
        """The listener for the events of these jobs, given in the order of the plan, while they run."""

    def annotate(self, merged: MergedRun, /) -> None:
        """Show the first failures, for example as annotations of a CI service."""


@contextmanager
def watching(listener: RunListener, job_ids: Sequence[str], update: Callable[[], None]) -> Iterator[RunListener]:
    """Call `update` every quarter of a second, in its own thread."""
    listener.expect(job_ids)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(_INTERVAL):
            update()

    thread = threading.Thread(target=work, name="allranks-progress", daemon=True)
    with block_signals():  # threads inherit the signal mask: only the main thread receives interrupts
        thread.start()
    try:
        yield listener
    finally:
        with block_signals():
            is_over.set()
            thread.join()


@dataclass(frozen=True)
class PlainConsole:
    """Prints lines, for logs."""

    say: Callable[[str], None]
    detail: Detail = "usual"
    paint: Paint = without_color

    def watch(self, job_ids: Sequence[str]) -> AbstractContextManager[RunListener]:
        """Print the events of jobs and, periodically, their progress, so that a hang is visible while it lasts."""
        listener = RunListener(self.say, self.detail, self.paint)
        return watching(listener, job_ids, listener.report_progress)

    def annotate(self, merged: MergedRun) -> None:
        """Do nothing: the table of results is enough."""


@contextmanager
def console_for(
    say: Callable[[str], None],
    pytest_args: Sequence[Sequence[str]] = (),
    environ: Mapping[str, str] = os.environ,
    stream: TextIO | None = None,
    detail: Detail = "usual",
) -> Iterator[Console]:
    """The console of the CI service, if there is one, else a live table on a terminal, else plain lines.

    A run that is quiet, or that streams the output of its tests, has no table.

    Args:
        say: Prints one line to standard output.
        pytest_args: The arguments of each job.
        environ: The environment variables.
        stream: Standard output; None for this process's.
        detail: How much is printed.
    """
    stream, say = sys.stdout if stream is None else stream, _escaped(say)
    is_terminal = stream.isatty() and environ.get("TERM", "") not in DUMB_TERMINALS
    if service := ci_service(environ):
        with service.console(say, detail) as console:
            yield console
    elif detail != "quiet" and is_terminal and not any(map(is_streamed, pytest_args)):
        yield _table(say, stream, detail)
    else:
        yield PlainConsole(say, detail, partial(painted, stream=stream))


def _escaped(say: Callable[[str], None]) -> Callable[[str], None]:
    """Escape control sequences, which the names, messages and output of tests may contain."""
    return lambda line: say(for_terminal(line))


def _table(say: Callable[[str], None], stream: TextIO, detail: Detail) -> Console:
    """The live table; plain lines if rich, which draws it, is not installed."""
    try:
        from allranks.runner.terminal import TerminalConsole  # noqa: PLC0415 - importing rich takes 50 ms
    except ImportError:
        return PlainConsole(say, detail, partial(painted, stream=stream))
    return TerminalConsole(stream, detail)


_STREAMS: Final = re.compile(r"(^| )(-[hlqvVx]*s\w*|--capture[= ]no)( |$)")


def is_streamed(pytest_args: Sequence[str]) -> bool:
    """Whether pytest streams the output of ranks: ``-s``, also as in ``-xs``, or ``--capture=no``."""
    return _STREAMS.search(" ".join(pytest_args)) is not None
