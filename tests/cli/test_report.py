"""``allranks report``: which folders it reads, and its options."""

import json
from pathlib import Path

import pytest

from allranks.report.junit_case import JUnitForm

RANK = """<testsuites><testsuite name="pytest"><testcase classname="t" name="{name}" time="0.1">{result}</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def ranks(tmp_path):
    def write(*results: str) -> Path:
        folder = tmp_path / "ranks"
        job = folder / f"gloo-w{len(results)}-g0-env" / "tests"
        job.mkdir(parents=True)
        for rank, result in enumerate(results):
            (job / f"rank-{rank}.xml").write_text(RANK.format(name="test_x", result=result))
        return folder

    return write


def test_report_judges_any_folder(allranks, ranks):
    folder = ranks("", '<failure message="no">text</failure>')
    code, out, _ = allranks("report", str(folder))
    assert code == 1
    assert f"report: {folder}/junit.xml\npage: {folder}/report.html\n" in out
    assert out.endswith("exit code 1: tests failed\n")


def test_a_report_can_be_printed_as_json(allranks, ranks):
    folder = ranks("", '<failure message="no">text</failure>')
    code, out, err = allranks("report", str(folder), "--json", "--durations", "durations.json")
    output = json.loads(out)
    assert code == output["exit_code"] == 1
    assert output.keys() == {
        "schema", "exit_code", "meaning", "run_id", "policy", "counts", "jobs", "failures", "notes", "files",
    }  # fmt: skip
    assert (output["schema"], output["meaning"], output["counts"]["failed"]) == (1, "tests failed", 1)
    assert [job["counts"]["tests"] for job in output["jobs"]] == [1]
    [failure] = output["failures"]
    assert failure == {
        "place": "gloo-w2-g0-env / tests", "test": "t::test_x", "kind": "failure", "message": "rank 1 failed: no",
        "alike": 0, "cells": ["gloo-w2-g0-env"], "batches": [], "ranks": {"2": [1]}, "blame": None,
    }  # fmt: skip
    assert all(Path(file).is_file() for file in (output["files"]["junit"][0], *list(output["files"].values())[1:]))
    assert "exit code" not in err


def test_a_quiet_report_prints_problems_and_the_verdict(allranks, ranks):
    folder = ranks("", "")
    assert allranks("report", str(folder), "-q")[1] == "exit code 0: no test failed\n"
    (folder / "gloo-w2-g0-env/tests/rank-1.xml").write_text(
        RANK.format(name="test_x", result='<failure message="no"/>')
    )
    _, out, _ = allranks("report", str(folder), "--quiet")
    assert out.startswith("First failures:\n  FAILURE gloo-w2-g0-env / tests: t::test_x\n")
    assert out.endswith("exit code 1: tests failed\n")
    assert "passed" not in out


def test_report_puts_the_cell_into_class_names_on_request(allranks, ranks):
    folder = ranks("", "")
    allranks("report", str(folder))
    assert ' classname="t" ' in (folder / "junit.xml").read_text()
    allranks("report", str(folder), "--cell-in-classname")
    assert ' classname="gloo-w2-g0-env.tests.t" ' in (folder / "junit.xml").read_text()


def test_report_names_every_file_of_a_split_report(allranks, ranks, monkeypatch):
    folder = ranks("")
    many = "".join(f'<testcase classname="t" name="test_{number}"/>' for number in range(50))
    (folder / "gloo-w1-g0-env/tests/rank-0.xml").write_text(f"<testsuite>{many}</testsuite>")
    allranks("report", str(folder))  # imports the module that the next line patches
    usual = JUnitForm
    monkeypatch.setattr("allranks.report.junit_case.JUnitForm", lambda **options: usual(file_limit=10_000, **options))
    _, out, _ = allranks("report", str(folder))
    assert f"report: {folder}/junit.xml\n        {folder}/junit-2.xml\n" in out


def test_report_takes_durations_from_the_results(allranks, repository, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(repository / "cache"))
    jobs = [{"cell": "gloo-w1", "suite": "s", "id": "gloo-w1/s"}]
    manifest = {"schema": 2, "run_id": "r", "cells": {"gloo-w1": {"backend": "gloo"}}, "jobs": jobs}
    attempt = repository / "r/cells/gloo-w1/s/attempt-1"
    attempt.mkdir(parents=True)
    (repository / "r/run.json").write_text(json.dumps(manifest))
    (attempt / "job.json").write_text(json.dumps({"schema": 2, "world_size": 1, "collected": []}))
    (attempt / "rank-0.xml").write_text("<testsuite><testcase classname='t' name='a' time='1.25'/></testsuite>")
    for _ in range(2):
        allranks("report", "r", "--durations", "mine.json")
    assert json.loads((repository / "mine.json").read_text())["seconds"] == {"s": {"gloo": {"t::a": 1.25}}}


def test_report_of_only_skips_is_exit_code_5_unless_allowed(allranks, ranks):
    folder = str(ranks('<skipped type="pytest.skip" message="no GPU"/>'))
    assert allranks("report", folder)[0] == 5
    assert allranks("report", folder, "--allow-nothing-ran")[0] == 0


def test_several_folders_are_read_as_their_common_parent(allranks, ranks, monkeypatch):
    folder = ranks("", "")
    for name in ("gloo-w1-g0-env", "gloo-w3-g0-env"):
        (folder / name / "tests").mkdir(parents=True)
        (folder / name / "tests" / "rank-0.xml").write_text(RANK.format(name="test_x", result=""))
    (folder / "coverage.xml").write_text("not read")
    monkeypatch.chdir(folder)
    code, out, _ = allranks("report", "gloo-w1-g0-env", f"{folder}/gloo-w2-g0-env", "--json")
    assert code == 0, out
    output = json.loads(out)
    assert [job["cell"] for job in output["jobs"]] == ["gloo-w1-g0-env", "gloo-w2-g0-env"]
    assert output["files"]["page"] == f"{folder}/report.html"
    assert allranks("report", "gloo-w1-g0-env", "gloo-w3-g0-env", "--allow-nothing-ran")[0] == 3
    assert allranks("report", ".", "--ignore", "coverage.xml")[0] == 3, "of all three"


@pytest.mark.parametrize(
    ("folders", "message"),
    [(("ranks", "nowhere"), "There is no folder"), ((".", "ranks"), "already contains the other folders")],
)
def test_folders_that_cannot_be_combined_are_rejected(allranks, ranks, monkeypatch, folders, message):
    monkeypatch.chdir(ranks("").parent)
    code, out, err = allranks("report", *folders)
    assert (code, out, message in err) == (2, "", True)


@pytest.fixture
def newest(tmp_path, ranks, monkeypatch):
    """A folder of all runs, whose newest run has a passed test."""
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    results.mkdir()
    (results / "latest").symlink_to(ranks(""), target_is_directory=True)
    return results / "latest"


def test_report_reads_the_newest_run_by_default(allranks, newest):
    code, out, _ = allranks("report")
    assert code == 0
    assert f"page: {newest.resolve() / 'report.html'}" in out


def test_report_opens_the_page(allranks, newest, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or len(opened) > 1)
    assert "no browser could be started" in allranks("report", "--open")[1]
    assert "browser" not in allranks("report", str(newest), "--open")[1]
    assert opened == [(newest.resolve() / "report.html").as_uri()] * 2


def test_report_without_a_run_is_an_error_with_a_remedy(allranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = allranks("report")
    assert code == 2
    assert "There is no results folder results/latest" in err
    assert "allranks run" in err


def test_pytorchs_layout_is_written_on_request(allranks, ranks):
    folder = ranks("", "")
    assert "PyTorch" not in allranks("report", str(folder))[1]
    assert not (folder / "test-reports").exists()
    assert f"\nPyTorch's layout: {folder}/test-reports\n" in allranks("report", str(folder), "--layout", "pytorch")[1]
    assert list((folder / "test-reports").rglob("*.xml"))


def test_a_layout_that_cannot_be_written_is_an_error_after_the_report(allranks, ranks):
    folder = ranks("", "")
    (folder / "test-reports").write_text("a file")
    code, out, err = allranks("report", str(folder), "--layout", "pytorch")
    assert code == 4
    assert f"page: {folder}/report.html\n" in out
    assert "PyTorch's layout" not in out
    assert "layout in" in err


def test_the_pattern_and_the_world_size_are_options(allranks, tmp_path):
    for name in ("r0.xml", "r1.xml", "coverage.xml", "logs.zip"):
        (tmp_path / name).write_text(RANK.format(name="test_x", result=""))
    code, _, err = allranks("report", str(tmp_path))
    assert (code, "It has coverage.xml, logs.zip, r0.xml and 1 more." in err) == (2, True)
    read = ("report", str(tmp_path), "--ranks-xml", "r{rank}.xml")
    assert allranks(*read)[0] == 2
    assert allranks(*read, "--world-size", "2")[0] == 3
    assert allranks(*read, "--world-size", "2", "--ignore", "coverage.xml")[0] == 3
    assert allranks(*read, "--world-size", "2", "--ignore", "coverage.xml", "--ignore", "*.zip")[0] == 0
    assert allranks(*read, "--world-size", "3", "--ignore", "*")[0] == 3


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--world-size=0", "'0' is not a whole number from 1 to 16384"),
        ("--world-size=16385", "'16385' is not a whole number"),
        ("--world-size=four", "'four' is not a whole number"),
        ("--ranks-xml=rank-0.xml", "--ranks-xml 'rank-0.xml' is not valid."),
    ],
)
def test_an_invalid_pattern_or_world_size_is_rejected(allranks, ranks, option, message):
    code, _, err = allranks("report", str(ranks("")), option)
    assert (code, message in err) == (2, True)
