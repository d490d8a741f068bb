"""``allranks compare``: two runs, two versions of torch, two cells."""

import json
import shutil
from pathlib import Path

import pytest

from allranks.plugins.history import comparison
from allranks.plugins.history.comparison import (
    ComparedJob,
    ComparedOutcome,
    Difference,
    compare,
    difference,
)
from allranks.report.status import Status

RANK = """<testsuites><testsuite name="pytest"><properties><property name="allranks.rank" value="0"/>
<property name="allranks.world_size" value="1"/></properties>{cases}</testsuite></testsuites>"""
RESULTS = {"P": "", "F": '<failure message="1 is not 2"/>', "S": '<skipped type="pytest.skip" message="no"/>'}


def run(path: Path, cells: dict[str, str]) -> Path:
    """A run with cells: the outcomes of the tests a, b, …; a dot for none. A cell's torch is behind its -t."""
    axes = {cell: {"backend": "gloo", "world_size": 1, "torch": cell.rpartition("-t")[2]} for cell in cells}
    jobs = [{"id": f"{cell}/s", "cell": cell, "suite": "s"} for cell in cells]
    path.mkdir(parents=True)
    plan = {"schema": 2, "run_id": path.name, "allranks": "0", "cells": axes, "jobs": jobs}
    (path / "run.json").write_text(json.dumps(plan))
    for cell, letters in cells.items():
        folder = path / "cells" / cell / "s" / "attempt-1"
        folder.mkdir(parents=True)
        record = {"schema": 2, "cell": cell, "suite": "s", "world_size": 1, "run_id": path.name, "started": 1.0}
        (folder / "job.json").write_text(json.dumps(record))
        cases = "".join(
            f'<testcase classname="t" name="{name}" time="0.1">{RESULTS[letter]}</testcase>'
            for name, letter in zip("abcdefg", letters, strict=False)
            if letter != "."
        )
        (folder / "rank-0.xml").write_text(RANK.format(cases=cases))
    return path


def differences(output):
    return {(test["test"], test["difference"]) for test in json.loads(output)["tests"]}


A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"
EXPECTED = {
    ("t::b", "fails"), ("t::c", "fixed"), ("t::d", "missing"), ("t::e", "added"), ("t::f", "skipped"), ("t::g", "runs"),
}  # fmt: skip


@pytest.fixture
def runs(tmp_path):
    old = run(tmp_path / "old", {"gloo-w1-g0-env-t1": "PPFP.PS"})
    new = run(tmp_path / "new", {"gloo-w1-g0-env-t1": "PFP.PSP"})
    return old, new


def test_two_runs_are_compared_test_by_test(allranks, runs):
    code, out, _ = allranks("compare", *map(str, runs))
    assert code == 1
    assert "fails in B (1):\n  t::b (gloo-w1-g0-env-t1 / s)\n      rank 0 failed: 1 is not 2\n" in out
    assert out.endswith("exit code 1: B fails, lacks or skips a test that A did not\n")
    code, out, _ = allranks("compare", *map(str, runs), "--json")
    assert (code, json.loads(out)["exit_code"], differences(out)) == (1, 1, EXPECTED)


@pytest.mark.parametrize("form", ["report.json", "junit.xml", "downloaded"])
def test_a_report_is_as_good_as_the_folder_of_a_run(allranks, runs, tmp_path, form):
    files = []
    for folder in runs:
        allranks("report", str(folder))
        downloaded = tmp_path / f"{folder.name}-report"
        downloaded.mkdir()
        shutil.copy(folder / ("junit.xml" if form == "junit.xml" else "report.json"), downloaded)
        files.append(downloaded if form == "downloaded" else downloaded / form)
    code, out, _ = allranks("compare", *map(str, files), "--json")
    assert (code, differences(out)) == (1, EXPECTED)


@pytest.mark.parametrize(
    "cases",
    [
        '<testcase name="a"><failure/></testcase><testcase name="a"/>',  # a failed call, a good tear-down
        '<testcase name="a"><skipped/><error/></testcase>',
        '<testcase name="a"><skipped/><flakyError/></testcase>',
        '<testcase name="a" failure="no"/>',
        '<testcase name="a"><error/></testcase></testsuite><testsuite name="s"><testcase name="a"/>',
        '</testsuite><testcase name="a"><error/></testcase><testsuite name="s">',
        '</testsuite><testsuite name="s" failures="1"><testcase name="a"/>',
        '</testsuite><testsuite name="s" tests="2"><testcase name="a"/>',
    ],
)
def test_no_failure_of_a_foreign_report_is_lost(allranks, tmp_path, cases):
    for name, content in (("a.xml", '<testcase name="a"/>'), ("b.xml", cases)):
        (tmp_path / name).write_text(f'<testsuites><testsuite name="s">{content}</testsuite></testsuites>')
    assert allranks("compare", str(tmp_path / "a.xml"), str(tmp_path / "b.xml"))[0] == 1


def test_results_outside_any_job_are_worse(allranks, runs):
    (runs[1] / "TEST-t.xml").write_text("<testsuite><testcase name='a'><failure/></testcase></testsuite>")
    code, out, _ = allranks("compare", str(runs[0]), str(runs[1]))
    assert code == 1
    assert "allranks::manifest (run / manifest)\n      TEST-t.xml could have results, but was not read." in out


