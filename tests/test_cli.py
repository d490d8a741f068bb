import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks import cli
from allranks.cli import main
from allranks.doctor import Finding
from allranks.errors import EngineError, ExitCode
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.plan import plan
from allranks.report.junit_form import JUnitForm
from allranks.schedule.folder import open_run
from allranks.schedule.leases import Holder, try_lease

MATRIX = """\
[matrix]
backend = ["gloo", "nccl"]
world_size = [1, 2]
gpu_count = [0, 2]

[[matrix.exclude]]
when = "backend == 'nccl' and gpu_count != world_size"
reason = "a GPU for each rank"

[[matrix.exclude]]
when = "backend == 'gloo' and gpu_count > 0"
reason = "gloo is tested on CPU tensors"

[suites.tiny]
path = "suite"

[suites.other]
path = "suite"
when = "world_size == 2"

[images.all]
torch = "2.13.0"
"""


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    (folder / "suite").mkdir(parents=True)
    (folder / "suite" / "test_tiny.py").write_text("")
    (folder / "matrix.toml").write_text(MATRIX)
    for name in ("ALLRANKS_ENGINE", "ALLRANKS_RUN_ID", "ALLRANKS_RESULTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def allranks(capsys):
    """Run a command; its exit code, standard output and standard error."""

    def run(*arguments):
        try:
            code = main(arguments)
        except SystemExit as ending:  # argparse's own way out
            code = ending.code
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def runs(monkeypatch):
    """The runs that would have begun, each as its jobs and options."""
    asked = []

    def run(_matrix, jobs, options, _say):
        asked.append(([job.id for job in jobs], options))
        return ExitCode.OK

    monkeypatch.setattr("allranks.schedule.run.run", run)
    return asked


def test_plan_shows_a_line_for_each_cell(allranks):
    code, out, err = allranks("plan")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w2-g2-env"]
    assert "3 cells, 5 jobs" in out
    assert "a GPU for each rank" not in out


def test_plan_explains_each_dropped_cell(allranks):
    _, out, _ = allranks("plan", "--explain")
    assert "5 dropped cells of 8 combinations" in out
    assert "a GPU for each rank" in out


def test_plan_for_machines_is_json_alone(allranks):
    _, out, _ = allranks("plan", "--format", "json")
    assert [cell["id"] for cell in json.loads(out)["cells"]] == ["gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w2-g2-env"]


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["gloo-w2-g0-env"], ["gloo-w2-g0-env"]),
        (["dist(backend='gloo')"], ["gloo-w1-g0-env", "gloo-w2-g0-env"]),
        (["--where", "world_size=2"], ["gloo-w2-g0-env", "nccl-w2-g2-env"]),
        (["--where", "backend=gloo", "--where", "world_size=2"], ["gloo-w2-g0-env"]),
        (["nccl-w2-g2-env", "--where", "backend=gloo"], ["nccl-w2-g2-env", "gloo-w1-g0-env", "gloo-w2-g0-env"]),
        (["gloo-w1-g0-env", "gloo-w1-g0-env"], ["gloo-w1-g0-env"]),
    ],
    ids=str,
)
def test_cells_are_chosen_by_name_signature_and_where(allranks, arguments, cells):
    _, out, _ = allranks("plan", "--format", "json", *arguments)
    assert [cell["id"] for cell in json.loads(out)["cells"]] == cells


def test_the_matrix_of_another_folder_is_named(allranks, repository, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert allranks("plan", "--matrix", str(repository))[0] == 0
    assert allranks("plan", "--matrix", str(repository / "matrix.toml"))[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "nccl-w1-g0-env"], "a GPU for each rank"),
        (["plan", "gloo-w3-g0-env"], "3"),
        (["plan", "--where", "backned=gloo"], "backend"),
        (["plan", "--suite", "tinny"], "tiny"),
        (["run", "--suite", "tinny"], "tiny"),
        (["run", "--suite", "other", "gloo-w1-g0-env"], "nothing to run"),
        (["run", "--suite", "other", "gloo-w1-g0-env"], "other runs where world_size == 2"),
        (["merge", "nowhere"], "no results folder"),
        (["plan", "--matrix", "nowhere.toml"], "nowhere.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_requests_are_sentences_that_lead_on(allranks, arguments, said):
    code, out, err = allranks(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("allranks: error: ")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "There is no matrix file."),
        ("[matrix", "matrix.toml"),
        ("[matrix]\nbackend = ['glo']\nworld_size = [1]\n", "gloo"),
        (MATRIX.replace("[suites.tiny]", "[suite.tiny]"), "suites"),
    ],
    ids=["missing", "no TOML", "unknown backend", "unknown key"],
)
def test_wrong_matrix_files_are_sentences_that_lead_on(allranks, repository, text, said):
    (repository / "matrix.toml").unlink()
    if text is not None:
        (repository / "matrix.toml").write_text(text)
    for command in ("plan", "run"):
        code, out, err = allranks(command)
        assert (code, out) == (2, "")
        assert said in err
        assert "Traceback" not in err


