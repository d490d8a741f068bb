"""Ctrl-C at moments when no job runs."""

import signal

import pytest

from allranks.errors import ExitCode
from allranks.matrix.expand import expand
from allranks.runner import run_jobs as schedule_run
from allranks.runner.host import Host
from allranks.runner.run_jobs import RunOptions, run

pytestmark = pytest.mark.usefixtures("locks")


def test_an_interrupt_while_the_report_is_made_leaves_a_report(matrix, engine, tmp_path, monkeypatch, lines):
    def interrupted(folder, **options):
        monkeypatch.setattr(schedule_run, "merge", merge)
        signal.raise_signal(signal.SIGINT)
        return merge(folder, **options)

    host = Host(engine=engine, gpus=(), cores=1, memory=1, environment_of=lambda _: None)
    merge = schedule_run.merge
    monkeypatch.setattr(schedule_run, "choose_host", lambda *_: host)
    monkeypatch.setattr(schedule_run, "merge", interrupted)
    options = RunOptions(
        run_id="r1", results=tmp_path, engine="process", seed=1, pytest_args=(), nothing_ran_allowed=True
    )
    assert run(expand(matrix), [], options, lines) is ExitCode.INTERRUPTED
    assert (tmp_path / "r1" / "report.json").exists()
