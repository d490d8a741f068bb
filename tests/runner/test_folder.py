"""The folder of a run: its manifest, and who owns its jobs."""

import fcntl
import json
import subprocess
import sys
from contextlib import ExitStack, nullcontext

import pytest

import allranks
from allranks.errors import ExitCode, ResultsError, UsageError
from allranks.matrix.declaration import load
from allranks.ownership import own_run
from allranks.report.run_files import DroppedCells, JobRecord, JudgingPolicy, Manifest, as_json
from allranks.runner import results_folder as schedule_folder
from allranks.runner.results_folder import claim_jobs, facts_of, invocation_id, new_run_id, open_run, write_json

JOIN = """
import sys
from pathlib import Path
from allranks.matrix.declaration import load
from allranks.matrix.jobs import plan
from allranks.report.run_files import JobRecord, Manifest, as_json
from allranks.runner.results_folder import open_run

expansion = load(Path(sys.argv[1]))
jobs = plan(expansion.matrix, expansion.cells)
open_run(Path(sys.argv[2]), "r1", [jobs[int(sys.argv[3])]], Manifest(run_id=""), None)
"""


def manifest_of(folder):
    return json.loads((folder.path / "run.json").read_text())


def test_run_ids_sort_by_time_and_never_repeat():
    ids = [new_run_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert ids[0][:8].isdigit()


def test_manifest_announces_jobs_and_their_cells_before_any_runs(make_folder, jobs):
    folder = make_folder(jobs.values())
    manifest = manifest_of(folder)
    assert (manifest["schema"], manifest["run_id"], manifest["seed"]) == (2, "r1", 7)
    assert manifest["allranks"] == allranks.__version__
    assert manifest["command"] == "allranks run"
    assert manifest["cells"]["nccl-w2-g2-env"] == {
        "backend": "nccl", "world_size": 2, "gpu_count": 2, "init_method": "env", "nodes": 1,
    }  # fmt: skip
    assert manifest["jobs"][0] == {
        "id": "gloo-w1-g0-env/tiny", "cell": "gloo-w1-g0-env", "suite": "tiny", "image": "cpu", "pytest_args": [],
        "batch": "",
    }  # fmt: skip
    assert len(manifest["jobs"]) == len(jobs)


def test_every_rule_that_dropped_cells_is_in_the_manifest_with_its_reason(repository):
    assert facts_of(load(repository)).dropped == (
        DroppedCells(rule="backend == 'nccl' and gpu_count != world_size", reason="a GPU for each rank", count=4),
        DroppedCells(rule="backend == 'gloo' and gpu_count > 0", reason="gloo is tested on CPU tensors", count=4),
    )


def test_an_unset_policy_is_not_in_the_manifest(repository):
    assert facts_of(load(repository)).policy == JudgingPolicy()


def test_a_manifest_has_the_matrix_files_folder_in_its_repository(repository, tmp_path, monkeypatch):
    assert facts_of(load(repository)).folder == ""
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert facts_of(load(repository)).folder == "repository"
    (repository / ".git").touch()
    assert facts_of(load(repository)).folder == ""


def test_a_manifest_has_the_commit_and_whether_it_is_dirty(repository):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        done = subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert facts_of(load(repository)).commit == ""
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert facts_of(load(repository)).commit == commit
    with (repository / "matrix.toml").open("a") as file:
        file.write("# changed\n")
    assert facts_of(load(repository)).commit == f"{commit}-dirty"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run"], "allranks run"),
        (["run", "--where", "world_size == 2"], "allranks run --where 'world_size == 2'"),
        (["run", "--", "--token=hunter2"], "allranks run -- …"),
        (["run", "-n", "3", "--", "--token", "hunter2"], "allranks run -n 3 -- …"),
        (["run", "--"], "allranks run"),
    ],
)
def test_the_command_in_a_manifest_omits_pytests_arguments(repository, monkeypatch, words, shown):
    monkeypatch.setattr(sys, "argv", ["/venv/bin/allranks", *words])
    assert facts_of(load(repository)).command == shown


def test_a_run_without_a_seed_gets_one_and_keeps_it(make_folder):
    first = make_folder(seed=None)
    assert make_folder(seed=None).seed == first.seed == manifest_of(first)["seed"]


