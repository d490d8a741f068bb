import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.errors import MatrixError, UsageError
from allranks.matrix.cell_images import image_for
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.jobs import optional_suites, plan, suites_with_tests
from allranks.matrix.model import Image, Matrix, Suite
from allranks.matrix.select import select
from allranks.matrix.when import parse_condition

ROOT = Path(__file__).parents[2]


@pytest.fixture
def two_suites(document) -> str:
    return document + "\n[suites.wide]\npath = 'suites'\nwhen = 'world_size > 1'\n"


def test_jobs_come_cell_by_cell_with_the_suites_that_run_there(load_text, two_suites):
    matrix = load_text(two_suites)
    assert [job.id for job in plan(matrix, select(expand(matrix), "backend=gloo"))] == [
        "gloo-w1-g0-env/collectives",
        "gloo-w2-g0-env/collectives",
        "gloo-w2-g0-env/wide",
    ]


def test_only_the_suites_that_are_named_run(load_text, two_suites):
    matrix = load_text(two_suites)
    jobs = plan(matrix, expand(matrix).cells, ["wide"])
    assert [job.id for job in jobs] == ["gloo-w2-g0-env/wide", "nccl-w2-g2-env/wide"]


@pytest.fixture
def with_one_by_name(load_text, document, repository):
    """A matrix with a suite of one file for two ranks, which only runs on request."""
    for name in ("test_slow.py", "test_slow.py2", "collectives/test_x.py"):
        (repository / "suites" / name).touch()
    text = "\n[suites.slow]\npath = 'suites/test_slow.py'\ndefault = false\nwhen = 'world_size == 2'\n"
    return load_text(document + text)


def test_a_suite_that_is_not_default_runs_only_when_it_is_named(with_one_by_name):
    cells = expand(with_one_by_name).cells
    assert {job.suite.name for job in plan(with_one_by_name, cells)} == {"collectives"}
    assert [job.id for job in plan(with_one_by_name, cells, ["slow"])] == [
        "gloo-w2-g0-env/slow",
        "nccl-w2-g2-env/slow",
    ]


def test_what_could_be_named_is_what_would_run_in_the_cells(with_one_by_name):
    small, large = (select(expand(with_one_by_name), f"world_size={size}") for size in (1, 2))
    assert optional_suites(with_one_by_name, small) == ()
    assert [suite.name for suite in optional_suites(with_one_by_name, large)] == ["slow"]


@pytest.mark.parametrize(
    ("pytest_args", "held"),
    [
        (["suites/collectives/test_x.py::test_y[a/b]"], ["collectives"]),
        (["-x", "./suites/test_slow.py"], ["slow"]),
        (["suites/test_slow.py::Test::test_x", "suites/collectives/"], ["collectives", "slow"]),
        (["suites/test_slow.py2", "suites"], []),
        (["-k", "suites/test_slow.py"], []),
        (["--tb", "suites/collectives/short"], []),
        (["--deselect", "suites/test_slow.py::test_x"], []),
        ([], []),
    ],
    ids=str,
)
def test_the_path_of_a_test_names_its_suite(with_one_by_name, pytest_args, held):
    assert list(suites_with_tests(with_one_by_name, pytest_args)) == held


@given(default=st.lists(st.booleans(), min_size=1, max_size=5), cut=st.integers(1, 3))
def test_whatever_the_flags_each_suite_runs_by_default_or_waits_to_be_named(default, cut):
    suites = {
        str(n): Suite(name=str(n), paths=(Path(str(n)),), default=flag, when=parse_condition(f"world_size >= {cut}"))
        for n, flag in enumerate(default)
    }
    axes = {"backend": ("gloo",), "world_size": (1, 2), "gpu_count": (0,), "init_method": ("env",), "nodes": (1,)}
    axes |= {"torch": ("",)}
    matrix = Matrix(path=Path("m"), axes=axes, suites=suites, images={"one": Image(name="one", torch="2.13.0")})
    cells = expand(matrix).cells
    by_default = {job.suite.name for job in plan(matrix, cells)}
    by_name = {suite.name for suite in optional_suites(matrix, cells)}
    assert not by_default & by_name
    assert by_default | by_name == {job.suite.name for job in plan(matrix, cells, list(suites))}


