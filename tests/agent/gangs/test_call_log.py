import os
import subprocess
import sys

import pytest

from allranks.agent.gangs.call_log import (
    CallLog,
    LastCall,
    Wait,
    blamed,
    map_log,
    open_log,
    read_board,
    read_wait,
)

ALL_REDUCE = LastCall("default", 12, "all_reduce", None, "float32", "4x2", 9)
SEND = LastCall("3", 7, "send", 1, "int64", "", 8)


@pytest.fixture
def ends():
    ends = open_log()
    yield ends
    os.close(ends[0])


@pytest.fixture
def seen(ends):
    return ends[0]


@pytest.fixture
def memory(ends):
    with map_log(ends[1]) as memory:
        yield memory


def test_another_process_reads_the_last_calls_of_each_group(memory, seen):
    before = LastCall("default", 11, "broadcast", None, "complex128", "100x100x100", 7)
    pid = os.fork()
    if pid == 0:
        board = CallLog(memory)
        first, second = board.open(), board.open()
        board.note(first, before)
        board.note(first, ALL_REDUCE)
        board.note(second, SEND)
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_board(seen) == [ALL_REDUCE, SEND, before]


def test_a_group_that_is_gone_leaves_its_slot_to_another(memory, seen):
    board = CallLog(memory)
    for number in range(1000):
        slot = board.open()
        board.note(slot, LastCall(str(number), 1, "barrier"))
        assert read_board(seen) == [LastCall(str(number), 1, "barrier")]
        board.close(slot)
    assert read_board(seen) == []


def test_of_many_calls_the_last_are_kept(memory, seen):
    board = CallLog(memory)
    slot = board.open()
    board.note(slot, SEND)
    for number in range(1, 101):
        board.note(slot, ALL_REDUCE._replace(number=number, order=number + 8))
    assert [call.number for call in read_board(seen)] == [*range(100, 84, -1), SEND.number]


def test_ranks_are_compared_by_messages_and_the_last_four_collectives_of_each_group():
    others = [ALL_REDUCE._replace(group="5", number=number) for number in (3, 2)]
    calls = [*(ALL_REDUCE._replace(number=number) for number in range(100, 84, -1)), SEND, *others]
    assert blamed(calls) == [*calls[:4], SEND, *others]


def test_more_groups_than_slots_do_no_harm(memory, seen):
    board = CallLog(memory)
    for _ in range(1000):
        board.note(board.open(), ALL_REDUCE)
    assert set(read_board(seen)) == {ALL_REDUCE}


STRIDED = "new_group of ranks " + ", ".join(map(str, range(0, 192, 2)))


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        (SEND._replace(shape="x".join(["2"] * 30)), SEND._replace(shape=str(2**30))),
        (ALL_REDUCE._replace(number=2**63, order=2**63, at=2**63, peer=2**63), None),
        (ALL_REDUCE._replace(kind=STRIDED), "new_group of ranks 0, 2"),
        (ALL_REDUCE._replace(kind="gänge" * 50), "gängegänge"),
        (ALL_REDUCE._replace(group="g" * 300, dtype="d" * 300, kind="k" * 300, shape="9x" * 99 + "9", at=2**63), "kkk"),
    ],
)
def test_a_long_call_stays_in_its_line(memory, seen, call, kept):
    board = CallLog(memory)
    slots = [board.open(), board.open()]
    board.note(slots[1], ALL_REDUCE._replace(order=1))
    board.note(slots[0], call)
    found, other = read_board(seen)
    assert other == ALL_REDUCE._replace(order=1)
    assert (found.number, found.peer, found.order, found.at) == (call.number, call.peer, call.order, call.at)
    if isinstance(kept, str):
        assert found.kind.startswith(kept)
    else:
        assert found == (kept or call)


def test_long_calls_that_differ_still_differ(memory, seen):
    board = CallLog(memory)
    calls = [ALL_REDUCE._replace(kind=STRIDED, order=1), ALL_REDUCE._replace(kind=f"{STRIDED}, 192", order=2)]
    for call in calls:
        board.note(board.open(), call)
    assert len({call.kind for call in read_board(seen)}) == 2


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 300, b"0\t1\tbroadcast\t0\tf\t4xa\t1\t1", b"a\tb\tc\td\te\tf", b"\t" * 20]
)
def test_garbage_is_left_out(memory, seen, garbage):
    memory[: len(garbage)] = garbage
    assert read_board(seen) == []


@pytest.mark.usefixtures("memory")
def test_a_memory_that_was_cut_short_is_empty(seen):
    os.ftruncate(seen, 0)
    assert read_board(seen) == []
    assert read_wait(seen) is None


@pytest.mark.parametrize("wait", [None, Wait(), Wait(0, 0.0), Wait(7), Wait(2**40, 1e9)])
def test_another_process_reads_what_a_rank_waits_for(memory, seen, wait):
    assert read_wait(seen) is None
    CallLog(memory).note_wait(wait)
    assert read_wait(seen) == wait


def test_messages_are_kept_beside_collectives(memory, seen):
    board = CallLog(memory)
    slot = board.open()
    board.note(slot, ALL_REDUCE)
    for number in range(1, 101):
        board.note(slot, SEND._replace(group="default", number=number, order=number + 20, tag=3))
    messages = [(call.number, call.tag) for call in read_board(seen) if call.kind == "send"]
    assert messages == [(number, 3) for number in range(100, 84, -1)]
    assert ALL_REDUCE in read_board(seen)


def test_the_counter_notes_what_a_rank_is_in():
    program = """
import torch
from torch import distributed as dist
from allranks.agent.gangs.call_log import CallLog, map_log, open_log, read_board
from allranks.agent.ranks.call_counter import CallCounter
seen, theirs = open_log()
counter = CallCounter(CallLog(map_log(theirs)))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
counter.watch(dist.group.WORLD)
for _ in range(3):
    dist.all_reduce(torch.ones(4, 2))
group = dist.new_group([0])
dist.all_gather([torch.ones(3)], torch.ones(3), group=group)
print([call._replace(at=0) for call in read_board(seen)])
dist.destroy_process_group(group)
counter.take()
dist.barrier()
print([call._replace(at=0) for call in read_board(seen)])
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