def test_a_session_that_joins_adds_its_jobs_once(make_folder, jobs):
    one, other = jobs["gloo-w1-g0-env"], jobs["gloo-w2-g0-env"]
    make_folder([one])
    manifest = manifest_of(make_folder([one, other], seed=99))
    assert [job["id"] for job in manifest["jobs"]] == [one.id, other.id]
    assert list(manifest["cells"]) == [one.cell.id, other.cell.id]
    assert manifest["seed"] == 7


def test_processes_that_join_concurrently_lose_no_job(repository, tmp_path, jobs):
    results = tmp_path / "results"
    commands = [[sys.executable, "-c", JOIN, str(repository), str(results), str(number)] for number in range(len(jobs))]
    running = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in running] == [0] * len(jobs)
    manifest = json.loads((results / "r1" / "run.json").read_text())
    assert {job["cell"] for job in manifest["jobs"]} == set(jobs)


def test_a_manifest_is_read_and_written_under_its_lock(make_folder, monkeypatch):
    held = []

    def note(function):
        def noted(path, *arguments):
            with (path.parent / ".manifest.lock").open() as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(function.__name__)
            return function(path, *arguments)

        return noted

    monkeypatch.setattr(schedule_folder, "_read", note(schedule_folder._read))
    monkeypatch.setattr(schedule_folder, "write_json", note(write_json))
    make_folder()
    assert held == ["_read", "write_json"]


OWN = """
import sys
from pathlib import Path
from allranks import ownership
from allranks.matrix.declaration import load
from allranks.matrix.jobs import plan
from allranks.runner.results_folder import claim_jobs

ownership.lock_folder = lambda: Path(sys.argv[1])
expansion = load(Path(sys.argv[2]))
jobs = [job for job in plan(expansion.matrix, expansion.cells) if job.cell.id in sys.argv[5:]]
with ownership.own_run("r1") as owned:
    try:
        claim_jobs(Path(sys.argv[3]), owned, jobs, print, invocation=sys.argv[4], resuming=False)
    except Exception as error:
        print(error, flush=True)
    else:
        print("taken", flush=True)
    sys.stdin.read()
"""

ONE, OTHER = "gloo-w1-g0-env", "gloo-w2-g0-env"


@pytest.fixture
def elsewhere(locks, repository, tmp_path):
    """Start a process that claims jobs until its standard input ends; return it and its first line of output."""
    with ExitStack() as stack:

        def take(invocation, *cells):
            command = [
                sys.executable,
                "-c",
                OWN,
                *map(str, (locks, repository, tmp_path / "results", invocation)),
                *cells,
            ]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process, process.stdout.readline().strip()

        yield take


@pytest.fixture
def take(tmp_path, jobs, lines, locks):
    """Claim jobs for an invocation until the test ends."""
    assert locks
    with ExitStack() as stack:

        def take(invocation, *cells, resuming=False, say=lines):
            owned = stack.enter_context(own_run("r1"))
            claim_jobs(
                tmp_path / "results",
                owned,
                [jobs[cell] for cell in cells],
                say,
                invocation=invocation,
                resuming=resuming,
            )

        yield take


def test_two_invocations_never_own_the_same_job(take, elsewhere):
    _, first = elsewhere("a", ONE)
    assert first == "taken"
    with pytest.raises(UsageError, match=f"{ONE}/tiny of the run r1 is being run by another process") as refused:
        take("b", OTHER, ONE)
    assert refused.value.exit_code is ExitCode.USAGE
    assert "--resume" in refused.value.remedy
    assert "ALLRANKS_RUN_ID" in refused.value.remedy
    assert elsewhere("c", OTHER)[1] == "taken"


def test_resuming_does_not_claim_jobs_of_a_living_owner(take, elsewhere):
    elsewhere("a", ONE)
    with pytest.raises(UsageError, match="is being run"):
        take("b", ONE, resuming=True)


def test_a_job_of_another_invocation_runs_again_only_if_the_run_is_resumed(take, make_folder, jobs, elsewhere):
    process, _ = elsewhere("a", ONE)
    make_folder([jobs[ONE]]).new_attempt(jobs[ONE])
    process.kill()
    process.wait()
    with pytest.raises(UsageError, match=f"{ONE}/tiny of the run r1 has already been run"):
        take("b", ONE, OTHER)
    take("c", OTHER)
    take("d", ONE, resuming=True)


