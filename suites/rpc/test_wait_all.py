"""Waiting for many calls at once: ``torch.futures.wait_all``, and the block that collects its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import rpc

from allranks.testing import get_timeout_error_regex

from .gates import closed_gate, wait_at
from .sent import numbers_of, refuse, same, scripted


@scripted
def scripted_refusal(who: str) -> Tensor:
    """Raise in TorchScript."""
    raise ValueError("refused in a script for " + who)


def collected() -> list[Any]:
    """The calls that the block has collected so far in this thread."""
    return list(rpc.api._thread_local_var.future_list)  # noqa: SLF001 - torch shows them nowhere else


@contextmanager
def collecting() -> Iterator[None]:
    """The block of torch, and the check that it leaves nothing behind."""
    try:
        with rpc.api._wait_all():  # noqa: SLF001 - it has no public name
            assert collected() == []
            yield
    finally:
        assert not hasattr(rpc.api._thread_local_var, "future_list")  # noqa: SLF001 - as above


def test_block_waits_for_its_calls(rank: int, peer: str) -> None:
    """At its end each call is done, without a wait for it."""
    with collecting():
        futures = [rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), number)) for number in range(5)]
        assert collected() == futures
    assert all(future.done() for future in futures)
    for number, future in enumerate(futures):
        assert same(future.value(), numbers_of(rank) + number)


def test_block_collects_asynchronous_calls_alone(rank: int, peer: str) -> None:
    """Calls that were waited for count, too; synchronous ones do not."""
    with collecting():
        for number in range(20):
            future = rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), number))
            assert same(rpc.rpc_sync(peer, torch.mul, args=(numbers_of(rank), number)), numbers_of(rank) * number)
            assert same(future.wait(), numbers_of(rank) + number)
        assert len(collected()) == 20


def test_block_ends_with_a_calls_timeout(peer: str) -> None:
    """The time limit is that of the call."""
    with closed_gate(peer) as gate, pytest.raises(RuntimeError, match=get_timeout_error_regex()), collecting():
        rpc.rpc_async(peer, wait_at, args=(gate,), timeout=0.1)


def test_block_ends_with_the_callees_error(peer: str) -> None:
    """Also if nobody waits for that call."""
    with pytest.raises(ValueError, match=f"refused by {peer}"), collecting():
        rpc.rpc_async(peer, refuse)


def test_block_lets_an_error_of_its_body_pass(peer: str) -> None:
    """It is the body's own error that leaves it."""
    with pytest.raises(KeyError, match=peer), collecting():
        raise KeyError(peer)


def test_all_fail(peer: str) -> None:
    """One of the errors is raised."""
    futures = [rpc.rpc_async(peer, refuse) for _ in range(10)]
    with pytest.raises(ValueError, match=f"refused by {peer}"):
        torch.futures.wait_all(futures)


def test_one_of_many_fails(rank: int, peer: str) -> None:
    """Its error is raised, and the results of the others are there."""
    futures = [rpc.rpc_async(peer, torch.add, args=(numbers_of(rank), number)) for number in range(10)]
    with pytest.raises(ValueError, match=f"refused by {peer}"):
        torch.futures.wait_all([*futures, rpc.rpc_async(peer, refuse)])
    for number, future in enumerate(futures):
        assert same(future.wait(), numbers_of(rank) + number)


MISFITS = (torch.ones(10), torch.ones(5))
"""Tensors that cannot be added."""


@pytest.mark.parametrize("kind", ["python", "builtin", "script"])
def test_error_is_not_held_back_by_a_call_that_lasts(rank: int, peer: str, kind: str) -> None:
    """The error is raised while the first call still waits, whatever kind of function raised it."""
    calls: dict[str, tuple[Any, tuple[object, ...], str]] = {
        "python": (refuse, (), f"refused by {peer}"),
        "builtin": (torch.add, MISFITS, "size of tensor"),
        "script": (scripted_refusal, (f"rank {rank}",), f"refused in a script for rank {rank}"),
    }
    function, args, message = calls[kind]
    with closed_gate(peer) as gate:
        lasting = rpc.rpc_async(peer, wait_at, args=(gate, rank))
        failing = [rpc.rpc_async(peer, function, args=args) for _ in range(2)]
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.futures.wait_all([lasting, *failing])
        assert not lasting.done()
    assert lasting.wait() == rank