def test_a_damaged_plan_beside_a_report_is_worse(allranks, runs, tmp_path):
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost/run.json").write_text("{")
    allranks("report", str(runs[0]))
    shutil.copy(runs[0] / "report.json", tmp_path / "lost")
    code, out, _ = allranks("compare", str(runs[0]), str(tmp_path / "lost"))
    assert (code, "run.json is damaged" in out) == (1, True)


def test_an_error_of_a_job_or_of_a_report_that_is_over_is_not_worse(allranks, runs, tmp_path):
    lost = tmp_path / "lost"
    shutil.copytree(runs[0], lost)
    shutil.rmtree(lost / "cells")
    (tmp_path / "a.xml").write_text("<testsuite failures='1'><testcase name='a'/></testsuite>")
    (tmp_path / "b.xml").write_text("<testsuite><testcase name='a'/></testsuite>")
    for name, one, other in (("job", lost, runs[1]), ("report", tmp_path / "a.xml", tmp_path / "b.xml")):
        _, out, _ = allranks("compare", str(one), str(other), "--json")
        assert (f"allranks::{name}", "fixed") in differences(out)
    assert allranks("compare", str(tmp_path / "b.xml"), str(tmp_path / "a.xml"))[0] == 1


def test_names_of_folders_and_times_in_names_of_suites_make_no_difference(allranks, tmp_path):
    properties = '<properties><property name="allranks.world_size" value="1"/></properties>'
    for number, name in enumerate(("before", "after")):
        (tmp_path / name).mkdir()
        suite = f'<testsuite name="TEST-T-2026112612000{number}">{properties}<testcase name="a"/></testsuite>'
        (tmp_path / name / "rank-0.xml").write_text(suite)
        assert allranks("compare", str(tmp_path / "before"), str(tmp_path / name))[:2] == SAME
    one, other = (tmp_path / name / "rank-0.xml" for name in ("before", "after"))
    assert allranks("compare", str(one), str(other))[:2] == SAME


def test_other_xml_beside_a_report_is_worse(allranks, tmp_path):
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "junit.xml").write_text("<testsuite><testcase name='a'/></testsuite>")
    assert allranks("compare", str(tmp_path / "before"), str(tmp_path / "after"))[:2] == SAME
    (tmp_path / "after/junit-rank1.xml").write_text("<testsuite><testcase name='a'/></testsuite>")
    code, out, _ = allranks("compare", str(tmp_path / "before"), str(tmp_path / "after"))
    assert (code, "junit-rank1.xml could have results" in out) == (1, True)


