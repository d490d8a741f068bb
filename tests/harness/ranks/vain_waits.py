"""Waits of one rank, in vain or not. As a program it makes them all, and prints after which the counter says in vain.

A process of its own, because a counter wraps torch's methods for good.
"""

import contextlib
import json
import unittest

import pytest
import torch
from torch import distributed

from allranks.harness.gangs.call_board import CallBoard, map_board, open_board, read_wait
from allranks.harness.ranks.call_counter import CallCounter

ACTS = {}


def act(function):
    ACTS[function.__name__] = function
    return function


def ended(result):
    future = torch.futures.Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


def wait_in_vain():
    ended(RuntimeError("Timed out waiting 500ms for recv operation to complete")).wait()


@act
def nothing():
    """Waits for nobody."""


@act
def swallows():
    with contextlib.suppress(RuntimeError):
        wait_in_vain()


@act
def swallows_and_has_its_peer_later():
    swallows()
    ended(1).wait()


@act
def swallows_what_has_nothing_to_do_with_a_peer():
    with contextlib.suppress(RuntimeError):
        ended(RuntimeError("of another shape")).wait()


@act
def expects_it():
    with pytest.raises(RuntimeError, match="Timed out"):
        wait_in_vain()


@act
def expects_it_by_unittest():
    with unittest.TestCase().assertRaises(RuntimeError):  # noqa: PT027 - the other way
        wait_in_vain()


@act
def expects_something_else():
    with contextlib.suppress(AssertionError), pytest.raises(RuntimeError, match="mismatch"):
        wait_in_vain()


@act
def polls_a_store():
    store = distributed.HashStore()
    assert not any(store.check(["ready"]) for _ in range(3))


@act
def polls_a_store_until_it_is_ready():
    store = distributed.HashStore()
    assert not any(store.check(["ready"]) for _ in range(3))
    store.set("ready", "1")
    assert store.check(["ready"])


def added_by_a_peer(store, number):
    distributed.HashStore.add.__wrapped__(store, "arrived", number)


@act
def polls_a_number():
    store = distributed.HashStore()
    assert [store.add("arrived", each) for each in (1, 0, 0, 0, 0)] == [1] * 5


@act
def polls_a_number_until_it_grows():
    store = distributed.HashStore()
    assert [store.add("arrived", 0) for _ in range(4)] == [0] * 4
    added_by_a_peer(store, 1)
    assert store.add("arrived", 0) == 1


@act
def adds_again_and_again():
    store = distributed.HashStore()
    assert [store.add("arrived", 1) for _ in range(4)] == [1, 2, 3, 4]


def main():
    """Print the names of those after which the counter says so."""
    seen, own = open_board()
    counter = CallCounter(CallBoard(map_board(own)))
    in_vain = []
    for name, function in ACTS.items():
        function()
        assert read_wait(seen) == counter.has_waited_in_vain
        if counter.has_waited_in_vain:
            in_vain.append(name)
        counter.take()
        assert not counter.has_waited_in_vain
    print(json.dumps(in_vain))


if __name__ == "__main__":
    main()
