"""The log of a run in a step of a workflow: groups, and annotations of what failed.

Jobs run side by side, and groups cannot be nested: a job's lines are held back until it ends. All workflow commands but
our own are switched off: any line of a test could look like one.
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, TextIO

from allranks.errors import AllranksError
from allranks.plugins.github.refusals import publish
from allranks.plugins.github.workflow_commands import Commands, error_command, escaped, set_reason, switched_off
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
        with switched_off(Commands(say)) as commands:
            yield ActionsConsole(say, commands, detail)

    def untrusted_output(self, say: Callable[[str], None]) -> AbstractContextManager[object]:
        """Switch all workflow commands off.

        Two streams must not do so at a time: their order is lost, and with it the word that ends it.
        """
        return switched_off(Commands(say))

    @contextmanager
    def show_error(self, error: AllranksError, command: str, stream: TextIO) -> Iterator[None]:
        """Show it as an annotation and in the summary; what is printed may hold workflow commands again afterwards."""
        commands = Commands(lambda line: print(line, file=stream, flush=True))
        commands.give(publish(error, command))
        yield
        commands.switch_on()

    def tell_cause(self, text: str) -> None:
        """Keep it for the gate of the workflow, which shows it."""
        set_reason(text)


_ANNOTATIONS: Final = 10
"""Annotations that GitHub shows for one step."""


@dataclass(frozen=True)
class ActionsConsole:
    """The log of a step of a workflow on GitHub."""

    say: Callable[[str], None]
    commands: Commands
    detail: Detail = "usual"

    def watch(self, job_ids: Sequence[str]) -> AbstractContextManager[RunListener]:
        """Print lines, also about slow tests, and the output of jobs in groups."""
        listener = ActionsListener(say=self.say, commands=self.commands, detail=self.detail)
        return watching(listener, job_ids, listener.report_progress)

    def annotate(self, merged: MergedRun) -> None:
        """Give the first failures as annotations."""
        found = merged.failures
        shown = found if len(found) <= _ANNOTATIONS else found[: _ANNOTATIONS - 1]
        for failure in shown:
            self.commands.give(annotation(failure, merged.manifest.folder if merged.manifest else ""))
        if more := left_out(merged, shown):
            self.commands.give(error_command(f"{more} more are in the report", title="allranks"))


_KEPT: Final = 2000
"""Most lines of a job's output in its group; the ranks' own logs have all."""


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
        """Print the job's output in one group, and how it ended."""
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
        self.commands.give(f"::group::{escaped(title)}")
        for line in lines:
            self.say(line)
        if len(lines) == _KEPT:
            self.say("(cut here; the ranks' own logs have all)")
        self.commands.give("::endgroup::")


def annotation(failure: Failure, folder: str = "") -> str:
    """The command that has GitHub show a failure with the workflow run, and beside the line that it is in.

    `folder` is that of its matrix file in the repository, which its path is relative to.
    """
    file = posixpath.normpath(posixpath.join(folder, failure.file)) if failure.file else ""
    line = str(failure.line) if file and failure.line else ""
    impact = f" ({failure.impact})" if failure.impact else ""
    title = f"{failure.job}: {failure.nodeid}"
    return error_command(failure.message + impact, title=title, file=file, line=line)