def test_the_xml_of_ranks_whose_number_is_not_stated_cannot_be_compared(allranks, runs, tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/rank-0.xml").write_text("<testsuite><testcase name='a'/></testsuite>")
    code, _, err = allranks("compare", str(runs[0]), str(tmp_path / "ranks"))
    assert (code, "The number of ranks of " in err) == (2, True)


def test_the_parts_of_a_report_are_one(allranks, tmp_path):
    for name, result in (("a", ""), ("b", "<failure/>")):
        (tmp_path / name).mkdir()
        for part in ("junit", "junit-2"):
            case = f'<testcase name="{part}">{result if part == "junit-2" else ""}</testcase>'
            suite = f'<testsuites name="allranks"><testsuite name="{part}">{case}</testsuite></testsuites>'
            (tmp_path / name / f"{part}.xml").write_text(suite)
    code, out, _ = allranks("compare", str(tmp_path / "a/junit.xml"), str(tmp_path / "b/junit.xml"), "--json")
    assert (code, differences(out)) == (1, {("junit-2", "fails")})


SAME = (0, "no test differs\nexit code 0: B is not worse than A\n")


def test_the_same_run_differs_in_nothing(allranks, runs):
    code, out, _ = allranks("compare", str(runs[0]), str(runs[0]))
    assert (code, out) == (0, "no test differs\nexit code 0: B is not worse than A\n")


def test_two_versions_of_torch_and_two_cells_are_parts_of_one_run(allranks, tmp_path):
    path = run(tmp_path / "r", {"gloo-w1-g0-env-t1.0": "PPF", "gloo-w1-g0-env-t2.0": "PFP"})
    for parts in (("torch=1.0", "torch=2.0"), ("gloo-w1-g0-env-t1.0", "gloo-w1-g0-env-t2.0")):
        code, out, _ = allranks("compare", *parts, "--in", str(path), "--json")
        assert (code, differences(out)) == (1, {("t::b", "fails"), ("t::c", "fixed")})
        assert json.loads(out)["tests"][0]["cell_a"] == "gloo-w1-g0-env-t1.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "nothing"], "There is no run"),
        (["torch=9", "torch=1", "--in", "old"], "has no cell 'torch=9'"),
        (["old", "torch=1"], "There is no run torch=1"),
        (["old", "empty"], "empty cannot be compared.\n  It has no results."),
        (["old", "broken.xml"], "broken.xml cannot be compared.\n  It is broken or cut short"),
        (["none.xml", "old"], "none.xml cannot be compared.\n  It has no results."),
        (["entity.xml", "old"], "It declares a document type"),
        (["odd.xml", "old"], 'In line 1, <testcase> has rc="1"'),
        (["page.xml", "page.xml"], "Its root element is <html>"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_what_cannot_be_compared_is_one_error(allranks, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.xml").write_text("<testsuites><testsuite>")
    (tmp_path / "none.xml").write_text("<testsuites/>")
    (tmp_path / "page.xml").write_text("<html/>")
    (tmp_path / "entity.xml").write_text("<!DOCTYPE x [<!ENTITY a 'b'>]><testsuites/>")
    (tmp_path / "odd.xml").write_text('<testsuite><testcase name="a" rc="1"/></testsuite>')
    code, out, err = allranks("compare", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_a_pass_that_needed_a_retry_is_not_worse():
    assert difference(Status.PASSED, Status.FLAKY) is Difference.FLAKY
    assert not Difference.FLAKY.is_worse


def test_jobs_are_matched_by_the_axes_that_are_not_compared():
    def job(torch, size, letter):
        axes = {"torch": torch, "world_size": size}
        return ComparedJob(cell=f"w{size}-t{torch}", suite="s", axes=axes, tests={"t": ComparedOutcome(Status(letter))})

    found = list(compare([job("1", "2", "P"), job("1", "4", "P")], [job("2", "2", "P"), job("2", "4", "F")]))
    assert [(test.kind, test.cells) for test in found] == [(Difference.FAILS, ("w4-t1", "w4-t2"))]


@pytest.mark.parametrize("schema", [0, 2, 99, "1", None])
def test_a_report_of_another_schema_is_refused(allranks, runs, schema):
    allranks("report", str(runs[0]))
    report = runs[0] / "report.json"
    report.write_text(json.dumps(json.loads(report.read_text()) | {"schema": schema}))
    code, _, err = allranks("compare", str(report), str(runs[1]))
    assert code == 2
    assert f"It is of schema {schema!r}, but this version of allranks reads schema 1." in err


def test_a_skip_whose_reason_reads_like_a_test_that_was_not_run_is_a_skip(allranks, tmp_path):
    for name, result in (("a", ""), ("b", '<skipped message="not run: no GPU"/>')):
        (tmp_path / f"{name}.xml").write_text(f'<testsuite name="s"><testcase name="a">{result}</testcase></testsuite>')
    _, out, _ = allranks("compare", str(tmp_path / "a.xml"), str(tmp_path / "b.xml"), "--json")
    assert differences(out) == {("a", "skipped")}


@pytest.mark.parametrize("form", ["", "report.json", "junit.xml"])
def test_a_test_that_was_not_run_is_missing_in_every_form_of_a_report(allranks, run_folder, part, form):
    job = "gloo-w2-g0-env/suite"
    before = part("before")
    for folder, tests in ((before, {A: "passed", B: "passed"}), (run_folder, {A: "passed"})):
        folder.manifest(job)
        folder.job(job, collected=[A, B], not_run=sorted({A, B} - tests.keys()), stop_reason="-x")
        for rank in range(2):
            folder.rank(job, rank, tests)
        allranks("report", str(folder.path))
    code, out, _ = allranks("compare", str(before.path / form), str(run_folder.path / form), "--json")
    assert (code, differences(out)) == (1, {(B, "missing")})


def test_pytests_subtests_are_noted(allranks, tmp_path):
    (tmp_path / "a.xml").write_text(
        '<testsuites name="pytest tests"><testsuite tests="2"><testcase name="a"/></testsuite></testsuites>'
    )
    note = "a.xml: pytest declares 2 tests but has 1, because it counts subtests"
    path = str(tmp_path / "a.xml")
    assert allranks("compare", path, path)[1].startswith(f"note on A: {note}\nnote on B: {note}\nno test differs\n")
    assert json.loads(allranks("compare", path, path, "--json")[1])["notes"] == {"a": [note], "b": [note]}


@pytest.mark.parametrize(
    "damage", ['{"schema": 1, "suites": 3}', '{"schema": 1, "suites": [{"cell": 1}]}', '{"schema": 1', "[]"]
)
def test_a_damaged_report_is_refused(allranks, runs, damage):
    allranks("report", str(runs[0]))
    report = runs[0] / "report.json"
    report.write_text('[{"generator": "allranks"}]' if damage == "[]" else f'{{"generator": "allranks", {damage[1:]}')
    code, out, err = allranks("compare", str(report), str(runs[1]))
    assert (code, out) == (2, "")
    assert "report.json cannot be compared." in err


def test_a_bug_of_ours_is_not_called_damage(allranks, runs, monkeypatch):
    def broken(*_, **__):
        raise KeyError

    monkeypatch.setattr(comparison, "status_of", broken)
    allranks("report", str(runs[0]))
    for form in ("report.json", "junit.xml"):
        code, _, err = allranks("compare", str(runs[0] / form), str(runs[0] / form))
        assert (code, "This is a bug in allranks." in err) == (4, True)
