"""The log of a run in a step of a workflow: groups, and annotations of what failed.

Jobs run side by side, and groups cannot be nested: a job's lines are held back until it ends. All workflow commands but
our own are switched off: any line of a test could look like one.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, TextIO

from allranks.errors import AllranksError
from allranks.plugins.github.refusals import publish
from allranks.plugins.github.workflow_commands import Commands, error_command, escaped, set_reason, switched_off
from allranks.protocol.records import Printed, RankEnded, Record
from allranks.protocol.tracebacks import excerpt
from allranks.protocol.xml_text import file_of
from allranks.report.failure_groups import Failure
from allranks.report.judged import MergedRun
from allranks.report.run_files import JobError
from allranks.report.summary import left_out
from allranks.runner.console import Console
from allranks.runner.log_lines import LiveView, last_version
from allranks.runner.progress import Tests
from allranks.runner.run_detail import Detail, evidence_lines


class Actions:
    """See :class:`allranks.runner.ci_service.CiService`."""

    @contextmanager
    def console(self, say: Callable[[str], None], detail: Detail) -> Iterator[Console]:
        """See :meth:`allranks.runner.ci_service.CiService.console`."""
        with switched_off(Commands(say)) as commands:
            yield ActionsConsole(say, commands, detail)

    def untrusted_output(self, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """See :meth:`allranks.runner.ci_service.CiService.untrusted_output`.

        Two streams must not do so at a time: their order is lost, and with it the word that ends it.
        """
        return switched_off(Commands(say))

    @contextmanager
    def show_error(self, error: AllranksError, command: str, stream: TextIO) -> Iterator[None]:
        """See :meth:`allranks.runner.ci_service.CiService.show_error`."""
        commands = Commands(lambda line: print(line, file=stream, flush=True))
        commands.give(publish(error, command))
        yield
        commands.switch_on()

    def tell_cause(self, text: str) -> None:
        """See :meth:`allranks.runner.ci_service.CiService.tell_cause`: the gate of the workflow shows it."""
        set_reason(text)


_ANNOTATIONS: Final = 10
"""Annotations that GitHub shows for one step."""


@dataclass(frozen=True)
class ActionsConsole:
    """The log of a step of a workflow on GitHub."""

    say: Callable[[str], None]
    commands: Commands
    detail: Detail = "usual"

    def watch(self, _job_ids: Sequence[str]) -> AbstractContextManager[LiveView]:
        """See :class:`Console`."""
        return nullcontext(ActionsView(say=self.say, commands=self.commands, detail=self.detail))

    def annotate(self, merged: MergedRun) -> None:
        """See :class:`Console`."""
        found = merged.failures
        shown = found if len(found) <= _ANNOTATIONS else found[: _ANNOTATIONS - 1]
        for failure in shown:
            self.commands.give(annotation(failure, merged.manifest.folder if merged.manifest else ""))
        if more := left_out(merged, shown):
            self.commands.give(error_command(f"{more} more are in the report", title="allranks"))


_KEPT: Final = 2000
"""Most lines of a job's output in its group; the ranks' own logs have all."""


@dataclass(kw_only=True)
class ActionsView(LiveView):
    """Prints events, and a job's output in one group when the job ends."""

    commands: Commands
    _output: dict[str, list[str]] = field(default_factory=dict)

    def take(self, job_id: str, record: Record) -> None:
        """See :meth:`LiveView.take <allranks.runner.log_lines.LiveView.take>`."""
        if not isinstance(record, Printed):
            super().take(job_id, record)
            return
        with self._lock:
            lines = self._output.setdefault(job_id, [])
            if len(lines) < _KEPT:
                lines.append(f"[rank {record.rank}] {last_version(record.line)}")

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """See :meth:`LiveView.job_ended <allranks.runner.log_lines.LiveView.job_ended>`."""
        with self._lock:
            if lines := self._output.pop(job_id, []):
                self._group(f"{job_id}: what its ranks printed", lines)
            super().job_ended(job_id, tests, seconds, error)

    def _show_evidence(self, record: RankEnded) -> None:
        """Show where the rank failed, as the terminal does, in a group."""
        test = record.nodeid
        lines = (
            evidence_lines(record) if self.detail == "verbose" else excerpt(record.text, file_of(test), record.message)
        )
        if shown := list(lines):
            self._group(f"where rank {record.rank} {record.outcome.replace('_', ' ')} in {test}", shown)

    def _group(self, title: str, lines: Sequence[str]) -> None:
        self.commands.give(f"::group::{escaped(title)}")
        for line in lines:
            self.say(line)
        if len(lines) == _KEPT:
            self.say("(cut here; the ranks' own logs have all)")
        self.commands.give("::endgroup::")


def annotation(failure: Failure, folder: str = "") -> str:
    """The command that has GitHub show a failure with the workflow run, and beside the line that it is in.

    Args:
        failure: The failure.
        folder: The folder of its matrix file, which its path is relative to, in the repository.
    """
    file = posixpath.normpath(posixpath.join(folder, failure.file)) if failure.file else ""
    line = str(failure.line) if file and failure.line else ""
    extent = f" ({failure.extent})" if failure.extent else ""
    title = f"{failure.place}: {failure.nodeid}"
    return error_command(failure.message + extent, title=title, file=file, line=line)
