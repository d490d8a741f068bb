from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix_strategies import matrices, runnable_matrices

from allranks.errors import MatrixError
from allranks.matrix.axes import AXES
from allranks.matrix.expand import MOST_POINTS, Expansion, expand
from allranks.matrix.model import Cell, Matrix, Rule
from allranks.matrix.when import parse_condition


def plain(matrix: Matrix) -> tuple[list[Cell], dict[Cell, Rule]]:
    """The cells and the dropped cells, by evaluating every rule at every point."""
    cells, dropped = [], {}
    for point in product(*(matrix.axes[axis] for axis in AXES)):
        cell = Cell.at(point)
        rule = next((rule for rule in matrix.excludes if rule.when.holds(cell.axes())), None)
        if rule is None:
            cells.append(cell)
        else:
            dropped[cell] = rule
    return cells, dropped


def reasons(expansion: Expansion) -> dict[Cell, Rule]:
    """The rule that dropped each dropped cell."""
    return {cell: rule for rule, cells in expansion.dropped.items() for cell in cells}


def is_acceptable(cells: list[Cell]) -> bool:
    possible = all(cell.nodes <= cell.world_size for cell in cells) and all(
        cell.backend != "nccl" or cell.gpu_count >= cell.world_size for cell in cells
    )
    return bool(cells) and possible and len(set(cells)) == len(cells)


@given(st.one_of(matrices(), runnable_matrices()))
def test_expansion_is_what_asking_every_rule_at_every_point_gives(matrix):
    cells, dropped = plain(matrix)
    if not is_acceptable(cells):
        with pytest.raises(MatrixError):
            expand(matrix)
        return
    expansion = expand(matrix)
    assert expansion.cells == tuple(cells)
    assert reasons(expansion) == dropped
    counts = Counter(dropped.values())
    assert [(rule, len(of_rule)) for rule, of_rule in expansion.dropped.items()] == [
        (rule, counts[rule]) for rule in matrix.excludes
    ]
    assert expansion.by_id == {cell.id: cell for cell in cells}


@given(matrices())
def test_cells_have_ids_of_their_own(matrix):
    cells, _ = plain(matrix)
    ids = {cell.id for cell in cells}
    assert len(ids) == len(set(cells))


AXES_OF_TWO = {"backend": ("gloo",), "world_size": (1, 2), "gpu_count": (0,), "init_method": ("env",), "nodes": (1,)}
AXES_OF_TWO |= {"torch": ("",)}


def matrix_of(*conditions: str, **axes: tuple) -> Matrix:
    rules = [Rule(when=parse_condition(text), reason="why", line=line) for line, text in enumerate(conditions)]
    return Matrix(path=Path("matrix.toml"), axes=AXES_OF_TWO | axes, excludes=tuple(rules))


def test_first_of_two_rules_that_hold_is_the_one_that_dropped():
    expansion = expand(matrix_of("world_size == 2", "world_size > 1"))
    assert [rule.line for rule in reasons(expansion).values()] == [0]
    assert [len(cells) for cells in expansion.dropped.values()] == [1, 0]


def test_point_beyond_the_axes_was_dropped_by_nothing():
    assert Cell.at({**AXES_FIRST, "world_size": 3}.values()) not in reasons(expand(matrix_of("world_size == 2")))


AXES_FIRST = {axis: values[0] for axis, values in AXES_OF_TWO.items()}


def test_matrix_without_a_cell_is_an_error():
    with pytest.raises(MatrixError, match=r"^matrix.toml:1: matrix: no cell is left") as caught:
        expand(matrix_of("world_size >= 1"))
    assert caught.value.remedy


def test_absurd_matrix_is_refused_with_the_size_of_each_axis():
    many = tuple(range(1, 5001))
    with pytest.raises(MatrixError, match="25,000,000 combinations are too many") as caught:
        expand(matrix_of(world_size=many, gpu_count=many))
    assert "world_size 5,000 x gpu_count 5,000" in caught.value.why
    assert f"{MOST_POINTS:,}" in caught.value.why


def test_ten_thousand_points_expand_in_the_order_of_the_axes():
    axes = {"world_size": tuple(range(1, 101)), "gpu_count": tuple(range(100))}
    assert len(expand(matrix_of("gpu_count > world_size", **axes)).cells) == 10_000 - 4_851
    cells = expand(matrix_of(**axes)).cells
    assert (cells[0].id, cells[99].id, cells[-1].id) == ("gloo-w1-g0-env", "gloo-w1-g99-env", "gloo-w100-g99-env")


SHARED = """
[matrix]
backend = ["nccl"]
world_size = [2, 4]
gpu_count = [1, 2]

[images.cuda]
image = "x"

[suites.s]
path = "suites/collectives"
"""


def test_nccl_with_fewer_gpus_than_ranks_is_refused_with_what_can_be_done(load_text):
    with pytest.raises(MatrixError) as refused:
        load_text(SHARED)
    assert "nccl-w2-g1-env can never run (2 more like it)" in refused.value.what
    assert 'set = { NCCL_MULTI_RANK_GPU_ENABLE = "1" }' in refused.value.remedy


@pytest.mark.parametrize(
    ("sizes", "what", "counts"),
    [
        ("[2]", "no cell of this matrix can ever run: nccl-w2-g1-env.", "gpu_count = [2]"),
        ("[2, 4]", "no cell of this matrix can ever run: nccl-w2-g1-env (1 more like it).", "gpu_count = [2, 4]"),
        ("[1, 2]", "the cell nccl-w2-g1-env can never run.", "backend == 'nccl' and gpu_count < world_size"),
    ],
)
def test_a_refusal_counts_the_cells_and_says_what_to_change(load_text, sizes, what, counts):
    with pytest.raises(MatrixError) as refused:
        load_text(SHARED.replace("[2, 4]", sizes).replace("[1, 2]\n\n", "[1]\n\n"))
    assert refused.value.what.endswith(what)
    assert counts in refused.value.remedy


def test_the_limit_of_combinations_is_allowed_and_an_axis_that_is_not_in_the_file_is_not_named(monkeypatch):
    monkeypatch.setattr("allranks.matrix.expand.MOST_POINTS", 2)
    assert len(expand(matrix_of()).cells) == 2
    with pytest.raises(MatrixError) as caught:
        expand(matrix_of(gpu_count=(0, 1)))
    axes = "backend 1 x world_size 2 x gpu_count 2 x init_method 1 x nodes 1"
    assert caught.value.why == f"Values per axis: {axes}; the limit is 2 combinations."


def test_ranks_may_share_a_gpu_if_the_file_allows_it(load_text):
    rule = '[[env]]\nset = { NCCL_MULTI_RANK_GPU_ENABLE = "1" }\n'
    assert len(expand(load_text(SHARED + rule)).cells) == 4
    off = '[[env]]\nwhen = "world_size == 4"\nset = { NCCL_MULTI_RANK_GPU_ENABLE = "0" }\n'
    with pytest.raises(MatrixError, match=r"nccl-w4-g1-env can never run \(1 more like it\)"):
        load_text(SHARED + rule + off)
    with pytest.raises(MatrixError, match="nccl-w2-g0-env can never run"):
        load_text(SHARED.replace("[1, 2]", "[0, 1]") + rule)


def test_id_names_the_nodes_only_where_there_are_several():
    cell = Cell(backend="nccl", world_size=4, gpu_count=4, init_method="env")
    assert (cell.id, replace(cell, nodes=2).id) == ("nccl-w4-g4-env", "nccl-w4-g4-env-n2")
