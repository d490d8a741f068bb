"""Options that several commands share, and their environment variables."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("option", ["--reruns", "--shuffle"])
@pytest.mark.parametrize("value", ["-1", "x", "\u00b2", "9" * 40])
def test_an_invalid_number_is_an_error(allranks, runs, option, value):
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


def test_every_run_has_its_own_id(allranks, runs):
    allranks("run")
    allranks("run")
    assert runs[0][1].run_id != runs[1][1].run_id


@pytest.mark.parametrize("where", ["environment", "command line"])
def test_an_unknown_engine_is_an_error_that_lists_the_engines(allranks, monkeypatch, where):
    if where == "environment":
        monkeypatch.setenv("ALLRANKS_ENGINE", "podman")
        code, _, err = allranks("run")
    else:
        code, _, err = allranks("run", "--engine", "podman")
    assert code == 2
    assert "'podman' is not an engine: choose from auto, docker, process" in err


def test_an_unknown_engine_in_the_environment_does_not_affect_other_commands(allranks, monkeypatch):
    monkeypatch.setenv("ALLRANKS_ENGINE", "podman")
    assert allranks("plan")[0] == 0


@pytest.mark.parametrize("engine", ["auto", "process", "docker"])
def test_a_missing_folder_of_images_is_an_error_with_every_engine(allranks, runs, monkeypatch, engine):
    monkeypatch.setenv("ALLRANKS_IMAGES", "/nope/here")
    code, _, err = allranks("run", "--engine", engine)
    assert (code, runs) == (2, [])
    assert "ALLRANKS_IMAGES is '/nope/here', but there is no such folder." in err


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_an_unknown_gpu_mode_is_an_error(allranks, runs, monkeypatch, command):
    monkeypatch.setenv("ALLRANKS_GPU_MODE", "rcom")
    code, _, err = allranks(command)
    assert (code, runs) == (2, [])
    assert "ALLRANKS_GPU_MODE is 'rcom', which is not a GPU mode.\n  Did you mean 'rocm'?" in err


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["plan", "--format", "github", "--durations", "/nope"], "--durations: there is no file '/nope'"),
        (
            ["plan", "--format", "github", "--plan-file", "/nope/plan.json"],
            "cannot write '/nope/plan.json': its folder does not exist, or it is a folder",
        ),
        (
            ["plan", "--format", "github", "--plan-file", "/"],
            "cannot write '/': its folder does not exist, or it is a folder",
        ),
        (
            ["report", ".", "--durations", "/nope/mine.json"],
            "cannot write '/nope/mine.json': its folder does not exist, or it is a folder",
        ),
        (
            ["report", ".", "--update-baseline", "/nope/mine.json"],
            "cannot write '/nope/mine.json': its folder does not exist, or it is a folder",
        ),
        (["report", ".", "--durations", "x" * 300], "cannot be"),
    ],
)
def test_other_paths_are_checked_too(allranks, command, error):
    code, _, err = allranks(*command)
    assert code == 2
    assert error in err
