"""Which ranks others waited for, and which called something other than most."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import LastCall, Wait
from allranks.agent.channel import RankHang
from allranks.agent.diagnose.primary_failure import (
    FailureAnalysis,
    describe_conflicting_call,
    describe_diverging_groups,
    diagnose,
    explain,
    odd_ones_out,
    outliers,
    waits_for_peers,
)
from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.stacks import Stacks
from allranks.protocol.outcomes import Outcome, Phase


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
def test_odd_ones_out_called_something_other_than_most(calls, odd):
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
def test_outliers_called_something_other_than_most_at_a_ranks_last_call(other, found):
    calls = dict(enumerate([*REDUCES, [other]]))
    assert outliers(calls, 0) == found
    assert outliers(calls, 3) == []
    assert outliers({**calls, 0: []}, 0) == []


def test_another_shape_is_an_outlier_if_the_call_killed_a_rank():
    calls = dict(enumerate([[call("all_gather", dtype="int8", shape=shape)] for shape in ("2", "2", "3")]))
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
def test_odd_ones_out_are_always_the_minority(calls):
    assert 2 * len(odd_ones_out(calls)) < max(1, len(calls))


def test_ranks_in_different_groups_are_described():
    calls = {0: [call("all_reduce", 4)], 1: [call("all_reduce", 2, "7")], 2: [call("all_reduce", 4)]}
    words = "ranks 0 and 2 called all_reduce #4 of group default, rank 1 called all_reduce #2 of group 7"
    assert describe_diverging_groups(calls) == words
    assert not describe_diverging_groups({0: [call("barrier", 4)], 1: [call("all_reduce", 4)], 2: []})


REDUCED = call("all_reduce", 7, order=20, mask=0b111, shape="4", dtype="float32")
RECEIVED = call("recv", 2, order=20, peer=1, tag=5)
IN_A_WAIT = '  File "/x/site-packages/torch/distributed/c.py", line 9 in wait'
IN_A_LIBRARY = '  File "/x/site-packages/_pytest/runner.py", line 9 in wait'
IN_A_TEST = '  File "/suite/test_x.py", line 9 in test_x'


def outcome(rank, kind="failed", at=1.0, **more):
    return StepOutcome(rank=rank, outcome=Outcome(kind), at=at, **more)


def hang(frame):
    return RankHang(stacks=Stacks(f"Current thread 0x1 (most recent call first):\n{frame}\n"))


def analysis(calls, *outcomes, **hangs):
    step = Step(nodeid="t::x")
    for outcome in outcomes:
        step.add(outcome)
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
        ({1: [REDUCED._replace(group="5", number=9)], 2: [REDUCED]}, True),
        ({1: [REDUCED._replace(kind="send", number=8)], 2: [REDUCED]}, True),
        ({1: [REDUCED], 2: [REDUCED], 3: []}, False),
    ],
)
@pytest.mark.parametrize("seconds", [None, 2.0])
def test_a_failed_collective_is_secondary_if_a_member_has_not_entered_it(peers, follows, seconds):
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
        ([call("send", 3, peer=0, tag=6)], True),
        ([call("send", 3, peer=2, tag=5)], True),
        ([call("send", 3, group="5", peer=0, tag=5)], True),
        ([call("recv", 3, peer=0, tag=5)], True),
    ],
)
def test_a_failed_receive_is_secondary_if_the_peer_has_not_sent_the_message(sent, follows):
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
def test_a_call_that_failed_at_once_is_secondary_only_to_an_earlier_failure(peer, seconds, follows):
    failed = outcome(0, waits_for=Wait(REDUCED.order, seconds))
    assert analysis({0: [REDUCED], 1: [], 2: [REDUCED]}, failed, peer).is_secondary(failed) is follows


@pytest.mark.parametrize(
    ("place", "seconds", "follows"),
    [(IN_A_TEST, 2.0, True), (IN_A_WAIT, 2.0, False), (IN_A_TEST, 0.001, False)],
)
def test_a_failed_wait_for_a_store_is_secondary_if_a_peer_does_not_wait(place, seconds, follows):
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
def test_a_failed_remote_call_is_secondary_to_a_peer_that_failed_by_itself(peer, seconds, follows):
    failed = outcome(0, waits_for=Wait(0, seconds))
    assert analysis({0: [], 1: []}, failed, peer).is_secondary(failed) is follows


def test_a_failure_without_a_wait_is_primary():
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
        ([[RECEIVED], [call("barrier")]], {"r0": IN_A_WAIT, "r1": IN_A_LIBRARY}, [0, 1]),
        ([[RECEIVED], [call("barrier")]], {"r0": IN_A_WAIT, "r1": f"{IN_A_LIBRARY}\n  ..."}, [1]),
    ],
)
def test_the_ranks_that_others_wait_for_are_late(calls, hangs, late):
    assert analysis(dict(enumerate(calls)), **hangs).late_ranks(has_failed=False) == late


def all_reduce(number, shape="4", group="default"):
    return [call("all_reduce", number, group, number, dtype="float32", shape=shape)]


HEAD = "Current thread 0x1 (most recent call first):\n"
WAITING = '  File "/x/site-packages/torch/distributed/c10d.py", line 9 in wait\n'
WAITS = RankHang(stacks=Stacks(f'{HEAD}{WAITING}  File "/home/me/test_a.py", line 5 in test_a\n'))
BUSY = RankHang(stacks=Stacks(f'{HEAD}  File "/home/me/test_a.py", line 7 in loop\n'))
REPORTS = RankHang(stacks=Stacks(f'{HEAD}  File "/x/site-packages/_pytest/_code/code.py", line 9 in repr_excinfo\n'))
POLLS = replace(BUSY, waits_for=Wait(1))
UNKNOWN = RankHang()
SECONDARY = outcome(0, at=0.0, is_secondary=True)


def stop_ranks(earlier, hangs, calls=MappingProxyType({}), first_skip=None, **fields):
    """Return the outcomes of hanging ranks after some earlier outcomes."""
    step = Step(outcomes=list(earlier), **fields)
    diagnose(step, hangs, calls, reason="not finished after 9 s", first_skip=first_skip)
    return [outcome for outcome in step.outcomes if outcome.rank in hangs]


def aborted_by(outcomes):
    """Return the rank that each rank was aborted by; None for one that timed out."""
    assert {outcome.outcome for outcome in outcomes} <= {Outcome.ABORTED, Outcome.TIMED_OUT}
    return {outcome.rank: outcome.caused_by for outcome in outcomes}


ONE, TWO = all_reduce(1), all_reduce(2)
BROADCAST = [call("broadcast", 12, order=12)]
HANGS = {
    "after a cause": ([outcome(2)], {0: BUSY, 1: WAITS}, {}, {0: 2, 1: 2}),
    "after a secondary failure, one is busy": ([SECONDARY], {1: WAITS, 2: BUSY}, {}, {1: 2, 2: None}),
    "after a secondary failure, all wait": ([SECONDARY], {1: WAITS, 2: WAITS}, {}, {1: 0, 2: 0}),
    "without stacks and calls": ([SECONDARY], {1: UNKNOWN}, {}, {1: None}),
    "without user code and calls": ([SECONDARY], {1: REPORTS}, {}, {1: None}),
    "without stacks, behind": ([SECONDARY], {1: UNKNOWN}, {0: TWO, 1: ONE}, {1: None}),
    "without user code, behind": ([SECONDARY], {1: REPORTS}, {0: TWO, 1: ONE}, {1: None}),
    "without stacks, in the same call": ([SECONDARY], {1: UNKNOWN}, {0: TWO, 1: TWO}, {1: 0}),
    "without user code, after the same call": ([SECONDARY], {1: REPORTS}, {0: TWO, 1: TWO}, {1: 0}),
    "without stacks, in another group": (
        [SECONDARY],
        {1: UNKNOWN},
        {0: TWO, 1: all_reduce(1, group="7"), 2: TWO},
        {1: None},
    ),
    "after a secondary failure, one waits for a key": (
        [SECONDARY],
        {1: WAITS, 2: WAITS},
        {0: ONE, 1: [], 2: ONE},
        {1: None, 2: 1},
    ),
    "one of three waits for a key": ([], {1: WAITS, 2: WAITS}, {0: ONE, 1: [], 2: ONE}, {1: None, 2: 1}),
    "one of two waits for a key": ([], {0: WAITS, 1: WAITS}, {0: ONE, 1: []}, {0: 1, 1: None}),
    "one is busy": ([], {0: WAITS, 1: BUSY}, {}, {0: 1, 1: None}),
    "all wait": ([], {0: WAITS, 1: WAITS}, {}, {0: None, 1: None}),
    "one of the busy ranks is behind": (
        [],
        {0: BUSY, 1: BUSY, 2: WAITS},
        {0: all_reduce(3), 1: TWO, 2: all_reduce(3)},
        {0: 1, 1: None, 2: 1},
    ),
    "one polls for a collective": ([], {0: POLLS, 1: BUSY}, {0: ONE, 1: []}, {0: 1, 1: None}),
    "both are busy": ([], {0: BUSY, 1: BUSY}, {0: ONE, 1: []}, {0: None, 1: None}),
    "one waits in another call than most": (
        [],
        dict.fromkeys(range(3), WAITS),
        {0: all_reduce(12), 1: BROADCAST, 2: all_reduce(12)},
        {0: 1, 1: None, 2: 1},
    ),
    "no call has a majority": ([], {0: WAITS, 1: WAITS}, {0: all_reduce(12), 1: BROADCAST}, {0: None, 1: None}),
}


@pytest.mark.parametrize(("earlier", "hangs", "calls", "expected"), HANGS.values(), ids=HANGS)
def test_late_ranks_time_out_and_the_others_are_aborted(earlier, hangs, calls, expected):
    stopped = stop_ranks(earlier, hangs, calls)
    assert aborted_by(stopped) == expected
    assert [outcome.outcome for outcome in stopped] == sorted((outcome.outcome for outcome in stopped), reverse=True)


@pytest.mark.parametrize(
    ("earlier", "hangs", "message"),
    [
        ([0], {1: BUSY}, "rank 0 waited for it; not finished after 9 s; it was in /home/me/test_a.py:7 in loop"),
        ([0, 2], {1: BUSY}, "ranks 0 and 2 waited for it; not finished after 9 s"),
        ([3], {0: WAITS, 1: BUSY, 2: WAITS}, "ranks 0, 2 and 3 waited for it; not finished"),
        ([0, 1, 2], {3: BUSY, 4: WAITS}, "ranks 0-2 and 4 waited for it; not finished after 9 s"),
        ([0], {1: BUSY, 2: BUSY}, "rank 0 waited for it; not finished after 9 s"),
        ([], {0: WAITS, 1: BUSY}, "not finished after 9 s"),
    ],
)
def test_the_message_of_a_time_out_names_the_ranks_that_waited_and_the_limit(earlier, hangs, message):
    failures = [outcome(rank, is_secondary=True) for rank in earlier]
    timed_out = [outcome for outcome in stop_ranks(failures, hangs) if outcome.outcome is Outcome.TIMED_OUT]
    assert timed_out
    assert all(outcome.message.startswith(message) for outcome in timed_out)


def test_a_busy_rank_that_is_not_late_did_not_wait():
    calls = {0: all_reduce(3), 1: TWO, 2: all_reduce(3)}
    first, *_ = stop_ranks([outcome(3, is_secondary=True)], {0: BUSY, 1: BUSY, 2: WAITS}, calls)
    assert first.rank == 1
    assert first.message.startswith("ranks 2 and 3 waited for it; ")


@pytest.mark.parametrize("waits_for", [Wait(1), None])
def test_a_frame_of_the_call_counter_is_a_wait_only_if_the_call_is_logged(waits_for):
    counter = '  File "/x/allranks/agent/rank/call_counter.py", line 9 in wrapper'
    assert waits_for_peers(replace(hang(counter), waits_for=waits_for)) is (waits_for is not None)


def test_the_message_of_a_time_out_has_the_phase_and_the_state_of_the_process():
    phases = {1: [Phase(when="setup", outcome=Outcome.PASSED, duration=0.0)]}
    [stopped] = stop_ranks([], {1: RankHang(held="it is stopped (SIGSTOP)")}, nodeid="t::x", phases=phases)
    assert stopped.message == "not finished after 9 s, in the call of this test; it is stopped (SIGSTOP)"
    assert (stopped.consequence, stopped.observed) == (False, True)


@pytest.mark.parametrize(
    ("kind", "hang", "message"),
    [
        ("failed", WAITS, "aborted by rank 0 while waiting at /home/me/test_a.py:5 in test_a"),
        ("failed", BUSY, "aborted by rank 0 at /home/me/test_a.py:7 in loop"),
        ("failed", UNKNOWN, "aborted by rank 0"),
        (
            "skipped",
            WAITS,
            "aborted by rank 0, which skipped, while waiting at /home/me/test_a.py:5 in test_a",
        ),
        ("skipped", UNKNOWN, "aborted by rank 0, which skipped"),
    ],
)
def test_the_message_of_an_aborted_rank_has_its_location(kind, hang, message):
    first = outcome(0, kind)
    [aborted] = stop_ranks([first], {1: hang}, first_skip=first if kind == "skipped" else None)
    assert (aborted.message, aborted.text) == (message, hang.stacks.text)
    assert (aborted.consequence, aborted.observed) == (True, True)


@pytest.mark.parametrize(
    ("earlier", "kind", "hang", "expected"),
    [
        ([SECONDARY], "skipped", BUSY, 3),
        ([], "xfailed", WAITS, 3),
        ([], "xfailed", BUSY, None),
    ],
)
def test_peers_of_a_skip_are_aborted_and_those_of_an_expected_failure_only_if_they_wait(earlier, kind, hang, expected):
    first_skip = outcome(3, kind)
    assert aborted_by(stop_ranks([*earlier, first_skip], {1: hang}, first_skip=first_skip)) == {1: expected}


EARLIER = st.builds(
    outcome,
    st.integers(0, 3),
    st.sampled_from(["passed", "failed", "crashed", "skipped"]),
    is_secondary=st.booleans(),
)


@given(st.lists(EARLIER, max_size=4), st.sets(st.integers(4, 7), min_size=1), st.data())
def test_every_stopped_rank_gets_one_failure_and_every_abort_has_a_cause(earlier, ranks, data):
    hangs = {rank: data.draw(st.sampled_from([WAITS, BUSY, UNKNOWN])) for rank in ranks}
    stopped = stop_ranks(earlier, hangs)
    assert sorted(outcome.rank for outcome in stopped) == sorted(ranks)
    for outcome in stopped:
        assert outcome.outcome.is_bad
        assert (outcome.outcome is Outcome.ABORTED) == (outcome.caused_by is not None)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ({0: all_reduce(3), 1: all_reduce(3)}, ""),
        ({0: all_reduce(3), 1: all_reduce(2, "5")}, ""),
        ({0: all_reduce(3), 1: all_reduce(3, "5", group="7")}, ""),
        ({0: [call("send", 3, peer=1)], 1: [call("recv", 3, peer=0)]}, ""),
        (
            {0: [call("all_to_all", 3, shape="1")], 1: [call("all_to_all", 3, shape="2")]},
            "",
        ),
        (
            {0: all_reduce(3), 1: [call("broadcast", 3)], 2: all_reduce(3)},
            "ranks 0 and 2 called all_reduce #3, rank 1 broadcast #3",
        ),
        (
            {0: all_reduce(3, "4x2", "7"), 1: all_reduce(3, "", "7")},
            "rank 0 called all_reduce #3 of 4x2 float32, rank 1 all_reduce #3 of scalar float32 of group 7",
        ),
        (
            {0: [call("scatter", 3, dtype="int8", shape="2")], 1: [call("scatter", 3, dtype="")]},
            "rank 0 called scatter #3 of 2 int8, rank 1 scatter #3 without a tensor",
        ),
        (
            {rank: [call("reduce", 3, peer=rank // 2, dtype="int8", shape="2")] for rank in range(3)},
            "ranks 0 and 1 called reduce #3 of 2 int8 with root 0, rank 2 reduce #3 of 2 int8 with root 1",
        ),
    ],
)
def test_a_collective_that_differs_between_ranks_is_described(calls, words):
    assert describe_conflicting_call(calls) == words


@pytest.mark.parametrize(("kind", "primary"), [("crashed", 2), ("failed", 0)])
def test_a_rank_with_another_shape_is_the_cause_of_a_crash_only(kind, primary):
    calls = dict(enumerate([[call("all_gather", dtype="int8", shape=shape)] for shape in ("2", "2", "3")]))
    step = Step(outcomes=[outcome(0, kind, stacks=hang(IN_A_WAIT).stacks), outcome(2, is_secondary=True)])
    explain(step, calls, None)
    assert step.primary_failure.rank == primary
    assert [outcome.caused_by for outcome in step.outcomes if outcome.rank != primary] == [primary]
    assert step.primary_failure.addition.startswith("the ranks' calls differ: ranks 0 and 1 called all_gather")


def timed_out(rank, **more):
    return outcome(rank, "timed_out", **more)


@pytest.mark.parametrize(
    ("outcomes", "explains"),
    [
        ([timed_out(1, observed=True), outcome(0, is_secondary=True)], True),
        ([timed_out(1), outcome(0, is_secondary=True)], False),
        ([outcome(1, observed=True), outcome(0, is_secondary=True)], False),
        ([timed_out(0, observed=True), outcome(1, is_secondary=True)], False),
        ([timed_out(0), timed_out(1)], True),
        ([timed_out(0), outcome(1)], False),
        ([outcome(0, is_secondary=True), outcome(1, is_secondary=True)], True),
        ([outcome(0, is_secondary=True), outcome(1)], False),
    ],
)
def test_calls_in_different_groups_explain_time_outs_and_failures_without_a_cause(outcomes, explains):
    step = Step(outcomes=outcomes)
    explain(step, {0: all_reduce(4), 1: all_reduce(2, group="7"), 2: all_reduce(4)}, None)
    assert ("all_reduce #2 of group 7" in step.primary_failure.addition) is explains
