"""The cells and suites that a command line selects."""

import json

import pytest


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (["gloo-w2-g0-env"], ["gloo-w2-g0-env"]),
        (["gloo"], ["gloo-w1-g0-env", "gloo-w2-g0-env"]),
        (["gloo-w2"], ["gloo-w2-g0-env"]),
        (["gloo-w1-g0", "nccl"], ["gloo-w1-g0-env", "nccl-w2-g2-env"]),
        (["dist(backend='gloo')"], ["gloo-w1-g0-env", "gloo-w2-g0-env"]),
        (["--where", "world_size=2"], ["gloo-w2-g0-env", "nccl-w2-g2-env"]),
        (["--where", "backend=gloo", "--where", "world_size=2"], ["gloo-w2-g0-env"]),
        (["nccl-w2-g2-env", "--where", "backend=gloo"], ["nccl-w2-g2-env", "gloo-w1-g0-env", "gloo-w2-g0-env"]),
        (["gloo-w1-g0-env", "gloo-w1-g0-env"], ["gloo-w1-g0-env"]),
    ],
    ids=str,
)
def test_cells_are_selected_by_name_signature_and_where(allranks, arguments, cells):
    _, out, _ = allranks("plan", "--format", "json", *arguments)
    assert [cell["id"] for cell in json.loads(out)["cells"]] == cells


@pytest.fixture
def one_by_name(repository):
    """A repository whose suite `other` does not run by default."""
    matrix = repository / "matrix.toml"
    other = '[suites.other]\npath = "slow"\ndefault = false'
    matrix.write_text(matrix.read_text().replace('[suites.other]\npath = "suite"', other))
    (repository / "slow").mkdir()
    (repository / "slow" / "test_x.py").touch()
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
def test_a_non_default_suite_runs_if_it_or_one_of_its_tests_is_named(allranks, runs, arguments, suites):
    assert allranks("run", "gloo-w2-g0-env", *arguments)[0] == 0
    [(jobs, _)] = runs
    assert jobs == [f"gloo-w2-g0-env/{suite}" for suite in suites]


