import pytest

from allranks.testing import skips as world_skips


def test_a_world_below_the_minimum_is_skipped(cell, skip_of):
    cell(WORLD_SIZE=2)
    assert skip_of(world_skips.skip_if_small_world_size(3)).code == 73
    world_skips.skip_if_small_world_size(2).check()


def test_a_plain_pytest_is_a_world_of_one(cell, skip_of):
    cell()
    assert "world size 1, at least 2 needed" in skip_of(world_skips.skip_if_small_world_size(2)).msg


@pytest.mark.parametrize(("world_size", "skipped"), [(1, True), (2, False), (3, True), (4, False)])
def test_an_odd_world_is_skipped(cell, skip_of, world_size, skipped):
    cell(WORLD_SIZE=world_size)
    if skipped:
        assert skip_of(world_skips.skip_if_odd_world_size).code == 87
    else:
        world_skips.skip_if_odd_world_size.check()


@pytest.mark.parametrize(("world_size", "code"), [(1, 73), (3, None), (4, 86)])
def test_an_exact_world_size_is_neither_smaller_nor_larger(cell, skip_of, world_size, code):
    cell(WORLD_SIZE=world_size)
    requirement = world_skips.require_exact_world_size(3)
    if code is None:
        requirement.check()
    else:
        skip = skip_of(requirement)
        assert skip.code == code
        assert str(world_size) in skip.msg


def test_the_two_names_for_a_minimum_mean_the_same(cell, skip_of):
    cell(WORLD_SIZE=2)
    world_skips.require_world_size(2).check()
    messages = [skip_of(make(3)).msg for make in (world_skips.require_world_size, world_skips.skip_if_small_world_size)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize("make", [world_skips.require_world_size, world_skips.require_exact_world_size])
@pytest.mark.parametrize(("n", "error"), [(0, ValueError), ("2", TypeError), (True, TypeError), (len, TypeError)])
def test_a_number_of_ranks_is_an_integer_of_at_least_one(make, n, error):
    with pytest.raises(error):
        make(n)
