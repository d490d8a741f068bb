from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_strategies import condition_texts, matrices, runnable_matrices

from allranks.errors import MatrixError
from allranks.matrix.axes import AXES
from allranks.matrix.expand import MOST_POINTS, cell_at, expand
from allranks.matrix.grid import Grid
from allranks.matrix.model import Cell, Matrix, Rule
from allranks.matrix.when import parse_condition


def plain(matrix: Matrix) -> tuple[list[Cell], dict[Cell, Rule]]:
    """Cells and dropped cells, by asking every rule at every point."""
    cells, dropped = [], {}
    for point in product(*(matrix.axes[axis] for axis in AXES)):
        cell = cell_at(point)
        rule = next((rule for rule in matrix.excludes if rule.when.holds(cell.axes())), None)
        if rule is None:
            cells.append(cell)
        else:
            dropped[cell] = rule
    included = [include.cell for include in matrix.includes]
    return cells + included, {cell: rule for cell, rule in dropped.items() if cell not in included}


def is_acceptable(cells: list[Cell]) -> bool:
    possible = all(cell.nodes <= cell.world_size for cell in cells) and all(
        cell.backend != "nccl" or cell.gpu_count >= cell.world_size for cell in cells
    )
    return bool(cells) and possible and len(set(cells)) == len(cells)


@settings(max_examples=200, deadline=None)
@given(st.one_of(matrices(), runnable_matrices()))
def test_expansion_is_what_asking_every_rule_at_every_point_gives(matrix):
    cells, dropped = plain(matrix)
    if not is_acceptable(cells):
        with pytest.raises(MatrixError):
            expand(matrix)
        return
    expansion = expand(matrix)
    assert list(expansion.cells) == cells
    assert dict(expansion.dropped()) == dropped
    counts = Counter(dropped.values())
    assert dict(expansion.dropped_by) == {rule: counts[rule] for rule in matrix.excludes}
    for cell in [*cells, *dropped]:
        assert expansion.why_dropped(cell.axes()) == dropped.get(cell)


@settings(max_examples=100, deadline=None)
@given(matrices())
def test_cells_have_ids_of_their_own(matrix):
    cells, _ = plain(matrix)
    ids = {cell.id for cell in cells}
    assert len(ids) == len(set(cells))


@settings(max_examples=100, deadline=None)
@given(runnable_matrices(), st.data())
def test_cells_are_a_sequence(matrix, data):
    cells, dropped = plain(matrix)
    lazy = expand(matrix).cells
    index = data.draw(st.integers(-len(cells), len(cells) - 1))
    start, stop = data.draw(st.tuples(st.integers(-5, 50), st.integers(-5, 50)))
    assert len(lazy) == len(cells)
    assert lazy[index] == cells[index]
    assert lazy[start:stop:2] == tuple(cells[start:stop:2])
    assert all(cell in lazy for cell in cells)
    assert not any(cell in lazy for cell in dropped)
    with pytest.raises(IndexError):
        lazy[len(cells)]


@given(matrices(), condition_texts())
def test_grid_finds_the_points_at_which_a_condition_holds(matrix, text):
    grid, condition = Grid(matrix.axes), parse_condition(text)
    expected = [
        point for point in product(*matrix.axes.values()) if condition.holds(dict(zip(AXES, point, strict=True)))
    ]
    found = grid.where(condition)
    assert list(grid.points(found)) == expected
    assert [grid.point(number) for number in grid.numbers(found)] == expected


AXES_OF_TWO = {"backend": ("gloo",), "world_size": (1, 2), "gpu_count": (0,), "init_method": ("env",), "nodes": (1,)}
AXES_OF_TWO |= {"torch": ("",)}


def matrix_of(*conditions: str, **axes: tuple) -> Matrix:
    rules = [Rule(when=parse_condition(text), reason="why", line=line) for line, text in enumerate(conditions)]
    return Matrix(path=Path("matrix.toml"), axes=AXES_OF_TWO | axes, excludes=tuple(rules))


def test_first_of_two_rules_that_hold_is_the_one_that_dropped():
    expansion = expand(matrix_of("world_size == 2", "world_size > 1"))
    assert [rule.line for _, rule in expansion.dropped()] == [0]
    assert list(expansion.dropped_by.values()) == [1, 0]


def test_point_beyond_the_axes_was_dropped_by_nothing():
    assert expand(matrix_of("world_size == 2")).why_dropped({**AXES_FIRST, "world_size": 3}) is None


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


def test_a_million_points_expand_without_a_cell_being_made(monkeypatch):
    def refuse(_point):
        raise AssertionError

    monkeypatch.setattr("allranks.matrix.expand.cell_at", refuse)
    matrix = matrix_of("gpu_count > world_size", world_size=tuple(range(1, 1001)), gpu_count=tuple(range(1000)))
    assert len(expand(matrix).cells) == 1_000_000 - 498_501


def test_first_and_last_of_a_million_cells_are_found_by_position():
    matrix = matrix_of(world_size=tuple(range(1, 1001)), gpu_count=tuple(range(1000)))
    cells = expand(matrix).cells
    assert (cells[0].id, cells[-1].id) == ("gloo-w1-g0-env", "gloo-w1000-g999-env")


def test_include_brings_back_an_excluded_cell_at_the_end(load_text, document):
    text = "[[matrix.include]]\nbackend = 'gloo'\nworld_size = 1\ngpu_count = 2"
    expansion = expand(load_text(document + text))
    assert expansion.cells[-1].id == "gloo-w1-g2-env"
    assert expansion.why_dropped(expansion.cells[-1].axes()) is None
    assert expansion.cells[-1] not in dict(expansion.dropped())


def test_same_include_twice_is_an_error(load_text, document):
    text = "[[matrix.include]]\nbackend = 'gloo'\nworld_size = 7\n"
    with pytest.raises(MatrixError, match="gloo-w7-g0-env is in the matrix already"):
        load_text(document + text + text)


def test_cell_of_an_impossible_include_is_refused_even_outside_the_axes(load_text, document):
    with pytest.raises(MatrixError, match="mine-w1-g0-env-n2 can never run: each node needs a rank"):
        load_text(document + "[[matrix.include]]\nbackend = 'mine'\nworld_size = 1\nnodes = 2")


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
    assert "nccl-w2-g1-env can never run, and 2 others like it" in refused.value.what
    assert 'set = { NCCL_MULTI_RANK_GPU_ENABLE = "1" }' in refused.value.remedy


def test_ranks_may_share_a_gpu_where_the_file_says_so(load_text):
    rule = '[[env]]\nset = { NCCL_MULTI_RANK_GPU_ENABLE = "1" }\n'
    assert len(expand(load_text(SHARED + rule)).cells) == 4
    off = '[[env]]\nwhen = "world_size == 4"\nset = { NCCL_MULTI_RANK_GPU_ENABLE = "0" }\n'
    with pytest.raises(MatrixError, match="nccl-w4-g1-env can never run, and 1 others like it"):
        load_text(SHARED + rule + off)
    with pytest.raises(MatrixError, match="nccl-w2-g0-env can never run"):
        load_text(SHARED.replace("[1, 2]", "[0, 1]") + rule)
    included = "[[matrix.include]]\nbackend = 'nccl'\nworld_size = 16\ngpu_count = 1\n"
    assert len(expand(load_text(SHARED + rule + included)).cells) == 5


def test_id_names_the_nodes_only_where_there_are_several():
    cell = Cell(backend="nccl", world_size=4, gpu_count=4, init_method="env")
    assert (cell.id, replace(cell, nodes=2).id) == ("nccl-w4-g4-env", "nccl-w4-g4-env-n2")
