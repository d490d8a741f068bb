"""Shows the error that ended a command on GitHub: annotation, summary, and the output ``reason`` of the step."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from allranks.errors import MEANING, AllranksError, MatrixError
from allranks.plugins.github.workflow_commands import add_summary, error_command, set_reason
from allranks.protocol.xml_text import MESSAGE_LIMIT, cut, printable, readable
from allranks.report.summary import fenced, markdown

_LINES: Final = 40
"""The most lines of a message that are shown: the first, and the last ones, where pip and builders give the error."""

_ITEM: Final = re.compile(r"^(\d*)([-=.])")

_LOCATION: Final = re.compile(r"(?P<file>[^\n:]+\.toml):(?P<line>\d+): ")
"""The prefix of the message of a :class:`~allranks.errors.MatrixError`."""


def publish(error: AllranksError, command: str, environ: Mapping[str, str] = os.environ) -> str:
    """Write an error to the step's summary and outputs, and return the workflow command for an annotation.

    Files that cannot be written are ignored. `command` is the command that failed: ``plan``.
    """
    add_summary("\n".join(_section(error, command)), environ)
    set_reason(f"{error.text} (exit code {error.exit_code:d})", environ)
    code = f"exit code {error.exit_code:d}: {MEANING[error.exit_code]}"
    text = "\n".join(_last_lines(readable(error.text)))
    return error_command(cut(text, MESSAGE_LIMIT), title=f"allranks {command}: {code}", **_location(error))


def _section(error: AllranksError, command: str) -> Iterator[str]:
    yield f"## allranks {markdown(command)}: exit code {error.exit_code:d}"
    for sentence in filter(None, (error.what, error.why, error.remedy)):
        lines = _last_lines(readable(sentence))
        yield from ["", _paragraph(lines[0])] if len(lines) == 1 else fenced("text", lines)


def _paragraph(line: str) -> str:
    """A line of literal text in Markdown, which is not read as a list item."""
    return _ITEM.sub(r"\1\\\2", markdown(cut(line, MESSAGE_LIMIT)))


def _last_lines(text: str) -> list[str]:
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _LINES else [lines[0], "…", *lines[1 - _LINES :]]


def _location(error: AllranksError) -> dict[str, str]:
    """The file and line of an error in the matrix file, if that is below the current folder."""
    if not (isinstance(error, MatrixError) and (found := _LOCATION.match(error.what))):
        return {}
    path, here = Path(found["file"]).absolute(), Path.cwd()
    return {"file": path.relative_to(here).as_posix(), "line": found["line"]} if path.is_relative_to(here) else {}
