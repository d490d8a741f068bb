"""Ctrl-C at moments when no job runs."""

import json
import signal

import pytest

from allranks.errors import ExitCode
from allranks.matrix.expand import expand
from allranks.report.section import Section, SectionMaker
from allranks.runner import run_jobs as schedule_run
from allranks.runner.host import Host
from allranks.runner.run_jobs import RunOptions, run

pytestmark = pytest.mark.usefixtures("locks")


class OfWholeRun(SectionMaker):
    """A section whose maker differs if the run is interrupted."""

    name = "course"
    is_whole = True

    def __call__(self, _suite):
        """Ignore the job."""

    def section(self, _merged):
        return Section(title="The run", headline="its course", object={"is_whole": self.is_whole})

    def for_unfinished_run(self):
        return OfUnfinishedRun()


class OfUnfinishedRun(OfWholeRun):
    name = "another"
    is_whole = False


def test_an_interrupt_during_the_report_leaves_a_report(matrix, engine, tmp_path, monkeypatch, lines):
    def interrupted(folder, **options):
        monkeypatch.setattr(schedule_run, "merge", merge)
        signal.raise_signal(signal.SIGINT)
        return merge(folder, **options)

    host = Host(engine=engine, cores=1, memory=1, environment_of=lambda _: None)
    merge = schedule_run.merge
    monkeypatch.setattr(schedule_run, "choose_host", lambda *_: host)
    monkeypatch.setattr(schedule_run, "merge", interrupted)
    options = RunOptions(
        run_id="r1",
        results=tmp_path,
        engine="process",
        seed=1,
        pytest_args=(),
        sections=[OfWholeRun()],
    )
    assert run(expand(matrix), [], options, lines) is ExitCode.INTERRUPTED
    report = json.loads((tmp_path / "r1" / "report.json").read_text())
    assert report["course"] == {"is_whole": False}
