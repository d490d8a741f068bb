import json
import os
import subprocess
import sys
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_lists import quick

from allranks.agent.call_log import (
    CallLog,
    Calls,
    Count,
    GroupCalls,
    LastCall,
    Wait,
    compared,
    map_log,
    open_log,
    read_calls,
    read_last_calls,
    read_phase,
    read_wait,
)
from allranks.protocol.typed_json import from_object, to_object

ALL_REDUCE = LastCall("default", 12, "all_reduce", None, "float32", "4x2", 9, mask=3)
SEND = LastCall("3", 7, "send", 1, "int64", "", 8, mask=5)


@pytest.fixture
def ends():
    ends = open_log()
    yield ends
    os.close(ends[0])


@pytest.fixture
def seen(ends):
    return ends[0]


@pytest.fixture
def log(ends):
    return CallLog(map_log(ends[1]))


def test_another_process_reads_the_last_calls_of_each_group(log, seen):
    before = LastCall("default", 11, "broadcast", None, "complex128", "100x100x100", 7, mask=3)
    pid = os.fork()
    if pid == 0:
        first, second = log.open("default", (0, 1)), log.open("3", (2, 0))
        log.note(first, before)
        log.note(first, ALL_REDUCE)
        log.note(second, SEND)
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_last_calls(seen) == [ALL_REDUCE, SEND, before]


def test_the_entry_of_a_destroyed_group_is_reused(log, seen):
    for number in range(1000):
        group = log.open(str(number), ())
        log.note(group, LastCall(str(number), 1, "barrier"))
        assert read_last_calls(seen) == [LastCall(str(number), 1, "barrier")]
        log.close(group)
    assert read_last_calls(seen) == []
    assert read_calls(seen) == Calls()


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_ranks_of_a_group_may_be_numpy_integers(log, seen, kind):
    log.open("default", list(np.array([0, 5, 100], dtype=kind)))
    assert read_calls(seen).groups[0].members == (0, 5, 100)


def test_the_last_calls_are_kept(log, seen):
    group = log.open("default", (0, 1))
    log.note(group, SEND)
    for number in range(1, 101):
        log.note(group, ALL_REDUCE._replace(number=number, order=number + 8))
    assert [call.number for call in read_last_calls(seen)] == [*range(100, 84, -1), SEND.number]


def test_messages_and_the_last_four_collectives_of_each_group_are_compared():
    others = [ALL_REDUCE._replace(group="5", number=number) for number in (3, 2)]
    calls = [*(ALL_REDUCE._replace(number=number) for number in range(100, 84, -1)), SEND, *others]
    assert compared(calls) == [*calls[:4], SEND, *others]


def test_another_process_reads_the_counts_of_a_test_in_each_group(log, seen):
    pid = os.fork()
    if pid == 0:
        log.open("default", (0, 1, 2, 3))
        pair = log.open("1", (3, 0))
        for _ in range(3):
            log.count(pair, "all_reduce of int8")
        for tag in (7, 8, 7):
            log.count(pair, "send", 3, tag)
            log.count(pair, "recv", None, tag)
        log.fail()
        log.close(pair)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    calls = read_calls(seen)
    assert calls.failures == 1
    default, pair = calls.groups
    assert default == GroupCalls(name="default", members=(0, 1, 2, 3))
    assert (pair.name, pair.members, pair.is_closed) == ("1", (0, 3), True)
    collective, sent, received = pair.counts
    assert collective == Count("all_reduce of int8", 3)
    assert (sent.kind, sent.number, sent.peer) == ("send", 3, 3)
    assert (received.number, received.peer, received.tags) == (3, None, sent.tags)


def tags_of(log, seen, tags):
    log.begin()
    group = log.open("default", (0, 1))
    for tag in tags:
        log.count(group, "send", 1, tag)
    [[count]] = [group.counts for group in read_calls(seen).groups if group.counts]
    log.close(group)
    return count


