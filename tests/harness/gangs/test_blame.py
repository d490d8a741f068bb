"""Which ranks called something else than most, and how that is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.gangs.blame import name_parting, never_entered, odd_ones_out, strays
from allranks.harness.gangs.call_board import LastCall


def call(kind, number=1, group="default", order=1, **more):
    return LastCall(group, number, kind, order=order, **more)


@pytest.mark.parametrize(
    ("calls", "odd"),
    [
        ([[call("barrier")], [call("barrier")], [call("all_reduce")]], [2]),
        ([[call("barrier")], [call("all_reduce")]], []),
        ([[call("barrier", 2), call("broadcast")], [call("broadcast")], [call("all_reduce")]], [2]),
        ([[call("barrier")], [call("barrier")], [call("barrier", 2), call("barrier")]], [2]),
        ([[call("barrier")], [call("barrier", group="3")], [call("barrier")]], [1]),
        ([[call("recv", peer=1)], [call("recv", peer=2)], [call("recv", peer=0)]], []),
        ([[call("all_reduce", shape="1")], [call("all_reduce", shape="2")], [call("all_reduce", shape="1")]], [1]),
        ([[], [call("barrier")], [call("barrier")]], []),
        ([[call("reduce", peer=0)], [call("barrier", 2), call("reduce", peer=1)], [call("reduce", peer=0)]], [1]),
        ([], []),
    ],
)
def test_the_odd_ones_are_those_that_called_something_else_than_most(calls, odd):
    assert odd_ones_out(dict(enumerate(calls))) == odd


REDUCES = [[call("all_reduce", shape="6", dtype="float32")]] * 3


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (call("barrier"), [3]),
        (call("all_reduce", shape="6", dtype="float64"), [3]),
        (call("all_reduce", shape="7", dtype="float32"), [3]),
        (call("all_reduce", shape="2x3", dtype="float32"), []),
        (call("all_reduce", 2, shape="7", dtype="float32"), []),
    ],
)
def test_strays_are_the_ranks_that_called_something_else_where_a_rank_made_its_last_call(other, found):
    calls = dict(enumerate([*REDUCES, [other]]))
    assert strays(calls, 0) == found
    assert strays(calls, 3) == []
    assert strays({**calls, 0: []}, 0) == []


def test_another_shape_strays_where_the_call_killed_a_rank():
    calls = dict(enumerate([[call("all_gather", shape=shape)] for shape in ("2", "2", "3")]))
    frame = '  File "/x/site-packages/torch/distributed/c10d.py", line 9 in all_gather'
    assert strays(calls, 0) == []
    assert strays(calls, 0, f"Current thread 0x1 (most recent call first):\n{frame}\n") == [2]


CALLS = st.lists(
    st.builds(
        call, st.sampled_from(["barrier", "all_reduce", "recv"]), st.integers(1, 3), st.sampled_from(["default", "1"])
    ),
    max_size=3,
)


@given(st.dictionaries(st.integers(0, 7), CALLS, max_size=8))
def test_the_odd_ones_are_always_the_minority(calls):
    assert 2 * len(odd_ones_out(calls)) < max(1, len(calls))


def test_ranks_in_different_groups_are_named():
    calls = {0: [call("all_reduce", 4)], 1: [call("all_reduce", 2, "7")], 2: [call("all_reduce", 4)]}
    words = "ranks 0 and 2 called all_reduce #4 of group default, rank 1 called all_reduce #2 of group 7"
    assert name_parting(calls) == words
    assert not name_parting({0: [call("barrier", 4)], 1: [call("all_reduce", 4)], 2: []})


REDUCED = call("all_reduce", 7, order=20, mask=0b111)


@pytest.mark.parametrize(
    ("peers", "absent"),
    [
        ({1: [], 2: []}, [1, 2]),
        ({1: [REDUCED], 2: []}, [2]),
        ({1: [REDUCED], 2: [REDUCED]}, []),
        ({1: [REDUCED._replace(number=9)], 2: [REDUCED]}, []),
        ({1: [REDUCED._replace(number=6)], 2: [REDUCED]}, [1]),
        ({1: [REDUCED._replace(kind="barrier")], 2: [REDUCED]}, [1]),
        ({1: [REDUCED._replace(group="5")], 2: [REDUCED]}, [1]),
        ({1: [REDUCED._replace(kind="send", number=8)], 2: [REDUCED]}, [1]),
        ({1: [REDUCED], 3: []}, []),
    ],
)
def test_the_members_that_have_not_entered_a_collective(peers, absent):
    assert never_entered({0: [REDUCED], **peers}, 0, REDUCED.order) == absent


def test_nobody_is_absent_from_a_collective_that_is_not_known_any_more():
    assert never_entered({0: [REDUCED], 1: []}, 0, REDUCED.order + 1) == []
    assert never_entered({0: [REDUCED._replace(mask=0)], 1: []}, 0, REDUCED.order) == []
