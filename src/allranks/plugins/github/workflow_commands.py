"""What a step of a workflow on GitHub tells its runner: commands, its summary and its outputs.

No text of a test or of a file becomes a command of its own: it is escaped inside a command of ours, and printed only
while commands are switched off, since the runner obeys any line that looks like one, indented or not, and the older
form ``##[name]`` anywhere in a line (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
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
"""The output of a step that says in one line why it failed, for the jobs that need it."""

_LONGEST: Final = 1000
"""Characters of an output: a sentence or three, which the gate shows."""


def is_on_actions(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a step of a workflow."""
    return environ.get("GITHUB_ACTIONS") == "true"


class Commands:
    """Gives workflow commands, and has the runner ignore all others."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._word = ""

    def switch_off(self) -> None:
        """Have the runner ignore commands until it reads a token that cannot be guessed."""
        self._word = os.urandom(16).hex()
        self._say(f"::stop-commands::{self._word}")

    def switch_on(self) -> None:
        """Have the runner obey commands again."""
        if self._word:
            self._say(f"::{self._word}::")
            self._word = ""

    def give(self, command: str) -> None:
        """Give one command."""
        self.switch_on()
        self._say(command)
        self.switch_off()


@contextmanager
def switched_off(commands: Commands) -> Iterator[Commands]:
    """Have the runner ignore every workflow command in the meantime that is not ours."""
    commands.switch_off()
    try:
        yield commands
    finally:
        commands.switch_on()


def error_command(message: str, **properties: str) -> str:
    """The command that makes an annotation: ``title``, and ``file`` and ``line`` where it belongs into a file."""
    said = ",".join(f"{name}={escaped(value, ':,')}" for name, value in properties.items() if value)
    return f"::error {said}::{escaped(message)}"


def escaped(text: str, also: str = "") -> str:
    """The text, escaped so that it cannot end a workflow command."""
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{also}" else sign for sign in text)


def add_summary(markdown: str, environ: Mapping[str, str] = os.environ) -> None:
    """Add a section to the step's summary; one that cannot be written must not hide what it is about."""
    _append(environ.get(SUMMARY, ""), f"{markdown.rstrip()}\n\n")


def set_reason(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Set the step's output ``reason``, in one line; without a file for outputs nothing is set."""
    line = clipped(printable(" ".join(text.split())), _LONGEST)
    _append(environ.get(OUTPUTS, ""), f"{REASON}={line}\n")


def _append(file: str, text: str) -> None:
    with suppress(OSError, ValueError):
        if file:
            with Path(file).open("a", encoding="utf-8", errors="backslashreplace", newline="\n") as stream:
                stream.write(text)
