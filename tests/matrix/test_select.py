import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix_strategies import runnable_matrices

from allranks.errors import ExitCode, UsageError
from allranks.matrix.axes import AXES
from allranks.matrix.declaration import load
from allranks.matrix.expand import expand
from allranks.matrix.select import (
    prefixes,
    select,
    signature,
    signature_axes,
)


def ids(cells) -> list[str]:
    return [cell.id for cell in cells]


@given(runnable_matrices(), st.data())
def test_where_selects_the_cells_that_have_the_values(matrix, data):
    expansion = expand(matrix)
    some = data.draw(st.sampled_from(list(expansion.cells)[:30])).axes()
    chosen = data.draw(st.lists(st.sampled_from([axis for axis in AXES if some[axis] != ""]), unique=True, min_size=1))
    text = ", ".join(f"{axis}={some[axis]}" for axis in chosen)
    expected = [cell for cell in expansion.cells if all(cell.axes()[axis] == some[axis] for axis in chosen)]
    assert list(select(expansion, text)) == expected


@given(runnable_matrices())
def test_every_cell_is_found_by_its_id_and_by_its_signature(matrix):
    expansion = expand(matrix)
    for cell in expansion.cells[:30]:
        assert cell in select(expansion, cell.id)
        assert list(select(expansion, signature(cell, signature_axes(expansion.cells)))) == [cell]


@given(runnable_matrices())
def test_prefixes_divide_the_cells_at_every_length(matrix):
    cells = list(expand(matrix).cells)
    axes, found = signature_axes(cells), prefixes(cells)
    for length in range(1, len(axes)):
        groups = [prefix for prefix in found if len(prefix.values) == length]
        assert sorted(ids(cell for group in groups for cell in group.cells)) == sorted(ids(cells))
        assert len({group.signature for group in groups}) == len(groups)


@given(runnable_matrices())
def test_prefix_selects_its_own_cells(matrix):
    expansion = expand(matrix)
    for prefix in prefixes(expansion.cells)[:20]:
        assert tuple(select(expansion, prefix.signature)) == prefix.cells


@given(
    text=st.one_of(st.text(), st.from_regex(r"(dist)?\(?(backend|world_size|nodes)=[ -~]{0,8}\)?,?", fullmatch=True))
)
def test_no_text_raises_anything_but_a_usage_error(expansion_once, text):
    try:
        outcome = [cell.id for cell in select(expansion_once, text)]
    except UsageError as error:
        outcome = [error.what, error.remedy]
    assert all(outcome)


