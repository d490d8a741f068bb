"""The records of a machine that cannot run its batch, and the merged report."""

import json
import shutil

import pytest

from allranks.errors import DeviceError, ExitCode, UsageError
from allranks.matrix.jobs import plan
from allranks.report.judge.exit_code import exit_code
from allranks.report.merging import merge
from allranks.runner.machines.planning import PlanOptions, plan_machines
from allranks.runner.machines.rejected_batch import recording_rejection
from allranks.runner.results_folder import JobTakenError, has_begun

TOO_FEW_GPUS = DeviceError("There are 2 GPUs too few.", why="No driver.", remedy="Install one.")


@pytest.fixture
def plan_file(expansion, tmp_path):
    """A plan of the run r1 for machines without GPUs and machines with two."""
    path = tmp_path / "plan.json"
    jobs = plan(expansion.matrix, expansion.cells)
    plan_machines(expansion, jobs, PlanOptions(
        run_id="r1", pytest_args=(), durations={}, most=256, minutes=20, plan_file=path,
    ))  # fmt: skip
    return path


@pytest.fixture
def reject(plan_file, tmp_path):
    """Make a machine fail; return its results folder."""

    def fail(error=TOO_FEW_GPUS, batch="cuda-g2-1of1", name="gpu"):
        def command():
            raise error

        with pytest.raises(type(error)):
            recording_rejection(command, tmp_path / name, plan_file, batch)
        return tmp_path / name / "r1"

    return fail


@pytest.fixture
def gather(plan_file, tmp_path):
    """Merge the results of machines under the plan."""

    def merged(*folders):
        gathered = tmp_path / "gathered"
        shutil.rmtree(gathered, ignore_errors=True)
        for folder in folders:
            shutil.copytree(folder, gathered / folder.parent.name)
        gathered.mkdir(exist_ok=True)
        shutil.copy(plan_file, gathered / "run.json")
        return merge(gathered, environ={})

    return merged


def records_in(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("job.json"))]


def first_attempts(folder):
    return {"/".join(path.parts[-3:-1]) for path in folder.glob("cells/*/*/attempt-1")}


def good_results(folder, *, started):
    """Replace the errors in a folder by passed attempts that started at this time."""
    for path in folder.rglob("job.json"):
        record = json.loads(path.read_text())
        record |= {"error": None, "engine": "process", "collected": ["t::a"], "started": started}
        path.write_text(json.dumps(record))
        for rank in range(record["world_size"]):
            case = '<testcase classname="t" name="a" time="1"/>'
            path.with_name(f"rank-{rank}.xml").write_text(f"<testsuite>{case}</testsuite>")
    return folder


def code_of(merged):
    return exit_code(merged, nothing_ran_allowed=True)


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (TOO_FEW_GPUS, "infrastructure", ExitCode.INFRASTRUCTURE),
        (UsageError("Another version."), "usage", ExitCode.USAGE),
        (KeyboardInterrupt(), "interrupted", ExitCode.INTERRUPTED),
        (ZeroDivisionError("oh"), "infrastructure", ExitCode.INFRASTRUCTURE),
    ],
    ids=["a device", "a request", "an interrupt", "a bug"],
)
def test_each_job_of_the_batch_has_the_error_and_its_exit_code(reject, error, kind, code):
    folder = reject(error)
    jobs = json.loads((folder / "run.json").read_text())["jobs"]
    assert {record["id"] for record in records_in(folder)} == {job["id"] for job in jobs} == first_attempts(folder)
    assert {record["error"]["kind"] for record in records_in(folder)} == {kind}
    assert {job["batch"] for job in jobs} == {"cuda-g2-1of1"}
    assert code_of(merge(folder, environ={})) == code


def test_an_interrupt_is_the_result_of_jobs_that_had_not_begun(reject, plan_file, tmp_path):
    job = next(reject().glob("cells/*/*"))
    (job / "attempt-1" / "job.json").unlink()
    code = recording_rejection(lambda: ExitCode.INTERRUPTED, tmp_path / "gpu", plan_file, "cuda-g2-1of1")
    assert code is ExitCode.INTERRUPTED
    newest = [record for record in records_in(tmp_path / "gpu") if record["attempt"] == 2]
    assert {record["error"]["kind"] for record in newest} == {"interrupted"}
    assert len(newest) == len(first_attempts(tmp_path / "gpu" / "r1")) - 1


def test_the_report_leads_with_the_error_and_names_the_batch(reject, gather):
    merged = gather(reject())
    assert code_of(merged) == ExitCode.INFRASTRUCTURE
    rejected, lost = merged.failures
    assert rejected.message == "There are 2 GPUs too few."
    assert rejected.impact.endswith("; batch cuda-g2-1of1")
    assert rejected.traceback == ("No driver.", "Install one.")
    assert "left no results" in lost.message
    assert lost.more >= rejected.more
    assert lost.impact.endswith("; batch cpu-g0-1of1")


def test_jobs_that_have_begun_are_not_changed(reject):
    folder = reject()
    job = next(folder.glob("cells/*/*"))
    (job / "attempt-1" / "job.json").unlink()
    reject()
    assert [path.name for path in job.iterdir()] == ["attempt-1"]
    assert has_begun(job)


def test_a_machine_that_fails_twice_reports_the_second_error(reject, gather):
    reject()
    merged = gather(reject(UsageError("Another version.")))
    assert merged.failures[0].message == "Another version."


def test_a_later_attempt_replaces_a_rejected_one(reject, gather):
    rejected, cpu = reject(), good_results(reject(batch="cpu-g0-1of1", name="cpu"), started=5e9)
    assert code_of(gather(rejected, cpu)) == ExitCode.INFRASTRUCTURE
    good = good_results(reject(name="again"), started=5e9)
    merged = gather(rejected, cpu, good)
    assert (code_of(merged), merged.counts.bad, merged.counts.flaky) == (ExitCode.OK, 0, 0)


def test_an_earlier_passed_attempt_does_not_replace_a_rejected_one(reject, gather):
    good = good_results(reject(name="first"), started=1e9)
    cpu = good_results(reject(batch="cpu-g0-1of1", name="cpu"), started=1e9)
    assert code_of(gather(cpu, good)) == ExitCode.OK
    assert code_of(gather(cpu, good, reject())) == ExitCode.INFRASTRUCTURE


def test_a_job_of_another_process_keeps_its_results(reject):
    assert not reject(JobTakenError("It is being run.")).exists()


@pytest.mark.parametrize("change", [
    lambda plan: plan["jobs"][0].update(suite="../../../evil"),
    lambda plan: plan["jobs"][0].update(cell=".."),
    lambda plan: plan.update(run_id="../evil"),
    lambda plan: plan.update(batches=[]),
])  # fmt: skip
def test_names_in_a_plan_cannot_lead_out_of_the_results_folder(reject, plan_file, tmp_path, monkeypatch, change):
    document = json.loads(plan_file.read_text())
    change(document)
    plan_file.write_text(json.dumps(document))
    digest = document["plan"]["digest"]
    monkeypatch.setattr("allranks.runner.machines.plan_file._digest", lambda _document: digest)
    reject(batch=None)
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def test_an_unreadable_plan_does_not_hide_the_error(reject, plan_file):
    plan_file.write_text("{")
    assert not reject().exists()
