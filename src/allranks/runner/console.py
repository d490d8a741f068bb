"""Where a run prints: lines into a log, or a live table on a terminal."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TextIO

from allranks.protocol.xml_text import for_terminal
from allranks.report.judged import MergedRun
from allranks.runner.ci_service import ci_service
from allranks.runner.log_lines import LiveView
from allranks.runner.run_detail import Detail

_CANNOT: Final = frozenset({"", "dumb", "unknown"})
"""Values of ``TERM`` for a terminal that cannot move its cursor."""

_WITH_VALUE: Final = "cknmoprW"
_WITHOUT: Final = "hlqsvVx"


class Console(Protocol):
    """Where a run prints its events."""

    def say(self, line: str, /) -> None:
        """Print one line."""

    def watch(self, job_ids: Sequence[str], /) -> AbstractContextManager[LiveView]:
        """The view that takes the events of these jobs, in the order of the plan, while they run."""

    def annotate(self, merged: MergedRun, /) -> None:
        """Show the first failures wherever the run is shown, such as by a CI service."""


@dataclass(frozen=True)
class PlainConsole:
    """Lines and nothing else."""

    say: Callable[[str], None]
    detail: Detail = "usual"

    def watch(self, _job_ids: Sequence[str]) -> AbstractContextManager[LiveView]:
        """See :class:`Console`."""
        return nullcontext(LiveView(self.say, self.detail))

    def annotate(self, merged: MergedRun) -> None:
        """Do nothing: the table of results is enough."""


Annotate = Callable[[Console, MergedRun], None]
"""Decides whether a run that has ended is given to a console's :meth:`Console.annotate`."""


def annotate_all(console: Console, merged: MergedRun) -> None:
    """Annotate what went wrong: this is the whole run."""
    console.annotate(merged)


def leave_to_the_merge(_console: Console, _merged: MergedRun) -> None:
    """Annotate nothing: this is a part of a run, and the merge of all parts annotates what went wrong."""


@contextmanager
def console_for(
    say: Callable[[str], None],
    pytest_args: Sequence[Sequence[str]] = (),
    environ: Mapping[str, str] = os.environ,
    stream: TextIO | None = None,
    detail: Detail = "usual",
) -> Iterator[Console]:
    """The console that fits the environment.

    Args:
        say: Prints one line to standard output.
        pytest_args: The arguments of each job for pytest.
        environ: Names the CI service, and the abilities of the terminal.
        stream: Standard output; None for this process's.
        detail: How much is printed; a quiet run has no table.
    """
    stream, say = sys.stdout if stream is None else stream, _harmless(say)
    if service := ci_service(environ):
        with service.console(say, detail) as console:
            yield console
    elif (
        detail != "quiet"
        and stream.isatty()
        and environ.get("TERM", "") not in _CANNOT
        and not any(map(is_streamed, pytest_args))
    ):
        yield _table(say, stream, detail)
    else:
        yield PlainConsole(say, detail)


def _harmless(say: Callable[[str], None]) -> Callable[[str], None]:
    """Print lines without what a terminal would obey: tests choose their names, messages and output."""
    return lambda line: say(for_terminal(line))


def _table(say: Callable[[str], None], stream: TextIO, detail: Detail) -> Console:
    """The live table; plain lines if rich, which draws it, is not installed."""
    try:
        # rich takes a twentieth of a second to import: a run whose lines go to a file does without.
        from allranks.runner.terminal import TerminalConsole  # noqa: PLC0415
    except ImportError:
        return PlainConsole(say, detail)
    return TerminalConsole(say, stream, detail)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def is_streamed(pytest_args: Sequence[str]) -> bool:
    """Whether these arguments have pytest show at once what ranks print: ``-s``, or ``--capture=no``.

    pytest parses with argparse, too, so that ``-xs`` is found and ``-rs`` and ``-k s`` are not. Its other options
    cannot change that.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    for sign in _WITHOUT:
        parser.add_argument(f"-{sign}", action="store_true")
    for sign in _WITH_VALUE:
        parser.add_argument(f"-{sign}")
    parser.add_argument("--capture")
    try:
        found, _ = parser.parse_known_args(list(pytest_args))
    except ValueError:  # what pytest will refuse, too
        return False
    return bool(found.s) or found.capture == "no"
