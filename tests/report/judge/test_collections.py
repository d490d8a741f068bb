"""Attempts and shards of one suite have to have collected the same tests with the same parameters."""

import pytest

from allranks.errors import ExitCode
from allranks.report.judge.exit_code import exit_code
from allranks.report.merging import merge

CELL = "gloo-w2-g0-env"
A, B, C = "t.py::test[a]", "t.py::test[b]", "t.py::test[c]"
FIRST = {A: "1111", B: "2222.5555", C: ""}


def merged(run_folder):
    found = []
    run = merge(run_folder.path, environ={}, observers=[found.append])
    troubles = [
        f"{test.verdict.message}\n{test.verdict.text}"
        for suite in found
        for test in suite.tests
        if test.name == "parameters"
    ]
    notes = [note for suite in found for note in suite.notes if "differ" in note or "have other" in note]
    return troubles, notes, exit_code(run, nothing_ran_allowed=False)


@pytest.fixture
def two_attempts(run_folder):
    """Merges two attempts, of which the second one runs a failed test again."""

    def merge_them(first, second):
        run_folder.manifest(f"{CELL}/s")
        parts = [({A: "passed", B: "failed", C: "passed"}, first, 0), ({B: "passed"}, second, 1)]
        for number, (tests, collection, continues) in enumerate(parts, start=1):
            changes = {"collected": list(tests), "full_collection": collection, "continues": continues}
            run_folder.job(f"{CELL}/s", number=number, **changes)
            for rank in range(2):
                run_folder.rank(f"{CELL}/s", rank, tests, number=number)
        return merged(run_folder)

    return merge_them


@pytest.mark.parametrize("second", [FIRST, dict(reversed(FIRST.items())), {}, None])
def test_equal_collections_are_not_mentioned(two_attempts, second):
    assert two_attempts(FIRST, second) == ([], [], ExitCode.OK)


@pytest.mark.parametrize(
    ("second", "names"),
    [
        ({**FIRST, A: "2222", B: "1111.5555"}, f"{A}, {B}."),
        ({**FIRST, B: "3333.5555"}, f"{B}."),
        ({**FIRST, C: "4444"}, f"{C}."),
        ({B: "1111"}, f"{B}."),
        ({**FIRST, A: ""}, f"{A}."),
    ],
)
def test_an_id_that_stands_for_other_values_is_an_error_even_if_its_test_passed(two_attempts, second, names):
    [trouble], _, code = two_attempts(FIRST, second)
    assert f"The parameter values of {names.rstrip('.')} differ between attempt 1 and attempt 2." in trouble
    assert "PYTHONHASHSEED" in trouble
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({**FIRST, B: "2222.6666"}, f"between attempt 1 and attempt 2: {B}"),
        ({**FIRST, "t.py::test[d]": "1"}, "only in attempt 2: t.py::test[d]"),
        ({A: "1111", B: "2222.5555"}, f"only in attempt 1: {C}"),
        ({B: "2222.5555", "x": ""}, f"only in attempt 1: {A}, {C}; only in attempt 2: x"),
        ({"x": ""}, f"only in attempt 1: {A}, {B}, {C}; only in attempt 2: x"),
    ],
)
def test_other_tests_and_temporary_values_are_notes(two_attempts, second, says):
    troubles, [note], code = two_attempts(FIRST, second)
    assert says in note
    assert (troubles, code) == ([], ExitCode.OK)


@pytest.mark.parametrize(("second", "count"), [(FIRST, 0), ({**FIRST, A: "2222", B: "1111.5555"}, 1)])
def test_shards_are_compared_though_no_test_is_in_two_of_them(run_folder, second, count):
    run_folder.manifest(f"{CELL}/s@1of2", f"{CELL}/s@2of2")
    for number, collection in enumerate((FIRST, second), start=1):
        share = {"suite": "s", "number": number, "count": 2, "split": "5eed", "elsewhere": 1}
        run_folder.both(f"{CELL}/s@{number}of2", {A: "passed"}, share=share, full_collection=collection)
    troubles, _, code = merged(run_folder)
    assert len(troubles) == count
    assert all("between attempt 1 of s@1of2 and attempt 1 of s@2of2." in trouble for trouble in troubles)
    assert code is (ExitCode.UNACCOUNTED if count else ExitCode.OK)


def test_other_cells_may_have_other_parameters(run_folder):
    run_folder.manifest(f"{CELL}/s", "gloo-w4-g0-env/s")
    run_folder.both(f"{CELL}/s", {A: "passed"}, full_collection=FIRST)
    run_folder.job("gloo-w4-g0-env/s", world_size=4, collected=[A], full_collection={A: "9"})
    for rank in range(4):
        run_folder.rank("gloo-w4-g0-env/s", rank, {A: "passed"}, world_size=4)
    assert merged(run_folder)[0] == []
