"""The gate's own decision, over every way in which the jobs before it can end."""

import os
from pathlib import Path

import pytest
from hosted import Site, read_workflow, run_job

DIST = Path(__file__).parents[2] / ".github" / "workflows" / "dist.yml"

RESULTS = ("success", "failure", "cancelled", "skipped")


@pytest.fixture
def gate(tmp_path):
    """``gate(run="failure", code="1")``: the gate's job, where all else went well."""
    site = Site(
        workflow=read_workflow(DIST),
        inputs={},
        repository=tmp_path / "none",
        folder=tmp_path,
        environ={"PATH": os.environ["PATH"]},
    )

    def decide(*, planned="2", reported="2", code="0", selected="", reasons=(), **results):
        outputs = {
            "plan": {"attempt": "1", "matrix": "{}", "jobs": planned, "selected": selected},
            "image": {"attempt": "1"},
            "run": {},
            "report": {"jobs": reported, "code": code},
        }
        outputs = {job: {"reason": "", "refused": "", **of_job} for job, of_job in outputs.items()}
        for job, reason in dict(reasons).items():
            outputs[job]["refused" if job == "run" else "reason"] = reason
        needs = {
            job: {"result": results.get(job, "success"), "outputs": outputs.get(job, {})}
            for job in ("plan", "image", "run", "report")
        }
        return run_job(site, "gate", needs)

    return decide


def test_it_opens_when_all_is_accounted_for_and_good(gate):
    job = gate()
    assert job.result == "success"
    assert job.summary == "**The gate is open:** 2 planned jobs, all accounted for and good.\n"


def test_it_says_that_a_label_left_cells_out(gate):
    job = gate(selected="gloo-w2")
    assert job.result == "success"
    assert "A label of the pull request has selected these cells alone: `gloo-w2`" in job.summary
    assert [annotation["title"] for annotation in job.annotations] == ["Not all cells"]


@pytest.mark.parametrize("job", ["plan", "image", "run", "report"])
@pytest.mark.parametrize("result", RESULTS[1:])
def test_a_job_that_did_not_succeed_closes_it(gate, job, result):
    ended = gate(**{job: result})
    assert ended.result == "failure"
    assert f"{job}: {result} where it must be success" in ended.summary


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ({"code": "1"}, "exit code of the merged report: 1 where it must be 0"),
        ({"code": ""}, "exit code of the merged report: nothing where it must be 0"),
        ({"reported": "1"}, "jobs in the report: 1 where it must be 2"),
        ({"reported": "3"}, "jobs in the report: 3 where it must be 2"),
        ({"reported": ""}, "jobs in the report: nothing where it must be 2"),
        ({"planned": "0", "reported": "0"}, "nothing was planned"),
        ({"planned": "", "reported": ""}, "nothing was planned"),
        ({"planned": "two", "reported": "two"}, "nothing was planned"),
    ],
)
def test_a_count_or_code_that_is_not_right_closes_it(gate, results, reason):
    ended = gate(**results)
    assert ended.result == "failure"
    assert reason in ended.summary
    assert "open" not in ended.summary


def test_whatever_the_jobs_before_it_came_to_the_gate_is_no_skipped_job():
    assert read_workflow(DIST)["jobs"]["gate"]["if"] == "always()"


NOTHING = (
    "There is nothing to run: `x` <b>, 50% ##[add-mask]y ::error::z [a](b) $(touch evil) %0A::debug::w (exit code 2)"
)
NO_PLAN = {"plan": "failure", "image": "skipped", "run": "skipped", "report": "skipped"}


def test_without_a_plan_its_reason_comes_first_and_the_consequences_are_one_line(gate):
    ended = gate(
        planned="", reported="", code="", reasons={"plan": "There is nothing to run. (exit code 2)"}, **NO_PLAN
    )
    assert ended.summary == (
        "**The gate is closed:** plan: There is nothing to run. \\(exit code 2\\)\n\n"
        "- the job plan: failure where it must be success\n"
        "- without a plan there is nothing to run: image skipped, run skipped, report skipped\n"
    )
    [annotation] = ended.annotations
    assert annotation["title"] == "The gate is closed"
    assert annotation["message"] == "plan: There is nothing to run. (exit code 2)"


@pytest.mark.parametrize(
    ("reasons", "cause"),
    [
        ({"image": "No base.", "report": "No base. (batches a, b; exit code 4)"}, "image: No base."),
        ({"run": "A fork.", "report": "The job left no results. (exit code 3)"}, "run: A fork."),
        ({"report": "No driver. (batch a; exit code 4)"}, "No driver. \\(batch a; exit code 4\\)"),
        ({}, ""),
    ],
)
def test_the_first_job_that_says_why_has_the_cause(gate, reasons, cause):
    ended = gate(reasons=reasons, run="failure", code="4")
    assert ended.summary.startswith(f"**The gate is closed:** {cause}\n\n- the jobs run: failure where")
    assert ended.annotations[0]["message"] == (
        cause.replace("\\", "") or "the jobs run: failure where it must be success"
    )


def test_no_reason_is_a_command_or_markdown_or_code(gate, tmp_path):
    ended = gate(reasons={"plan": NOTHING}, **NO_PLAN)
    [annotation] = ended.annotations
    assert annotation["message"] == "plan: " + NOTHING.replace("%", "%25")
    head, *_ = ended.log.split("::stop-commands::")
    assert head.count("\n") == 2, "its step, and the annotation"
    assert "\\`x\\` \\<b\\>, 50% \\#\\#\\[add-mask\\]y" in ended.summary
    assert not list(tmp_path.rglob("evil"))


def test_a_reason_opens_nothing_and_closes_nothing(gate):
    assert gate(reasons={"report": "left from before"}).result == "success"