@given(st.lists(st.integers(-3, 3), min_size=1), st.data())
def test_the_sum_of_tags_ignores_their_order(tags, data):
    seen, own = open_log()
    log = CallLog(map_log(own))
    first = tags_of(log, seen, tags)
    assert tags_of(log, seen, data.draw(st.permutations(tags))) == first
    assert tags_of(log, seen, [*tags[1:], 99]).tags != first.tags
    os.close(seen)


def test_begin_clears_counts_and_closed_groups(log, seen):
    kept, closed = log.open("default", (0, 1)), log.open("1", (0,))
    for group in (kept, closed):
        log.count(group, "barrier")
        log.note(group, LastCall("", 1, "barrier", order=1))
        log.note_order(group, ALL_REDUCE)
        log.note_unseen(group, 3)
    log.close(closed)
    log.fail()
    log.begin()
    assert read_calls(seen) == Calls(groups=(GroupCalls(name="default", members=(0, 1)),))
    log.count(kept, "barrier")
    assert read_calls(seen).groups[0].counts == (Count("barrier", 1),)
    assert [call.group for call in read_last_calls(seen)] == ["default"]


@pytest.mark.parametrize("members", quick(1, map(pytest.param, [(0, 1), (5, 2047)])))
def test_a_group_that_does_not_fit_counts_as_a_failed_call_in_each_test(log, seen, members):
    groups = [log.open(str(number), members) for number in range(201)]
    for _ in range(2):
        log.begin()
        log.note(groups[200], ALL_REDUCE)
        assert read_calls(seen).failures == 0
        log.count(groups[200], "barrier")
        assert read_calls(seen).failures == 1
    assert read_last_calls(seen) == []
    assert len(read_calls(seen).groups) == 200


@pytest.mark.parametrize("members", [(0, 2048), range(3000)])
def test_a_group_of_too_many_ranks_counts_as_a_failed_call(log, seen, members):
    log.count(log.open("default", members), "barrier")
    assert read_calls(seen) == Calls(failures=1)


def test_a_counter_that_does_not_fit_counts_as_a_failed_call(log, seen):
    group = log.open("default", range(500))
    for peer in range(500):
        log.count(group, "send", peer)
    calls = read_calls(seen)
    assert [count.peer for count in calls.groups[0].counts] == list(range(400))
    assert calls.failures == 100


STRIDED = "new_group of ranks " + ", ".join(map(str, range(0, 192, 2)))


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        (SEND._replace(shape="x".join(["2"] * 30)), SEND._replace(shape=str(2**30))),
        (ALL_REDUCE._replace(number=2**52, order=2**52, at=2**62, peer=2**52), None),
        (ALL_REDUCE._replace(kind=STRIDED), "new_group of ranks 0, 2"),
        (ALL_REDUCE._replace(kind="gänge" * 50), "gängegänge"),
        (ALL_REDUCE._replace(group="g" * 300, dtype="d" * 300, kind="k" * 300, shape="9x" * 99 + "9", at=2**62), "kkk"),
    ],
)
def test_a_long_call_stays_within_its_entry(log, seen, call, kept):
    members = [rank for rank in range(8) if call.mask >> rank & 1]
    groups = [log.open(call.group, members), log.open("default", (0, 1))]
    log.note(groups[1], ALL_REDUCE._replace(order=1))
    log.note(groups[0], call)
    found, other = read_last_calls(seen)
    assert other == ALL_REDUCE._replace(order=1)
    assert (found.number, found.peer, found.order, found.at) == (call.number, call.peer, call.order, call.at)
    if isinstance(kept, str):
        assert found.kind.startswith(kept)
    else:
        assert found == (kept or call)


def test_long_calls_that_differ_still_differ(log, seen):
    for order, kind in enumerate([STRIDED, f"{STRIDED}, 192"], start=1):
        group = log.open(str(order), ())
        log.note(group, ALL_REDUCE._replace(kind=kind, order=order))
        log.count(group, kind)
    assert len({call.kind for call in read_last_calls(seen)}) == 2
    assert len({count.kind for group in read_calls(seen).groups for count in group.counts}) == 2


