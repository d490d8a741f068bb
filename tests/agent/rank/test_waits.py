"""The current wait of a rank, after calls that began, succeeded and failed in every order."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import CallLog, map_log, open_log, read_wait
from allranks.agent.clock import monotonic_ns
from allranks.agent.rank.call_counter import Waits

BEGIN, END, FAIL = "begin", "succeed", "fail"
STEPS = {
    BEGIN: lambda waits, order: waits.begin(order, monotonic_ns()),
    END: lambda waits, order: waits.succeed(order),
    FAIL: lambda waits, order: waits.fail(order, monotonic_ns()),
    "forgive": lambda waits, _: waits.forgive(),
    "poll": lambda waits, _: waits.poll(),
    "clear": lambda waits, _: waits.clear(),
}


@pytest.fixture(scope="module")
def ends():
    seen, own = open_log()
    yield seen, CallLog(map_log(own))
    os.close(seen)


def after(steps, log):
    log.note_wait(None)
    waits = Waits(log)
    for step, order in steps:
        STEPS[step](waits, order)
    return waits


@pytest.mark.parametrize(
    ("steps", "order"),
    [
        ([], None),
        ([(BEGIN, 1)], 1),
        ([(BEGIN, 1), (END, 1)], None),
        ([(BEGIN, 1), (BEGIN, 2)], 2),
        ([(BEGIN, 2), (BEGIN, 1)], 1),
        ([(BEGIN, 1), (BEGIN, 2), (END, 2)], 1),
        ([(BEGIN, 1), (BEGIN, 2), (END, 1)], 2),
        ([(BEGIN, 1), (FAIL, 1)], 1),
        ([(BEGIN, 1), (FAIL, 1), (BEGIN, 2), (END, 2)], None),
        ([(BEGIN, 1), (BEGIN, 2), (FAIL, 2), (END, 1)], 2),
        ([(BEGIN, 1), (FAIL, 1), (BEGIN, 2)], 1),
        ([(BEGIN, 1), (FAIL, 1), ("forgive", 0)], None),
        ([(BEGIN, 1), (BEGIN, 2), (FAIL, 1), ("forgive", 0)], 2),
        ([(FAIL, 0), (END, 0)], None),
        ([("poll", 0)] * 2, None),
        ([("poll", 0)] * 3, 0),
        ([*[("poll", 0)] * 3, (BEGIN, 1)], 1),
        ([*[("poll", 0)] * 3, (BEGIN, 1), (END, 1)], None),
        ([(BEGIN, 1), (FAIL, 1), ("clear", 0)], None),
    ],
)
def test_the_current_wait_is_the_last_failed_or_the_last_running_call(ends, steps, order):
    wait = after(steps, ends[1]).current
    assert (wait and wait.order) == order


def test_a_call_that_fails_at_once_after_a_wait_in_vain_follows_from_that_wait(ends):
    waits = Waits(ends[1])
    long_ago = monotonic_ns() - 2 * 10**9
    assert [waits.fail(1, monotonic_ns()).order, waits.fail(2, long_ago).order] == [1, 2]
    assert [waits.fail(3, monotonic_ns()).order, waits.fail(4, long_ago).order] == [2, 4]


def test_a_failed_wait_has_the_time_since_its_call_began(ends):
    waits = Waits(ends[1])
    waits.fail(1, monotonic_ns() - 2 * 10**9)
    assert 2 <= waits.current.seconds < 60


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, 4)), max_size=12))
def test_the_supervisor_reads_the_current_wait_or_the_newest_call(ends, steps):
    seen, log = ends
    waits = after(steps, log)
    shown, current = read_wait(seen), waits.current
    assert (shown is None) == (current is None)
    # A call that has just begun is where the rank hangs, if it hangs, whatever has failed before.
    expected = steps[-1][1] if steps and steps[-1][0] == BEGIN else current and current.order
    assert (shown and shown.order) == expected
    waits.begin_other()
    assert read_wait(seen).order == 0
    waits.end_other()
    assert (read_wait(seen) is None) == (current is None)
