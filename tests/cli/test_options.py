"""Options of several commands, and the variables that give them too."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("option", ["--reruns", "--shuffle"])
@pytest.mark.parametrize("value", ["-1", "x", "\u00b2", "9" * 40])
def test_a_number_that_is_none_is_told(allranks, runs, option, value):
    code, _, err = allranks("run", f"{option}={value}")
    assert (code, runs) == (2, [])
    assert "is not a whole number of at least 0" in err


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
    assert "'podman' is not an engine: choose from auto, docker, process" in err


def test_a_wrong_engine_in_the_environment_disturbs_no_other_command(allranks, monkeypatch):
    monkeypatch.setenv("ALLRANKS_ENGINE", "podman")
    assert allranks("plan")[0] == 0


@pytest.mark.parametrize("engine", ["auto", "process", "docker"])
def test_a_folder_of_images_that_is_not_there_is_an_error_on_every_engine(allranks, runs, monkeypatch, engine):
    monkeypatch.setenv("ALLRANKS_IMAGES", "/nope/here")
    code, _, err = allranks("run", "--engine", engine)
    assert (code, runs) == (2, [])
    assert "ALLRANKS_IMAGES is '/nope/here', but there is no such folder." in err


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_gpu_mode_that_is_none_is_told(allranks, runs, monkeypatch, command):
    monkeypatch.setenv("ALLRANKS_GPU_MODE", "rcom")
    code, _, err = allranks(command)
    assert (code, runs) == (2, [])
    assert "ALLRANKS_GPU_MODE is 'rcom', which is not a GPU mode.\n  Did you mean 'rocm'?" in err


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["plan", "--format", "github", "--durations", "/nope"], "--durations: there is no file '/nope'"),
        (["plan", "--format", "github", "--plan-file", "/nope/plan.json"], "'/nope/plan.json' cannot be a file"),
        (["plan", "--format", "github", "--plan-file", "/"], "'/' cannot be a file"),
        (["report", ".", "--durations", "/nope/mine.json"], "'/nope/mine.json' cannot be a file"),
        (["report", ".", "--update-baseline", "/nope/mine.json"], "'/nope/mine.json' cannot be a file"),
        (["report", ".", "--durations", "x" * 300], "cannot be"),
    ],
)
def test_other_paths_are_checked_too(allranks, command, error):
    code, _, err = allranks(*command)
    assert code == 2
    assert error in err