@given(st.lists(st.tuples(st.integers(0, 60_000), st.binary(min_size=1, max_size=400))))
def test_any_bytes_in_the_log_can_be_read(patches):
    seen, own = open_log()
    memory = map_log(own)
    log = CallLog(memory)
    log.note(log.open("default", (0, 1)), ALL_REDUCE)
    for at, data in patches:
        memory[at : at + len(data)] = data
    assert read_phase(seen) in ("", "set-up", "call", "tear-down")
    assert isinstance(read_calls(seen), Calls)
    assert all(isinstance(call, LastCall) and call.essence for call in read_last_calls(seen))
    read_wait(seen)
    os.close(seen)


@pytest.mark.parametrize(
    ("where", "field", "value"),
    [
        ("counter", "number", 2**52 + 1),
        ("counter", "number", 2**63 - 1),
        ("counter", "number", -1),
        ("counter", "peer", 2**60),
        ("counter", "peer", -2),
        ("group", "used", -1),
        ("group", "used", 401),
        ("group", "unseen", 2**53),
        ("group", "unseen", -(2**63)),
        ("group", "order", 2**53),
        ("head", "failures", 2**62),
        ("head", "failures", -5),
        ("head", "used", -1),
        ("head", "used", 201),
    ],
)
def test_an_invalid_number_is_a_failed_call_and_can_be_sent(log, seen, where, field, value):
    group = log.open("default", (0, 1))
    log.count(group, "send", 1, 7)
    setattr({"counter": group.counters[0], "group": group, "head": log._log}[where], field, value)
    calls = read_calls(seen)
    assert calls.failures >= 1
    assert from_object(Calls, json.loads(json.dumps(to_object(calls)))) == calls


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_any_sum_of_tags_can_be_sent(tags, unseen):
    seen, own = open_log()
    log = CallLog(map_log(own))
    group = log.open("default", (0, 1))
    log.count(group, "send", 1, 7)
    group.counters[0].tags, group.unseen = tags, unseen
    calls = read_calls(seen)
    assert from_object(Calls, json.loads(json.dumps(to_object(calls)))) == calls
    os.close(seen)


def test_tags_of_millions_of_messages_can_be_sent(log, seen):
    group = log.open("default", (0, 1))
    log.count(group, "send", 1, 7)
    once = read_calls(seen).groups[0].counts[0].tags
    group.counters[0].number, group.counters[0].tags = 2**40 - 1, (2**40 - 1) * once % 2**32
    log.count(group, "send", 1, 7)
    [count] = read_calls(seen).groups[0].counts
    assert (count.number, count.tags) == (2**40, 2**40 * once % 2**32)


@pytest.mark.parametrize("field", ["number", "peer", "order", "tag"])
@pytest.mark.parametrize("value", [2**52 + 1, 2**62, -(2**52) - 1, -(2**63)])
def test_a_call_with_an_invalid_number_is_ignored(log, seen, field, value):
    group = log.open("default", (0, 1))
    log.note(group, ALL_REDUCE)
    log.note(group, SEND)
    setattr(group.calls[16], field, value)
    found = read_last_calls(seen)
    assert found == [ALL_REDUCE]


def test_a_call_is_kept_on_a_host_with_an_uptime_of_a_year(log, seen):
    call = ALL_REDUCE._replace(at=366 * 86400 * 10**9)
    log.note(log.open("default", (0, 1)), call)
    assert read_last_calls(seen) == [call]


@pytest.mark.parametrize(
    ("next_order", "seconds"),
    [(2**52 + 1, 1.0), (2**63 - 1, nan), (-1, 1.0), (0, 1.0), (5, inf), (5, -inf), (5, -0.5), (5, 1e13)],
)
def test_a_wait_with_an_invalid_number_is_ignored(log, seen, next_order, seconds):
    log._log.wait.next_order, log._log.wait.seconds = next_order, seconds
    assert read_wait(seen) is None


