from dataclasses import replace
from pathlib import Path

import pytest

from allranks.errors import MatrixError, UsageError
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.plan import environment_for, image_for, plan
from allranks.matrix.select import select, select_id

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


def test_unknown_suite_is_a_usage_error_with_a_suggestion(load_text, document):
    matrix = load_text(document)
    with pytest.raises(UsageError, match=r"There is no suite 'colectives'.\nDid you mean 'collectives'?"):
        plan(matrix, (), ["colectives"])


def test_job_has_the_image_of_its_cell(load_text, document):
    matrix = load_text(document)
    assert [job.image.name for job in plan(matrix, expand(matrix).cells)] == ["cpu", "cpu", "cuda", "cuda"]


def test_of_two_environment_rules_the_later_wins(load_text, document):
    text = document + "[[env]]\nset = { A = '1' }\n[[env]]\nwhen = 'world_size == 2'\nset = { NCCL_DEBUG = 'INFO' }\n"
    matrix = load_text(text)
    expansion = expand(matrix)
    assert environment_for(matrix, select_id(expansion, "nccl-w1-g1-env")) == {"NCCL_DEBUG": "WARN", "A": "1"}
    assert environment_for(matrix, select_id(expansion, "nccl-w2-g2-env")) == {"NCCL_DEBUG": "INFO", "A": "1"}
    assert environment_for(matrix, select_id(expansion, "gloo-w1-g0-env")) == {"A": "1"}
    assert plan(matrix, expansion.cells)[0].environment == {"A": "1"}


@pytest.mark.parametrize(("kept", "what"), [([], "has no image"), (["cpu", "both"], "has 2 images")])
def test_cell_without_exactly_one_image_is_an_error(load_text, document, kept, what):
    matrix = load_text(document)
    images = {"cpu": matrix.images["cpu"], "both": replace(matrix.images["cuda"], name="both", when=None)}
    wrong = replace(matrix, images={name: images[name] for name in kept})
    with pytest.raises(MatrixError, match=what):
        image_for(wrong, expand(matrix).cells[0])


def test_the_matrix_of_this_repository_is_what_its_documentation_says(tmp_path):
    (tmp_path / "matrix.toml").write_bytes((ROOT / "matrix.toml").read_bytes())
    (tmp_path / "suites" / "collectives").mkdir(parents=True)
    matrix = load(tmp_path)
    expansion = expand(matrix)
    assert len(expansion.cells) == 18
    gloo, nccl = "dist(backend='gloo', world_size=2)", "dist(backend='nccl', world_size=4)"
    assert [cell.id for cell in select(expansion, gloo)] == ["gloo-w2-g0-env", "gloo-w2-g0-tcp", "gloo-w2-g0-file"]
    assert [cell.id for cell in select(expansion, nccl)] == ["nccl-w4-g4-env", "nccl-w4-g4-tcp", "nccl-w4-g4-file"]
    assert {job.image.name for job in plan(matrix, select(expansion, gloo))} == {"cpu"}
