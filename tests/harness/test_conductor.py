from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.conductor import first_assembly


@dataclass(frozen=True)
class Item:
    path: Path
    has_process_group: bool

    def get_closest_marker(self, name):
        assert name == "no_process_group"
        return None if self.has_process_group else object()


ITEMS = st.lists(st.builds(Item, st.sampled_from([Path("a.py"), Path("b.py")]), st.booleans()), min_size=1, max_size=12)
ISOLATIONS = st.sampled_from(["test", "file", "job"])


def assemblies(items, isolation):
    remaining = list(range(len(items)))
    while remaining:
        assembly = first_assembly(items, remaining, isolation)
        yield assembly
        del remaining[: len(assembly.indices)]


@given(ITEMS, ISOLATIONS)
def test_the_assemblies_are_all_items_in_their_order(items, isolation):
    indices = [index for assembly in assemblies(items, isolation) for index in assembly.indices]
    assert indices == list(range(len(items)))


@given(ITEMS, ISOLATIONS)
def test_an_assembly_has_a_process_group_as_all_its_tests_ask(items, isolation):
    for assembly in assemblies(items, isolation):
        assert {items[index].has_process_group for index in assembly.indices} == {assembly.has_process_group}


@given(ITEMS)
def test_a_file_is_not_mixed_with_another(items):
    for assembly in assemblies(items, "file"):
        assert len({items[index].path for index in assembly.indices}) == 1


@given(ITEMS, st.sampled_from(["file", "job"]))
def test_neighbours_are_parted_only_for_a_reason(items, isolation):
    for before, after in zip(*[list(assemblies(items, isolation))[start:] for start in (0, 1)], strict=False):
        last, first = items[before.indices[-1]], items[after.indices[0]]
        reasons = [last.has_process_group != first.has_process_group, isolation == "file" and last.path != first.path]
        assert any(reasons)


@pytest.mark.parametrize("isolation", ["test", "file", "job"])
def test_a_gang_starts_at_the_first_test_that_is_left(isolation):
    items = [Item(Path("a.py"), has_process_group=True)] * 3
    assert first_assembly(items, [1, 2], isolation).indices[0] == 1
