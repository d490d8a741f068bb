"""Results of several machines below one folder: what belongs together is one run, what does not is told apart."""

import json
import shutil

import pytest

from allranks.errors import UsageError
from allranks.report.input_rule import InputRule
from allranks.report.merging import merge

A, B = "gloo-w2-g0-env/s", "gloo-w2-g0-tcp/s"


@pytest.fixture
def gathered(part, tmp_path):
    """Two machines, each with a plan and a job of its own."""
    for place, job in (("machine-1/r1", A), ("machine-2/results/r1", B)):
        part(place).manifest(job)
        part(place).both(job, {"t.py::test_x": "passed"}, run_id="r1")
    return tmp_path / "gathered"


@pytest.fixture
def merged(gathered):
    """Merges, and gives what each job came to."""

    def of(**options):
        found = []
        run = merge(gathered, observers=[found.append], **options)
        return run, {suite.id: suite for suite in found}

    return of


def kinds(suite):
    return {test.nodeid: test.verdict.kind.value for test in suite.tests}


def test_parts_of_one_run_are_one_report(merged, gathered):
    run, suites = merged()
    assert [kinds(suite) for suite in suites.values()] == [{"t.py::test_x": "passed"}] * 2
    assert (run.run_id, run.planned, run.notes) == ("r1", {A, B}, ())
    assert {job: suite.folder for job, suite in suites.items()} == {
        A: f"machine-1/r1/cells/{A}/attempt-1",
        B: f"machine-2/results/r1/cells/{B}/attempt-1",
    }
    assert (gathered / "junit.xml").exists()


def test_axes_come_from_the_part_that_says_them(merged):
    _, suites = merged()
    assert all(suite.axes == {"backend": "gloo", "world_size": 2} for suite in suites.values())


def test_a_job_that_a_part_planned_and_lost_is_an_error(merged, gathered):
    shutil.rmtree(gathered / "machine-2/results/r1/cells")
    _, suites = merged()
    assert "left no results" in suites[B].tests[0].verdict.message


def test_a_plan_above_the_parts_says_what_should_have_come(merged, gathered, part):
    part(".").manifest(A, B)
    shutil.rmtree(gathered / "machine-2")
    _, suites = merged()
    assert "left no results" in suites[B].tests[0].verdict.message
    assert kinds(suites[A]) == {"t.py::test_x": "passed"}


def test_a_part_that_was_gathered_twice_counts_once(merged, gathered):
    shutil.copytree(gathered / "machine-1", gathered / "machine-1 (1)")
    run, suites = merged()
    assert suites[A].counts.tests == 1
    assert [note for note in run.notes if "is a copy of" in note]
    assert not suites[A].counts.bad


@pytest.mark.parametrize("again", ["again/r1", "a-first/r1"])
def test_of_two_machines_attempts_at_one_job_the_later_counts(merged, part, again):
    machine = part(again)
    machine.manifest(A)
    machine.both(A, {"t.py::test_x": "failed"}, run_id="r1", started=2000.0)
    _, suites = merged()
    assert kinds(suites[A]) == {"t.py::test_x": "failure"}
    assert (suites[A].attempt, suites[A].folder) == (2, f"{again}/cells/{A}/attempt-1")


@pytest.mark.parametrize("again", ["again/r1", "a-first/r1"])
def test_what_failed_on_the_machine_before_is_flaky(merged, part, again):
    machine = part(again)
    machine.both(A, {"t.py::test_x": "failed"}, run_id="r1", started=500.0)
    _, suites = merged()
    [test] = suites[A].tests
    assert test.is_flaky
    assert [attempt.number for attempt in test.earlier] == [1]


def test_an_attempt_without_a_record_is_not_outdone_by_one_of_another_machine(merged, part):
    """Nobody knows that the good one came after it."""
    part("again/r1").rank(A, 0, {"t.py::test_x": "passed"})
    _, suites = merged()
    assert "job.json is missing" in suites[A].tests[0].verdict.message


def test_the_order_on_a_machine_stays_where_several_have_attempts(merged, part):
    machine = part("machine-1/r1")
    machine.rank(A, 0, {"t.py::test_x": "passed"}, number=2)
    part("another/r1").both(A, {"t.py::test_x": "passed"}, run_id="r1", started=5.0)
    _, suites = merged()
    assert suites[A].folder == f"machine-1/r1/cells/{A}/attempt-2"
    assert "job.json is missing" in suites[A].tests[0].verdict.message


