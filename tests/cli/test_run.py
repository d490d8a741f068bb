"""``allranks run``: the jobs and options of a selection, a batch of a plan, and a resumed run."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from allranks.cli import run
from allranks.errors import ExitCode, counted
from allranks.images.sharing import PortableImage, write_list
from allranks.matrix.declaration import load
from allranks.matrix.jobs import plan
from allranks.report.run_files import Manifest
from allranks.runner.results_folder import open_run


def test_a_run_gets_the_options_of_the_command_line(allranks, runs, tmp_path):
    code, out, _ = allranks(
        "run", "gloo-w2-g0-env", "--suite", "tiny", "--engine", "process", "--results", str(tmp_path / "r"),
        "--seed", "3", "--", "-x", "--", "-k", "a or b",
    )  # fmt: skip
    [(jobs, options)] = runs
    assert jobs == ["gloo-w2-g0-env/tiny"]
    assert (options.engine, options.results, options.seed) == ("process", tmp_path / "r", 3)
    assert options.pytest_args == ("-x", "--", "-k", "a or b")
    assert not options.policy.fail_fast, "arguments after -- are only for pytest"
    assert (code, out) == (0, "exit code 0: no test failed\n")


@pytest.fixture
def terminal(monkeypatch):
    """The path of a fake terminal of standard input and output."""
    monkeypatch.setattr(run, "_terminal", lambda: "/dev/pts/7")
    return "/dev/pts/7"


def test_a_debugger_gets_the_terminal_and_no_time_limits(allranks, runs, terminal):
    code, _, err = allranks("run", "gloo-w2-g0-env", "--suite", "tiny", "--pdb-rank", "1")
    assert (code, err) == (0, "")
    [(_, options)] = runs
    assert options.engine == "process"
    assert (options.policy.pdb.rank, options.policy.pdb.terminal) == (1, terminal)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gloo-w2-g0-env", "--pdb-rank", "1"), "--pdb-rank needs one job, but 2 are selected"),
        (("gloo-w2-g0-env", "--suite", "tiny", "--pdb-rank", "2"), "There is no rank 2 in gloo-w2-g0-env"),
        (
            ("gloo-w2-g0-env", "--suite", "tiny", "--pdb-rank", "1", "--engine", "docker"),
            "--pdb-rank works only in a new run of the process engine",
        ),
        (("--resume", "--pdb-rank", "1"), "--pdb-rank works only in a new run of the process engine"),
    ],
)
@pytest.mark.usefixtures("terminal")
def test_a_debugger_that_cannot_run_is_a_usage_error(allranks, runs, arguments, words):
    code, _, err = allranks("run", *arguments)
    assert (code, runs) == (2, [])
    assert words in err


@pytest.mark.parametrize("stdin", [None, SimpleNamespace(isatty=lambda: False)])
def test_a_debugger_needs_a_terminal(allranks, runs, monkeypatch, stdin):
    monkeypatch.setattr(sys, "stdin", stdin)
    code, _, err = allranks("run", "gloo-w2-g0-env", "--suite", "tiny", "--pdb-rank", "1")
    assert (code, runs) == (2, [])
    assert "--pdb-rank needs a terminal" in err


@pytest.mark.parametrize("flag", ["--pdb", "--trace", "--setup-only", "--setup-plan"])
def test_an_unsupported_option_of_pytest_is_a_usage_error(allranks, runs, flag):
    code, out, err = allranks("run", "--", "-x", flag)
    assert (code, out, runs) == (2, "", [])
    assert f"{flag} cannot be used: " in err


@pytest.fixture
def shards(repository):
    """Split the suite `tiny` into two shards."""
    matrix = repository / "matrix.toml"
    tiny = '[suites.tiny]\npath = "suite"'
    matrix.write_text(matrix.read_text().replace(tiny, f"{tiny}\nshards = 2"))


@pytest.mark.usefixtures("shards")
def test_a_run_gets_the_selected_shards(allranks, runs):
    allranks("run", "gloo-w2-g0-env", "--suite", "tiny@2of2")
    assert runs[0][0] == ["gloo-w2-g0-env/tiny@2of2"]


def test_a_run_gets_the_policy_of_its_jobs(allranks, runs):
    allranks("run", "--jobs", "3", "--reruns", "2", "-x", "--shuffle", "7")
    [(_, options)] = runs
    policy = options.policy
    assert (policy.most, policy.retries, policy.fail_fast, policy.shuffle) == (3, 2, True, 7)
    assert options.remaining is None


def test_a_run_without_options_has_the_defaults(allranks, runs, repository):
    allranks("run")
    [(jobs, options)] = runs
    assert len(jobs) == 5
    assert (options.engine, options.results, options.seed) == ("auto", repository / "results", None)
    assert (options.pytest_args, options.part) == ((), None)


def test_an_unknown_gpu_is_rejected_before_the_run_is_created(allranks, repository, monkeypatch):
    monkeypatch.chdir(repository)
    monkeypatch.setenv("ALLRANKS_GPUS", "")
    code, _, err = allranks("run", "--gpus", "0", "--engine", "process")
    assert code == 2
    assert "There is no GPU 0 on this host" in err
    assert not (repository / "results").exists()


@pytest.mark.parametrize("arguments", [["--jobs", "0"], ["--jobs", "many"], ["--jobs", "-1"]])
def test_an_invalid_number_of_jobs_is_rejected(allranks, arguments):
    code, _, err = allranks("run", *arguments)
    assert code == 2
    assert "is not a whole number of at least 1" in err or "expected one argument" in err


@pytest.fixture
def earlier(repository):
    """A run with one passed job, whose other jobs have not begun."""
    expansion = load(repository)
    jobs = plan(expansion.matrix, expansion.cells)
    folder = open_run(repository / "results", "r1", jobs, Manifest(run_id=""), 7, ("-k", "x"))
    _, attempt = folder.new_attempt(jobs[0])
    case = "<testsuites><testsuite><testcase classname='t' name='x'/></testsuite></testsuites>"
    (attempt / "rank-0.xml").write_text(case)
    record = {"schema": 2, "world_size": 1, "collected": ["t::x"], "error": None}
    (attempt / "job.json").write_text(json.dumps(record))
    return [job.id for job in jobs]


@pytest.mark.parametrize("option", ["--resume", "--lf"])
def test_a_run_is_resumed_in_its_folder_and_with_its_arguments(allranks, runs, earlier, option):
    code, out, _ = allranks("run", option)
    [(jobs, options)] = runs
    assert jobs == earlier
    assert (options.run_id, options.pytest_args, set(options.remaining)) == ("r1", ("-k", "x"), set(earlier[1:]))
    assert f"{counted(len(earlier) - 1, 'unfinished job')} out of {len(earlier)}" in out
    assert code == 0


def test_a_resumed_selection_of_tests_does_not_hide_the_failures_of_the_whole_run(allranks, runs, repository, earlier):
    expansion = load(repository)
    jobs = plan(expansion.matrix, expansion.cells)
    open_run(repository / "results", "r0", jobs, Manifest(run_id=""), 7)
    (repository / "results/latest").unlink()
    (repository / "results/latest").symlink_to("r1")
    _, narrow, _ = allranks("run", "--lf")
    assert "The run r0 before it has failed or missing tests in " in narrow
    assert "ALLRANKS_RUN_ID=r0 allranks run --lf" in narrow
    assert [options.run_id for _, options in runs] == ["r1"]
    assert earlier


def test_a_whole_run_names_distributed_tests_in_no_suite(allranks, runs, repository):
    path = repository / "matrix.toml"
    (repository / "more").mkdir()
    for name in ("test_new.py", "test_plain.py"):
        (repository / "more" / name).write_text("def test_it(rank):\n    pass\n")
    path.write_text(f'{path.read_text()}\n[suites.more]\npath = "more/test_[ep]*.py"\n')
    assert "in no suite, and never run: more/test_new.py." in allranks("run")[1]
    assert "in no suite" not in allranks("run", "gloo-w2-g0-env")[1]
    assert len(runs) == 2


def test_a_part_of_a_run_can_be_resumed(allranks, runs, earlier):
    allranks("run", "--resume", "gloo-w2-g0-env", "--suite", "other", "--", "-k", "x")
    [(jobs, options)] = runs
    assert jobs == ["gloo-w2-g0-env/other"]
    assert (options.run_id, options.pytest_args, list(options.remaining)) == ("r1", ("-k", "x"), jobs)
    assert jobs[0] in earlier


def test_a_run_cannot_be_resumed_with_other_arguments(allranks, runs, earlier):
    code, _, err = allranks("run", "--lf", "--", "-k", "y")
    assert (code, runs) == (2, [])
    assert "had other pytest arguments: -k x" in err
    assert earlier


def test_unplanned_cells_cannot_be_resumed(allranks, runs, repository):
    expansion = load(repository)
    [job] = [job for job in plan(expansion.matrix, expansion.cells) if job.id == "gloo-w1-g0-env/tiny"]
    open_run(repository / "results", "r1", [job], Manifest(run_id=""), 7)
    code, _, err = allranks("run", "--resume", "gloo-w2-g0-env")
    assert (code, runs) == (2, [])
    assert "The run r1 planned none of these cells and suites." in err


def test_without_an_earlier_run_there_is_nothing_to_resume(allranks, runs):
    code, _, err = allranks("run", "--lf")
    assert (code, runs) == (2, [])
    assert "There is no run to resume" in err


@pytest.fixture
def plan_machines(allranks, runners, monkeypatch):  # noqa: ARG001 - whose plan it is
    """Write a plan; return the entries of the job matrix, the first one without GPUs."""

    def plan_all(*arguments):
        code, out, err = allranks("plan", "--format", "github", "--plan-file", "plan.json", *arguments)
        assert code == 0, err
        monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
        return json.loads(out)["include"]

    return plan_all


@pytest.fixture
def machine(allranks, monkeypatch):
    """``machine(entry, ...)``: a run on the machine of an entry of the job matrix."""

    def run_on(entry, *arguments):
        monkeypatch.setenv("ALLRANKS_BATCH", entry["batch"])
        return allranks("run", *arguments)

    return run_on


def test_a_batch_is_run_as_it_was_planned(plan_machines, machine, runs):
    _, gpu = plan_machines("--", "-k", "x")
    assert machine(gpu)[0] == 0
    [(jobs, options)] = runs
    document = json.loads(Path("plan.json").read_text())
    assert jobs == ["nccl-w2-g2-env/tiny", "nccl-w2-g2-env/other"]
    assert (options.run_id, options.seed) == (document["run_id"], document["seed"])
    assert (options.engine, options.pytest_args) == ("process", ("-k", "x"))
    assert (options.policy.seconds, options.part.gpus) == (gpu["limit_seconds"], 2)


def test_a_machine_of_a_plan_runs_in_containers_unless_its_rule_says_otherwise(plan_machines, machine, runs):
    cpu, _ = plan_machines()
    assert machine(cpu)[0] == 0
    assert (runs[0][1].engine, runs[0][1].part.gpus) == ("docker", 0)


def test_a_machine_with_fewer_gpus_than_planned_runs_nothing(plan_machines, machine, allranks, monkeypatch, tmp_path):
    _, gpu = plan_machines()
    monkeypatch.setenv("ALLRANKS_GPUS", "GPU-a")
    code, _, err = machine(gpu, "--results", str(tmp_path / "r"))
    assert code == 4
    assert "a job with 2 GPUs for this machine, but allranks finds 1" in err
    folder = tmp_path / "r" / "latest"
    assert {path.name for path in folder.rglob("attempt-*")} == {"attempt-1"}
    assert allranks("report", str(folder))[0] == 4, "and not the 3 of a job that was lost"


def test_an_error_before_a_batch_begins_is_the_result_of_its_jobs(plan_machines, machine, allranks):
    cpu, _ = plan_machines()
    asked = (cpu, "--engine", "process")
    assert machine(*asked, "--gpus", "7")[0] == 2
    code, out, _ = allranks("report", "results/latest")
    assert (code, out.count("There is no GPU 7 on this host.")) == (2, 1)
    assert "(3 tests in 2 cells; batch all-g0-1of1)" in out
    assert "nccl" not in out


def test_a_misspelled_option_is_the_result_of_the_jobs_of_a_batch(plan_machines, machine, allranks):
    cpu, _ = plan_machines()
    assert machine(cpu, "--debug", "--retrys", "1")[0] == 2
    code, out, _ = allranks("report", "results/latest")
    assert (code, out.count("allranks run has no option --retrys.")) == (2, 1)


def test_a_rejected_batch_inside_a_launcher_records_nothing(plan_machines, machine):
    cpu, _ = plan_machines()
    Path("matrix.toml").write_text("")
    assert machine(cpu, "--inside")[0] == 2
    assert not Path("results").exists()


def test_the_command_line_may_choose_engine_and_seed_of_a_batch(plan_machines, machine, runs):
    _, gpu = plan_machines()
    machine(gpu, "--engine", "docker", "--seed", "5")
    assert (runs[0][1].engine, runs[0][1].seed) == ("docker", 5)


def test_fail_fast_stops_a_batch_but_does_not_change_pytests_arguments(plan_machines, machine, runs):
    _, gpu = plan_machines("--", "-k", "x")
    assert machine(gpu, "-x")[0] == 0
    assert (runs[0][1].policy.fail_fast, runs[0][1].pytest_args) == (True, ("-k", "x"))


def test_a_batch_without_executed_tests_succeeds(plan_machines, machine, runs):
    assert machine(plan_machines()[0])[0] == 0
    assert runs[0][1].part


@pytest.mark.parametrize("also", [["gloo-w1-g0-env"], ["--where", "world_size=2"], ["--suite", "tiny"], ["--resume"]])
def test_a_batch_cannot_be_limited_or_resumed(plan_machines, machine, runs, also):
    cpu, _ = plan_machines()
    code, _, err = machine(cpu, *also)
    assert (code, runs) == (2, [])
    assert "A batch always runs as planned" in err


@pytest.mark.parametrize(("given", "missing"), [("PLAN_FILE", "BATCH"), ("BATCH", "PLAN_FILE")])
def test_a_batch_needs_its_plan_and_a_plan_the_batch(allranks, runs, monkeypatch, given, missing):
    monkeypatch.setenv(f"ALLRANKS_{given}", "x")
    code, _, err = allranks("run")
    assert (code, runs) == (2, [])
    assert f"The variable ALLRANKS_{given} is set, but ALLRANKS_{missing} is not." in err


def test_a_batch_of_another_matrix_or_run_is_rejected_before_anything_runs(
    plan_machines, machine, runs, repository, monkeypatch
):
    cpu, _ = plan_machines()
    asked = (cpu,)
    monkeypatch.setenv("ALLRANKS_RUN_ID", "another")
    assert "ALLRANKS_RUN_ID is 'another'" in machine(*asked)[2]
    monkeypatch.delenv("ALLRANKS_RUN_ID")
    matrix = repository / "matrix.toml"
    matrix.write_text(matrix.read_text().replace("gpus = 2", "gpus = 4"))
    code, _, err = machine(*asked)
    assert (code, runs) == (2, [])
    assert "they differ in 'runners'" in err


@pytest.mark.parametrize("axis", ["", 'torch = ["2.13.0"]\n'], ids=["one torch", "an axis of torch"])
def test_jobs_run_in_images_of_another_machine(allranks, repository, tmp_path, monkeypatch, axis):
    matrix, images = repository / "matrix.toml", []
    if axis:
        text = matrix.read_text().replace("[matrix]\n", f"[matrix]\n{axis}")
        matrix.write_text(text.replace('[images.all]\ntorch = "2.13.0"', "[images.all]"))
    name = "all-t2.13.0" if axis else "all"
    write_list(tmp_path / "images", [PortableImage(name=name, key="k", reference="registry/all@sha256:1")])
    monkeypatch.setattr("allranks.images.docker_client.connect", lambda: SimpleNamespace(close=lambda: None))

    def run(_expansion, jobs, _options, _say):
        images.extend(job.image for job in jobs)
        return ExitCode.OK

    monkeypatch.setattr("allranks.runner.run_jobs.run", run)
    monkeypatch.setenv("ALLRANKS_IMAGES", str(tmp_path / "images"))
    code, _, err = allranks("run", "--where", "backend=gloo")
    assert (code, err) == (0, "")
    assert {(image.name, image.image) for image in images} == {(name, "registry/all@sha256:1")}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, "env -u WORLD_SIZE allranks run"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "started by torchrun or a similar launcher (WORLD_SIZE=2, RANK=1)"),
        ({"RANK": "1"}, "RANK=1"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "Start allranks once, without srun."),
        ({"SLURM_PROCID": "3"}, "srun"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "mpirun"),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "mpiexec"),
    ],
    ids=str,
)
def test_a_start_by_a_launcher_is_rejected(allranks, runs, monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, err = allranks("run")
    assert (code, out, runs) == (2, "", [])
    assert message in err


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},  # torchrun --nproc-per-node 1
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_NNODES": "2"},  # a batch script
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},  # srun -n1
        {"WORLD_SIZE": "", "RANK": "many"},
    ],
    ids=str,
)
def test_a_launcher_with_one_process_is_allowed(allranks, runs, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert allranks("run")[0] == 0
    assert len(runs) == 1


@pytest.mark.parametrize(("by_nox", "code"), [(False, 0), (True, 2)])
def test_processes_of_a_launcher_may_share_a_run_id(allranks, runs, monkeypatch, by_nox, code):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ALLRANKS_RUN_ID", "shared")
    monkeypatch.delenv("ALLRANKS_INVOCATION_ID", raising=False)
    if by_nox:
        monkeypatch.setenv("ALLRANKS_INVOCATION_ID", "a nox process, which names a run of its own")
    assert allranks("run", "gloo-w1")[0] == code
    assert len(runs) == (code == 0)


@pytest.mark.usefixtures("runners")
def test_processes_of_a_launcher_may_each_run_a_batch(allranks, runs, monkeypatch):
    _, out, _ = allranks("plan", "--format", "github", "--plan-file", "plan.json")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    batch = json.loads(out)["include"][0]["batch"]
    monkeypatch.setenv("ALLRANKS_PLAN_FILE", "plan.json")
    monkeypatch.setenv("ALLRANKS_BATCH", batch)
    assert allranks("run")[0] == 0
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("flags", "detail"),
    [([], "usual"), (["-q"], "quiet"), (["--quiet"], "quiet"), (["-v"], "verbose"), (["--verbose"], "verbose")],
)
def test_the_level_of_detail_is_an_option(allranks, runs, flags, detail):
    assert allranks("run", *flags)[0] == 0
    assert runs[0][1].detail == detail


def test_a_run_is_either_quiet_or_verbose(allranks, runs):
    code, _, err = allranks("run", "-q", "-v")
    assert (code, runs) == (2, [])
    assert "not allowed with argument -q" in err
