"""The version of torch as an axis."""

import json

import pytest

from allranks.cli.plan import render_json, render_table
from allranks.errors import MatrixError, UsageError
from allranks.matrix.axes import AXES
from allranks.matrix.expand import expand
from allranks.matrix.jobs import plan
from allranks.matrix.select import prefixes, select, signature, signature_axes

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]
torch = ["2.9.1", "2.13.0", "2.14.1"]

[[matrix.exclude]]
when = "torch < '2.10'"
reason = "too old"

[suites.collectives]
path = "suites/collectives"

[images.cpu]
packages = ["numpy"]
"""


@pytest.fixture
def expansion(load_text):
    return expand(load_text(MATRIX))


def ids(cells):
    return [cell.id for cell in cells]


def test_a_version_ends_the_id_of_its_cell(expansion):
    assert ids(expansion.cells) == ["gloo-w2-g0-env-t2.13.0", "gloo-w2-g0-env-t2.14.1"]
    assert select(expansion, "gloo-w2-g0-env-t2.14.1") == expansion.cells[1:]


@pytest.mark.parametrize(
    "version", ["2", "2.x", "v2.14.1", " 2.14.1", "2.14.1-rc2", "2.14.01", "1!2.14", ">=2.14", "2." + "1" * 5000]
)
def test_what_is_not_one_exact_version_is_refused(load_text, version):
    with pytest.raises(
        MatrixError, match=r"^matrix.toml:4: matrix.torch: .* is not one exact version in quotes\."
    ) as error:
        load_text(MATRIX.replace("2.14.1", version))
    assert 'torch = ["2.13.0", "2.14.1"]' in error.value.remedy


def test_a_version_comes_after_the_nodes(load_text):
    cells = expand(load_text(MATRIX.replace("[2]", "[2]\nnodes = [1, 2]"))).cells
    assert ids(cells) == [
        f"gloo-w2-g0-env{nodes}-t{version}" for nodes in ("", "-n2") for version in ("2.13.0", "2.14.1")
    ]


@pytest.mark.parametrize("version", ["2.15.0.dev20261101+cu130", "2.15.0a0+git1a2b3c4", "2.14.1rc2", "2.13.0+cpu"])
def test_every_version_is_found_by_the_id_and_the_signature_of_its_cell(load_text, version):
    expansion = expand(load_text(MATRIX.replace("2.14.1", version)))
    cell = expansion.cells[-1]
    assert list(select(expansion, cell.id)) == [cell]
    assert list(select(expansion, signature(cell, signature_axes([cell])))) == [cell]
    assert list(select(expansion, f"torch={version}")) == [cell]


def test_cells_of_a_version_are_selected(expansion):
    assert ids(select(expansion, "torch=2.13.0")) == ["gloo-w2-g0-env-t2.13.0"]
    assert len(select(expansion, "torch=2.13.0,torch=2.14.1")) == 2
    with pytest.raises(UsageError, match=r"excludes .*torch=2\.9\.1.*\n.*too old"):
        select(expansion, "torch=2.9.1")
    with pytest.raises(UsageError, match=r"no cell with torch '2\.14\.0'(?s:.*)'2\.14\.1'"):
        select(expansion, "torch=2.14.0")


@pytest.mark.parametrize("text", ["torch=2.13.0", "dist(torch='2.13.0')", "gloo-w2-g0-env-t2.13.0"])
def test_a_matrix_without_the_axis_says_so(load_text, document, text):
    with pytest.raises(UsageError, match=r"has no axis torch\.\n.*\[matrix\]"):
        select(expand(load_text(document)), text)


def test_an_id_without_its_version_is_the_beginning_of_those_of_all_versions(expansion):
    assert select(expansion, "gloo-w2-g0-env") == expansion.cells
    assert select(expansion, "gloo-w2") == expansion.cells


def test_signatures_end_with_the_version_and_the_last_prefix_has_all_versions(expansion):
    signatures = [prefix.signature for prefix in prefixes(expansion.cells)]
    assert signatures[-1] == "dist(backend='gloo', world_size=2, gpu_count=0, init_method='env')"
    cell = expansion.cells[0]
    assert signature(cell, signature_axes(expansion.cells)) == signatures[-1][:-1] + ", torch='2.13.0')"


def test_the_plan_has_a_column_and_the_axis_for_it(expansion):
    head, first, *_ = render_table(expansion.matrix, expansion.cells).splitlines()
    assert head.split() == ["cell", *AXES, "image", "suites"]
    assert first.split()[6] == "2.13.0"
    printed = json.loads(render_json(expansion, expansion.cells))
    assert printed["axes"]["torch"] == ["2.9.1", "2.13.0", "2.14.1"]
    assert printed["cells"][0]["axes"]["torch"] == "2.13.0"
    assert printed["dropped"][0]["cells"] == ["gloo-w2-g0-env-t2.9.1"]


def test_nothing_of_it_is_in_the_plan_of_a_matrix_without_the_axis(load_text, document):
    expansion = expand(load_text(document))
    assert "torch" not in render_table(expansion.matrix, expansion.cells)
    printed = json.loads(render_json(expansion, expansion.cells))
    assert "torch" not in printed["axes"]
    assert not any("torch" in cell["axes"] for cell in printed["cells"])


def test_an_image_without_a_torch_is_one_for_each_version(expansion):
    images = [job.image for job in plan(expansion.matrix, expansion.cells)]
    assert [(image.name, image.torch) for image in images] == [("cpu-t2.13.0", "2.13.0"), ("cpu-t2.14.1", "2.14.1")]


def test_an_image_with_another_torch_than_its_cell_is_an_error(load_text):
    with pytest.raises(MatrixError) as error:
        load_text(MATRIX + 'torch = "2.13.0"\n')
    assert "the cell gloo-w2-g0-env-t2.14.1 would run in an image with torch 2.13.0" in error.value.what
    assert "torch == '2.13.0'" in error.value.remedy


def test_an_image_with_the_torch_of_its_cells_is_right(load_text):
    text = MATRIX.replace("[images.cpu]", '[images.cpu]\nwhen = "torch == \'2.13\'"\ntorch = "2.13"')
    matrix = load_text(text + "[images.new]\nwhen = \"torch > '2.13'\"\n")
    assert [job.image.name for job in plan(matrix, expand(matrix).cells)] == ["cpu", "new-t2.14.1"]


def test_a_finished_image_keeps_its_own_torch(load_text):
    matrix = load_text(MATRIX.replace('packages = ["numpy"]', 'image = "x:1"'))
    assert {job.image.torch for job in plan(matrix, expand(matrix).cells)} == {None}


def test_a_condition_on_torch_needs_the_axis(load_text, document):
    text = document + "[[env]]\nset = {}\nwhen = \"torch >= '2.14'\"\n"
    with pytest.raises(
        MatrixError, match=r"env\.when: the condition uses torch, which is not an axis of this matrix"
    ) as error:
        load_text(text)
    assert "Add torch = " in error.value.remedy


def test_a_version_in_a_condition_is_on_the_axis_however_it_is_written(load_text):
    rule = "[[env]]\nset = {}\nwhen = \"torch == '2.13'\"\n"
    assert load_text(MATRIX + rule).warnings == ()
    [warning] = load_text(MATRIX + rule.replace("2.13", "2.1.3")).warnings
    assert "has '2.1.3', which is not on the axis torch" in warning


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("[2.13]", "2.13 is not one exact version in quotes"),
        ('["2"]', "'2' is not one exact version"),
        ('[">=2.13"]', "'>=2.13' is not one exact version"),
        ('["2.13", "2.13.0"]', "'2.13.0' occurs twice"),
        ("[]", "the list is empty"),
    ],
)
def test_what_is_no_version_is_an_error(load_text, value, what):
    with pytest.raises(MatrixError) as error:
        load_text(MATRIX.replace('["2.9.1", "2.13.0", "2.14.1"]', value))
    assert what in error.value.what
    assert "matrix.toml:4: matrix.torch" in error.value.what