def test_a_later_attempt_counts_whatever_its_machine_calls_it(merged, part):
    part("machine-3/r1").both(A, {"t.py::test_x": "failed"}, run_id="r1", started=2000.0)
    part("machine-1/r1").job(A, number=2, run_id="r1", started=1500.0, collected=[])
    _, suites = merged()
    assert suites[A].folder == f"machine-3/r1/cells/{A}/attempt-1"


@pytest.mark.parametrize(("here", "lost"), [((1, 2, 4), (3,)), ((1, 4), (2, 3)), ((1,), (2, 3, 4))])
def test_a_shard_whose_machine_is_lost_is_missed_though_no_plan_names_it(part, tmp_path, here, lost):
    """Each machine plans its own shard, and states how many there are."""
    for number in here:
        job = f"gloo-w2-g0-env/s@{number}of4"
        machine = part(f"machine-{number}/r1")
        machine.manifest(job)
        share = {"suite": "s", "number": number, "count": 4, "split": "same", "elsewhere": 3}
        machine.both(job, {f"t.py::test_{number}": "passed"}, run_id="r1", share=share)
    run = merge(tmp_path / "gathered")
    missed = [suite.suite for suite in run.suites if suite.counts.bad]
    assert missed == [f"s@{number}of4" for number in lost]


def test_an_empty_plan_of_a_part_is_damaged(merged, part):
    (part("machine-4/r1").path / "run.json").write_text("")
    _, suites = merged()
    assert "In machine-4/r1: run.json is damaged" in suites["run/manifest"].tests[0].verdict.text


def test_another_run_in_the_folder_is_said_and_not_counted(merged, part):
    other = part("old/r0")
    other.manifest(A, run_id="r0")
    other.both(A, {"t.py::test_x": "failed"}, run_id="r0", started=9000.0)
    run, suites = merged()
    assert run.run_id == "r1"
    messages = {test.nodeid: test.verdict.message for test in suites[A].tests}
    assert "This job also has results of run r0" in messages["allranks::run"]
    assert kinds(suites[A])["t.py::test_x"] == "passed"


def test_a_job_of_another_run_alone_is_an_error(merged, part):
    job = "gloo-w2-g0-file/s"
    part("old/r0").both(job, {"t.py::test_x": "passed"}, run_id="r0")
    _, suites = merged()
    assert [test.verdict.message for test in suites[job].tests if test.name == "run"]


def test_parts_with_different_policies_are_not_of_one_matrix_file(merged, part):
    part("machine-2/results/r1").manifest(B, policy={"skip": "pass"})
    _, suites = merged()
    [problem] = suites["run/manifest"].tests
    assert "machine-2/results/r1/run.json and machine-1/r1/run.json have different policies" in problem.verdict.text


def test_a_damaged_plan_of_a_part_is_named(merged, gathered):
    path = gathered / "machine-2/results/r1/run.json"
    path.write_text(path.read_text()[:-30])
    _, suites = merged()
    assert "In machine-2/results/r1: run.json is damaged" in suites["run/manifest"].tests[0].verdict.text
    assert kinds(suites[B]) == {"t.py::test_x": "passed"}


def test_a_plan_that_leads_out_of_the_folder_is_not_read(merged, gathered, tmp_path):
    path = gathered / "machine-2/results/r1/run.json"
    shutil.move(path, tmp_path / "secret.json")
    path.symlink_to(tmp_path / "secret.json")
    _, suites = merged()
    assert "points outside the results folder" in suites["run/manifest"].tests[0].verdict.text


def test_a_link_to_a_part_is_not_followed(merged, gathered):
    (gathered / "machine-2/results/latest").symlink_to("r1")
    run, suites = merged()
    assert (len(suites), run.notes) == (2, ())


@pytest.mark.parametrize("place", ["tool", "."])
@pytest.mark.parametrize("document", [{"tool": "other"}, [1], "text", {"a": "x" * 2000}])
def test_a_run_json_of_another_program_is_none_of_ours(merged, part, place, document):
    (part(place).path / "run.json").write_text(json.dumps(document))
    _, suites = merged()
    assert set(suites) == {A, B}


@pytest.mark.parametrize("text", ["\0" * 500, '{"schema":2,"run_id":"r1","jo', "[" * 100_000, ""])
def test_a_plan_that_is_damaged_and_has_lost_its_jobs_is_an_error_unless_it_is_ignored(merged, gathered, text):
    shutil.rmtree(gathered / "machine-2/results/r1/cells")
    (gathered / "machine-2/results/r1/run.json").write_text(text)
    _, suites = merged()
    [test] = suites["run/manifest"].tests
    assert "--ignore machine-2/results/r1/run.json" in test.verdict.text
    assert set(merged(rule=InputRule(ignore=("machine-2",)))[1]) == {A}