def test_unknown_suite_is_a_usage_error_with_a_suggestion(load_text, document):
    matrix = load_text(document)
    with pytest.raises(UsageError, match=r"There is no suite 'colectives'.\nDid you mean 'collectives'?"):
        plan(matrix, (), ["colectives"])


def test_job_has_the_image_of_its_cell(load_text, document):
    matrix = load_text(document)
    assert [job.image.name for job in plan(matrix, expand(matrix).cells)] == ["cpu", "cpu", "cuda", "cuda"]


def test_the_image_of_a_project_has_the_tests_of_all_suites(load_text, document):
    plain, with_project = (
        load_text(document.replace("[images.cpu]", f"[images.cpu]{key}")) for key in ("", "\nproject = '.'")
    )
    [image, *_] = {job.image for job in plan(with_project, expand(with_project).cells) if job.image.name == "cpu"}
    assert image.tests == tuple(dict.fromkeys(path for suite in with_project.suites.values() for path in suite.paths))
    assert image.tests
    assert all(job.image.tests == () for job in plan(plain, expand(plain).cells))


def test_of_two_environment_rules_the_later_wins(load_text, document):
    text = document + "[[env]]\nset = { A = '1' }\n[[env]]\nwhen = 'world_size == 2'\nset = { NCCL_DEBUG = 'INFO' }\n"
    matrix = load_text(text)
    expansion = expand(matrix)
    assert matrix.environment_of(expansion.by_id["nccl-w1-g1-env"]) == {"NCCL_DEBUG": "WARN", "A": "1"}
    assert matrix.environment_of(expansion.by_id["nccl-w2-g2-env"]) == {"NCCL_DEBUG": "INFO", "A": "1"}
    assert matrix.environment_of(expansion.by_id["gloo-w1-g0-env"]) == {"A": "1"}
    assert plan(matrix, expansion.cells)[0].environment == {"A": "1"}


@pytest.mark.parametrize(("kept", "what"), [(["cuda"], "has no image"), (["cpu", "both"], "has 2 images")])
def test_cell_without_exactly_one_image_is_an_error(load_text, document, kept, what):
    matrix = load_text(document)
    images = {**matrix.images, "both": replace(matrix.images["cuda"], name="both", when=None)}
    wrong = replace(matrix, images={name: images[name] for name in kept})
    with pytest.raises(MatrixError, match=what):
        image_for(wrong, expand(matrix).by_id["gloo-w1-g0-env"])


def test_a_file_that_names_an_interpreter_needs_no_image(load_text, document):
    matrix = load_text(f"{document.partition('[images')[0]}\n[process]\npython = 'python3'\n")
    assert {job.image for job in plan(matrix, expand(matrix).cells)} == {Image(name="")}


def test_the_matrix_of_this_repository_is_what_its_documentation_says(tmp_path):
    (tmp_path / "matrix.toml").write_bytes((ROOT / "matrix.toml").read_bytes())
    shutil.copytree(ROOT / "suites", tmp_path / "suites")
    expansion = load(tmp_path)
    assert len(expansion.cells) == 18
    gloo, nccl = "dist(backend='gloo', world_size=2)", "dist(backend='nccl', world_size=4)"
    assert [cell.id for cell in select(expansion, gloo)] == ["gloo-w2-g0-env", "gloo-w2-g0-tcp", "gloo-w2-g0-file"]
    assert [cell.id for cell in select(expansion, nccl)] == ["nccl-w4-g4-env", "nccl-w4-g4-tcp", "nccl-w4-g4-file"]
    assert {job.image.name for job in plan(expansion.matrix, select(expansion, gloo))} == {"cpu"}
    assert {job.suite.name for job in plan(expansion.matrix, expansion.cells)} == {"collectives"}


def test_torchs_suites_run_where_they_have_something_to_test():
    expansion = load(ROOT)
    matrix = expansion.matrix
    jobs = plan(matrix, expansion.cells, [name for name in matrix.suites if name.startswith("torch-")])
    assert {job.cell.world_size for job in jobs if job.suite.name == "torch-c10d"} == {2, 4}
    assert {job.cell.id for job in jobs if job.suite.name == "torch-rpc"} == {"gloo-w2-g0-tcp", "gloo-w2-g0-file"}
    assert all(job.cell.gpu_count > 0 for job in jobs if job.suite.name == "torch-rpc-cuda")
    assert all("expecttest" in job.image.packages for job in jobs)
