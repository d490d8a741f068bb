"""The plan file: every machine rejects a different one and names the differences."""

import json

import pytest

from allranks.errors import ExitCode, UsageError
from allranks.matrix.jobs import plan
from allranks.report.folder import read_manifest
from allranks.runner.machines.plan_file import load_part
from allranks.runner.machines.planning import PlanOptions, plan_machines

KNOWN = {"split": {"gloo": {"t": 9.0}}, "tiny": {"gloo": {"t": 5.0}}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.json"


@pytest.fixture
def make(path):
    def make_plan(expansion, **changes):
        options = {
            "run_id": "r1",
            "pytest_args": (),
            "durations": KNOWN,
            "most": 256,
            "minutes": 1,
            "plan_file": path,
        }
        jobs = plan(expansion.matrix, expansion.cells)
        text, notes = plan_machines(expansion, jobs, PlanOptions(**{**options, **changes}))
        return json.loads(text)["include"], notes

    return make_plan


@pytest.fixture
def edit(path):
    def edit_document(change):
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit_document


def test_each_job_is_in_exactly_one_batch(make, path, expansion):
    entries, _ = make(expansion)
    found = [job for entry in entries for job in load_part(expansion, path, entry["batch"]).jobs]
    assert sorted(job.id for job in found) == sorted(job.id for job in plan(expansion.matrix, expansion.cells))
    assert {job.id: job for job in found} == {job.id: job for job in plan(expansion.matrix, expansion.cells)}


def test_a_batch_has_cells_of_one_torch_version(make, path, load_text, document):
    text = document.replace("[matrix]", '[matrix]\ntorch = ["2.13.0", "2.14.1"]')
    expansion = load_text(text.replace('torch = "2.13.0"\n', "").replace('torch = "2.14.1"\n', ""))
    entries, _ = make(expansion)
    parts = [load_part(expansion, path, entry["batch"]) for entry in entries]
    assert sorted(job.id for part in parts for job in part.jobs) == sorted(
        job.id for job in plan(expansion.matrix, expansion.cells)
    )
    assert all(len({job.image for job in part.jobs}) == 1 for part in parts)
    assert {entry["image"] for entry in entries} == {f"{i}-t{v}" for i in ("cpu", "cuda") for v in ("2.13.0", "2.14.1")}


def test_an_entry_has_the_fields_that_a_workflow_needs(make, expansion):
    entries, _ = make(expansion)
    cpu, gpu = entries[0], entries[-1]
    assert list(cpu) == [
        "slug",
        "batch",
        "runs_on",
        "hosted",
        "image",
        "engine",
        "timeout_minutes",
        "step_timeout_minutes",
        "limit_seconds",
        "cells",
        "gpus",
        "seconds",
        "jobs",
    ]
    assert (cpu["runs_on"], cpu["image"], cpu["engine"], cpu["gpus"]) == (["ubuntu-latest"], "cpu", "auto", 0)
    assert (gpu["runs_on"], gpu["image"], gpu["engine"], gpu["gpus"]) == (["self-hosted", "gpu"], "cuda", "docker", 2)
    assert cpu["limit_seconds"] < 60 * cpu["step_timeout_minutes"] < 60 * cpu["timeout_minutes"]
    assert cpu["batch"].startswith(f"{cpu['slug']}@")


def test_the_batches_are_summarized(make, expansion):
    _, notes = make(expansion)
    assert notes[0].startswith("12 jobs in ")
    assert notes[1] == "jobs that were never measured, with estimated durations: 6"
    assert any(note.startswith("cuda on self-hosted, gpu: 6 jobs in ") for note in notes)


def test_a_plan_has_the_seed_the_limits_and_the_durations_of_split_suites(make, path, expansion):
    entries, _ = make(expansion, pytest_args=("-k", "x"))
    own = load_part(expansion, path, entries[0]["batch"])
    document = json.loads(path.read_text())
    manifest = own.file.manifest
    assert (manifest.run_id, manifest.seed, own.file.pytest_args) == ("r1", document["seed"], ("-k", "x"))
    assert own.file.plan.durations == {"split": KNOWN["split"]}
    assert own.batch.limit == entries[0]["limit_seconds"]


def test_the_file_is_a_manifest_of_all_jobs(make, path, expansion, tmp_path):
    make(expansion)
    path.rename(tmp_path / "run.json")
    manifest, problem, _ = read_manifest(tmp_path, tmp_path)
    assert (problem, manifest.run_id) == ("", "r1")
    assert [job.key for job in manifest.jobs] == [
        (job.cell.id, job.name) for job in plan(expansion.matrix, expansion.cells)
    ]


def test_two_plans_of_the_same_jobs_have_the_same_batches(make, expansion):
    assert make(expansion, run_id="r1")[0] == make(expansion, run_id="r2")[0]


@pytest.mark.parametrize(
    "change",
    [{"durations": {}}, {"pytest_args": ("-k", "x")}, {"durations": {**KNOWN, "split": {"gloo": {"t": 9.1}}}}],
    ids=str,
)
def test_a_batch_of_a_different_plan_is_rejected(make, path, expansion, change):
    entries, _ = make(expansion)
    make(expansion, **change)
    with pytest.raises(UsageError, match=r"belongs to the plan [0-9a-f]{16}, but .*plan.json is the plan ") as caught:
        load_part(expansion, path, entries[0]["batch"])
    assert "12 jobs in" in caught.value.why
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('torch = "2.14.1"', 'torch = "2.14.2"', "'images.cuda'"),
        ("shards = 2", "shards = 3", "'suites.split'"),
        ("[suites.tiny]", "[suites.small]", "'suites.tiny', 'suites.small'"),
        ("world_size = [1, 2]", "world_size = [2, 1]", "'axes'"),
        ("gpus = 2", "gpus = 4", "'runners'"),
        ("[suites.tiny]", "[limits]\njob = 999\n[suites.tiny]", "'limits'"),
        ("[suites.tiny]", '[[env]]\nset = { A = "1" }\n[suites.tiny]', "'env'"),
        ('"a GPU for each rank"', '"one for each"', "'excludes'"),
        ("[suites.tiny]", '[policy]\nskip = "pass"\n[suites.tiny]', "'policy'"),
    ],
)
def test_a_different_matrix_is_rejected_with_the_differences(make, path, load_text, document, *, old, new, part):
    entries, _ = make(load_text(document))
    with pytest.raises(UsageError, match=rf"they differ in {part}\.\n") as caught:
        load_part(load_text(document.replace(old, new, 1)), path, entries[0]["batch"])
    assert "same commit" in caught.value.remedy


