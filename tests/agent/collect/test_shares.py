"""The split of a suite: every test in one share, the same split for all, about even."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.collect.selection import (
    GANG_SECONDS,
    UNKNOWN_SECONDS,
    expected_seconds,
    split,
    take_share,
    unit_key,
    units,
)
from allranks.agent.program import ItemOptions
from allranks.protocol.config import JobShard, TimeLimit

COUNTS = st.integers(1, 9)
LIMIT = TimeLimit(value=1.0, setting="limits.test")
SECONDS = st.floats(0, 1e4, allow_nan=False)
TESTS = st.lists(st.tuples(st.integers(0, 7), SECONDS), max_size=40)
"""Collected tests, each as the number of its unit and its duration."""


def parts_of(tests):
    names = [f"test_{number:03}" for number in range(len(tests))]
    return units([key for key, _ in tests], [seconds for _, seconds in tests], names)


def collect(*nodeids, isolation="test"):
    """Items and their terms, as far as a split looks at them."""
    items = [SimpleNamespace(nodeid=nodeid, path=Path(nodeid.partition("::")[0])) for nodeid in nodeids]
    places = [(index,) if isolation == "test" else (str(item.path),) for index, item in enumerate(items)]
    terms = [ItemOptions(gang=(isolation, *place, True), has_process_group=True, limit=LIMIT) for place in places]
    return items, terms


def taken(nodeids, count, *, seconds=None, skipped=(), isolation="test"):
    """The share of each of `count` jobs."""
    items, terms = collect(*nodeids, isolation=isolation)
    shares = [JobShard(number=number, count=count, seconds=seconds or {}) for number in range(1, count + 1)]
    return [take_share(items, terms, skipped, share) for share in shares]


def names(own):
    return [item.nodeid for item in own.items]


@given(TESTS, COUNTS)
def test_every_test_is_in_exactly_one_share(tests, count):
    shares = split(parts_of(tests), count)
    assert len(shares) == count
    assert sorted(index for share in shares for index in share) == list(range(len(tests)))


@given(TESTS, COUNTS)
def test_a_share_keeps_the_order_of_collection(tests, count):
    assert all(list(share) == sorted(share) for share in split(parts_of(tests), count))


@given(TESTS, COUNTS)
def test_what_belongs_together_is_in_one_share(tests, count):
    share_of = {index: number for number, share in enumerate(split(parts_of(tests), count)) for index in share}
    shares_of_unit = {}
    for index, (key, _) in enumerate(tests):
        shares_of_unit.setdefault(key, set()).add(share_of[index])
    assert all(len(shares) == 1 for shares in shares_of_unit.values())


@given(TESTS, COUNTS)
def test_no_share_is_longer_than_an_even_one_by_more_than_one_unit(tests, count):
    parts = parts_of(tests)
    length = {index: part.seconds / len(part.members) for part in parts for index in part.members}
    lengths = [sum(length[index] for index in share) for share in split(parts, count)]
    longest_unit = max((part.seconds for part in parts), default=0.0)
    assert max(lengths) <= sum(lengths) / count + longest_unit * (1 - 1 / count) + 1e-6


@given(TESTS, COUNTS)
def test_no_share_is_empty_while_there_are_units_enough(tests, count):
    parts = parts_of(tests)
    assert sum(bool(share) for share in split(parts, count)) == min(count, len(parts))


@given(st.lists(st.sampled_from("abcdefgh"), max_size=20), COUNTS, st.data())
def test_all_jobs_make_the_same_split_whatever_order_each_collects_in(letters, count, data):
    nodeids = [f"test_{letter}.py::test_{letter}" for letter in letters]
    isolation = data.draw(st.sampled_from(["test", "file"]))
    seconds = data.draw(st.dictionaries(st.sampled_from(nodeids or ["x"]), SECONDS))
    one = taken(nodeids, count, seconds=seconds, isolation=isolation)
    other = taken(data.draw(st.permutations(nodeids)), count, seconds=seconds, isolation=isolation)
    assert [Counter(names(own)) for own in one] == [Counter(names(own)) for own in other]
    assert len({own.split for own in (*one, *other)}) == 1
    assert sum((Counter(names(own)) for own in one), Counter()) == Counter(nodeids)


def test_shares_are_even_by_what_tests_have_taken():
    nodeids = [f"t.py::test_{letter}" for letter in "abcde"]
    seconds = dict(zip(nodeids, [1.0, 2.0, 9.0, 2.0, 4.0], strict=True))
    assert [names(own) for own in taken(nodeids, 2, seconds=seconds)] == [
        ["t.py::test_c"],
        ["t.py::test_a", "t.py::test_b", "t.py::test_d", "t.py::test_e"],
    ]


def test_the_start_of_ranks_counts_for_each_unit():
    alone = units(["a", "b"], [0.0, 0.0], ["a", "b"])
    together = units(["a", "a"], [0.0, 0.0], ["a", "b"])
    assert [unit.seconds for unit in alone] == [GANG_SECONDS, GANG_SECONDS]
    assert [unit.seconds for unit in together] == [GANG_SECONDS]


@given(st.lists(SECONDS, min_size=2, max_size=9), st.data())
def test_a_unit_is_as_long_in_whatever_order_its_tests_are_collected(seconds, data):
    names = [f"test_{number}" for number in range(len(seconds))]
    [one], [other] = (units(["a"] * len(each), each, names) for each in (seconds, data.draw(st.permutations(seconds))))
    assert one.seconds == other.seconds


def test_a_test_that_is_not_known_counts_as_the_median_of_those_that_are():
    known = {"a": 1.0, "b": 5.0, "gone": 20.0}
    assert expected_seconds(["a", "b", "new"], known) == [1.0, 5.0, 5.0]


def test_tests_are_as_long_as_each_other_where_nothing_is_known():
    assert expected_seconds(["a", "b"], {}) == [UNKNOWN_SECONDS, UNKNOWN_SECONDS]


@pytest.mark.parametrize(
    ("gang", "key"),
    [
        (("test", 3, True), ("test", 3, True)),
        (("file", "t.py", True), ("file", "t.py")),
        (("file", "t.py", False), ("file", "t.py")),
        (("job", True), ("file", "t.py")),
        (("launcher", 3), ("launcher", 3)),
        (("launcher", "t.py::TestKept"), ("launcher", "t.py::TestKept")),
    ],
)
def test_tests_stay_together_by_file_or_class_where_ranks_outlive_a_test(gang, key):
    item = SimpleNamespace(nodeid="t.py::test_x", path=Path("t.py"))
    assert unit_key(item, ItemOptions(gang=gang, has_process_group=True, limit=LIMIT)) == key


def test_modules_that_skip_themselves_are_the_first_shares():
    one, two = taken(["t.py::test_a"], 2, skipped=["s.py"])
    assert (one.skipped, two.skipped) == (("s.py",), ())
    assert (one.elsewhere, two.elsewhere) == (0, 2)


def test_other_durations_make_another_digest_only_where_they_make_another_split():
    nodeids = ["t.py::test_a", "t.py::test_b", "t.py::test_c"]
    digests = [
        taken(nodeids, 2, seconds=dict(zip(nodeids, seconds, strict=True)))[0].split
        for seconds in ([3.0, 2.0, 1.0], [30.0, 20.0, 10.0], [1.0, 2.0, 3.0])
    ]
    assert digests[0] == digests[1] != digests[2]
