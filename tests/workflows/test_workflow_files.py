"""What holds for every workflow file of ours, and of the examples."""

import re
from pathlib import Path

import pytest
from expressions import Scope, filled
from hosted import INSTALLING, PINNED, read_workflow

ROOT = Path(__file__).parents[2]
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yml"))
MAY_WRITE = {
    "images": {"packages"},
    "pages": {"pages", "id-token"},
    "release": {"id-token", "attestations"},
}
"""What the jobs of a workflow may write, by its name; those of the others may not."""

VERSIONED = re.compile(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def name_of(path):
    return f"{path.parent.name}/{path.name}"


@pytest.fixture(params=[*OWN, *EXAMPLES], ids=name_of)
def path(request):
    return request.param


@pytest.fixture
def jobs(path):
    return read_workflow(path)["jobs"]


def steps_of(jobs):
    return [step for job in jobs.values() for step in job.get("steps", ())]


def test_there_are_some():
    assert {path.stem for path in OWN} == {"ci", "dist", "images", "nightly", "pages", "release"}
    assert EXAMPLES


def test_actions_and_workflows_of_others_are_pinned_by_commit_and_say_their_version(path):
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line.split("#")[0]]
    assert [line for line in lines if not VERSIONED.fullmatch(line)] == []


def test_no_expression_is_in_a_line_of_the_shell(jobs):
    assert [step["name"] for step in steps_of(jobs) if "${{" in step.get("run", "")] == []


def test_nobody_may_do_more_than_its_jobs_say(path, jobs):
    assert read_workflow(path)["permissions"] == {}
    rights = {name: right for job in jobs.values() for name, right in job["permissions"].items()}
    written = {name for name, right in rights.items() if right != "read"}
    assert written == MAY_WRITE.get(path.stem, set())


def test_no_checkout_leaves_a_token_behind(jobs):
    checkouts = [step for step in steps_of(jobs) if step.get("uses", "").startswith("actions/checkout@")]
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


def test_every_job_has_a_time_limit(jobs):
    assert [name for name, job in jobs.items() if "timeout-minutes" not in job and "uses" not in job] == []


def test_a_pull_request_never_runs_what_writes():
    [job] = read_workflow(ROOT / ".github" / "workflows" / "images.yml")["jobs"].values()
    allowed = re.findall(r"github\.event_name == '(\w+)'", job["if"])
    assert job["if"] == " || ".join(f"github.event_name == '{event}'" for event in allowed)
    assert set(allowed) == {"push", "schedule", "workflow_dispatch"}


def test_allranks_is_installed_in_the_same_way_by_all_jobs():
    steps = [step for path in OWN if path.stem != "ci" for step in steps_of(read_workflow(path)["jobs"])]
    ways = [step for step in steps if step["name"] == INSTALLING]
    assert len(ways) == 5
    assert all(way["run"] == ways[0]["run"] for way in ways)
    assert {way["env"]["LOCK"] for way in ways} == {
        "${{ steps.lock.outputs.hash }}",
        "${{ needs.plan.outputs.lock }}",
    }


def test_allranks_is_locked_in_the_same_way_by_both_workflows():
    dist, images = (
        read_workflow(ROOT / ".github" / "workflows" / f"{name}.yml")["jobs"] for name in ("dist", "images")
    )
    of_dist, of_images = ({step["name"]: step for step in job["steps"]} for job in (dist["plan"], images["push"]))
    for name in ("Find the commit of this workflow", "Build allranks from it", "Lock allranks and all that it needs"):
        assert of_dist[name]["run"] == of_images[name]["run"]


def test_what_the_host_s_python_does_imports_nothing_of_the_repository():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in read_workflow(path)["jobs"].values():
            for step in job.get("steps", ()):
                assert step.get("run", "").count("python3 ") == step.get("run", "").count("python3 -I "), step["name"]


def test_examples_give_what_the_workflow_takes():
    for path in EXAMPLES:
        [job] = read_workflow(path)["jobs"].values()
        called = ROOT / PINNED.fullmatch(job["uses"])["action"].partition("/allranks/")[2]
        call = read_workflow(called)["on"]["workflow_call"]
        assert set(job.get("with", {})) <= set(call["inputs"])
        assert set(job.get("secrets", {})) <= set(call["secrets"])
        for called_job in read_workflow(called)["jobs"].values():
            assert called_job["permissions"].items() <= job["permissions"].items()


def test_what_a_step_refuses_is_in_its_summary_too_and_passed_to_the_gate(path, jobs):
    for step in steps_of(jobs):
        titles = re.findall(r"::error title=([^:]+)::(?:\$why|\{why\})", step.get("run", ""))
        assert set(titles) <= set(re.findall(r"\*\*([^*:]+):\*\* (?:\$why|\{why\})", step.get("run", "")))
        if titles and path.stem == "dist":
            assert re.search(r"\breason=(?:\$why|\{why\})", step["run"])


def test_a_merge_queue_starts_what_a_pull_request_starts(path):
    events = read_workflow(path)["on"]
    assert ("merge_group" in events) is ("pull_request" in events)


@pytest.mark.parametrize("name", ["ci", "dist"])
def test_no_entry_of_a_merge_queue_ends_another(name):
    """Each has a ref of its own."""
    concurrency = read_workflow(ROOT / ".github" / "workflows" / f"{name}.yml")["concurrency"]
    queued = [f"refs/heads/gh-readonly-queue/main/pr-{number}" for number in (1, 2)]
    inputs = {"called": None, "name": None}
    github = {"event_name": "merge_group", "run_id": "1"}
    scopes = [Scope({"github": {**github, "ref": ref}, "inputs": inputs}) for ref in queued]
    assert len({filled(concurrency["group"], scope) for scope in scopes}) == 2
    assert filled(concurrency["cancel-in-progress"], scopes[0]) is False
