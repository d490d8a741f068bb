"""The ways to call a worker, and what the tests do with threads and with waiting."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import pytest
from torch.distributed import rpc

T = TypeVar("T")

Call = Callable[[str, Callable[..., Any], Sequence[object]], Any]
"""Calls a function on the worker of that name with those arguments, and returns its result."""

LIMIT = 60.0
"""Seconds that anything here may take before its test fails: long enough for a busy machine."""


def locally(worker: str, function: Callable[..., Any], arguments: Sequence[object]) -> Any:  # noqa: ANN401, ARG001
    """No call at all: what the results of the other ways are compared with."""
    return function(*arguments)


def synchronously(worker: str, function: Callable[..., Any], arguments: Sequence[object]) -> Any:  # noqa: ANN401
    """By ``rpc_sync``."""
    return rpc.rpc_sync(worker, function, args=tuple(arguments))


def asynchronously(worker: str, function: Callable[..., Any], arguments: Sequence[object]) -> Any:  # noqa: ANN401
    """By ``rpc_async``, waiting for its future."""
    return rpc.rpc_async(worker, function, args=tuple(arguments)).wait()


def by_reference(worker: str, function: Callable[..., Any], arguments: Sequence[object]) -> Any:  # noqa: ANN401
    """By ``remote``, fetching the value of its reference."""
    return rpc.remote(worker, function, args=tuple(arguments)).to_here()


def name_of(value: object) -> str:
    """The part of a test's id that names a function."""
    return str(getattr(value, "__name__", value))


any_call = pytest.mark.parametrize("call", [synchronously, asynchronously, by_reference], ids=name_of)


def in_background(function: Callable[[], T]) -> Future[T]:
    """The future result of ``function`` in a thread of its own, which has no context and never outlives the process."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to who waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def in_a_thread(function: Callable[[], T]) -> T:
    """The result of ``function`` in a thread of its own."""
    return in_background(function).result(LIMIT)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition until it holds.

    Raises:
        AssertionError: It did not hold in time.
    """
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {LIMIT:g} s"
        time.sleep(0.002)
