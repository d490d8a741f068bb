import mmap
import os
import subprocess
import sys

import pytest

from allranks.harness.ranks.call_board import BOARD_BYTES, CallBoard, LastCall, read_board

ALL_REDUCE = LastCall("default", 12, "all_reduce", None, "float32", "4x2")
SEND = LastCall("3", 7, "send", 1, "int64", "")


@pytest.fixture
def memory():
    with mmap.mmap(-1, BOARD_BYTES) as memory:
        yield memory


def test_another_process_reads_the_last_call_of_each_group(memory):
    pid = os.fork()
    if pid == 0:
        board = CallBoard(memory)
        first, second = board.open(), board.open()
        board.note(first, LastCall("default", 11, "broadcast", None, "complex128", "100x100x100"))
        board.note(first, ALL_REDUCE)
        board.note(second, SEND)
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_board(memory) == [ALL_REDUCE, SEND]


def test_a_group_that_is_gone_leaves_its_slot_to_another(memory):
    board = CallBoard(memory)
    for number in range(1000):
        slot = board.open()
        board.note(slot, LastCall(str(number), 1, "barrier"))
        assert read_board(memory) == [LastCall(str(number), 1, "barrier")]
        board.close(slot)
    assert read_board(memory) == []


def test_more_groups_than_slots_do_no_harm(memory):
    board = CallBoard(memory)
    for _ in range(1000):
        board.note(board.open(), ALL_REDUCE)
    assert set(read_board(memory)) == {ALL_REDUCE}


def test_a_long_shape_stays_in_its_slot(memory):
    board = CallBoard(memory)
    slots = [board.open(), board.open()]
    board.note(slots[1], ALL_REDUCE)
    board.note(slots[0], SEND._replace(shape="1x" * 1000))
    assert read_board(memory)[-1] == ALL_REDUCE


@pytest.mark.parametrize("garbage", [b"\xff" * 300, b"a\tb\tc\td\te\tf", b"\t" * 20])
def test_garbage_is_left_out(memory, garbage):
    memory[: len(garbage)] = garbage
    assert read_board(memory) == []


def test_the_counter_notes_what_a_rank_is_in():
    program = """
import mmap, torch
from torch import distributed as dist
from allranks.harness.ranks.call_board import BOARD_BYTES, CallBoard, read_board
from allranks.harness.ranks.call_counter import CallCounter
memory = mmap.mmap(-1, BOARD_BYTES)
counter = CallCounter(CallBoard(memory))
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
counter.watch(dist.group.WORLD)
for _ in range(3):
    dist.all_reduce(torch.ones(4, 2))
group = dist.new_group([0])
dist.all_gather([torch.ones(3)], torch.ones(3), group=group)
print(read_board(memory))
dist.destroy_process_group(group)
counter.take()
dist.barrier()
print(read_board(memory))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    first = LastCall("default", 3, "all_reduce", None, "float32", "4x2")
    assert done.stdout.splitlines() == [
        str([first, LastCall("1", 1, "all_gather", None, "float32", "3")]),
        str([LastCall("default", 4, "barrier")]),
    ]
