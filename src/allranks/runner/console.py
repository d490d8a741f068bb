"""Where a run prints: lines into a log, or a live table on a terminal."""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TextIO

from allranks.colors import CANNOT_MOVE, painted
from allranks.interruption import block_signals
from allranks.protocol.xml_text import for_terminal
from allranks.report.judged import MergedRun
from allranks.runner.ci_service import ci_service
from allranks.runner.listener import Detail, Paint, RunListener, without_color

_BETWEEN: Final = 0.25
"""Seconds between two looks at the progress of a run."""


class Console(Protocol):
    """Where a run prints its events."""

    def say(self, line: str, /) -> None:
        """Print one line."""

    def watch(self, job_ids: Sequence[str], /) -> AbstractContextManager[RunListener]:
        """What hears the events of these jobs, in the order of the plan, while they run."""

    def annotate(self, merged: MergedRun, /) -> None:
        """Show the first failures wherever the run is shown, such as by a CI service."""


@contextmanager
def watching(listener: RunListener, job_ids: Sequence[str], look: Callable[[], None]) -> Iterator[RunListener]:
    """Call `look` every quarter of a second, in a thread of its own."""
    listener.expect(job_ids)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(_BETWEEN):
            look()

    thread = threading.Thread(target=work, name="allranks-progress", daemon=True)
    with block_signals():  # threads inherit the mask: the main thread alone takes interrupts
        thread.start()
    try:
        yield listener
    finally:
        with block_signals():
            is_over.set()
            thread.join()


@dataclass(frozen=True)
class PlainConsole:
    """Lines and nothing else."""

    say: Callable[[str], None]
    detail: Detail = "usual"
    paint: Paint = without_color

    def watch(self, job_ids: Sequence[str]) -> AbstractContextManager[RunListener]:
        """Print lines about slow tests, too: a hang is seen while it lasts."""
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
    """The console that fits the CI service and the terminal; a quiet run, and one whose output is shown, has no table.

    `pytest_args` has those of each job, and `stream` is standard output; None for this process's.
    """
    stream, say = sys.stdout if stream is None else stream, _harmless(say)
    is_terminal = stream.isatty() and environ.get("TERM", "") not in CANNOT_MOVE
    if service := ci_service(environ):
        with service.console(say, detail) as console:
            yield console
    elif detail != "quiet" and is_terminal and not any(map(is_streamed, pytest_args)):
        yield _table(say, stream, detail)
    else:
        yield PlainConsole(say, detail, partial(painted, stream=stream))


def _harmless(say: Callable[[str], None]) -> Callable[[str], None]:
    """Print lines without what a terminal would obey: tests choose their names, messages and output."""
    return lambda line: say(for_terminal(line))


def _table(say: Callable[[str], None], stream: TextIO, detail: Detail) -> Console:
    """The live table; plain lines if rich, which draws it, is not installed."""
    try:
        # rich takes a twentieth of a second to import: a run whose lines go to a file does without.
        from allranks.runner.terminal import TerminalConsole  # noqa: PLC0415
    except ImportError:
        return PlainConsole(say, detail, partial(painted, stream=stream))
    return TerminalConsole(stream, detail)


_STREAMS: Final = re.compile(r"(^| )(-[hlqvVx]*s\w*|--capture[= ]no)( |$)")


def is_streamed(pytest_args: Sequence[str]) -> bool:
    """Whether pytest shows at once what ranks print: under ``-s``, also as ``-xs``, or ``--capture=no``."""
    return _STREAMS.search(" ".join(pytest_args)) is not None
