"""Workflow commands, the summary and the outputs of a step on GitHub.

Text from tests or files never becomes a command: it is escaped in commands of allranks, and printed only while commands
are disabled. GitHub's runner executes any line that looks like a command, indented or not, and the older form
``##[name]`` anywhere in a line (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from allranks.protocol.xml_text import clipped, printable

SUMMARY: Final = "GITHUB_STEP_SUMMARY"
OUTPUTS: Final = "GITHUB_OUTPUT"

REASON: Final = "reason"
"""The output of a step with the reason why it failed, in one line, for jobs that depend on it."""

_MAX_LENGTH: Final = 1000
"""Characters of an output, which the required check shows."""


def is_on_actions(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a step of a workflow."""
    return environ.get("GITHUB_ACTIONS") == "true"


class Commands:
    """Issues workflow commands, and makes the runner ignore all others."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._token = ""

    def disable(self) -> None:
        """Make the runner ignore commands until it reads a token that cannot be guessed."""
        self._token = os.urandom(16).hex()
        self._say(f"::stop-commands::{self._token}")

    def enable(self) -> None:
        """Make the runner execute commands again."""
        if self._token:
            self._say(f"::{self._token}::")
            self._token = ""

    def issue(self, command: str) -> None:
        """Issue one command."""
        self.enable()
        self._say(command)
        self.disable()


@contextmanager
def commands_disabled(commands: Commands) -> Iterator[Commands]:
    """Make the runner ignore all workflow commands in this block that `commands` does not issue."""
    commands.disable()
    try:
        yield commands
    finally:
        commands.enable()


def error_command(message: str, **properties: str) -> str:
    """The command that makes an annotation; the properties are ``title``, ``file`` and ``line``."""
    attributes = ",".join(f"{name}={escaped(value, ':,')}" for name, value in properties.items() if value)
    return f"::error {attributes}::{escaped(message)}"


def escaped(text: str, also: str = "") -> str:
    """The text, escaped so that it cannot end a workflow command."""
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{also}" else char for char in text)


def add_summary(markdown: str, environ: Mapping[str, str] = os.environ) -> None:
    """Add a section to the step's summary. Errors are ignored, because they would hide the error in the section."""
    _append(environ.get(SUMMARY, ""), f"{markdown.rstrip()}\n\n")


def set_reason(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Set the step's output ``reason``, in one line."""
    line = clipped(printable(" ".join(text.split())), _MAX_LENGTH)
    _append(environ.get(OUTPUTS, ""), f"{REASON}={line}\n")


def _append(file: str, text: str) -> None:
    with suppress(OSError, ValueError):
        if file:
            with Path(file).open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
                stream.write(text)
