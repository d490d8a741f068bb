import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_run import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.rank.marker_options import MarkerError, read_options
from allranks.agent.supervisor.test_loop import assemblies as all_assemblies
from allranks.agent.supervisor.test_loop import first_assembly, joined_by_group
from allranks.protocol.config import TimeLimit


@dataclass(frozen=True)
class Mark:
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
            return None if self.has_process_group else Mark((), {})
        value = getattr(self, name, None)
        return None if value is None else Mark((value,), {})


KINDS = st.sampled_from(["test", "file", "job"])
PATHS = st.sampled_from([Path("a.py"), Path("b.py")])
ITEMS = st.lists(st.builds(Item, PATHS, st.booleans(), st.none() | KINDS), min_size=1, max_size=12)


def terms_of(items, isolation="file"):
    return read_options(items, replace(CONFIG, isolation=isolation))


def assemblies(items, isolation):
    terms = terms_of(items, isolation)
    remaining = list(range(len(items)))
    while remaining:
        assembly = first_assembly(terms, remaining)
        yield assembly
        del remaining[: len(assembly)]


class TestThreads:
    allranks_launcher = allranks_has_thread_ranks = True


@dataclass(frozen=True)
class LauncherItem(Item):
    cls: type = TestThreads
    name: str = "test"
    test_group: str | None = None


def test_all_tests_of_an_assembly_are_in_one_test_group():
    groups = [None, "port", "port", "file", None]
    terms = terms_of([LauncherItem(Path("a.py"), test_group=group) for group in groups])
    joined = joined_by_group(terms, all_assemblies(terms, range(5)))
    assert [[terms[index].test_group for index in indices] for indices in joined] == [
        [""],
        ["port"] * 2,
        ["file"],
        [""],
    ]


@given(ITEMS, KINDS)
def test_the_assemblies_are_all_items_in_their_order(items, isolation):
    indices = [index for assembly in assemblies(items, isolation) for index in assembly]
    assert indices == list(range(len(items)))


@given(ITEMS, KINDS)
def test_an_assembly_has_a_process_group_as_all_its_tests_ask(items, isolation):
    for assembly in assemblies(items, isolation):
        assert len({items[index].has_process_group for index in assembly}) == 1


@given(ITEMS, KINDS)
def test_a_test_of_isolation_test_shares_with_nobody(items, isolation):
    for assembly in assemblies(items, isolation):
        kinds = [items[index].isolation or isolation for index in assembly]
        assert "test" not in kinds or len(kinds) == 1


@given(ITEMS, KINDS)
def test_an_assembly_has_one_isolation_and_one_file_where_that_is_its_isolation(items, isolation):
    for assembly in assemblies(items, isolation):
        kinds = {items[index].isolation or isolation for index in assembly}
        assert len(kinds) == 1
        assert kinds != {"file"} or len({items[index].path for index in assembly}) == 1


@given(ITEMS, KINDS)
def test_neighbours_are_parted_only_for_a_reason(items, isolation):
    for before, after in zip(*[list(assemblies(items, isolation))[start:] for start in (0, 1)], strict=False):
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
def test_a_gang_starts_at_the_first_test_that_is_left(isolation):
    items = [Item(Path("a.py"))] * 3
    assert first_assembly(terms_of(items, isolation), [1, 2])[0] == 1


def test_a_marker_of_time_overrules_the_jobs_limit():
    terms = terms_of([Item(Path("a.py"), time_limit=3), Item(Path("a.py"))])
    assert [term.limit for term in terms] == [
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
def test_a_marker_that_makes_no_sense_names_its_test(wrong):
    with pytest.raises(MarkerError, match="is invalid") as error:
        terms_of([Item(Path("a.py"), **wrong)])
    assert error.value.nodeid == "a.py::test"
