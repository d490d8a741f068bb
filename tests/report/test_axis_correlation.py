"""Which axis is to blame."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.report.axis_correlation import Axes, Blame, blame

MATRIX: list[Axes] = [
    {"backend": backend, "world_size": size, "init_method": init}
    for backend, size, init in product(["gloo", "nccl"], [1, 2, 4, 8], ["env", "tcp", "file"])
]
OPERATIONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}

cells = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(["gloo", "nccl"]),
        "world_size": st.sampled_from([1, 2, 4, 8]),
        "gpu_count": st.sampled_from([0, 2, 4]),
        "init_method": st.sampled_from(["env", "tcp", "file"]),
    }
)
results = st.lists(st.tuples(cells, st.booleans()), max_size=30, unique_by=lambda each: tuple(each[0].values()))


def split(outcomes: Sequence[tuple[Axes, bool]]) -> tuple[list[Axes], list[Axes]]:
    return [cell for cell, failed in outcomes if failed], [cell for cell, failed in outcomes if not failed]


def holds(predicate: str, cell: Axes) -> bool:
    axis, operation, value = predicate.split(" ", 2)
    return OPERATIONS[operation](cell[axis], int(value) if value.lstrip("-").isdecimal() else value.strip("'"))


def where(predicate: str) -> Blame | None:
    """What is blamed when a test fails where this holds, in the whole matrix."""
    return blame(
        [cell for cell in MATRIX if holds(predicate, cell)], [cell for cell in MATRIX if not holds(predicate, cell)]
    )


@pytest.mark.parametrize(
    "predicate",
    [
        "world_size >= 4",
        "world_size >= 2",
        "world_size == 1",
        "world_size == 2",
        "world_size <= 2",
        "backend == 'nccl'",
        "init_method == 'file'",
        "init_method != 'file'",
    ],
)
def test_a_predicate_that_failures_follow_is_found_again(predicate: str) -> None:
    found = where(predicate)
    assert found
    assert found.predicate == predicate
    assert found.axis == predicate.split(maxsplit=1)[0]
    assert found.fails + found.passes == len(MATRIX)


def test_the_evidence_is_counted() -> None:
    found = where("init_method == 'file'")
    assert found
    assert (found.fails, found.passes, found.also) == (8, 16, ())


def test_an_axis_that_goes_with_another_is_named_beside_it() -> None:
    matrix = [{**cell, "gpu_count": 4 if cell["backend"] == "nccl" else 0} for cell in MATRIX]
    found = blame(
        [cell for cell in matrix if cell["backend"] == "nccl"], [cell for cell in matrix if cell["backend"] == "gloo"]
    )
    assert found
    assert (found.predicate, found.also) == ("backend == 'nccl'", ("gpu_count >= 4",))


def test_nine_cells_of_which_the_three_of_one_world_size_fail_are_evidence() -> None:
    nine: list[Axes] = [
        {"backend": "gloo", "world_size": size, "init_method": init}
        for size, init in product([1, 2, 4], ["env", "tcp", "file"])
    ]
    found = blame(
        [cell for cell in nine if cell["world_size"] == 4], [cell for cell in nine if cell["world_size"] != 4]
    )
    assert found
    assert found.predicate == "world_size >= 4"


def test_two_of_six_cells_are_no_evidence() -> None:
    """One of five pairs of these cells has a value in common: too many to be no accident."""
    six: list[Axes] = [
        {"world_size": size, "init_method": init} for size, init in product([2, 4], ["env", "tcp", "file"])
    ]
    assert blame(*split([(cell, cell["init_method"] == "file") for cell in six])) is None


@pytest.mark.parametrize("backends", [["gloo"], ["gloo", "nccl"]])
def test_a_handful_of_cells_is_no_evidence(backends: list[str]) -> None:
    few: list[Axes] = [{"backend": backend, "world_size": size} for backend, size in product(backends, [2, 4])]
    failing, passing = split([(cell, cell["world_size"] == 4) for cell in few])
    assert blame(failing, passing) is None


def test_one_failing_cell_is_no_evidence_however_many_pass() -> None:
    lonely: Axes = {"backend": "mpi", "world_size": 1, "init_method": "env"}
    assert blame([lonely], MATRIX) is None


def test_one_passing_cell_is_no_evidence_however_many_fail() -> None:
    lonely: Axes = {"backend": "mpi", "world_size": 1, "init_method": "env"}
    assert blame(MATRIX, [lonely]) is None


def test_cells_without_axes_blame_nothing() -> None:
    assert blame([{}] * 5, [{}] * 5) is None


def test_an_axis_that_some_cell_lacks_is_not_blamed() -> None:
    failing, passing = split([(cell, cell["backend"] == "nccl") for cell in MATRIX])
    assert blame(failing, [*passing, {"world_size": 2}]) is None


def test_values_of_two_types_on_one_axis_are_compared_as_words() -> None:
    mixed: list[Axes] = [{"device": device, "world_size": size} for device, size in product([0, "cpu"], range(5))]
    found = blame([cell for cell in mixed if cell["device"] == "cpu"], [cell for cell in mixed if cell["device"] == 0])
    assert found
    assert found.predicate == "device == 'cpu'"


@given(results)
def test_what_is_blamed_has_no_counter_example(outcomes: list[tuple[Axes, bool]]) -> None:
    failing, passing = split(outcomes)
    if found := blame(failing, passing):
        for predicate in (found.predicate, *found.also):
            assert all(holds(predicate, cell) for cell in failing)
            assert not any(holds(predicate, cell) for cell in passing)


@given(results, st.randoms(use_true_random=False))
def test_the_order_of_the_cells_changes_nothing(outcomes: list[tuple[Axes, bool]], dice: Any) -> None:
    shuffled = dice.sample(outcomes, len(outcomes))
    assert blame(*split(shuffled)) == blame(*split(outcomes))


@given(results)
def test_the_order_of_the_axes_changes_nothing(outcomes: list[tuple[Axes, bool]]) -> None:
    turned: list[tuple[Axes, bool]] = [(dict(reversed(list(cell.items()))), failed) for cell, failed in outcomes]
    assert blame(*split(turned)) == blame(*split(outcomes))


@given(st.sampled_from(["world_size >= 4", "backend == 'nccl'", "init_method == 'file'"]), st.sampled_from(MATRIX))
def test_one_counter_example_in_a_whole_matrix_silences_it(predicate: str, odd: Axes) -> None:
    outcomes = [(cell, holds(predicate, cell) != (cell is odd)) for cell in MATRIX]
    assert blame(*split(outcomes)) is None


@given(st.sets(st.integers(0, len(MATRIX) - 1), min_size=2, max_size=22))
def test_a_predicate_that_is_blamed_could_hardly_have_fitted_by_accident(failed: set[int]) -> None:
    found = blame(*split([(cell, place in failed) for place, cell in enumerate(MATRIX)]))
    assert found is None or where(found.predicate) == found
