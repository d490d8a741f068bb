"""Plugins in whole runs, on both engines: one `.coverage` of all jobs, ranks and attempts; what ran again is flaky."""

import os
import sqlite3

import pytest

MEASURED = """
def of_rank(rank):
    if rank == 0:
        return "zero"
    return "one"


def of_world(size):
    if size == 1:
        return "alone"
    return "together"
"""

SUITE = """
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import measured


def test_each():
    measured.of_rank(int(os.environ["RANK"]))
    measured.of_world(int(os.environ["WORLD_SIZE"]))
"""

AGAIN = """

def test_goes_wrong_once(pytestconfig):
    attempt = Path(__file__).parents[1] / f"went-wrong-{os.environ['RANK']}"
    if not attempt.exists():
        attempt.touch()
        raise ValueError("the first attempt")
    assert measured.of_world(1) == "alone"
"""


@pytest.fixture
def repository(scratch, monkeypatch):
    """A repository whose suite has a module to measure, and Pythons that have pytest-cov."""
    plugins = os.environ.get("ALLRANKS_TEST_PLUGINS")
    if not plugins:
        pytest.skip("ALLRANKS_TEST_PLUGINS names no folder of plugins; nox -s tests makes one")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [plugins, os.environ.get("PYTHONPATH", "")])))
    # As the image of a suite would have it, and nothing else of that folder.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_cov.plugin,pytest_rerunfailures")

    def make(suite=SUITE, **changes):
        folder = scratch(suite)
        (folder / "suite" / "measured.py").write_text(MEASURED)
        matrix = (folder / "matrix.toml").read_text()
        for before, after in {'"expecttest"': '"expecttest", "pytest-cov", "pytest-rerunfailures"', **changes}.items():
            matrix = matrix.replace(before, after)
        (folder / "matrix.toml").write_text(matrix)
        return folder

    return make


def measured_lines(data):
    """The lines of measured.py in a file of coverage's."""
    with sqlite3.connect(data) as connection:
        rows = connection.execute(
            "select bits.numbits from line_bits bits join file on file.id = file_id where path like '%measured.py'"
        ).fetchall()
    assert len(rows) == 1, "the file has one name, whatever engine and rank it ran on"
    return {8 * place + bit for place, byte in enumerate(rows[0][0]) for bit in range(8) if byte >> bit & 1}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "engine",
    ["process", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.thorough])],
    indirect=True,
)
def test_all_jobs_and_ranks_are_one_figure_on_both_engines(repository, launch, engine):
    folder = repository(**{"world_size = [2]": "world_size = [1, 2]"})
    args = ("--cov=measured", "--cov-report=xml:out/coverage.xml", "--cov-report=term-missing")
    done = launch(folder, "--engine", engine, "--", *args)
    assert done.code == 0, done.output
    assert {4, 5, 10, 11} <= measured_lines(folder / ".coverage")
    assert 'filename="suite/measured.py"' in (folder / "out" / "coverage.xml").read_text()
    assert "TOTAL" in done.output
    assert "100%" in done.output


@pytest.mark.thorough
def test_a_figure_that_is_too_low_is_red(repository, launch):
    done = launch(repository(), "--engine", "process", "--", "--cov=measured", "--cov-fail-under=90")
    assert done.code == 1, done.output
    assert "Coverage over all ranks of this job is 87.50%, less than --cov-fail-under=90." in done.output
    assert "allranks::job" in done.output


@pytest.mark.thorough
def test_an_attempt_has_the_figure_of_the_one_that_it_goes_on_with(repository, launch):
    folder = repository(SUITE + AGAIN)
    args = ("--cov=measured", "--cov-fail-under=88")
    done = launch(folder, "--engine", "process", "--reruns", "1", "--", *args)
    assert done.code == 0, done.output
    assert "1 flaky" in done.output
    assert {4, 5, 10, 11} <= measured_lines(folder / ".coverage")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({'isolation = "job"': 'isolation = "job"\nshards = 2'}, "split into shards"),
        ({'backend = ["gloo"]': 'backend = ["gloo"]\nnodes = [2]'}, "several nodes"),
    ],
)
def test_a_part_of_a_figure_does_not_decide(repository, launch, changes, why):
    done = launch(repository(**changes), "--engine", "process", "--", "--cov=measured", "--cov-fail-under=1")
    assert done.code == 2, done.output
    assert why in done.output


FLAKY = """
import tempfile
from pathlib import Path

import torch.distributed as dist


def test_goes_wrong_once():
    note = Path(tempfile.gettempdir()) / "went-wrong"
    went_wrong = note.exists()
    dist.barrier()
    if dist.get_rank() == 0:
        note.touch()
    assert went_wrong


def test_fine():
    dist.barrier()
"""


def test_what_passes_when_all_ranks_run_it_again_is_flaky(repository, launch, engine):
    done = launch(repository(FLAKY), "--engine", engine, "--", "--reruns=2")
    assert done.code == 0, done.output
    assert "1 flaky or fixed test" in done.output
    assert "2 passed" in done.output
