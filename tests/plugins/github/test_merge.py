"""What GitHub shows of a merge."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.plugin_manager import implements

RANK = "<testsuite><testcase classname='t' name='test_x'>{}</testcase></testsuite>"


def test_annotations_of_a_merge_are_no_part_of_its_object(allranks, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for rank, result in enumerate(("", "<failure/>")):
        (tmp_path / "ranks").mkdir(exist_ok=True)
        (tmp_path / "ranks" / f"rank-{rank}.xml").write_text(RANK.format(result))
    _, out, err = allranks("report", str(tmp_path / "ranks"), "--world-size=2", "--json")
    assert json.loads(out)["exit_code"] == 1
    assert "::error " in err


def test_the_error_of_a_service_of_another_package_is_shown_by_this_one(allranks, other, monkeypatch):
    def allranks_ci_service():
        msg = "no service"
        raise ValueError(msg)

    other("lsf", lambda: SimpleNamespace(allranks_ci_service=implements(allranks_ci_service)))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    code, out, _ = allranks("report", "absent")
    assert code == 2
    assert "::error" in out


MACHINE = {"kind": "infrastructure", "what": "No GPUs | here.", "why": "", "remedy": ""}


@pytest.fixture
def gathered(repository, monkeypatch):
    """The results of one machine of a plan in the folder ``pkg`` of a repository, in a step of a workflow."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(repository / "cache"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(repository / "outputs"))
    job = {"cell": "gloo-w1", "suite": "s", "id": "gloo-w1/s", "batch": "cpu-g0-1of1"}
    manifest = {"schema": 2, "run_id": "r", "folder": "pkg", "cells": {"gloo-w1": {"backend": "gloo"}}, "jobs": [job]}

    def write(case="", **record):
        attempt = repository / "r/cells/gloo-w1/s/attempt-1"
        attempt.mkdir(parents=True)
        (repository / "r/run.json").write_text(json.dumps(manifest))
        (attempt / "job.json").write_text(json.dumps({"schema": 2, "world_size": 1, **record}))
        if case:
            (attempt / "rank-0.xml").write_text(
                f"<testsuite><testcase classname='t' name='a' {case}</testcase></testsuite>"
            )
        return repository / "outputs"

    return write


def test_on_github_the_reason_of_a_machine_is_an_output_that_names_its_batch(allranks, gathered):
    outputs = gathered(error=MACHINE)
    assert allranks("report", "r")[0] == 4
    assert outputs.read_text() == "reason=No GPUs | here. (batch cpu-g0-1of1; exit code 4)\n"
    assert json.loads(allranks("report", "r", "--json")[1])["failures"][0]["batches"] == ["cpu-g0-1of1"]
    assert "**Cause:** No GPUs \\| here. \\(batch cpu-g0-1of1; exit code 4\\)\n" in Path("r/summary.md").read_text()


def test_on_github_a_failing_test_is_annotated_with_its_path_in_the_repository(allranks, gathered):
    outputs = gathered("file='tests/t.py' line='7'><failure message='no'/>", collected=["t::a"])
    code, out, _ = allranks("report", "r")
    assert (code, "file=pkg/tests/t.py,line=" in out) == (1, True)
    assert outputs.read_text() == "reason=gloo-w1 / s: t::a: rank 0 failed: no (exit code 1)\n"
    assert "**Cause:**" not in Path("r/summary.md").read_text()


def test_on_github_a_run_of_nothing_says_so_and_a_good_one_gives_no_reason(allranks, gathered):
    outputs = gathered("><skipped type='pytest.skip' message='no'/>", collected=["t::a"])
    assert allranks("report", "r", "--allow-nothing-ran")[0] == 0
    assert not outputs.exists()
    assert allranks("report", "r")[0] == 5
    assert outputs.read_text() == "reason=no test ran: all were skipped, or none was selected (exit code 5)\n"
