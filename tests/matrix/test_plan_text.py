import json

import pytest

from allranks.cli.plan import MOST_DROPPED_SHOWN, render_explanation, render_json, render_table
from allranks.matrix.expand import expand
from allranks.matrix.select import select


def test_table_has_a_line_for_each_cell_with_its_image_and_suites(expansion):
    assert render_table(expansion.matrix, expansion.cells).splitlines() == [
        "cell            backend  world_size  gpu_count  init_method  nodes  image  suites",
        "gloo-w1-g0-env  gloo     1           0          env          1      cpu    collectives",
        "gloo-w2-g0-env  gloo     2           0          env          1      cpu    collectives",
        "nccl-w1-g1-env  nccl     1           1          env          1      cuda   collectives",
        "nccl-w2-g2-env  nccl     2           2          env          1      cuda   collectives",
        "",
        "4 cells, 4 jobs",
    ]


def test_table_says_which_cell_has_no_suite_and_which_suite_no_cell(load_text, document):
    text = document.replace('"suites/collectives"', '"suites/collectives"\nwhen = "world_size == 2"')
    expansion = expand(load_text(text))
    lines = render_table(expansion.matrix, select(expansion, "gloo-w1-g0-env")).splitlines()
    assert lines[1].endswith("cpu    none")
    assert lines[-2:] == ["1 cell, 0 jobs", "The suite collectives runs in none of these cells."]


SLOW = "\n[suites.slow]\npath = 'suites'\ndefault = false\nwhen = 'world_size == 2'\n"


def test_table_says_what_runs_in_these_cells_only_when_it_is_named(load_text, document):
    expansion = expand(load_text(document + SLOW))
    assert render_table(expansion.matrix, expansion.cells).splitlines()[-2:] == [
        "4 cells, 4 jobs",
        "Not run by default (select with --suite): slow.",
    ]
    assert "slow" not in render_table(expansion.matrix, select(expansion, "world_size=1"))
    named = render_table(expansion.matrix, expansion.cells, ["slow"])
    assert named.splitlines()[-1] == "4 cells, 2 jobs"


def test_json_says_what_runs_in_a_cell_only_when_it_is_named(load_text, document):
    expansion = expand(load_text(document + SLOW))
    cells = json.loads(render_json(expansion, expansion.cells))["cells"]
    assert [(cell["suites"], cell["by_name"]) for cell in cells[:2]] == [
        (["collectives"], []),
        (["collectives"], ["slow"]),
    ]


def test_explanation_names_each_dropped_cell_under_its_rule(expansion):
    assert render_explanation(expansion).splitlines() == [
        "8 dropped cells of 12 combinations:",
        "",
        "a GPU for each rank  (line 6: backend == 'nccl' and gpu_count != world_size)",
        "  nccl-w1-g0-env",
        "  nccl-w1-g2-env",
        "  nccl-w2-g0-env",
        "  nccl-w2-g1-env",
        "",
        "gloo is tested on CPU tensors  (line 10: backend == 'gloo' and gpu_count > 0)",
        "  gloo-w1-g1-env",
        "  gloo-w1-g2-env",
        "  gloo-w2-g1-env",
        "  gloo-w2-g2-env",
    ]


def test_explanation_of_a_matrix_without_rules_is_one_line(load_text):
    text = "[matrix]\nbackend = 'gloo'\nworld_size = 2\n[suites.t]\npath = 'suites'\n[images.cpu]\ntorch = '2.13.0'\n"
    assert render_explanation(expand(load_text(text))) == "0 dropped cells of 1 combination."


@pytest.fixture
def crowded(load_text, document):
    text = document.replace("gpu_count = [0, 1, 2]", f"gpu_count = {list(range(131))}")
    return expand(load_text(text))


def test_explanation_of_very_many_cells_is_cut_with_a_count(crowded):
    lines = render_explanation(crowded).splitlines()
    assert lines[0] == "520 dropped cells of 524 combinations:"
    assert sum(line.startswith("  ") and "-w" in line for line in lines) == MOST_DROPPED_SHOWN
    assert lines[-4:-2] == ["  … and 60 more", ""]
    assert lines[-1] == "  260 cells"


def test_json_has_every_cell_with_what_runs_in_it(expansion):
    document = json.loads(render_json(expansion, expansion.cells))
    assert document["schema"] == 1
    assert document["axes"]["world_size"] == [1, 2]
    assert document["cells"][2] == {
        "id": "nccl-w1-g1-env",
        "axes": {"backend": "nccl", "world_size": 1, "gpu_count": 1, "init_method": "env", "nodes": 1},
        "image": "cuda",
        "suites": ["collectives"],
        "by_name": [],
        "environment": {"NCCL_DEBUG": "WARN"},
        "jobs": ["nccl-w1-g1-env/collectives"],
    }


def test_json_has_every_rule_with_what_it_dropped(crowded):
    dropped = json.loads(render_json(crowded, crowded.cells))["dropped"]
    assert [(rule["reason"], rule["line"], rule["count"]) for rule in dropped] == [
        ("a GPU for each rank", 6, 260),
        ("gloo is tested on CPU tensors", 10, 260),
    ]
    assert len(dropped[0]["cells"]) == MOST_DROPPED_SHOWN
