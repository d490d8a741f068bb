"""Splitting a suite into shards: each test is in one shard, jobs agree on the split, and shards are balanced."""

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
    take_shard,
    unit_key,
    units,
)
from allranks.agent.program import ItemOptions
from allranks.protocol.config import JobShard, TimeLimit

COUNTS = st.integers(1, 9)
LIMIT = TimeLimit(value=1.0, setting="limits.test")
SECONDS = st.floats(0, 1e4, allow_nan=False)
TESTS = st.lists(st.tuples(st.integers(0, 7), SECONDS), max_size=40)
"""Collected tests: for each, the number of its unit, and its duration."""


def parts_of(tests):
    names = [f"test_{number:03}" for number in range(len(tests))]
    return units([key for key, _ in tests], [seconds for _, seconds in tests], names)


def collect(*nodeids, isolation="test"):
    """Items and options with the attributes that the split depends on."""
    items = [SimpleNamespace(nodeid=nodeid, path=Path(nodeid.partition("::")[0])) for nodeid in nodeids]
    keys = [(index,) if isolation == "test" else (str(item.path),) for index, item in enumerate(items)]
    options = [ItemOptions(gang=(isolation, *key, True), has_process_group=True, limit=LIMIT) for key in keys]
    return items, options


def shards_of(nodeids, count, *, seconds=None, skipped=(), isolation="test"):
    """The shard of each of `count` jobs."""
    items, options = collect(*nodeids, isolation=isolation)
    shards = [JobShard(number=number, count=count, seconds=seconds or {}) for number in range(1, count + 1)]
    return [take_shard(items, options, skipped, shard) for shard in shards]


def names(own):
    return [item.nodeid for item in own.items]


@given(TESTS, COUNTS)
def test_every_test_is_in_exactly_one_shard(tests, count):
    shards = split(parts_of(tests), count)
    assert len(shards) == count
    assert sorted(index for shard in shards for index in shard) == list(range(len(tests)))


@given(TESTS, COUNTS)
def test_a_shard_keeps_the_order_of_collection(tests, count):
    assert all(list(shard) == sorted(shard) for shard in split(parts_of(tests), count))


@given(TESTS, COUNTS)
def test_tests_of_one_unit_are_in_one_shard(tests, count):
    shard_of = {index: number for number, shard in enumerate(split(parts_of(tests), count)) for index in shard}
    shards_of_unit = {}
    for index, (key, _) in enumerate(tests):
        shards_of_unit.setdefault(key, set()).add(shard_of[index])
    assert all(len(shards) == 1 for shards in shards_of_unit.values())


@given(TESTS, COUNTS)
def test_no_shard_exceeds_the_average_by_more_than_one_unit(tests, count):
    parts = parts_of(tests)
    length = {index: part.seconds / len(part.members) for part in parts for index in part.members}
    lengths = [sum(length[index] for index in shard) for shard in split(parts, count)]
    longest_unit = max((part.seconds for part in parts), default=0.0)
    assert max(lengths) <= sum(lengths) / count + longest_unit * (1 - 1 / count) + 1e-6


@given(TESTS, COUNTS)
def test_no_shard_is_empty_if_there_are_enough_units(tests, count):
    parts = parts_of(tests)
    assert sum(bool(shard) for shard in split(parts, count)) == min(count, len(parts))


@given(st.lists(st.sampled_from("abcdefgh"), max_size=20), COUNTS, st.data())
def test_all_jobs_compute_the_same_split_whatever_their_order_of_collection(letters, count, data):
    nodeids = [f"test_{letter}.py::test_{letter}" for letter in letters]
    isolation = data.draw(st.sampled_from(["test", "file"]))
    seconds = data.draw(st.dictionaries(st.sampled_from(nodeids or ["x"]), SECONDS))
    one = shards_of(nodeids, count, seconds=seconds, isolation=isolation)
    other = shards_of(data.draw(st.permutations(nodeids)), count, seconds=seconds, isolation=isolation)
    assert [Counter(names(own)) for own in one] == [Counter(names(own)) for own in other]
    assert len({own.split for own in (*one, *other)}) == 1
    assert sum((Counter(names(own)) for own in one), Counter()) == Counter(nodeids)


def test_shards_are_balanced_by_known_durations():
    nodeids = [f"t.py::test_{letter}" for letter in "abcde"]
    seconds = dict(zip(nodeids, [1.0, 2.0, 9.0, 2.0, 4.0], strict=True))
    assert [names(own) for own in shards_of(nodeids, 2, seconds=seconds)] == [
        ["t.py::test_c"],
        ["t.py::test_a", "t.py::test_b", "t.py::test_d", "t.py::test_e"],
    ]


def test_the_start_of_ranks_counts_for_each_unit():
    alone = units(["a", "b"], [0.0, 0.0], ["a", "b"])
    together = units(["a", "a"], [0.0, 0.0], ["a", "b"])
    assert [unit.seconds for unit in alone] == [GANG_SECONDS, GANG_SECONDS]
    assert [unit.seconds for unit in together] == [GANG_SECONDS]


@given(st.lists(SECONDS, min_size=2, max_size=9), st.data())
def test_the_length_of_a_unit_does_not_depend_on_the_order_of_collection(seconds, data):
    names = [f"test_{number}" for number in range(len(seconds))]
    [one], [other] = (
        units(["a"] * len(order), order, names) for order in (seconds, data.draw(st.permutations(seconds)))
    )
    assert one.seconds == other.seconds


def test_a_test_without_a_known_duration_counts_as_the_median():
    known = {"a": 1.0, "b": 5.0, "gone": 20.0}
    assert expected_seconds(["a", "b", "new"], known) == [1.0, 5.0, 5.0]


def test_all_tests_count_the_same_if_no_duration_is_known():
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
def test_tests_stay_together_by_file_or_class_if_ranks_are_kept(gang, key):
    item = SimpleNamespace(nodeid="t.py::test_x", path=Path("t.py"))
    assert unit_key(item, ItemOptions(gang=gang, has_process_group=True, limit=LIMIT)) == key


def test_the_first_shard_reports_modules_that_skipped_themselves():
    one, two = shards_of(["t.py::test_a"], 2, skipped=["s.py"])
    assert (one.skipped, two.skipped) == (("s.py",), ())
    assert (one.in_other_shards, two.in_other_shards) == (0, 2)


def test_the_digest_changes_only_if_the_split_changes():
    nodeids = ["t.py::test_a", "t.py::test_b", "t.py::test_c"]
    digests = [
        shards_of(nodeids, 2, seconds=dict(zip(nodeids, seconds, strict=True)))[0].split
        for seconds in ([3.0, 2.0, 1.0], [30.0, 20.0, 10.0], [1.0, 2.0, 3.0])
    ]
    assert digests[0] == digests[1] != digests[2]
