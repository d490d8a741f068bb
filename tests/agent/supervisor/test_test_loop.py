import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_run import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.rank.marker_options import MarkerError, limit_of, read_options
from allranks.agent.supervisor.test_loop import first_batch, join_test_groups, split_by_gang
from allranks.protocol.config import TimeLimit


@dataclass(frozen=True)
class Mark:
    name: str
    args: tuple
    kwargs: dict


@dataclass(frozen=True)
class Item:
    path: Path
    has_process_group: bool = True
    isolation: str | None = None
    time_limit: object = None
    nodeid: str = "a.py::test"
    config = SimpleNamespace(pluginmanager=SimpleNamespace(has_plugin=lambda _name: False))

    def get_closest_marker(self, name):
        if name == "no_process_group":
            return None if self.has_process_group else Mark(name, (), {})
        value = getattr(self, name, None)
        return None if value is None else Mark(name, (value,), {})


KINDS = st.sampled_from(["test", "file", "job"])
PATHS = st.sampled_from([Path("a.py"), Path("b.py")])
ITEMS = st.lists(st.builds(Item, PATHS, st.booleans(), st.none() | KINDS), min_size=1, max_size=12)


def options_of(items, isolation="file"):
    return read_options(items, replace(CONFIG, isolation=isolation))


def batches_of(items, isolation):
    options = options_of(items, isolation)
    remaining = list(range(len(items)))
    while remaining:
        batch = first_batch(options, remaining)
        yield batch
        del remaining[: len(batch)]


class TestThreads:
    allranks_launcher = allranks_has_thread_ranks = True


@dataclass(frozen=True)
class LauncherItem(Item):
    cls: type = TestThreads
    name: str = "test"
    test_group: str | None = None


def test_batches_of_one_test_group_are_joined():
    groups = [None, "port", "port", "file", None]
    options = options_of([LauncherItem(Path("a.py"), test_group=group) for group in groups])
    joined = join_test_groups(options, split_by_gang(options, range(5)))
    assert [[options[index].test_group for index in indices] for indices in joined] == [
        [""],
        ["port"] * 2,
        ["file"],
        [""],
    ]


@given(ITEMS, KINDS)
def test_batches_contain_all_tests_in_order(items, isolation):
    indices = [index for batch in batches_of(items, isolation) for index in batch]
    assert indices == list(range(len(items)))


@given(ITEMS, KINDS)
def test_all_tests_of_a_batch_need_the_process_group_or_none_does(items, isolation):
    for batch in batches_of(items, isolation):
        assert len({items[index].has_process_group for index in batch}) == 1


@given(ITEMS, KINDS)
def test_a_test_with_isolation_test_is_a_batch_of_its_own(items, isolation):
    for batch in batches_of(items, isolation):
        kinds = [items[index].isolation or isolation for index in batch]
        assert "test" not in kinds or len(kinds) == 1


@given(ITEMS, KINDS)
def test_a_batch_has_one_isolation_and_with_isolation_file_one_file(items, isolation):
    for batch in batches_of(items, isolation):
        kinds = {items[index].isolation or isolation for index in batch}
        assert len(kinds) == 1
        assert kinds != {"file"} or len({items[index].path for index in batch}) == 1


@given(ITEMS, KINDS)
def test_consecutive_tests_are_only_split_for_a_reason(items, isolation):
    for before, after in zip(*[list(batches_of(items, isolation))[start:] for start in (0, 1)], strict=False):
        last, first = items[before[-1]], items[after[0]]
        kinds = {last.isolation or isolation, first.isolation or isolation}
        reasons = [
            last.has_process_group != first.has_process_group,
            len(kinds) == 2,
            "test" in kinds,
            kinds == {"file"} and last.path != first.path,
        ]
        assert any(reasons)


@pytest.mark.parametrize("isolation", ["test", "file", "job"])
def test_a_batch_starts_at_the_first_remaining_test(isolation):
    items = [Item(Path("a.py"))] * 3
    assert first_batch(options_of(items, isolation), [1, 2])[0] == 1


def test_the_time_limit_marker_overrides_the_limit_of_the_job():
    options = options_of([Item(Path("a.py"), time_limit=3), Item(Path("a.py"))])
    assert [term.limit for term in options] == [
        TimeLimit(value=3, setting="@pytest.mark.time_limit"),
        TimeLimit(value=CONFIG.limits.test, setting="limits.test"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"isolation": "class"},
        {"isolation": 1},
        {"time_limit": 0},
        {"time_limit": "3"},
        {"time_limit": True},
        {"time_limit": math.inf},
        {"time_limit": math.nan},
    ],
)
def test_the_error_for_an_invalid_marker_names_the_test(wrong):
    with pytest.raises(MarkerError, match="is invalid") as error:
        options_of([Item(Path("a.py"), **wrong)])
    assert error.value.nodeid == "a.py::test"


@pytest.mark.parametrize(
    ("marker", "written"),
    [
        (Mark("time_limit", (0,), {}), "time_limit(0)"),
        (Mark("time_limit", (), {"seconds": 5}), "time_limit(seconds=5)"),
        (Mark("time_limit", ("3",), {"x": 1}), "time_limit('3', x=1)"),
    ],
    ids=["positional", "keyword", "both"],
)
def test_the_error_for_an_invalid_marker_shows_it_as_written(marker, written):
    with pytest.raises(ValueError, match=f"^{re.escape(written)} is invalid: "):
        limit_of(marker)
