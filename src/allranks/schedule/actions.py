"""What GitHub Actions makes of a run's log: a group for each job, and an annotation for each failure.

Jobs run side by side, and groups cannot be nested: a job's lines are kept until its end. Workflow commands are switched
off but for our own, since a line of a test's that looks like one, indented or not, would be one
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
"""

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from allranks.records import Printed, Record
from allranks.report.judged import Failure, MergedRun
from allranks.report.table import failures, left_out
from allranks.schedule.job_facts import JobError
from allranks.schedule.live import LiveView
from allranks.schedule.progress import Tests

ANNOTATIONS: Final = 10
"""Annotations that GitHub shows of one step."""

_KEPT: Final = 2000
"""Lines of a job's output that its group has; the rank's own log has all."""


def is_on_actions(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is a step of a workflow."""
    return environ.get("GITHUB_ACTIONS") == "true"


class Commands:
    """Workflow commands, of which the runner takes none but these.

    Args:
        say: Prints one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._word = ""

    def switch_off(self) -> None:
        """Have the runner take no commands until a word that nobody can guess."""
        self._word = secrets.token_hex(16)
        self._say(f"::stop-commands::{self._word}")

    def switch_on(self) -> None:
        """Have it take commands again."""
        if self._word:
            self._say(f"::{self._word}::")
            self._word = ""

    def give(self, command: str) -> None:
        """Give one command."""
        self.switch_on()
        self._say(command)
        self.switch_off()


@dataclass(kw_only=True)
class ActionsView(LiveView):
    """Says what happens, and puts what a job printed into a group when it ends.

    Args:
        commands: How groups are made.
    """

    commands: Commands
    _output: dict[str, list[str]] = field(default_factory=dict)

    def take(self, job_id: str, record: Record) -> None:
        """See :meth:`LiveView.take <allranks.schedule.live.LiveView.take>`."""
        if not isinstance(record, Printed):
            super().take(job_id, record)
            return
        with self._lock:
            lines = self._output.setdefault(job_id, [])
            if len(lines) < _KEPT:
                lines.append(f"[rank {record.rank}] {record.line}")

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """See :meth:`LiveView.job_ended <allranks.schedule.live.LiveView.job_ended>`."""
        with self._lock:
            if lines := self._output.pop(job_id, []):
                self._group(f"{job_id}: what its ranks printed", lines)
            super().job_ended(job_id, tests, seconds, error)

    def _group(self, title: str, lines: Sequence[str]) -> None:
        self.commands.give(f"::group::{_escaped(title)}")
        for line in lines:
            self.say(line)
        if len(lines) == _KEPT:
            self.say("(cut here; the ranks' own logs have all)")
        self.commands.give("::endgroup::")


def annotate(merged: MergedRun, commands: Commands) -> None:
    """Have GitHub show the first failures with the workflow run, and beside the files that they are in.

    Args:
        merged: The run.
        commands: How that is asked for.
    """
    found = failures(merged)
    shown = found[:ANNOTATIONS] if len(found) <= ANNOTATIONS else found[: ANNOTATIONS - 1]
    for failure in shown:
        commands.give(_annotation(failure))
    if more := left_out(merged, shown):
        commands.give(f"::error title=allranks::{more} more are in the report")


def _annotation(failure: Failure) -> str:
    file, _, rest = failure.nodeid.partition("::")
    said = {"title": f"{failure.place}: {failure.nodeid}"}
    if rest and file.endswith(".py"):
        said["file"] = file
    properties = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in said.items())
    alike = f" (and {failure.alike} more like it)" if failure.alike else ""
    return f"::error {properties}::{_escaped(failure.message + alike)}"


def _escaped(text: str, also: str = "") -> str:
    """The text as part of a workflow command, which it cannot end."""
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{also}" else sign for sign in text)


@dataclass(frozen=True)
class ActionsConsole:
    """The log of a step of a workflow.

    Attributes:
        say: Prints one line.
        commands: How the runner is asked for something.
    """

    say: Callable[[str], None]
    commands: Commands

    def watch(self, _job_ids: Sequence[str]) -> AbstractContextManager[LiveView]:
        """See :class:`Console <allranks.schedule.console.Console>`."""
        return nullcontext(ActionsView(say=self.say, commands=self.commands))

    def annotate(self, merged: MergedRun) -> None:
        """See :func:`annotate`."""
        annotate(merged, self.commands)