def test_comments_and_line_numbers_do_not_count_as_differences(make, path, load_text, document):
    entries, _ = make(load_text(document))
    assert load_part(load_text("# a word\n\n" + document), path, entries[0]["batch"]).jobs


def test_the_path_of_allranks_own_suites_does_not_count_as_a_difference(make, path, load_text, document, monkeypatch):
    document += "\n[suites.kit]\npath = 'allranks:collectives'\n"
    entries, _ = make(load_text(document))
    monkeypatch.setattr("allranks.matrix.declaration.own_folder", lambda: path.parent)
    assert load_part(load_text(document), path, entries[0]["batch"]).jobs


def test_another_version_of_allranks_is_rejected(make, path, expansion, monkeypatch):
    entries, _ = make(expansion)
    monkeypatch.setattr("allranks.__version__", "9.9")
    with pytest.raises(UsageError, match=r"but this is 9\.9"):
        load_part(expansion, path, entries[0]["batch"])


def swap_jobs(document):
    one, *_, other = document["jobs"]
    one["batch"], other["batch"] = other["batch"], one["batch"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_jobs, "has been changed since it was written"),
        (lambda document: document["jobs"][0].update(image="cuda"), "has been changed since it was written"),
        (lambda document: document["policy"].update(skip="pass"), "has been changed since it was written"),
        (lambda document: document.update(schema=99), "was written by another version of allranks"),
        (lambda document: document.update(schema=1), "was written by another version of allranks"),
        (lambda document: document.pop("plan"), "is not a plan file of allranks, or is damaged"),
        (
            lambda document: document["plan"]["batches"][0].update(limit="long"),
            "is not a plan file of allranks, or is damaged",
        ),
    ],
)
def test_a_changed_plan_file_is_rejected(make, edit, path, expansion, *, change, message):
    entries, _ = make(expansion)
    edit(change)
    with pytest.raises(UsageError, match=message):
        load_part(expansion, path, entries[0]["batch"])


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"schema": 2}', b"[" * 100_000])
def test_a_file_that_is_not_a_plan_is_rejected(path, expansion, content):
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a plan file of allranks, or is damaged"):
        load_part(expansion, path, "cpu-g0-1of1")


def test_a_missing_plan_file_is_an_error_with_a_remedy(path, expansion):
    with pytest.raises(UsageError, match="cannot be read") as caught:
        load_part(expansion, path, "cpu-g0-1of1")
    assert "allranks plan --format github --plan-file" in caught.value.remedy


def test_a_slug_without_a_digest_selects_a_batch_and_an_unknown_one_is_an_error(make, path, expansion):
    entries, _ = make(expansion)
    assert load_part(expansion, path, entries[0]["slug"]).batch.slug == entries[0]["slug"]
    with pytest.raises(UsageError, match=r"There is no batch 'cpu-g9-1of1'"):
        load_part(expansion, path, "cpu-g9-1of1")


def test_another_run_id_or_other_arguments_are_rejected(make, path, expansion):
    entries, _ = make(expansion, pytest_args=("-k", "x"))
    own = load_part(expansion, path, entries[0]["batch"])
    own.check_request("r1", ("-k", "x"))
    own.check_request(None, ())
    with pytest.raises(UsageError, match="is a plan of the run 'r1'"):
        own.check_request("r2", ())
    with pytest.raises(UsageError, match="has other arguments for pytest: -k x"):
        own.check_request(None, ("-k", "y"))


def test_a_plan_that_cannot_be_written_is_an_error(make, expansion, tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        make(expansion, plan_file=tmp_path / "nowhere" / "plan.json")