@pytest.fixture(scope="module")
def expansion_once(tmp_path_factory, document):
    folder = tmp_path_factory.mktemp("select")
    (folder / "suites" / "collectives").mkdir(parents=True)
    (folder / "matrix.toml").write_text(document)
    return load(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nccl-w2-g2-env", ["nccl-w2-g2-env"]),
        ("backend=gloo", ["gloo-w1-g0-env", "gloo-w2-g0-env"]),
        ("gloo", ["gloo-w1-g0-env", "gloo-w2-g0-env"]),
        (" nccl-w2 ", ["nccl-w2-g2-env"]),
        ("nccl-w2-g2", ["nccl-w2-g2-env"]),
        ("backend=gloo,world_size=2", ["gloo-w2-g0-env"]),
        (" backend = 'gloo' , world_size = 2 ", ["gloo-w2-g0-env"]),
        ("backend=gloo|nccl,world_size=1", ["gloo-w1-g0-env", "nccl-w1-g1-env"]),
        ("backend=gloo,backend=nccl,world_size=1", ["gloo-w1-g0-env", "nccl-w1-g1-env"]),
        ("nodes=1,backend=nccl", ["nccl-w1-g1-env", "nccl-w2-g2-env"]),
        ("dist(backend='nccl')", ["nccl-w1-g1-env", "nccl-w2-g2-env"]),
        ("dist(world_size=2, backend='gloo')", ["gloo-w2-g0-env"]),
        ("dist(world_size='2', backend=gloo)", ["gloo-w2-g0-env"]),
        ("dist", ["gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w1-g1-env", "nccl-w2-g2-env"]),
        ("dist()", ["gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w1-g1-env", "nccl-w2-g2-env"]),
    ],
)
def test_text_selects_its_cells_in_matrix_order(expansion, text, expected):
    assert ids(select(expansion, text)) == expected


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("backend=ncll", "The matrix has no cell with backend 'ncll'.", "Did you mean 'nccl'?"),
        ("world_size=8", "The matrix has no cell with world_size 8.", "Values of world_size: 1, 2."),
        ("world=2", "There is no axis 'world'.", "Did you mean 'world_size'?"),
        ("world_size=two", "world_size=two is not a whole number.", "world_size=2"),
        ("world_size=", "The selection cannot be read at 'world_size='.", "backend=gloo,world_size=2"),
        ("backend=gloo,", "The selection cannot be read at ''.", "backend=gloo,world_size=2"),
        ("backend=gloo|", "The selection cannot be read at 'backend=gloo|'.", "backend=gloo,world_size=2"),
        ("nccl-w8-g8-env", "The matrix has no cell with world_size 8.", "Values of world_size: "),
        ("nccl-w2-g2-", "There is no cell 'nccl-w2-g2-'.", "Did you mean nccl-w2-g2-env?"),
        ("ncll", "There is no cell 'ncll'.", "Did you mean nccl?"),
        ("ncll-w2", "The matrix has no cell with backend 'ncll'.", "Did you mean 'nccl'?"),
        ("gloo-w3", "The matrix has no cell with world_size 3.", "Values of world_size: "),
        ("elephant", "There is no cell 'elephant'.", "gloo-w1-g0-env"),
        ("dist(backnd='gloo')", "There is no axis 'backnd'.", "Did you mean 'backend'?"),
        ("dist(backend='ncll')", "The matrix has no cell with backend 'ncll'.", "Did you mean 'nccl'?"),
        ("dist(world_size=True)", "world_size=True is not a whole number.", "world_size=2"),
        ("dist('gloo')", "The selection cannot be read at \"'gloo'\".", "backend='gloo'"),
        ("dist(**{})", "The selection cannot be read at '**{}'.", "backend='gloo'"),
        ("tests(backend='gloo')", "The selection cannot be read at \"tests(backend='gloo')\".", "backend='gloo'"),
        ("dist(backend='gloo'", "The selection cannot be read at \"dist(backend='gloo'\".", "backend='gloo'"),
    ],
)
def test_what_is_not_there_is_a_usage_error_that_says_what_is(expansion, text, what, hint):
    with pytest.raises(UsageError) as caught:
        select(expansion, text)
    assert what in caught.value.what
    assert hint in caught.value.why + caught.value.remedy
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("gloo-w2-g1-env", "The matrix excludes the cell gloo-w2-g1-env."),
        ("gloo-w2-g1", "The matrix excludes the cells with backend=gloo, world_size=2, gpu_count=1."),
        (
            "backend=gloo,gpu_count=1,gpu_count=2",
            "The matrix excludes the cells with backend=gloo, gpu_count=1, gpu_count=2.",
        ),
        ("dist(backend='gloo', gpu_count=2)", "The matrix excludes the cells with backend=gloo, gpu_count=2."),
    ],
)
def test_excluded_cell_is_an_error_that_names_rule_reason_and_line(expansion, text, what):
    with pytest.raises(UsageError) as caught:
        select(expansion, text)
    assert caught.value.what == what
    rule = (
        "matrix.toml:10: matrix.exclude: backend == 'gloo' and gpu_count > 0 (reason: gloo is tested on CPU tensors)."
    )
    assert caught.value.why == rule


def test_excluded_cells_name_each_rule_that_dropped_some(expansion):
    with pytest.raises(UsageError) as caught:
        select(expansion, "gpu_count=2,world_size=1")
    assert "a GPU for each rank" in caught.value.why
    assert "gloo is tested on CPU tensors" in caught.value.why


@given(runnable_matrices(), st.integers(1, 4))
def test_the_beginning_of_an_id_selects_the_cells_that_have_it(matrix, length):
    expansion = expand(matrix)
    for cell in expansion.cells[:10]:
        parts = cell.id.split("-")
        if length < len(parts) and (length < 4 or cell.nodes == 1):
            expected = [cell.id for cell in expansion.cells if cell.id.split("-")[:length] == parts[:length]]
            found = ids(select(expansion, "-".join(parts[:length])))
            # Four parts without nodes are those of one node.
            assert found == [cell for cell in expected if length < 4 or "-n" not in cell]


def test_signature_is_what_nox_writes(expansion):
    [cell] = select(expansion, "gloo-w2-g0-env")
    assert signature(cell) == "dist(backend='gloo', world_size=2, gpu_count=0, init_method='env')"


def test_nodes_are_in_signatures_only_where_a_cell_has_several(load_text, document):
    one = expand(load_text(document)).cells
    several = expand(load_text(document.replace("world_size = [1, 2]", "world_size = [2]\nnodes = [1, 2]"))).cells
    assert signature_axes(one) == AXES[:4]
    assert signature_axes(several) == AXES[:5]
    assert signature(several[0], signature_axes(several)).endswith("init_method='env', nodes=1)")


def test_prefixes_come_shortest_first_in_matrix_order(expansion):
    assert [(prefix.signature, len(prefix.cells)) for prefix in prefixes(expansion.cells)][:4] == [
        ("dist(backend='gloo')", 2),
        ("dist(backend='nccl')", 2),
        ("dist(backend='gloo', world_size=1)", 1),
        ("dist(backend='gloo', world_size=2)", 1),
    ]