@pytest.mark.parametrize("size", [0, 1, 30, 60, 100, 5000])
def test_truncated_memory_can_be_read(log, seen, size):
    log.note(log.open("default", (0, 1)), ALL_REDUCE)
    os.ftruncate(seen, size)
    assert read_last_calls(seen) in ([], [ALL_REDUCE])
    assert read_calls(seen).failures == 1
    if size < 40:
        assert read_calls(seen) == Calls(failures=1)
        assert read_wait(seen) is None


@pytest.mark.parametrize("wait", [None, Wait(), Wait(0, 0.0), Wait(7), Wait(2**40, 1e9)])
def test_another_process_reads_the_wait_of_a_rank(log, seen, wait):
    assert read_wait(seen) is None
    log.note_wait(wait)
    assert read_wait(seen) == wait


def test_messages_are_kept_beside_collectives(log, seen):
    group = log.open("default", (0, 1))
    log.note(group, ALL_REDUCE)
    for number in range(1, 101):
        log.note(group, SEND._replace(group="default", number=number, order=number + 20, tag=3))
    messages = [(call.number, call.tag) for call in read_last_calls(seen) if call.kind == "send"]
    assert messages == [(number, 3) for number in range(100, 84, -1)]
    assert ALL_REDUCE in read_last_calls(seen)


def test_the_counter_notes_the_call_of_a_rank():
    program = """
import torch
from torch import distributed as dist
from allranks.agent.call_log import CallLog, map_log, open_log, read_last_calls
from allranks.agent.rank.call_counter import CallCounter
seen, theirs = open_log()
counter = CallCounter(CallLog(map_log(theirs)))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
counter.watch(dist.group.WORLD)
for _ in range(3):
    dist.all_reduce(torch.ones(4, 2))
group = dist.new_group([0])
dist.all_gather([torch.ones(3)], torch.ones(3), group=group)
print([call._replace(at=0) for call in read_last_calls(seen)])
dist.destroy_process_group(group)
counter.settle()
dist.barrier()
print([call._replace(at=0) for call in read_last_calls(seen)])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    calls = [LastCall("default", number, "all_reduce", None, "float32", "4x2", number, mask=1) for number in (3, 2, 1)]
    made = LastCall("new_group", 1, "new_group of rank 0", order=4)
    assert done.stdout.splitlines() == [
        str([LastCall("1", 1, "all_gather", None, "float32", "3", 5, mask=1), made, *calls]),
        str([LastCall("default", 4, "barrier", order=6, mask=1), made, *calls]),
    ]


FORKS = {
    "collective": "dist.barrier(async_op=True)",
    "new group": "dist.new_group([0])",
    "failure": "dist.broadcast(torch.ones(1), src=5)",
    "own group": "dist.all_reduce(torch.ones(1), group=group, async_op=True)",
    "message": "dist.group.WORLD.recv_anysource([torch.ones(1)], 0)",
}


@pytest.mark.thorough
@pytest.mark.parametrize("call", quick(2, FORKS.values()), ids=FORKS)
def test_calls_of_a_fork_are_not_in_the_log_of_its_rank(call):
    program = f"""
import contextlib, os, torch
from datetime import timedelta
from torch import distributed as dist
from allranks.agent.call_log import CallLog, map_log, open_log, read_calls, read_last_calls, read_wait
from allranks.agent.rank.call_counter import CallCounter
seen, theirs = open_log()
counter = CallCounter(CallLog(map_log(theirs)))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=0.5))
counter.watch(dist.group.WORLD)
dist.barrier()
group = dist.new_group([0])
before = read_calls(seen), read_last_calls(seen), read_wait(seen)
if os.fork() == 0:
    with contextlib.suppress(Exception):
        {call}
    os._exit(0)
os.wait()
assert (read_calls(seen), read_last_calls(seen), read_wait(seen)) == before
dist.all_reduce(torch.ones(1))
assert len(read_last_calls(seen)) == len(before[1]) + 1
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
