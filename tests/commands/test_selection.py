"""Which cells and suites a command line selects."""

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
def test_cells_are_chosen_by_name_signature_and_where(allranks, arguments, cells):
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
