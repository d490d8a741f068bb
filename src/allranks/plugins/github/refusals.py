"""A command's error on GitHub: annotation, summary, and the output ``reason`` of its step."""

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
"""Lines of a sentence's text that are shown: pip and a builder report the error at the end of their output."""

_ITEM: Final = re.compile(r"^(\d*)([-=.])")

_PLACE: Final = re.compile(r"(?P<file>[^\n:]+\.toml):(?P<line>\d+): ")
"""What the sentence of a :class:`~allranks.errors.MatrixError` begins with."""


def publish(error: AllranksError, command: str, environ: Mapping[str, str] = os.environ) -> str:
    """Write an error into the step's summary and its outputs; files that cannot be written are ignored.

    Args:
        error: The error.
        command: The command that it ends: ``plan``.
        environ: Names the step's files.

    Returns:
        The workflow command that makes an annotation of it.
    """
    add_summary("\n".join(_section(error, command)), environ)
    set_reason(f"{error.text} (exit code {error.exit_code:d})", environ)
    code = f"exit code {error.exit_code:d}: {MEANING[error.exit_code]}"
    text = "\n".join(_last_lines(readable(error.text)))
    return error_command(cut(text, MESSAGE_LIMIT), title=f"allranks {command}: {code}", **_place(error))


def _section(error: AllranksError, command: str) -> Iterator[str]:
    yield f"## allranks {markdown(command)}: exit code {error.exit_code:d}"
    for sentence in filter(None, (error.what, error.why, error.remedy)):
        lines = _last_lines(readable(sentence))
        yield from ("",) if len(lines) == 1 else ()
        yield from [_paragraph(lines[0])] if len(lines) == 1 else fenced("text", lines)


def _paragraph(line: str) -> str:
    """A line that Markdown takes literally, and for no item of a list."""
    return _ITEM.sub(r"\1\\\2", markdown(cut(line, MESSAGE_LIMIT)))


def _last_lines(text: str) -> list[str]:
    lines = [printable(line) for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _LINES else [lines[0], "…", *lines[1 - _LINES :]]


def _place(error: AllranksError) -> dict[str, str]:
    """The file and the line that an error of the matrix file is in, as far as the file is below this folder."""
    if not (isinstance(error, MatrixError) and (found := _PLACE.match(error.what))):
        return {}
    path, here = Path(found["file"]).absolute(), Path.cwd()
    return {"file": path.relative_to(here).as_posix(), "line": found["line"]} if path.is_relative_to(here) else {}