def test_a_plan_that_names_its_program_late_is_a_plan(merged, gathered):
    path = gathered / "machine-2/results/r1/run.json"
    shutil.rmtree(path.parent / "cells")
    path.write_text(json.dumps({"command": "x" * 2000, **json.loads(path.read_text())}))
    assert "left no results" in merged()[1][B].tests[0].verdict.message


def test_a_plan_that_can_be_read_cannot_be_ignored(merged, gathered):
    shutil.rmtree(gathered / "machine-2/results/r1/cells")
    assert set(merged(rule=InputRule(ignore=("*",)))[1]) == {A, B}


@pytest.mark.parametrize("target", ["/nonexistent", "nowhere", "machine-3"])
def test_a_broken_link_may_have_led_to_a_part(merged, gathered, target):
    (gathered / "machine-3").symlink_to(target)
    [test] = merged()[1]["run/manifest"].tests
    assert test.verdict.message == "machine-3 could have results, but was not read."


def test_a_broken_link_in_the_place_of_a_cell_is_an_error(merged, gathered):
    (gathered / "machine-1/r1/cells/gloo-w4-g0-env").symlink_to("/nonexistent")
    [test] = merged()[1]["run/manifest"].tests
    assert "machine-1/r1/cells/gloo-w4-g0-env could have results" in test.verdict.message


def test_results_that_lie_in_no_jobs_folder_are_missed_by_name(merged, gathered):
    lost = gathered / "machine-3"
    shutil.copytree(gathered / f"machine-1/r1/cells/{A}", lost)
    shutil.copy(lost / "attempt-1/rank-0.xml", lost / "rank-7.xml")
    shutil.copytree(lost / "attempt-1", lost / "again")
    _, suites = merged()
    [test] = suites["run/manifest"].tests
    said = "machine-3/rank-7.xml, machine-3/again/job.json, machine-3/again/rank-0.xml and 4 more"
    assert said in test.verdict.message
    assert test.verdict.is_bad


@pytest.mark.parametrize("lost", ["rank-1.xml", None])
def test_two_copies_of_one_attempt_that_differ_are_an_error(merged, gathered, lost):
    shutil.copytree(gathered / "machine-1", gathered / "again")
    copy = gathered / f"again/r1/cells/{A}/attempt-1"
    if lost:
        (copy / lost).unlink()
    else:
        (copy / "rank-1.xml").write_text((copy / "rank-1.xml").read_text().replace("passed", "failed"))
    _, suites = merged()
    problem, *_ = [test.verdict for test in suites[A].tests if test.verdict.is_bad and test.name == "job"]
    assert "but their results differ: one of them is damaged." in problem.message


@pytest.mark.parametrize("name", ["results.xml", "results.xml.gz", "machine-3.zip", "journal.jsonl", "job.json"])
def test_what_could_have_results_beside_a_run_is_an_error(merged, gathered, name):
    (gathered / "elsewhere").mkdir()
    (gathered / "elsewhere" / name).touch()
    [test] = merged()[1]["run/manifest"].tests
    assert test.verdict.message == f"elsewhere/{name} could have results, but was not read."


def test_merged_reports_of_the_parts_are_no_results(merged, gathered):
    for place in (".", "machine-1/r1", "machine-2/results/r1"):
        (gathered / place / "junit.xml").write_text('<testsuites name="allranks"/>')
    assert "run/manifest" not in merged()[1]
    (gathered / "machine-2/junit.xml").write_text('<testsuites name="allranks"/>')
    assert "run/manifest" not in merged()[1]
    (gathered / "machine-3").mkdir()
    (gathered / "machine-3/junit.xml").write_text('<testsuites name="allranks"/>')
    assert "run/manifest" in merged()[1]


@pytest.mark.parametrize("name", ["job.json", "journal.jsonl"])
def test_the_jobs_of_a_run_without_their_folder_cells_are_nothing_to_merge(part, tmp_path, name):
    run = part("machine-1")
    run.job(A, error={"kind": "infrastructure", "what": "The container is gone."})
    (run.attempt(A) / "job.json").rename(run.attempt(A) / name)
    with pytest.raises(UsageError, match="nothing to merge") as caught:
        merge(tmp_path / "gathered/machine-1/cells", environ={})
    assert f"It has {A}/attempt-1/{name}." in caught.value.why


def test_results_without_a_plan_are_noted(merged, gathered):
    for plan in gathered.glob("**/run.json"):
        plan.unlink()
    run, _ = merged()
    assert sum("these results have no run.json" in note for note in run.notes) == 1