@pytest.fixture
def one_by_name(repository):
    """A repository whose suite `other` does not run by default."""
    text = MATRIX.replace('[suites.other]\npath = "suite"', '[suites.other]\npath = "slow"\ndefault = false')
    (repository / "slow").mkdir()
    (repository / "slow" / "test_x.py").touch()
    (repository / "matrix.toml").write_text(text)
    return repository


@pytest.mark.usefixtures("one_by_name")
@pytest.mark.parametrize(
    ("arguments", "suites"),
    [
        ([], ["tiny"]),
        (["--suite", "other"], ["other"]),
        (["--", "slow/test_x.py::test_y", "-x"], ["other"]),
        (["--suite", "tiny", "--", "slow/test_x.py"], ["tiny"]),
    ],
    ids=" ".join,
)
def test_a_suite_that_is_not_default_runs_when_it_or_a_test_of_it_is_named(allranks, runs, arguments, suites):
    assert allranks("run", "gloo-w2-g0-env", *arguments)[0] == 0
    [(jobs, _)] = runs
    assert jobs == [f"gloo-w2-g0-env/{suite}" for suite in suites]


def test_where_nothing_runs_by_default_the_error_says_what_to_name(allranks, one_by_name, runs):
    matrix = (one_by_name / "matrix.toml").read_text()
    (one_by_name / "matrix.toml").write_text(matrix.replace("[suites.tiny]", "[suites.tiny]\ndefault = false"))
    code, out, err = allranks("run", "--where", "world_size=2")
    assert (code, out, runs) == (2, "", [])
    assert "run only when they are named" in err
    assert "--suite tiny --suite other" in err


def test_debug_adds_the_traceback_and_keeps_the_sentence(allranks):
    code, _, err = allranks("--debug", "plan", "nope")
    assert code == 2
    assert "Traceback" in err
    assert "allranks: error: There is no cell 'nope'." in err


def test_a_failure_of_the_infrastructure_has_its_own_exit_code(allranks, monkeypatch):
    def fail(*_):
        raise EngineError("No daemon.", why="Refused.", remedy="Start one.")  # noqa: EM101

    monkeypatch.setattr("allranks.schedule.run.run", fail)
    code, _, err = allranks("run")
    assert code == 4
    assert err == "allranks: error: No daemon.\n  Refused.\n  Start one.\n"


