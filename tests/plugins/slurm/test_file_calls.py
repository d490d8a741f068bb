"""Calls on a file system that hangs."""

import threading

import pytest

from allranks.plugins.slurm.file_calls import FileCalls, call_in_thread


def test_calls_are_made_in_their_order():
    calls, made = FileCalls(), []
    for number in range(9):
        calls.submit(lambda number=number: made.append(number))
    assert calls.call(lambda: list(made), 10) == list(range(9))
    calls.close()


def test_an_answer_that_does_not_come_is_an_error_of_the_file_system():
    awake = threading.Event()
    with pytest.raises(OSError, match=r"has not answered for 0\.05 s"):
        call_in_thread(awake.wait, 0.05)
    awake.set()


def test_what_a_call_raises_is_its_callers():
    with pytest.raises(KeyError):
        call_in_thread(lambda: {}["a"], 10)
