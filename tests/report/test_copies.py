"""Results that are there twice, results of two runs, and files that lie elsewhere."""

import shutil

import pytest

from allranks.errors import ExitCode
from allranks.protocol.records import JOURNAL, SCHEMA, Finished, JobStarted, Passed, encode
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge

CELL = "gloo-w2-g0-env"
JOB = f"{CELL}/collectives"
A, B, C = (f"s/test_a.py::test_{name}" for name in ("one", "two", "three"))
TIMED = {name: {"outcome": "passed", "time": time} for name, time in ((A, 0.1), (B, 0.2), (C, 0.3))}


def judged(folder):
    suites: list[CellSuite] = []
    merged = merge(folder, environ={}, observers=[suites.append])
    bad = [(test.name, test.verdict.message) for suite in suites for test in suite.tests if test.verdict.is_bad]
    return bad, merged, exit_code(merged, nothing_ran_allowed=False)


@pytest.mark.parametrize("outcome", ["failed", "passed"])
def test_two_files_of_one_rank_are_an_error_even_if_they_say_the_same(run_folder, outcome):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    folder = run_folder.attempt(JOB)
    other = run_folder.rank(JOB, 0, {A: outcome}, number=2)
    shutil.move(other, folder / "rank-00.xml")
    shutil.rmtree(other.parent)
    bad, _, code = judged(run_folder.path)
    assert bad[0] == (
        "rank 0",
        "rank-0.xml and rank-00.xml belong to the same rank, 0: the worse outcome of each test counts.",
    )
    assert [name for name, _ in bad[1:]] == (["test_one"] if outcome == "failed" else [])
    assert code is ExitCode.UNACCOUNTED


def test_results_in_the_folder_of_another_job_are_an_error_that_names_that_job(run_folder):
    for cell in (CELL, "gloo-w2-g0-tcp"):
        run_folder.both(f"{cell}/collectives", TIMED)
    shutil.copy(run_folder.attempt(JOB) / "job.json", run_folder.attempt("gloo-w2-g0-tcp/collectives") / "job.json")
    bad, _, code = judged(run_folder.path)
    assert bad == [("job.json", f"job.json belongs to another job, {CELL} / collectives.")]
    assert code is ExitCode.UNACCOUNTED


def test_a_journal_in_the_folder_of_another_job_is_an_error_that_names_that_job(run_folder):
    run_folder.job(JOB, collected=[A])
    passed = Passed(nodeid=A, ranks=(0, 1), arrived=(1.0, 1.0), seconds=(0.1, 0.1), world_size=2)
    began = JobStarted(schema=SCHEMA, run_id="r1", cell="other", suite="collectives", attempt=1, world_size=2)
    (run_folder.attempt(JOB) / JOURNAL).write_bytes(
        b"".join(encode(record) + b"\n" for record in (began, passed, Finished(status=0)))
    )
    bad, _, code = judged(run_folder.path)
    assert bad == [(JOURNAL, f"{JOURNAL} belongs to another job, other / collectives.")]
    assert code is ExitCode.UNACCOUNTED


def test_loose_ranks_of_two_jobs_in_one_folder_are_an_error(run_folder, tmp_path):
    for rank, cell in enumerate((CELL, "gloo-w2-g0-tcp")):
        text = run_folder.rank(JOB, rank, {A: "passed"}).read_text()
        said = "".join(
            f'<property name="allranks.{name}" value="{value}"/>' for name, value in (("cell", cell), ("suite", "s"))
        )
        (tmp_path / "loose").mkdir(exist_ok=True)
        (tmp_path / f"loose/rank-{rank}.xml").write_text(text.replace("<properties>", f"<properties>{said}", 1))
    bad, _, code = judged(tmp_path / "loose")
    assert bad == [("rank-1.xml", "rank-1.xml belongs to another job, gloo-w2-g0-tcp / s.")]
    assert code is ExitCode.UNACCOUNTED


def test_results_of_another_run_are_an_error_that_names_both(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, run_id="r2")
    bad, _, code = judged(run_folder.path)
    assert bad == [("run", "These results belong to run r2, but the others belong to run r1.")]
    assert code is ExitCode.UNACCOUNTED


def test_without_a_plan_the_run_that_most_results_are_of_is_the_run(run_folder):
    for cell, run in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        run_folder.both(f"{cell}/s", {A: "passed"}, run_id=run)
    bad, merged, _ = judged(run_folder.path)
    assert len(bad) == 1
    assert [suite.cell for suite in merged.suites if suite.counts.errors] == ["c"]


def test_a_ranks_file_that_is_a_link_out_of_the_folder_is_not_read(run_folder, tmp_path):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    path = run_folder.attempt(JOB) / "rank-1.xml"
    shutil.move(path, tmp_path / "elsewhere.xml")
    path.symlink_to(tmp_path / "elsewhere.xml")
    bad, _, code = judged(run_folder.path)
    assert bad[0] == ("rank 1", "rank-1.xml is a link, not a regular file, and was not read.")
    assert bad[1][1].startswith("rank 1 is missing: rank-1.xml is a link")
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("place", ["cells", f"cells/{CELL}", f"cells/{JOB}", f"cells/{JOB}/attempt-1"])
def test_a_folder_that_is_a_link_out_of_the_folder_is_not_read(run_folder, tmp_path, place):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    folder = run_folder.path / place
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    bad, merged, code = judged(run_folder.path)
    assert bad[0] == ("manifest", f"{place} could have results, but was not read.")
    assert (bad[1][0], merged.counts.passed, code) == ("job", 0, ExitCode.UNACCOUNTED)