@pytest.mark.usefixtures("one_by_name")
@pytest.mark.parametrize(
    ("arguments", "suites", "pytest_args"),
    [
        (["slow/test_x.py::test_y"], ["other"], ("slow/test_x.py::test_y",)),
        (["-k", "foo", "slow/test_x.py", "-x"], ["other"], ("-k", "foo", "-x", "slow/test_x.py")),
        (["./slow/../slow/test_x.py"], ["other"], ("slow/test_x.py",)),
        (["slow"], ["other"], ("slow",)),
        (["slow/test_x.py::test_y[a/b-dist(1)]", "--", "-q"], ["other"], ("slow/test_x.py::test_y[a/b-dist(1)]", "-q")),
        (["suite/test_tiny.py", "-s", "-m", "not slow"], ["tiny"], ("-m", "not slow", "-s", "suite/test_tiny.py")),
        (["--suite", "tiny", "slow/test_x.py"], ["tiny"], ("slow/test_x.py",)),
        (["-kfoo"], ["tiny"], ("-k", "foo")),
        (["slow/test_x.py", "TestX.test_y"], ["other"], ("slow/test_x.py::TestX::test_y",)),
        (
            ["slow/test_x.py", "TestX", "lower.test_y", "gloo-w2-g0-env"],
            ["other"],
            ("slow/test_x.py::TestX", "slow/test_x.py::lower::test_y"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_tests_are_positional_arguments_like_cells(allranks, runs, arguments, suites, pytest_args):
    assert allranks("run", "gloo-w2", *arguments)[0] == 0
    [(jobs, options)] = runs
    assert jobs == [f"gloo-w2-g0-env/{suite}" for suite in suites]
    assert options.pytest_args == pytest_args
    assert options.policy.fail_fast == ("-x" in arguments)


@pytest.mark.usefixtures("one_by_name")
def test_a_second_file_of_this_folder_is_not_a_test_of_the_first(allranks, runs, repository, monkeypatch):
    (repository / "slow/test_y.py").touch()
    monkeypatch.chdir(repository / "slow")
    assert allranks("run", "gloo-w2", "test_x.py", "test_y.py")[0] == 0
    assert runs[0][1].pytest_args == ("slow/test_x.py", "slow/test_y.py")


@pytest.mark.usefixtures("one_by_name")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slow/test_y.py"], "There is no test file slow/test_y.py."),
        (["slow/test_y.py"], "Did you mean slow/test_x.py?"),
        (["nope/test_y.py::test_z"], "There is no test file nope/test_y.py."),
        (["matrix.toml"], "matrix.toml is in no suite."),
        (["slow/test_x.py", "suite/test_tiny.py"], "These tests are in different suites"),
        (["tiny"], "Write --suite tiny."),
        (["slow/test_x.py", "gloow2"], "There is no cell 'gloow2'."),
        (["../elsewhere/test_x.py"], "There is no test file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_test_that_no_job_can_run_is_an_error_with_a_remedy(allranks, runs, command, arguments, message):
    code, out, err = allranks(command, *arguments)
    assert (code, out, runs) == (2, "", [])
    assert message in err


def test_a_folder_with_the_name_of_cells_needs_a_slash(allranks, runs, repository):
    (repository / "gloo").symlink_to("suite")
    matrix = repository / "matrix.toml"
    matrix.write_text(matrix.read_text().replace('[suites.tiny]\npath = "suite"', '[suites.tiny]\npath = "gloo"'))
    allranks("run", "gloo", "--suite", "tiny")
    allranks("run", "./gloo", "--where", "world_size=1,backend=gloo")
    (cells, first), (_, second) = runs
    assert cells == ["gloo-w1-g0-env/tiny", "gloo-w2-g0-env/tiny"]
    assert (first.pytest_args, second.pytest_args) == ((), ("gloo",))


@pytest.mark.usefixtures("one_by_name")
def test_a_plan_shows_the_suites_of_a_test(allranks):
    _, out, _ = allranks("plan", "--format", "json", "gloo-w2", "slow/test_x.py")
    assert [cell["suites"] for cell in json.loads(out)["cells"]] == [["other"]]


@pytest.mark.usefixtures("one_by_name")
def test_a_matrix_file_is_found_in_parent_folders_and_paths_are_relative_to_here(
    allranks, runs, repository, monkeypatch
):
    (repository / "slow" / "deep").mkdir()
    monkeypatch.chdir(repository / "slow" / "deep")
    assert allranks("run", "gloo-w2", "../test_x.py::test_y")[0] == 0
    assert allranks("run", "gloo-w2", "slow/test_x.py")[0] == 0  # as in a report
    for (jobs, options), test in zip(runs, ("slow/test_x.py::test_y", "slow/test_x.py"), strict=True):
        assert jobs == ["gloo-w2-g0-env/other"]
        assert options.pytest_args == (test,)
        assert options.results == repository / "results"


def test_the_nearest_matrix_file_wins_and_pyproject_counts(allranks, repository, monkeypatch):
    below = repository / "part" / "tests"
    below.mkdir(parents=True)
    table = (
        (repository / "matrix.toml")
        .read_text()
        .replace("[matrix", "[tool.allranks.matrix")
        .replace("[suites", "[tool.allranks.suites")
        .replace("[images", "[tool.allranks.images")
        .replace('"suite"', '"tests"')
    )
    (repository / "part" / "pyproject.toml").write_text(table)
    (below / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    monkeypatch.chdir(below)
    _, out, _ = allranks("plan", "--format", "json")
    assert json.loads(out)["file"] == str(repository / "part" / "pyproject.toml")


def test_a_missing_matrix_file_is_an_error_that_lists_the_searched_folders(allranks, repository, monkeypatch):
    (repository / "below").mkdir()
    (repository / "matrix.toml").unlink()
    monkeypatch.chdir(repository / "below")
    code, _, err = allranks("plan")
    assert code == 2
    assert f"{repository}/below/matrix.toml" in err
    assert "parent folders have none" in err


def test_without_default_suites_the_error_lists_the_suites(allranks, one_by_name, runs):
    matrix = (one_by_name / "matrix.toml").read_text()
    (one_by_name / "matrix.toml").write_text(matrix.replace("[suites.tiny]", "[suites.tiny]\ndefault = false"))
    code, out, err = allranks("run", "--where", "world_size=2")
    assert (code, out, runs) == (2, "", [])
    assert "do not run by default" in err
    assert "--suite tiny --suite other" in err