def test_a_claimed_job_that_never_began_is_free_when_its_owner_is_dead(take, elsewhere):
    process, _ = elsewhere("a", ONE)
    process.kill()
    process.wait()
    take("b", ONE)


@pytest.mark.thorough
def test_sessions_of_one_invocation_run_different_jobs_concurrently_and_the_same_job_in_turn(
    take, elsewhere, make_folder, jobs, lines
):
    process, _ = elsewhere("nox", ONE)
    make_folder([jobs[ONE]]).new_attempt(jobs[ONE])
    assert elsewhere("nox", OTHER)[1] == "taken"

    def say(line):
        lines(line)
        process.stdin.close()

    take("nox", ONE, say=say)
    assert lines == [f"waiting for {ONE}/tiny: another session of this nox command is running it"]


def test_a_process_without_nox_is_an_invocation_of_its_own(monkeypatch):
    monkeypatch.delenv("ALLRANKS_INVOCATION_ID", raising=False)
    assert invocation_id() != invocation_id()
    monkeypatch.setenv("ALLRANKS_INVOCATION_ID", "nox")
    assert invocation_id() == "nox"


def test_owners_that_cannot_be_read_are_an_error_that_names_the_folder(take, make_folder):
    (make_folder().path / ".owners.json").write_text("{")
    with pytest.raises(ResultsError, match="results"):
        take("a", ONE)


def test_attempts_are_numbered_and_never_overwritten(make_folder, jobs):
    folder, job = make_folder(), jobs["gloo-w1-g0-env"]
    first = folder.new_attempt(job)
    (first[1] / "kept").write_text("kept")
    second = folder.new_attempt(job)
    assert [first[0], second[0]] == [1, 2]
    assert first[1] == folder.path / "cells" / "gloo-w1-g0-env" / "tiny" / "attempt-1"
    assert (first[1] / "kept").read_text() == "kept"


def test_latest_points_to_the_newest_run_even_if_results_are_moved(make_folder, tmp_path):
    make_folder(run_id="r1")
    make_folder(run_id="r2")
    link = tmp_path / "results" / "latest"
    assert str(link.readlink()) == "r2"
    assert (link / "run.json").exists()


def test_no_temporary_files_remain(make_folder, tmp_path):
    make_folder()
    names = {path.name for path in (tmp_path / "results").rglob("*")}
    assert names == {"r1", "latest", "run.json", ".manifest.lock"}


def test_unusable_results_folders_are_errors_that_name_them(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError) as error:
        open_run(tmp_path / "file", "r1", [], Manifest(run_id=""), None)
    assert str(tmp_path / "file") in error.value.what
    assert "--results" in error.value.remedy


def test_a_folder_in_place_of_the_latest_link_is_an_error(make_folder, tmp_path):
    (tmp_path / "results" / "latest").mkdir(parents=True)
    with pytest.raises(ResultsError):
        make_folder()


def test_a_manifest_that_cannot_be_read_is_an_error(make_folder):
    (make_folder().path / "run.json").write_text("{")
    with pytest.raises(ResultsError):
        make_folder()


def test_an_attempt_that_cannot_be_made_is_an_error(make_folder, jobs):
    folder = make_folder()
    (folder.path / "cells").touch()
    with pytest.raises(ResultsError):
        folder.new_attempt(jobs["gloo-w1-g0-env"])


def test_json_is_written_atomically(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


@pytest.mark.parametrize(("engine", "is_free"), [("", True), ("docker", False)])
def test_a_rejected_job_can_be_claimed_and_one_that_had_an_engine_cannot(take, tmp_path, engine, is_free):
    attempt = tmp_path / "results" / "r1" / "cells" / ONE / "tiny" / "attempt-1"
    attempt.mkdir(parents=True)
    write_json(attempt / "job.json", as_json(JobRecord(world_size=1, engine=engine)))
    with nullcontext() if is_free else pytest.raises(UsageError, match="has already been run"):
        take("a", ONE)