def test_an_interrupt_is_exit_code_130_and_no_traceback(allranks, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("allranks.schedule.run.run", interrupt)
    assert allranks("run") == (130, "", "\nallranks: interrupted\n")


@pytest.mark.parametrize(
    "arguments", [[], ["nope"], ["plan", "--nope"], ["merge"], ["merge", "x", "--policy", "y"]], ids=str
)
def test_a_wrong_command_line_is_exit_code_2(allranks, arguments):
    code, _, err = allranks(*arguments)
    assert code == 2
    assert "usage" in err


def test_version_is_told(allranks):
    assert allranks("--version")[1].startswith("allranks 0.")


def test_a_dry_run_prints_the_requests_and_makes_nothing(allranks, runs, repository):
    code, out, err = allranks("run", "--dry-run", "--where", "backend=gloo", "--seed", "3", "--", "-k", "x")
    assert (code, err, runs) == (0, "", [])
    requests = json.loads(out)
    assert [request["job_id"] for request in requests] == [
        "gloo-w1-g0-env/tiny", "gloo-w2-g0-env/tiny", "gloo-w2-g0-env/other",
    ]  # fmt: skip
    assert requests[0]["agent"]["pytest_args"] == ["-k", "x"]
    assert requests[0]["agent"]["seed"] == 3
    assert not (repository / "results").exists()


def test_a_run_gets_what_the_command_line_says(allranks, runs, tmp_path):
    code, out, _ = allranks(
        "run", "gloo-w2-g0-env", "--suite", "tiny", "--engine", "process", "--results", str(tmp_path / "r"),
        "--seed", "3", "--allow-nothing-ran", "--", "-x", "--", "-k", "a or b",
    )  # fmt: skip
    [(jobs, options)] = runs
    assert jobs == ["gloo-w2-g0-env/tiny"]
    assert (options.engine, options.results, options.seed) == ("process", tmp_path / "r", 3)
    assert options.pytest_args == ("-x", "--", "-k", "a or b")
    assert options.nothing_ran_allowed
    assert (code, out) == (0, "exit code 0: all verdicts are good\n")


def test_a_dry_run_prints_a_request_for_each_shard(allranks, repository):
    text = MATRIX.replace('[suites.tiny]\npath = "suite"', '[suites.tiny]\npath = "suite"\nshards = 2')
    (repository / "matrix.toml").write_text(text)
    _, out, _ = allranks("run", "--dry-run", "gloo-w2-g0-env", "--suite", "tiny")
    requests = json.loads(out)
    assert [request["job_id"] for request in requests] == [f"gloo-w2-g0-env/tiny@{number}of2" for number in (1, 2)]
    assert [request["agent"]["share"]["number"] for request in requests] == [1, 2]


def test_a_run_gets_the_shards_and_the_durations_that_it_is_told(allranks, runs, repository):
    text = MATRIX.replace('[suites.tiny]\npath = "suite"', '[suites.tiny]\npath = "suite"\nshards = 2')
    (repository / "matrix.toml").write_text(text)
    allranks("run", "gloo-w2-g0-env", "--suite", "tiny@2of2", "--durations", "mine.json")
    [(jobs, options)] = runs
    assert jobs == ["gloo-w2-g0-env/tiny@2of2"]
    assert options.durations == Path("mine.json")


def test_a_run_gets_the_rules_of_its_jobs(allranks, runs):
    allranks("run", "--jobs", "3", "--retries", "2", "--fail-fast", "--shuffle", "7")
    [(_, options)] = runs
    rules = options.rules
    assert (rules.most, rules.retries, rules.fail_fast, rules.shuffle) == (3, 2, True, 7)
    assert options.left is None


@pytest.mark.parametrize("option", ["--retries", "--shuffle"])
@pytest.mark.parametrize("value", ["-1", "x", "\u00b2", "9" * 40])
def test_a_number_that_is_none_is_told(allranks, runs, option, value):
    code, _, err = allranks("run", f"{option}={value}")
    assert (code, runs) == (2, [])
    assert "is no number: take 0 or more" in err


@pytest.fixture
def earlier(repository):
    """A run of which one job is good and the others have not begun."""
    expansion = expand(load(repository))
    jobs = plan(expansion.matrix, expansion.cells)
    folder = open_run(repository / "results", "r1", jobs, {}, 7, ("-k", "x"))
    _, attempt = folder.new_attempt(jobs[0])
    case = "<testsuites><testsuite><testcase classname='t' name='x'/></testsuite></testsuites>"
    (attempt / "rank-0.xml").write_text(case)
    record = {"schema": 1, "world_size": 1, "collected": ["t::x"], "error": None}
    (attempt / "job.json").write_text(json.dumps(record))
    return [job.id for job in jobs]


@pytest.mark.parametrize("option", ["--resume", "--rerun-failed"])
def test_a_run_is_gone_on_with_in_its_folder_and_with_its_arguments(allranks, runs, earlier, option):
    code, out, _ = allranks("run", option)
    [(jobs, options)] = runs
    assert jobs == earlier
    assert (options.run_id, options.pytest_args, set(options.left)) == ("r1", ("-k", "x"), set(earlier[1:]))
    assert f"{len(earlier) - 1} of its {len(earlier)} jobs have something left to do" in out
    assert code == 0


def test_a_part_of_a_run_is_gone_on_with(allranks, runs, earlier):
    allranks("run", "--resume", "gloo-w2-g0-env", "--suite", "other", "--", "-k", "x")
    [(jobs, options)] = runs
    assert jobs == ["gloo-w2-g0-env/other"]
    assert (options.run_id, options.pytest_args, list(options.left)) == ("r1", ("-k", "x"), jobs)
    assert jobs[0] in earlier


def test_a_run_is_not_gone_on_with_under_another_selection(allranks, runs, earlier):
    code, _, err = allranks("run", "--rerun-failed", "--", "-k", "y")
    assert (code, runs) == (2, [])
    assert "had other arguments for pytest: -k x" in err
    assert earlier


def test_what_a_run_had_not_planned_cannot_be_gone_on_with(allranks, runs, repository):
    expansion = expand(load(repository))
    [job] = [job for job in plan(expansion.matrix, expansion.cells) if job.id == "gloo-w1-g0-env/tiny"]
    open_run(repository / "results", "r1", [job], {}, 7)
    code, _, err = allranks("run", "--resume", "gloo-w2-g0-env")
    assert (code, runs) == (2, [])
    assert "The run r1 had planned none of these cells and suites." in err


def test_without_an_earlier_run_there_is_nothing_to_go_on_with(allranks, runs):
    code, _, err = allranks("run", "--rerun-failed")
    assert (code, runs) == (2, [])
    assert "There is no run to go on with" in err


def test_a_run_without_options_has_the_defaults(allranks, runs, repository):
    allranks("run")
    [(jobs, options)] = runs
    assert len(jobs) == 5
    assert (options.engine, options.results, options.seed) == ("auto", repository / "results", None)
    assert (options.pytest_args, options.nothing_ran_allowed) == ((), False)


def test_the_environment_gives_engine_results_and_run(allranks, runs, monkeypatch):
    for name, value in (("ENGINE", "docker"), ("RESULTS", "/r"), ("RUN_ID", "mine")):
        monkeypatch.setenv(f"ALLRANKS_{name}", value)
    allranks("run")
    [(_, options)] = runs
    assert (options.engine, options.results, options.run_id) == ("docker", Path("/r"), "mine")


def test_the_command_line_wins_over_the_environment(allranks, runs, monkeypatch):
    monkeypatch.setenv("ALLRANKS_ENGINE", "docker")
    allranks("run", "--engine", "process")
    assert runs[0][1].engine == "process"


def test_every_run_has_a_name_of_its_own(allranks, runs):
    allranks("run")
    allranks("run")
    assert runs[0][1].run_id != runs[1][1].run_id


@pytest.mark.parametrize("where", ["environment", "command line"])
def test_a_wrong_engine_is_refused_with_the_right_ones(allranks, monkeypatch, where):
    if where == "environment":
        monkeypatch.setenv("ALLRANKS_ENGINE", "podman")
        code, _, err = allranks("run")
    else:
        code, _, err = allranks("run", "--engine", "podman")
    assert code == 2
    assert "'podman' is no engine: choose from auto, process, docker" in err


def test_a_wrong_engine_in_the_environment_disturbs_no_other_command(allranks, monkeypatch):
    monkeypatch.setenv("ALLRANKS_ENGINE", "podman")
    assert allranks("plan")[0] == 0


RANK = """<testsuites><testsuite name="pytest"><testcase classname="t" name="{name}" time="0.1">{result}</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def ranks(tmp_path):
    def write(*results: str) -> Path:
        folder = tmp_path / "ranks"
        folder.mkdir()
        for rank, result in enumerate(results):
            (folder / f"rank-{rank}.xml").write_text(RANK.format(name="test_x", result=result))
        return folder

    return write


def test_merge_judges_what_lies_in_any_folder(allranks, ranks):
    folder = ranks("", '<failure message="no">text</failure>')
    code, out, _ = allranks("merge", str(folder))
    assert code == 1
    assert f"report: {folder}/junit.xml\npage: {folder}/report.html\n" in out
    assert out.endswith("exit code 1: tests failed\n")


def test_merge_puts_the_cell_into_class_names_where_that_is_asked_for(allranks, ranks):
    folder = ranks("", "")
    allranks("merge", str(folder))
    assert ' classname="t" ' in (folder / "junit.xml").read_text()
    allranks("merge", str(folder), "--cell-in-classname")
    assert ' classname="ranks.tests.t" ' in (folder / "junit.xml").read_text()


def test_merge_writes_the_form_of_the_schemas_where_that_is_asked_for(allranks, ranks):
    folder = ranks("", "")
    assert allranks("merge", str(folder), "--strict-xsd")[0] == 0
    assert "<testsuites" not in (folder / "junit.xml").read_text()


def test_merge_names_every_file_of_a_split_report(allranks, ranks, monkeypatch):
    folder = ranks("")
    many = "".join(f'<testcase classname="t" name="test_{number}"/>' for number in range(50))
    (folder / "rank-0.xml").write_text(f"<testsuite>{many}</testsuite>")
    allranks("merge", str(folder))  # whatever takes the form from its module has it now
    usual = JUnitForm
    monkeypatch.setattr("allranks.report.junit_form.JUnitForm", lambda **said: usual(file_limit=10_000, **said))
    _, out, _ = allranks("merge", str(folder))
    assert f"report: {folder}/junit.xml\n        {folder}/junit-2.xml\n" in out


@pytest.fixture
def newest(tmp_path, ranks, monkeypatch):
    """A folder of all runs beside, whose newest run has a test that passed."""
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    results.mkdir()
    (results / "latest").symlink_to(ranks(""), target_is_directory=True)
    return results / "latest"


def test_report_is_of_the_newest_run(allranks, newest):
    code, out, _ = allranks("report")
    assert code == 0
    assert f"page: {newest.resolve() / 'report.html'}" in out


def test_report_opens_the_page(allranks, newest, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or len(opened) > 1)
    assert "no browser could be started" in allranks("report", "--open")[1]
    assert "browser" not in allranks("report", str(newest), "--open")[1]
    assert opened == [(newest.resolve() / "report.html").as_uri()] * 2


def test_report_without_a_run_says_what_to_do(allranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = allranks("report")
    assert code == 2
    assert "There is no results folder results/latest" in err


def test_leases_are_shown_with_their_holders(allranks, tmp_path, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "GPU-a,GPU-b")
    monkeypatch.setattr("allranks.schedule.leases.lock_folder", lambda: tmp_path)
    with try_lease(("GPU-b",), 1, Holder(run_id="r1", job_id="cell/suite", pid=7, since=0.0)):
        _, out, _ = allranks("leases")
    assert out == ("GPU-a: free\nGPU-b: held by cell/suite of run r1 (process 7) since 1970-01-01 00:00:00+00:00\n")


def test_a_host_without_gpus_has_no_leases(allranks, tmp_path, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "")
    monkeypatch.setattr("allranks.schedule.leases.lock_folder", lambda: tmp_path)
    code, out, _ = allranks("leases")
    assert (code, out) == (0, "this host has no GPUs that allranks could lease\n")


def test_a_gpu_that_is_not_there_is_refused_before_there_is_a_run(allranks, repository, monkeypatch):
    monkeypatch.chdir(repository)
    monkeypatch.setenv("ALLRANKS_GPUS", "")
    code, _, err = allranks("run", "--gpus", "0", "--engine", "process")
    assert code == 2
    assert "There is no GPU 0 on this host" in err
    assert not (repository / "results").exists()


@pytest.mark.parametrize("arguments", [["--jobs", "0"], ["--jobs", "many"], ["--jobs", "-1"]])
def test_a_number_of_jobs_that_is_none_is_refused(allranks, arguments):
    code, _, err = allranks("run", *arguments)
    assert code == 2
    assert "is no number of jobs" in err


def test_merge_takes_durations_from_the_results(allranks, repository, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(repository / "cache"))
    jobs = [{"cell": "gloo-w1", "suite": "s", "id": "gloo-w1/s"}]
    manifest = {"schema": 1, "run_id": "r", "cells": {"gloo-w1": {"backend": "gloo"}}, "jobs": jobs}
    attempt = repository / "r/cells/gloo-w1/s/attempt-1"
    attempt.mkdir(parents=True)
    (repository / "r/run.json").write_text(json.dumps(manifest))
    (attempt / "job.json").write_text(json.dumps({"schema": 1, "world_size": 1, "collected": []}))
    (attempt / "rank-0.xml").write_text("<testsuite><testcase classname='t' name='a' time='1.25'/></testsuite>")
    for _ in range(2):
        allranks("merge", "r", "--durations", "mine.json")
    assert json.loads((repository / "mine.json").read_text())["seconds"] == {"s": {"gloo": {"t::a": 1.25}}}


def test_merge_of_nothing_but_skips_is_exit_code_5_unless_that_is_allowed(allranks, ranks):
    folder = str(ranks('<skipped type="pytest.skip" message="no GPU"/>'))
    assert allranks("merge", folder)[0] == 5
    assert allranks("merge", folder, "--allow-nothing-ran")[0] == 0


def test_clean_names_what_it_removed(allranks, monkeypatch):
    engines = [argparse.Namespace(reap=lambda: ["process 1"]), argparse.Namespace(reap=lambda: ["volume x"])]
    monkeypatch.setattr("allranks.schedule.host.engines", lambda: engines)
    assert allranks("clean") == (0, "removed process 1\nremoved volume x\n", "")


def test_clean_says_when_there_is_nothing(allranks, monkeypatch):
    monkeypatch.setattr("allranks.schedule.host.engines", list)
    code, out, _ = allranks("clean")
    assert code == 0
    assert out.startswith("nothing to remove")


def test_a_reader_that_leaves_early_breaks_nothing():
    """As in ``allranks plan | head -1``."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "allranks", "plan"]
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plan_needs_neither_docker_nor_junitparser():
    program = "import sys; from allranks.cli import main; main(['plan']); print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines())
    assert "allranks.matrix.plan" in loaded
    assert not {"docker", "junitparser", "requests", "torch"} & loaded


def test_pytests_own_arguments_are_split_off_at_the_first_dashes():
    assert cli._split(["run", "--", "-k", "a", "--", "b"]) == (["run"], ("-k", "a", "--", "b"))
    assert cli._split(["run"]) == (["run"], ())


def test_a_bug_of_ours_is_told_without_a_traceback(allranks, monkeypatch):
    def fail(*_):
        raise AttributeError("no such thing")  # noqa: EM101

    monkeypatch.setattr("allranks.schedule.run.run", fail)
    code, _, err = allranks("run")
    assert code == 4
    assert err.startswith("allranks: error: allranks broke down: AttributeError: no such thing\n")
    assert "Traceback" not in err
    assert "--debug" in err


def test_the_doctors_findings_are_printed_and_a_problem_is_exit_code_4(allranks, monkeypatch):
    found = [Finding("disk", "full", "Make room.")]
    monkeypatch.setattr("allranks.doctor.examine", lambda *_: [Finding("GPUs", "none"), *found])
    code, out, _ = allranks("doctor")
    assert code == 4
    assert out == "ok       GPUs: none\nPROBLEM  disk: full\n         -> Make room.\n1 problem(s)\n"
    found.clear()
    assert allranks("doctor")[:2] == (0, "ok       GPUs: none\nno problem was found\n")


RUNNERS = """
[[runners]]
when = "gpu_count == 0"
labels = ["ubuntu-latest"]

[[runners]]
labels = ["self-hosted", "gpu"]
gpus = 2
engine = "process"
"""


@pytest.fixture
def plan_machines(allranks, repository):
    """Plan for machines; the entries of the job matrix, the first for those without GPUs."""
    (repository / "matrix.toml").write_text(MATRIX + RUNNERS)

    def plan_all(*arguments):
        code, out, err = allranks("plan", "--format", "github", "--plan-file", "plan.json", *arguments)
        assert code == 0, err
        return json.loads(out)["include"]

    return plan_all


def test_a_plan_for_github_is_json_alone_and_what_it_did_is_said_beside_it(allranks, repository):
    (repository / "matrix.toml").write_text(MATRIX + RUNNERS)
    code, out, err = allranks("plan", "--format", "github")
    assert (code, out.count("\n")) == (0, 1)
    assert [entry["jobs"] for entry in json.loads(out)["include"]] == [3, 2]
    assert err.startswith("5 jobs in 2 entries of the job matrix\n")
    assert not (repository / "plan.json").exists()


def test_a_pack_is_run_as_it_was_planned(plan_machines, allranks, runs):
    _, gpu = plan_machines("--", "-k", "x")
    assert allranks("run", "--plan-file", "plan.json", "--pack", gpu["pack"])[0] == 0
    [(jobs, options)] = runs
    document = json.loads(Path("plan.json").read_text())
    assert jobs == ["nccl-w2-g2-env/tiny", "nccl-w2-g2-env/other"]
    assert (options.run_id, options.seed) == (document["run_id"], document["seed"])
    assert (options.engine, options.pytest_args) == ("process", ("-k", "x"))
    assert options.planned_gpus == 2
    assert (options.rules.seconds, options.known) == (gpu["limit_seconds"], {})


def test_a_machine_of_a_plan_runs_in_containers_unless_its_rule_says_otherwise(plan_machines, allranks, runs):
    cpu, _ = plan_machines()
    assert allranks("run", "--plan-file", "plan.json", "--pack", cpu["pack"])[0] == 0
    assert (runs[0][1].engine, runs[0][1].planned_gpus) == ("docker", 0)


def test_a_machine_with_fewer_gpus_than_planned_runs_nothing(plan_machines, allranks, monkeypatch, tmp_path):
    _, gpu = plan_machines()
    monkeypatch.setenv("ALLRANKS_GPUS", "GPU-a")
    code, _, err = allranks("run", "--plan-file", "plan.json", "--pack", gpu["pack"], "--results", str(tmp_path / "r"))
    assert code == 4
    assert "a job with 2 GPUs for this machine, and allranks finds 1" in err
    assert not (tmp_path / "r").exists()


def test_the_command_line_may_choose_engine_and_seed_of_a_pack(plan_machines, allranks, runs):
    _, gpu = plan_machines()
    allranks("run", "--plan-file", "plan.json", "--pack", gpu["pack"], "--engine", "docker", "--seed", "5")
    assert (runs[0][1].engine, runs[0][1].seed) == ("docker", 5)


def test_a_pack_is_shown_without_running_it(plan_machines, allranks, runs):
    cpu, _ = plan_machines()
    code, out, _ = allranks("run", "--plan-file", "plan.json", "--pack", cpu["pack"], "--dry-run")
    assert (code, len(json.loads(out)), runs) == (0, 3, [])


@pytest.mark.parametrize("also", [["gloo-w1-g0-env"], ["--where", "world_size=2"], ["--suite", "tiny"], ["--resume"]])
def test_a_pack_is_not_selected_from(plan_machines, allranks, runs, also):
    cpu, _ = plan_machines()
    code, _, err = allranks("run", "--plan-file", "plan.json", "--pack", cpu["pack"], *also)
    assert (code, runs) == (2, [])
    assert "cannot be selected from" in err


@pytest.mark.parametrize("half", [["--plan-file", "plan.json"], ["--pack", "cpu-g0-1of1"]])
def test_a_pack_needs_its_plan_and_a_plan_the_pack(allranks, runs, half):
    code, _, err = allranks("run", *half)
    assert (code, runs) == (2, [])
    assert "--plan-file plan.json --pack PACK" in err


def test_a_pack_of_another_matrix_or_another_run_is_refused_before_anything_runs(
    plan_machines, allranks, runs, repository, monkeypatch
):
    cpu, _ = plan_machines()
    asked = ("run", "--plan-file", "plan.json", "--pack", cpu["pack"])
    monkeypatch.setenv("ALLRANKS_RUN_ID", "another")
    assert "ALLRANKS_RUN_ID is 'another'" in allranks(*asked)[2]
    monkeypatch.delenv("ALLRANKS_RUN_ID")
    (repository / "matrix.toml").write_text(MATRIX + RUNNERS.replace("gpus = 2", "gpus = 4"))
    code, _, err = allranks(*asked)
    assert (code, runs) == (2, [])
    assert "they differ in 'runners'" in err


def test_gpu_cells_without_a_rule_for_machines_are_an_error_of_that_plan_alone(allranks):
    assert allranks("plan")[0] == 0
    code, out, err = allranks("plan", "--format", "github")
    assert (code, out) == (2, "")
    assert "No CI machine takes the cell nccl-w2-g2-env" in err
    assert "[[runners]]" in err


def test_a_plan_of_nothing_is_an_error_since_github_takes_no_empty_matrix(allranks):
    code, out, err = allranks("plan", "--format", "github", "gloo-w1-g0-env", "--suite", "other")
    assert (code, out) == (2, "")
    assert "nothing to run" in err


@pytest.mark.parametrize(
    "wrong", [["--max-entries", "257"], ["--max-entries", "0"], ["--minutes-per-entry", "0"], ["--max-entries", "x"]]
)
def test_a_number_of_entries_that_github_does_not_take_is_refused(allranks, wrong):
    code, out, err = allranks("plan", "--format", "github", *wrong)
    assert (code, out) == (2, "")
    assert wrong[0] in err
