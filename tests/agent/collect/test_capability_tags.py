"""The tags of a test, from the ``conformance`` markers of the test, its class and its module."""

from types import SimpleNamespace

import pytest

from allranks.agent.collect.capability_tags import tagged, tags_of
from allranks.protocol.records import TESTS_IN_ONE


class Item:
    """The part of a pytest item that tags need: markers, the closest first, and parameters."""

    def __init__(self, *marks, nodeid="test_x.py::test_x", **params):
        self.nodeid = nodeid
        self._marks = [pytest.mark.conformance(**mark).mark for mark in marks]
        if params:
            self.callspec = SimpleNamespace(params=params)

    def iter_markers(self, name):
        return iter(self._marks if name == "conformance" else [])


def test_tags_of_markers_are_combined_and_the_closest_takes_precedence():
    item = Item({"operation": "barrier", "mode": "async"}, {"operation": "broadcast", "group": "sub"})
    assert tags_of(item) == ("group=sub", "mode=async", "operation=barrier")


def test_a_parameter_called_dtype_is_added_to_the_tags_of_a_test():
    assert tags_of(Item({"operation": "reduce"}, dtype="torch.int32")) == ("dtype=int32", "operation=reduce")
    assert tags_of(Item({"operation": "reduce", "dtype": "int64"}, dtype="torch.int32"))[0] == "dtype=int64"
    assert tags_of(Item(dtype="torch.int32")) == ()


def test_a_value_may_be_a_parameter_of_the_test():
    assert tags_of(Item({"operation": "{op}", "feature": "{reduction} twice"}, op="reduce", reduction="MAX")) == (
        "feature=MAX twice",
        "operation=reduce",
    )


def test_a_tag_is_short():
    assert len(tags_of(Item({"operation": "x" * 1000}))[0]) < 100


def test_tests_with_equal_tags_share_a_record_of_bounded_length():
    items = [Item({"operation": "reduce"}, nodeid=str(number)) for number in range(TESTS_IN_ONE + 1)]
    records = list(tagged([*items, Item({"operation": "scatter"}), Item()]))
    assert [len(record.tests) for record in records] == [TESTS_IN_ONE, 1, 1]
    assert {record.tags for record in records} == {("operation=reduce",), ("operation=scatter",)}
