"""Waits of one rank. As a program, it makes them all and prints whether the call counter has a failed wait after each.

This needs its own process, because a counter wraps torch's methods permanently.
"""

import contextlib
import json
import tempfile
import time
import unittest
from datetime import timedelta

import pytest
import torch
from torch import distributed

from allranks.agent.call_log import CallLog, map_log, open_log, read_wait
from allranks.agent.rank.call_counter import CallCounter
from allranks.agent.rank.reports import waited_for

ACTS = {}


def act(function):
    ACTS[function.__name__] = function
    return function


def shared_store():
    return distributed.FileStore(tempfile.mktemp(), 2)  # noqa: S306 - torch makes the file


def ended(result):
    """A future like that of a remote call."""
    future = torch._C.Future([])
    if isinstance(result, Exception):
        future._set_unwrap_func(lambda _: fail(result))
    future.set_result(result)
    return future


def fail(error):
    raise error


def failing_wait():
    ended(RuntimeError("an unknown message")).wait()


@act
def nothing():
    """Wait for no rank."""


@act
def swallows():
    with contextlib.suppress(RuntimeError):
        failing_wait()


@act
def swallows_and_has_its_peer_later():
    swallows()
    ended(1).wait()


@act
def expects_it():
    with pytest.raises(RuntimeError, match="an unknown message"):
        failing_wait()


@act
def expects_it_by_unittest():
    with unittest.TestCase().assertRaises(RuntimeError):  # noqa: PT027 - the other way
        failing_wait()


@act
def expects_something_else():
    with contextlib.suppress(AssertionError), pytest.raises(RuntimeError, match="mismatch"):
        failing_wait()


@act
def polls_a_store():
    store = shared_store()
    for _ in range(3):
        time.sleep(0.03)
        assert not store.check(["ready"])


@act
def polls_a_store_until_it_is_ready():
    store = shared_store()
    assert not any(store.check(["ready"]) for _ in range(3))
    store.set("ready", "1")
    assert store.check(["ready"])


def added_by_a_peer(store, number):
    distributed.FileStore.add.__wrapped__(store, "arrived", number)


@act
def polls_a_number():
    store = shared_store()
    assert [store.add("arrived", number) for number in (1, 0, 0, 0, 0)] == [1] * 5


@act
def polls_a_number_until_it_grows():
    store = shared_store()
    assert [store.add("arrived", 0) for _ in range(4)] == [0] * 4
    added_by_a_peer(store, 1)
    assert store.add("arrived", 0) == 1


@act
def adds_again_and_again():
    store = shared_store()
    assert [store.add("arrived", 1) for _ in range(4)] == [1, 2, 3, 4]


@act
def polls_a_store_of_its_own():
    store = distributed.PrefixStore("own", distributed.HashStore())
    for _ in range(5):
        assert not store.check(["ready"])


@act
def expects_something_of_its_own_after_a_wait():
    swallows()
    with pytest.raises(ZeroDivisionError):
        1 / 0  # noqa: B018 - it raises


@act
def gets_what_is_there():
    store = distributed.HashStore()
    store.set("here", "1")
    assert store.get("here") == b"1"


FAILING = {}


def failing(function):
    FAILING[function.__name__] = function
    return function


@failing
def waits_for_a_key():
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(f"{folder}/store", 1)
        store.set_timeout(timedelta(seconds=0.1))
        store.get("nobody sets it")


@failing
def waits_for_several_keys():
    shared_store().wait(["nobody", "sets them"], timedelta(seconds=0.1))


@failing
def waits_for_a_server():
    distributed.init_process_group(
        "gloo", init_method="tcp://127.0.0.1:1", rank=1, world_size=2, timeout=timedelta(seconds=1)
    )


@failing
def waits_for_the_result_of_a_call():
    ended(ValueError("anything")).value()


@failing
def waits_for_a_store_of_its_own():
    distributed.PrefixStore("own", distributed.HashStore()).wait(["nobody"], timedelta(seconds=0.2))


@failing
def waits_for_a_future_of_its_own():
    future = torch.futures.Future()
    future.set_exception(RuntimeError("timed out"))
    future.wait()


@failing
def gives_a_wrong_root():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        distributed.broadcast(torch.ones(1), src=5)
    finally:
        distributed.destroy_process_group()


@failing
def raises_what_torch_raises():
    message = "connection reset by peer"
    raise distributed.DistNetworkError(message)


@failing
def uses_a_store_wrongly():
    distributed.HashStore().get(7)


def main():
    """Print the seconds of each failed wait at its end, or None."""
    seen, own = open_log()
    counter = CallCounter(CallLog(map_log(own)), 1)
    found = {}
    for name, function in ACTS.items():
        function()
        assert (read_wait(seen) is None) == (counter.waits.current is None)
        found[name] = counter.waits.current is not None
        counter.settle()
        assert counter.waits.current is None
        assert read_wait(seen) is None
    for name, function in FAILING.items():
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever torch raises
            counter.mark(error)
            wait = waited_for(error)
            found[name] = wait is not None and wait.was_long
        counter.settle()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
