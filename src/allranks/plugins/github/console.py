"""The log of a run in a step of a workflow: groups, and annotations of failures.

Jobs run concurrently, and groups cannot be nested, so the output of a job is held back until it ends. All workflow
commands but those of allranks are disabled, because any line that a test prints could look like one.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, TextIO

from allranks.errors import AllranksError, counted
from allranks.plugins.github.command_errors import publish
from allranks.plugins.github.workflow_commands import Commands, commands_disabled, error_command, escaped, set_reason
from allranks.protocol.records import Printed, RankEnded
from allranks.protocol.tracebacks import excerpt
from allranks.protocol.xml_text import file_of
from allranks.report.failure_groups import Failure
from allranks.report.judged import MergedRun
from allranks.report.run_files import JobError
from allranks.report.summary import left_out
from allranks.runner.console import Console, watching
from allranks.runner.listener import Detail, RunListener, evidence_lines, last_version
from allranks.runner.progress import Tests


class Actions:
    """GitHub Actions as a :class:`~allranks.runner.ci_service.CiService`."""

    @contextmanager
    def console(self, say: Callable[[str], None], detail: Detail) -> Iterator[Console]:
        """The log of the step."""
        with commands_disabled(Commands(say)) as commands:
            yield ActionsConsole(say, commands, detail)

    def untrusted_output(self, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """Disable all workflow commands.

        Do this on only one stream at a time: the runner may read two streams in any order, so either token could be the
        one that it waits for.
        """
        return commands_disabled(Commands(say))

    @contextmanager
    def show_error(self, error: AllranksError, command: str, stream: TextIO) -> Iterator[None]:
        """Show an error as an annotation and in the summary; workflow commands are enabled again afterwards."""
        commands = Commands(lambda line: print(line, file=stream, flush=True))
        commands.issue(publish(error, command))
        yield
        commands.enable()

    def report_cause(self, text: str) -> None:
        """Set the output of the step that the workflow's required check shows."""
        set_reason(text)


_ANNOTATIONS: Final = 10
"""The number of annotations that GitHub shows for one step."""


@dataclass(frozen=True)
class ActionsConsole:
    """The log of a step of a workflow on GitHub."""

    say: Callable[[str], None]
    commands: Commands
    detail: Detail = "usual"

    def watch(self, job_ids: Sequence[str]) -> AbstractContextManager[RunListener]:
        """Print events and slow tests as lines, and the output of jobs in groups."""
        listener = ActionsListener(say=self.say, commands=self.commands, detail=self.detail)
        return watching(listener, job_ids, listener.report_progress)

    def annotate(self, merged: MergedRun) -> None:
        """Show the first failures as annotations."""
        failures = merged.failures
        shown = failures if len(failures) <= _ANNOTATIONS else failures[: _ANNOTATIONS - 1]
        for failure in shown:
            self.commands.issue(annotation(failure, merged.manifest.folder if merged.manifest else ""))
        if more := left_out(merged, shown):
            self.commands.issue(error_command(f"{counted(more, 'more failure')} in the report", title="allranks"))


_KEPT: Final = 2000
"""The most lines of a job's output in its group; the ranks' logs have more."""


@dataclass(kw_only=True, eq=False)
class ActionsListener(RunListener):
    """Prints events, and a job's output in one group when the job ends."""

    commands: Commands
    _output: dict[str, list[str]] = field(default_factory=dict)

    def _show_output(self, job_id: str, printed: Printed) -> None:
        lines = self._output.setdefault(job_id, [])
        if len(lines) < _KEPT:
            lines.append(f"[rank {printed.rank}] {last_version(printed.line)}")

    def job_ended(self, job_id: str, tests: Tests, seconds: float, error: JobError | None) -> None:
        """Print the job's output in one group, then its result."""
        with self.lock:
            if lines := self._output.pop(job_id, []):
                self._group(f"{job_id}: what its ranks printed", lines)
            super().job_ended(job_id, tests, seconds, error)

    def _show_evidence(self, ended: RankEnded) -> None:
        """Show where the rank failed, as the terminal does, in a group."""
        test = ended.nodeid
        lines = evidence_lines(ended) if self.detail == "verbose" else excerpt(ended.text, file_of(test), ended.message)
        if shown := list(lines):
            self._group(f"where rank {ended.rank} {ended.outcome.replace('_', ' ')} in {test}", shown)

    def _group(self, title: str, lines: Sequence[str]) -> None:
        self.commands.issue(f"::group::{escaped(title)}")
        for line in lines:
            self.say(line)
        if len(lines) == _KEPT:
            self.say("(truncated; see rank-N.log)")
        self.commands.issue("::endgroup::")


def annotation(failure: Failure, folder: str = "") -> str:
    """The command that makes GitHub show a failure with the workflow run and at the failing line.

    The path of the failure is relative to `folder`, that of the matrix file in the repository.
    """
    file = posixpath.normpath(posixpath.join(folder, failure.file)) if failure.file else ""
    line = str(failure.line) if file and failure.line else ""
    impact = f" ({failure.impact})" if failure.impact else ""
    title = f"{failure.job}: {failure.nodeid}"
    return error_command(failure.message + impact, title=title, file=file, line=line)
