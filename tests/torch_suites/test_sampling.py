"""The sample that the benchmark takes of a list."""

import pytest
from outcomes import Outcome
from sampling import Listed, fixed_sample, listed, sample, selection_of
from suite_files import LISTS
from torch_record import Record, installed_torch, read_record


def some_list(executed, skipped):
    outcomes = [*[Outcome("passed")] * executed, *[Outcome("skipped", "why")] * skipped]
    return [Listed("torch-rpc", f"T::test_{number:03}", outcome) for number, outcome in enumerate(outcomes)]


@pytest.mark.parametrize(("executed", "skipped"), [(285, 0), (100, 185), (434, 2), (31, 0), (30, 30)])
@pytest.mark.parametrize("size", [1, 7, 30, 31])
def test_executed_and_skipped_tests_have_their_share(executed, skipped, size):
    taken = sample(some_list(executed, skipped), size)
    assert len(set(taken)) == size
    share = size * skipped / (executed + skipped)
    assert abs(sum(test.outcome.kind == "skipped" for test in taken) - share) < 1


def test_a_list_with_fewer_tests_is_its_own_sample():
    tests = some_list(3, 2)
    assert sample(tests, 30) == tests
    assert sample([], 30) == []


def test_a_list_is_in_an_order_that_knows_outcomes_and_names_alone():
    skip = {"T::b": Outcome("skipped", "one"), "T::a": Outcome("skipped", "two")}
    record = Record(
        torch="9.9",
        suites={"torch-rpc": {**skip, "T::z": Outcome("failed", "no")}, "torch-ddp-rpc": {"T::c": Outcome("passed")}},
    )
    assert [item.test for item in listed(record, "rpc")] == ["T::c", "T::z", "T::b", "T::a"]


def test_a_sample_is_selected_by_suite():
    tests = [Listed("torch-rpc", "T::a", Outcome("passed")), Listed("torch-ddp-rpc", "T::b", Outcome("passed"))]
    assert selection_of(tests) == {"torch-rpc": ("T::a",), "torch-ddp-rpc": ("T::b",)}


@pytest.mark.parametrize("name", LISTS)
def test_each_list_is_on_record(name):
    assert listed(read_record(installed_torch()), name)


@pytest.mark.parametrize("name", LISTS)
def test_the_kept_sample_of_a_list_has_sixty_tests_of_its_suites(name):
    kept = fixed_sample(name)
    assert set(kept) <= set(LISTS[name])
    assert len({(suite, test) for suite, tests in kept.items() for test in tests}) == 60


def test_the_kept_sample_of_distributed_test_has_executed_and_skipped_tests_in_their_proportion():
    tests = listed(read_record("2.13.0"), "c10d")
    kept = {test for names in fixed_sample("c10d").values() for test in names}
    skipped = {test.test for test in tests if test.outcome.kind == "skipped"}
    assert len(tests) == 285
    assert abs(len(kept & skipped) - 60 * len(skipped) / len(tests)) < 1
