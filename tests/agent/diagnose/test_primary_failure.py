"""Which ranks called something else than most, and how that is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import LastCall, Wait
from allranks.agent.channel import RankHang
from allranks.agent.diagnose.primary_failure import FailureAnalysis, describe_diverging_groups, odd_ones_out, outliers
from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.stacks import Stacks
from allranks.protocol.outcomes import Outcome


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
    assert outliers(calls, 0) == found
    assert outliers(calls, 3) == []
    assert outliers({**calls, 0: []}, 0) == []


def test_another_shape_strays_where_the_call_killed_a_rank():
    calls = dict(enumerate([[call("all_gather", shape=shape)] for shape in ("2", "2", "3")]))
    frame = '  File "/x/site-packages/torch/distributed/c10d.py", line 9 in all_gather'
    assert outliers(calls, 0) == []
    assert outliers(calls, 0, Stacks(f"Current thread 0x1 (most recent call first):\n{frame}\n")) == [2]


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
    assert describe_diverging_groups(calls) == words
    assert not describe_diverging_groups({0: [call("barrier", 4)], 1: [call("all_reduce", 4)], 2: []})


REDUCED = call("all_reduce", 7, order=20, mask=0b111, shape="4", dtype="float32")
RECEIVED = call("recv", 2, order=20, peer=1, tag=5)
IN_A_WAIT = '  File "/x/site-packages/torch/distributed/c.py", line 9 in wait'
IN_A_TEST = '  File "/suite/test_x.py", line 9 in test_x'


def outcome(rank, kind="failed", at=1.0, **more):
    return StepOutcome(rank=rank, outcome=Outcome(kind), at=at, **more)


def hang(frame):
    return RankHang(stacks=Stacks(f"Current thread 0x1 (most recent call first):\n{frame}\n"))


def analysis(calls, *outcomes, **hangs):
    step = Step(nodeid="t::x")
    for each in outcomes:
        step.add(each)
    return FailureAnalysis(step, {int(rank[1:]): hang(frame) for rank, frame in hangs.items()}, calls)


@pytest.mark.parametrize(
    ("peers", "follows"),
    [
        ({1: [], 2: []}, True),
        ({1: [REDUCED], 2: []}, True),
        ({1: [REDUCED], 2: [REDUCED]}, False),
        ({1: [REDUCED._replace(number=9)], 2: [REDUCED]}, False),
        ({1: [REDUCED._replace(number=6)], 2: [REDUCED]}, True),
        ({1: [REDUCED._replace(kind="barrier")], 2: [REDUCED]}, True),
        ({1: [REDUCED._replace(dtype="int8")], 2: [REDUCED]}, True),
        ({1: [REDUCED._replace(shape="2x2")], 2: [REDUCED]}, False),
        ({1: [REDUCED._replace(shape="5")], 2: [REDUCED]}, True),
        ({1: [REDUCED._replace(group="5")], 2: [REDUCED]}, True),
        ({1: [REDUCED._replace(kind="send", number=8)], 2: [REDUCED]}, True),
        ({1: [REDUCED], 2: [REDUCED], 3: []}, False),
    ],
)
@pytest.mark.parametrize("seconds", [None, 2.0])
def test_a_failed_collective_follows_from_a_member_that_has_not_entered_it(peers, follows, seconds):
    failed = outcome(0, waits_for=Wait(REDUCED.order, seconds))
    assert analysis({0: [REDUCED], **peers}, failed).is_secondary(failed) is follows


@pytest.mark.parametrize(
    ("sent", "follows"),
    [
        ([], True),
        ([call("send", 1, peer=0, tag=5)], True),
        ([call("send", 2, peer=0, tag=5)], False),
        ([call("send", 3, peer=0, tag=5)], False),
        ([call("send", 3, peer=0, tag=4)], True),
        ([call("send", 3, peer=2, tag=5)], True),
        ([call("send", 3, group="5", peer=0, tag=5)], True),
        ([call("recv", 3, peer=0, tag=5)], True),
    ],
)
def test_a_message_that_did_not_come_follows_from_a_peer_that_has_not_sent_it(sent, follows):
    failed = outcome(0, waits_for=Wait(RECEIVED.order, 2.0))
    assert analysis({0: [RECEIVED], 1: sent, 2: []}, failed).is_secondary(failed) is follows


@pytest.mark.parametrize(
    ("peer", "seconds", "follows"),
    [
        (outcome(1, at=0.5), 0.001, True),
        (outcome(1, at=1.5), 0.001, False),
        (outcome(1, "crashed", at=1.5, process_ended=True), 0.001, True),
        (outcome(1, "skipped", at=1.5, process_ended=True), 0.001, True),
        (outcome(1, "skipped", at=0.5), 0.001, False),
        (outcome(1, "passed", at=0.5), 0.001, False),
        (outcome(1, "passed", at=0.5), 2.0, True),
    ],
)
def test_a_call_that_failed_at_once_follows_only_from_a_peer_that_had_failed(peer, seconds, follows):
    failed = outcome(0, waits_for=Wait(REDUCED.order, seconds))
    assert analysis({0: [REDUCED], 1: [], 2: [REDUCED]}, failed, peer).is_secondary(failed) is follows


@pytest.mark.parametrize(
    ("place", "seconds", "follows"),
    [(IN_A_TEST, 2.0, True), (IN_A_WAIT, 2.0, False), (IN_A_TEST, 0.001, False)],
)
def test_a_wait_for_a_store_follows_from_a_rank_that_does_something_else(place, seconds, follows):
    failed = outcome(0, waits_for=Wait(0, seconds))
    assert analysis({0: [], 1: []}, failed, r1=place).is_secondary(failed) is follows


@pytest.mark.parametrize(
    ("peer", "seconds", "follows"),
    [
        (outcome(1, at=2.0), 2.0, True),
        (outcome(1, "skipped", at=2.0, process_ended=True), 0.001, True),
        (outcome(1, at=2.0), 0.001, False),
        (outcome(1, at=0.5), 0.001, True),
        (outcome(1, at=2.0, is_secondary=True), 2.0, False),
        (outcome(1, at=2.0, waits_for=Wait(0, 2.0)), 2.0, False),
        (outcome(1, "passed", at=0.5), 2.0, False),
    ],
)
def test_a_remote_call_follows_from_a_peer_that_failed_by_itself_if_only_a_moment_later(peer, seconds, follows):
    failed = outcome(0, waits_for=Wait(0, seconds))
    assert analysis({0: [], 1: []}, failed, peer).is_secondary(failed) is follows


def test_a_failure_of_a_rank_that_did_not_wait_follows_from_nothing():
    failed = outcome(0, at=2.0)
    assert not analysis({0: [REDUCED], 1: []}, failed, outcome(1)).is_secondary(failed)


@pytest.mark.parametrize(
    ("calls", "hangs", "late"),
    [
        ([[REDUCED], [], [REDUCED]], {"r0": IN_A_WAIT, "r1": IN_A_TEST, "r2": IN_A_WAIT}, [1]),
        ([[REDUCED], [], [REDUCED]], {"r0": IN_A_WAIT, "r1": IN_A_TEST, "r2": IN_A_TEST}, [1]),
        ([[REDUCED], [REDUCED], [REDUCED]], {"r0": IN_A_WAIT, "r1": IN_A_WAIT, "r2": IN_A_WAIT}, [0, 1, 2]),
        ([[REDUCED], [REDUCED], [REDUCED]], {"r0": IN_A_TEST, "r1": IN_A_TEST}, [0, 1]),
        ([[REDUCED], [REDUCED], [REDUCED._replace(kind="barrier")]], dict.fromkeys(["r0", "r1", "r2"], IN_A_WAIT), [2]),
        ([[REDUCED], [REDUCED], []], {"r0": IN_A_WAIT, "r1": IN_A_WAIT, "r2": IN_A_WAIT}, [2]),
        ([[RECEIVED], [], []], {"r0": IN_A_WAIT, "r1": IN_A_TEST, "r2": IN_A_TEST}, [1]),
    ],
)
def test_the_ranks_that_others_wait_for_are_late(calls, hangs, late):
    assert analysis(dict(enumerate(calls)), **hangs).late_ranks(has_failed=False) == late
